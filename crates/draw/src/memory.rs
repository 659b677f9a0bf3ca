//! Memory of every stage as a stacked bar against the device's edge.

use crate::palette::{EDGE, FREE, INK, LINE, PAPER, SOFT};
use crate::parts::{PARTS, part_of};
use crate::scale::{gib, step, tick, ticks};
use crate::svg::{About, Anchor, Canvas, Font, width};
use crate::{Options, Undrawn};
use serde::Deserialize;
use serde_json::Value;
use units::Bytes;

/// What is drawn of an answer of `fit`.
#[derive(Deserialize)]
pub struct Fit {
    pub recipe: String,
    pub verdict: String,
    pub device_bytes: u64,
    pub headroom_bytes: u64,
    pub hardware: Hardware,
    pub case: Case,
    pub rank_classes: Vec<Class>,
    pub worst: usize,
}

#[derive(Deserialize)]
pub struct Case {
    pub cluster: Cluster,
}

#[derive(Deserialize)]
pub struct Cluster {
    pub typed: String,
}

#[derive(Deserialize)]
pub struct Hardware {
    pub device: Device,
}

#[derive(Deserialize)]
pub struct Device {
    pub name: String,
}

#[derive(Deserialize)]
pub struct Class {
    pub stage: u64,
    pub ranks: Ranks,
    pub params: u64,
    pub total_bytes: u64,
    pub headroom_bytes: i64,
    pub peak_block: String,
    pub peak_phase: String,
    pub lines: Vec<Line>,
    pub phases: Vec<Phase>,
}

#[derive(Deserialize)]
pub struct Ranks {
    pub first: u64,
    pub count: u64,
}

#[derive(Deserialize)]
pub struct Line {
    pub line: String,
    pub bytes: u64,
    basis: Value,
    scales_with: String,
    ignores: String,
}

#[derive(Deserialize)]
pub struct Phase {
    pub phase: String,
    pub what: String,
    pub allocated_peak_bytes: Option<u64>,
    #[serde(default)]
    pub reserved_peak_bytes: u64,
    #[serde(default)]
    pub outside_bytes: u64,
    #[serde(default)]
    pub device_bytes: u64,
    #[serde(default)]
    pub forward_loss_backward_bytes: Option<[u64; 3]>,
}

impl Ranks {
    /// In words.
    pub fn words(&self) -> String {
        match self.count {
            1 => format!("rank {}", self.first),
            count => format!("ranks {}-{}", self.first, self.first.saturating_add(count.saturating_sub(1))),
        }
    }
}

impl Line {
    /// What a pointer finds.
    pub fn about(&self) -> About {
        let basis = match &self.basis {
            Value::String(word) => word.clone(),
            Value::Object(map) => {
                let said = map.iter().next();
                said.map_or(String::new(), |(word, source)| format!("{word}: {}", source.as_str().unwrap_or_default()))
            }
            _ => String::new(),
        };
        About::tip([
            format!("{}: {}", self.line, Bytes(self.bytes)),
            basis,
            format!("scales with {}", self.scales_with),
            format!("does not care about {}", self.ignores),
        ])
        .data("line", &self.line)
    }
}

impl Fit {
    /// The class that is looked at closely.
    pub fn class(&self, stage: Option<u64>) -> Result<&Class, Undrawn> {
        let asked = |class: &&Class| Some(class.stage) == stage;
        let found = match stage {
            Some(_) => self.rank_classes.iter().find(asked),
            None => self.rank_classes.get(self.worst),
        };
        found.ok_or_else(|| Undrawn(format!("there is no stage {} in this answer", stage.unwrap_or_default())))
    }

    /// The job in a few words.
    pub fn name(&self) -> String {
        format!("{} on {}", self.recipe, self.case.cluster.typed)
    }

    /// The verdict in words.
    pub fn verdict(&self) -> String {
        self.verdict.replace('-', " ")
    }
}

/// Bars at most; of more stages, some between are left out.
const MOST_BARS: usize = 48;

/// Classes that are shown: all, or the worst and others evenly between first and last.
fn shown(fit: &Fit) -> Vec<&Class> {
    let all = fit.rank_classes.len();
    if all <= MOST_BARS {
        return fit.rank_classes.iter().collect();
    }
    let mut picked: Vec<usize> = (0..MOST_BARS - 1).map(|i| i * (all - 1) / (MOST_BARS - 2)).collect();
    picked.push(fit.worst.min(all - 1));
    picked.sort_unstable();
    picked.dedup();
    picked.into_iter().map(|at| &fit.rank_classes[at]).collect()
}

/// Where bars stand.
struct Frame {
    left: f64,
    right: f64,
    most: f64,
}

impl Frame {
    fn at(&self, bytes: f64) -> f64 {
        self.left + (self.right - self.left) * (bytes / self.most).min(1.0)
    }
}

