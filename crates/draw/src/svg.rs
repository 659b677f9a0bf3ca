//! What is drawn on: rectangles, lines and texts that know how wide they are. The only place that writes SVG.

use crate::Options;
use crate::palette::{INK, PAPER, SOFT};
use diag::quote;
use std::fmt::Write;

/// The font that texts are measured in.
pub const FAMILY: &str = "DejaVu Sans";

/// Size of most text; 10 is the least there is.
pub const TEXT: f64 = 12.0;

/// How much wider bold letters are.
pub const BOLD: f64 = 1.12;

/// Stands for the picture's own name in ids, until it is known. No text from outside holds it: what is not
/// visible is escaped.
const NAME: char = '\u{1}';

/// A picture that grows.
pub struct Canvas {
    /// Units across.
    pub width: f64,
    titles: bool,
    defs: String,
    body: String,
}

/// Where a text stands against its point.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred there.
    Middle,
    /// Ends there.
    End,
}

/// How a text is written.
#[derive(Clone, Copy, Debug)]
pub struct Font<'a> {
    /// Units high.
    pub size: f64,
    /// Where it stands against its point.
    pub anchor: Anchor,
    /// Its colour.
    pub fill: &'a str,
    /// Heavier than others.
    pub bold: bool,
}

impl Default for Font<'_> {
    fn default() -> Self {
        Font { size: TEXT, anchor: Anchor::Start, fill: INK, bold: false }
    }
}

/// What is known of an element besides its shape.
#[derive(Clone, Debug, Default)]
pub struct About {
    data: Vec<(&'static str, String)>,
    tip: Vec<String>,
}

impl About {
    /// An element with a tip, a line an item; empty lines are left out.
    pub fn tip<S: Into<String>>(lines: impl IntoIterator<Item = S>) -> About {
        About { data: Vec::new(), tip: lines.into_iter().map(Into::into).filter(|line| !line.is_empty()).collect() }
    }

    /// And by what it is picked.
    pub fn data(mut self, key: &'static str, value: impl ToString) -> About {
        self.data.push((key, value.to_string()));
        self
    }

    fn attributes(&self, titles: bool) -> String {
        let mut out = String::new();
        for (key, value) in &self.data {
            let _ = write!(out, " data-{key}=\"{}\"", quote::xml(value));
        }
        if !titles && !self.tip.is_empty() {
            let _ = write!(out, " data-tip=\"{}\"", self.lines());
        }
        out
    }

    fn lines(&self) -> String {
        self.tip.iter().map(|line| quote::xml(line)).collect::<Vec<_>>().join("&#10;")
    }
}

/// A number as short as it may be.
fn short(x: f64) -> String {
    let rounded = (x * 10.0).round() / 10.0;
    format!("{rounded}")
}

impl Canvas {
    /// An empty picture.
    pub fn new(options: &Options) -> Canvas {
        let width = if options.narrow { 390.0 } else { 960.0 };
        Canvas { width, titles: options.titles, defs: String::new(), body: String::new() }
    }

    fn element(&mut self, shape: &str, about: &About) {
        let attributes = about.attributes(self.titles);
        if self.titles && !about.tip.is_empty() {
            let name = shape.split(' ').next().unwrap_or_default();
            let _ = writeln!(self.body, "<{shape}{attributes}><title>{}</title></{name}>", about.lines());
        } else {
            let _ = writeln!(self.body, "<{shape}{attributes}/>");
        }
    }

    /// A rectangle.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &str, about: &About) {
        let shape = format!(
            "rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"",
            short(x),
            short(y),
            short(width.max(0.0)),
            short(height.max(0.0))
        );
        self.element(&shape, about);
    }