/// Draws it.
pub fn draw(fit: &Fit, options: &Options) -> Result<String, Undrawn> {
    let worst = fit.class(None)?;
    let classes = shown(fit);
    let mut canvas = Canvas::new(options);
    let largest = fit.rank_classes.iter().map(|class| class.total_bytes).max().unwrap_or(0).max(fit.device_bytes);
    let device = fit.device_bytes.max(1) as f64;
    // A bar that is far over is cut: how far is in its number.
    let most = (largest as f64 * 1.03).min(device * 10.0);
    let (left, right) = if options.narrow { (12.0, 378.0) } else { (130.0, 850.0) };
    let frame = Frame { left, right, most };
    let title = format!("{}: {}", fit.name(), fit.verdict());
    let left_words = match u64::try_from(worst.headroom_bytes) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(worst.headroom_bytes.unsigned_abs())),
    };
    let said = format!(
        "worst: stage {} ({}), {} of {}, {left_words}; {} asked to stay free",
        worst.stage,
        worst.ranks.words(),
        Bytes(worst.total_bytes),
        Bytes(fit.device_bytes),
        Bytes(fit.headroom_bytes)
    );
    let foot = canvas.heading(&title, &said);
    let top = edge_words(&mut canvas, fit, &frame, foot + 22.0);
    let bottom = bars(&mut canvas, fit, &classes, &frame, top, options);
    axis(&mut canvas, &frame, bottom + 4.0);
    let legend: Vec<(&str, String)> = PARTS
        .iter()
        .map(|part| (part, worst.lines.iter().filter(|l| part_of(&l.line) == part).map(|l| l.bytes).sum::<u64>()))
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(part, bytes)| (part.colour.fill, format!("{} {}", part.name, Bytes(bytes))))
        .collect();
    let mut end = canvas.legend(12.0, bottom + 34.0, canvas.width - 12.0, &legend);
    let soft = Font { fill: SOFT, ..Font::default() };
    let of = format!(
        "figures beside the colours: stage {}, at its peak in {} ({})",
        worst.stage, worst.peak_block, worst.peak_phase
    );
    end = canvas.paragraph(12.0, end + 10.0, soft, &of, canvas.width - 24.0);
    end = lines(&mut canvas, fit.class(options.stage)?, end + 12.0, options);
    if classes.len() < fit.rank_classes.len() {
        let note = format!("{} of {} stages are shown", classes.len(), fit.rank_classes.len());
        end = canvas.paragraph(12.0, end + 17.0, soft, &note, canvas.width - 24.0);
    }
    Ok(canvas.finish(end + 14.0, &title, &said))
}

/// What the two lines over the bars mean; gives where bars begin.
fn edge_words(canvas: &mut Canvas, fit: &Fit, frame: &Frame, y: f64) -> f64 {
    let words = format!("{} shows {}", fit.hardware.device.name, Bytes(fit.device_bytes));
    let at = frame.at(fit.device_bytes as f64);
    let font = Font { size: 11.0, fill: EDGE, anchor: Anchor::End, ..Font::default() };
    canvas.text_within(
        at.max(12.0 + width(&words, 11.0)).min(canvas.width - 12.0),
        y,
        font,
        &words,
        canvas.width - 24.0,
    );
    y + 12.0
}

/// The device's edge and what is asked to stay free, over one bar.
fn edges(canvas: &mut Canvas, fit: &Fit, frame: &Frame, [y, tall]: [f64; 2]) {
    let edge = frame.at(fit.device_bytes as f64);
    canvas.line([edge, y - 2.0, edge, y + tall + 2.0], EDGE, 2.0, "");
    if fit.headroom_bytes > 0 && fit.headroom_bytes < fit.device_bytes {
        let asked = frame.at((fit.device_bytes - fit.headroom_bytes) as f64);
        canvas.line([asked, y - 2.0, asked, y + tall + 2.0], EDGE, 1.0, "4 3");
    }
}