    /// A rectangle's outline.
    pub fn outline(&mut self, [x, y, width, height]: [f64; 4], stroke: &str, dash: &str, about: &About) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let shape = format!(
            "rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"1.5\"{dash}",
            short(x),
            short(y),
            short(width.max(0.0)),
            short(height.max(0.0))
        );
        self.element(&shape, about);
    }

    /// A straight line.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], stroke: &str, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let shape = format!(
            "line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{stroke}\" stroke-width=\"{width}\"{dash}",
            short(x1),
            short(y1),
            short(x2),
            short(y2)
        );
        self.element(&shape, &About::default());
    }

    /// A line through points.
    pub fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, stroke: &str, width: f64) {
        let points: Vec<String> = points.map(|(x, y)| format!("{},{}", short(x), short(y))).collect();
        let points = points.join(" ");
        let _ = writeln!(
            self.body,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{stroke}\" stroke-width=\"{width}\"/>"
        );
    }

    /// A disc with an outline.
    pub fn circle(&mut self, [x, y, radius]: [f64; 3], fill: &str, stroke: &str, width: f64, about: &About) {
        let shape = format!(
            "circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{width}\"",
            short(x),
            short(y),
            short(radius)
        );
        self.element(&shape, about);
    }

    /// A text that runs upwards and ends at its point.
    pub fn upward(&mut self, x: f64, y: f64, font: Font, text: &str) {
        let (x, y) = (short(x), short(y));
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{}\" text-anchor=\"end\" fill=\"{}\" transform=\"rotate(-90 {x} {y})\">{}</text>",
            short(font.size),
            font.fill,
            quote::xml(text)
        );
    }

    /// A text on one line. `y` is its foot.
    pub fn text(&mut self, x: f64, y: f64, font: Font, text: &str) {
        let anchor = match font.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let size = if font.size == TEXT { String::new() } else { format!(" font-size=\"{}\"", short(font.size)) };
        let weight = if font.bold { " font-weight=\"bold\"" } else { "" };
        let fill = if font.fill == INK { String::new() } else { format!(" fill=\"{}\"", font.fill) };
        let _ = writeln!(
            self.body,
            "<text x=\"{}\" y=\"{}\"{size}{anchor}{weight}{fill}>{}</text>",
            short(x),
            short(y),
            quote::xml(text)
        );
    }

    /// A text cut to a width, where it is wider.
    pub fn text_within(&mut self, x: f64, y: f64, font: Font, text: &str, width: f64) {
        let heavier = if font.bold { BOLD } else { 1.0 };
        self.text(x, y, font, &cut(text, font.size * heavier, width));
    }

    /// A text of several lines; gives the foot of the last.
    pub fn paragraph(&mut self, x: f64, y: f64, font: Font, text: &str, width: f64) -> f64 {
        let mut foot = y;
        for (number, line) in wrap(text, font.size, width).iter().enumerate() {
            foot = y + number as f64 * (font.size * 1.35);
            self.text(x, foot, font, line);
        }
        foot
    }

    /// What the picture is called and what it says, at its top; gives the foot of the last line.
    pub fn heading(&mut self, title: &str, said: &str) -> f64 {
        let room = self.width - 24.0;
        let mut foot = 22.0;
        for (number, line) in wrap(title, 15.0 * BOLD, room).iter().take(2).enumerate() {
            foot = 22.0 + number as f64 * 19.0;
            self.text(12.0, foot, Font { size: 15.0, bold: true, ..Font::default() }, line);
        }
        self.paragraph(12.0, foot + 20.0, Font { fill: SOFT, ..Font::default() }, said, room)
    }

    /// What something is filled with: lines drawn over a colour, so that it is told apart without seeing colours.
    pub fn hatch(&mut self, name: &str, fill: &str, stroke: &str, path: &str) -> String {
        let id = format!("sw{NAME}-{name}");
        let _ = write!(
            self.defs,
            "<pattern id=\"{id}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
             <rect width=\"6\" height=\"6\" fill=\"{fill}\"/><path d=\"{path}\" stroke=\"{stroke}\" stroke-width=\"1.2\" fill=\"none\"/></pattern>"
        );
        format!("url(#{id})")
    }

    /// Squares with their meaning, as many in a row as there is room for; gives where the next thing may begin.
    pub fn legend(&mut self, x: f64, y: f64, right: f64, entries: &[(&str, String)]) -> f64 {
        let (mut at, mut row) = (x, y);
        for (fill, words) in entries {
            let room = right - x - 18.0;
            let words = cut(words, TEXT, room);
            let wide = 18.0 + width(&words, TEXT) + 16.0;
            if at > x && at + wide - 16.0 > right {
                (at, row) = (x, row + 19.0);
            }
            self.rect([at, row, 12.0, 12.0], fill, &About::default());
            self.text(at + 18.0, row + 10.5, Font::default(), &words);
            at += wide;
        }
        row + 19.0
    }

    /// The picture, so many units high, with the words that say what it shows.
    pub fn finish(self, height: f64, title: &str, description: &str) -> String {
        let (width, height) = (short(self.width), short(height.ceil()));
        let (title, description) = (quote::xml(title), quote::xml(description));
        let defs = if self.defs.is_empty() { String::new() } else { format!("<defs>{}</defs>\n", self.defs) };
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             role=\"img\" aria-labelledby=\"sw{NAME}-t sw{NAME}-d\" font-family=\"system-ui, '{FAMILY}', sans-serif\" \
             font-size=\"{TEXT}\" fill=\"{INK}\">\n\
             <title id=\"sw{NAME}-t\">{title}</title>\n<desc id=\"sw{NAME}-d\">{description}</desc>\n{defs}\
             <rect width=\"{width}\" height=\"{height}\" fill=\"{PAPER}\"/>\n{}</svg>\n",
            self.body
        );
        svg.replace(NAME, &name(&svg))
    }
}

/// A name that other pictures on the same page do not have.
fn name(svg: &str) -> String {
    // FNV-1a, 64 bits.
    let hash = svg
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{:08x}", (hash >> 32) as u32 ^ hash as u32)
}

/// Widths of printable ASCII in thousandths of the size: DejaVu Sans, which is wider than what most screens
/// show as `system-ui`.
const ASCII: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636, 636, 636, 636,
    636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863,
    748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, 500, 613, 635, 550, 635,
    615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, 635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636,
    337, 636, 838,
];

/// Units that a text takes at a size.
pub fn width(text: &str, size: f64) -> f64 {
    // What is not visible is written out, and a backslash doubled, where the text is written.
    let of = |c: char| match ASCII.get((c as usize).wrapping_sub(32)) {
        _ if c == '\\' => 674.0,
        Some(width) => f64::from(*width),
        None if c == '·' => 318.0,
        None if quote::is_visible(c) => 1000.0,
        None => 636.0 * c.escape_unicode().count() as f64,
    };
    text.chars().map(of).sum::<f64>() * size / 1000.0
}

/// As much of a text as stands in a width.
pub fn cut(text: &str, size: f64, most: f64) -> String {
    if width(text, size) <= most {
        return text.to_string();
    }
    let mut out = String::new();
    let (mut taken, dots) = (0.0, width("…", size));
    for c in text.chars() {
        taken += width(c.encode_utf8(&mut [0; 4]), size);
        if taken + dots > most {
            break;
        }
        out.push(c);
    }
    format!("{}…", out.trim_end())
}

/// A text broken into lines of a width, between words; a longer word is cut.
pub fn wrap(text: &str, size: f64, most: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(line, size) + width(" ", size) + width(word, size) <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(cut(word, size, most)),
        }
    }
    lines
}