/// The bars; gives where they end.
fn bars(canvas: &mut Canvas, fit: &Fit, classes: &[&Class], frame: &Frame, top: f64, options: &Options) -> f64 {
    let beside = !options.narrow;
    let tall = (560.0 / classes.len() as f64).clamp(12.0, 30.0);
    let gap = if tall < 16.0 { 3.0 } else { 8.0 };
    let mut y = top;
    for class in classes {
        let is_worst = std::ptr::eq(*class, &fit.rank_classes[fit.worst]);
        let name = format!("stage {}", class.stage);
        let total = Bytes(class.total_bytes).to_string();
        let font = Font { bold: is_worst, ..Font::default() };
        let about = About::tip([
            format!("{name}, {}: {total}", class.ranks.words()),
            format!("{} parameters a rank", units::count(class.params)),
            format!("peak in {} during {}", class.peak_block, class.peak_phase),
        ])
        .data("stage", class.stage);
        if beside {
            let middle = y + tall / 2.0 + 4.0;
            canvas.text(12.0, middle, font, &name);
            let ranks = Font { size: 10.0, fill: SOFT, ..Font::default() };
            if tall > 24.0 {
                canvas.text_within(
                    12.0 + width("stage 000", 12.0) - 4.0,
                    middle,
                    ranks,
                    &class.ranks.words().replace("ranks ", ""),
                    60.0,
                );
            }
            canvas.text(frame.right + 8.0, middle, font, &total);
        } else {
            canvas.text(12.0, y + 11.0, font, &format!("{name} · {}", class.ranks.words()));
            canvas.text(frame.right, y + 11.0, Font { anchor: Anchor::End, ..font }, &total);
            y += 16.0;
        }
        canvas.rect([frame.left, y, frame.at(fit.device_bytes as f64) - frame.left, tall], FREE, &about);
        segments(canvas, class, frame, [y, tall], fit.device_bytes);
        edges(canvas, fit, frame, [y, tall]);
        y += tall + gap;
    }
    y
}

/// One bar, a segment a line.
fn segments(canvas: &mut Canvas, class: &Class, frame: &Frame, [y, tall]: [f64; 2], device: u64) {
    let mut sum = 0.0;
    for part in PARTS {
        for line in class.lines.iter().filter(|line| line.bytes > 0 && part_of(&line.line) == part) {
            let from = frame.at(sum);
            sum += line.bytes as f64;
            let wide = frame.at(sum) - from;
            canvas.rect(
                [from, y, wide, tall],
                part.colour.fill,
                &line.about().data("stage", class.stage).data("case", "now"),
            );
            if wide > 3.0 {
                canvas.line([from + wide, y, from + wide, y + tall], PAPER, 0.8, "");
            }
            let size = 10.5;
            if tall >= 14.0 && width(&line.line, size) + 8.0 <= wide {
                let font = Font { size, fill: part.colour.text, ..Font::default() };
                canvas.text(from + 4.0, y + tall / 2.0 + 3.8, font, &line.line);
            }
        }
    }
    if class.total_bytes > device {
        let from = frame.at(device as f64);
        canvas.outline([from, y, frame.at(sum) - from, tall], EDGE, "", &About::default());
    }
}

/// The lines of one class, each with a bar of its own; gives the foot of the last.
fn lines(canvas: &mut Canvas, class: &Class, top: f64, options: &Options) -> f64 {
    let head = format!("Stage {} at its peak, line by line", class.stage);
    canvas.text(12.0, top + 12.0, Font { bold: true, ..Font::default() }, &head);
    let (left, right) = if options.narrow { (150.0, 300.0) } else { (170.0, 850.0) };
    let most = class.lines.iter().map(|line| line.bytes).max().unwrap_or(0).max(1) as f64;
    let mut y = top + 20.0;
    for part in PARTS {
        for line in class.lines.iter().filter(|line| line.bytes > 0 && part_of(&line.line) == part) {
            let about = line.about().data("stage", class.stage).data("case", "now");
            let wide = (right - left) * line.bytes as f64 / most;
            canvas.text_within(12.0, y + 12.0, Font::default(), &line.line, left - 18.0);
            canvas.rect([left, y, right - left, 16.0], FREE, &about);
            canvas.rect([left, y, wide.max(1.0), 16.0], part.colour.fill, &about);
            let font = Font { anchor: Anchor::End, ..Font::default() };
            canvas.text(canvas.width - 12.0, y + 12.0, font, &Bytes(line.bytes).to_string());
            y += 20.0;
        }
    }
    y - 4.0
}

/// Gibibytes below the bars.
fn axis(canvas: &mut Canvas, frame: &Frame, y: f64) {
    let most = gib(frame.most);
    let every = step(most, (frame.right - frame.left) / 70.0);
    canvas.line([frame.left, y - 4.0, frame.right, y - 4.0], LINE, 1.0, "");
    let ticks = ticks(0.0, most, every);
    for (number, value) in ticks.iter().enumerate() {
        let x = frame.at(value * (1u64 << 30) as f64);
        canvas.line([x, y - 4.0, x, y], INK, 1.0, "");
        let unit = if number + 1 == ticks.len() { " GiB" } else { "" };
        let anchor = if number == 0 { Anchor::Start } else { Anchor::Middle };
        let words = format!("{}{unit}", tick(*value, every));
        let reach = canvas.width - 6.0 - width(&words, 10.5) / 2.0;
        canvas.text(x.min(reach), y + 11.0, Font { size: 10.5, fill: SOFT, anchor, ..Font::default() }, &words);
    }
}
