//! The phases of a run from left to right, up to and past the peak.

use crate::memory::{Class, Fit, Phase};
use crate::palette::{BLUE, EDGE, FREE, GREY, INK, LINE, SKY, SOFT};
use crate::scale::{gib, step, tick, ticks};
use crate::svg::{About, Anchor, Canvas, Font, width};
use crate::{Options, Undrawn};
use units::Bytes;

/// Units of the tallest column.
const TALL: f64 = 220.0;

/// Where columns stand.
struct Frame {
    left: f64,
    right: f64,
    foot: f64,
    most: f64,
}

impl Frame {
    fn y(&self, bytes: u64) -> f64 {
        self.foot - TALL * (bytes as f64 / self.most).min(1.0)
    }
}

/// Draws the class that is looked at.
pub fn draw(fit: &Fit, options: &Options) -> Result<String, Undrawn> {
    let class = fit.class(options.stage)?;
    let mut canvas = Canvas::new(options);
    let title = format!("{}, stage {}: memory through a run", fit.name(), class.stage);
    let highest = class.phases.iter().map(|phase| phase.device_bytes).max().unwrap_or(0).max(1);
    let shows_edge = fit.device_bytes < highest.saturating_mul(5) / 2;
    let above = if shows_edge { "" } else { "; the edge is above the picture" };
    let said = format!(
        "the peak of {} stands in {} ({}); the device shows {}{above}",
        Bytes(class.total_bytes),
        class.peak_phase,
        class.peak_block,
        Bytes(fit.device_bytes)
    );
    let foot = canvas.heading(&title, &said);
    let most = if shows_edge { highest.max(fit.device_bytes) } else { highest } as f64 * 1.08;
    let left = if options.narrow { 40.0 } else { 56.0 };
    let frame = Frame { left, right: canvas.width - 12.0, foot: foot + 24.0 + TALL, most };
    axis(&mut canvas, &frame);
    let kept = canvas.hatch("kept", SKY.fill, "#00000070", "M0 6L6 0");
    columns(&mut canvas, class, &frame, &kept, options);
    if shows_edge {
        let y = frame.y(fit.device_bytes);
        canvas.line([frame.left, y, frame.right, y], EDGE, 2.0, "");
        if fit.headroom_bytes > 0 && fit.headroom_bytes < fit.device_bytes {
            let asked = frame.y(fit.device_bytes - fit.headroom_bytes);
            canvas.line([frame.left, asked, frame.right, asked], EDGE, 1.0, "4 3");
        }
    }
    let names = if options.narrow { 70.0 } else { 24.0 };
    let legend = [
        (GREY.fill, "outside the allocator".to_string()),
        (BLUE.fill, "allocated, at its peak".to_string()),
        (kept.as_str(), "reserved besides".to_string()),
    ];
    let end = canvas.legend(12.0, frame.foot + names + 8.0, canvas.width - 12.0, &legend);
    Ok(canvas.finish(end + 4.0, &title, &said))
}

fn axis(canvas: &mut Canvas, frame: &Frame) {
    let most = gib(frame.most);
    let every = step(most, 5.0);
    for value in ticks(0.0, most, every) {
        let y = frame.y((value * (1u64 << 30) as f64) as u64);
        canvas.line([frame.left, y, frame.right, y], LINE, 0.8, "");
        let font = Font { size: 10.5, fill: SOFT, anchor: Anchor::End, ..Font::default() };
        canvas.text(frame.left - 5.0, y + 4.0, font, &tick(value, every));
    }
    canvas.text(12.0, frame.foot - TALL - 8.0, Font { size: 10.5, fill: SOFT, ..Font::default() }, "GiB");
}

fn columns(canvas: &mut Canvas, class: &Class, frame: &Frame, kept: &str, options: &Options) {
    let each = (frame.right - frame.left) / class.phases.len().max(1) as f64;
    for (at, phase) in class.phases.iter().enumerate() {
        let (x, wide) = (frame.left + at as f64 * each + each * 0.08, each * 0.84);
        column(canvas, phase, frame, [x, wide], kept, class.stage);
        let is_peak = phase.phase == class.peak_phase;
        let middle = x + wide / 2.0;
        if options.narrow {
            let font = Font { size: 11.0, fill: if is_peak { INK } else { SOFT }, ..Font::default() };
            canvas.upward(middle + 4.0, frame.foot + 6.0, font, &crate::svg::cut(&phase.phase, 11.0, 62.0));
        } else {
            let font = Font { size: 11.0, anchor: Anchor::Middle, bold: is_peak, ..Font::default() };
            canvas.text_within(middle, frame.foot + 15.0, font, &phase.phase, each - 4.0);
        }
        if is_peak {
            let words = "peak";
            let reach = (canvas.width - 4.0 - width(words, 11.0) / 2.0).min(middle);
            let font = Font { size: 11.0, anchor: Anchor::Middle, bold: true, ..Font::default() };
            canvas.text(reach, frame.y(phase.device_bytes) - 5.0, font, words);
        }
    }
}

/// One phase; where forward, loss and backward are known, three columns.
fn column(canvas: &mut Canvas, phase: &Phase, frame: &Frame, [x, wide]: [f64; 2], kept: &str, stage: u64) {
    let Some(allocated) = phase.allocated_peak_bytes else {
        let about = About::tip([format!("{}: not known", phase.phase), phase.what.clone()]);
        canvas.rect([x, frame.foot - 26.0, wide, 26.0], FREE, &about);
        let font = Font { size: 13.0, anchor: Anchor::Middle, fill: SOFT, ..Font::default() };
        canvas.text(x + wide / 2.0, frame.foot - 8.0, font, "?");
        return;
    };
    let parts: Vec<(&str, u64)> = match phase.forward_loss_backward_bytes {
        // A stage without the head has no loss.
        Some(three) => ["forward", "loss", "backward"].into_iter().zip(three).filter(|(_, bytes)| *bytes > 0).collect(),
        None => vec![("", allocated)],
    };
    let each = wide / parts.len() as f64;
    for (at, (name, bytes)) in parts.iter().enumerate() {
        let x = x + at as f64 * each;
        let head = if name.is_empty() { phase.phase.clone() } else { format!("{}, {name}", phase.phase) };
        let about = About::tip([
            format!("{head}: {} on the device", Bytes(phase.device_bytes)),
            phase.what.clone(),
            format!("allocated {}, reserved {}", Bytes(*bytes), Bytes(phase.reserved_peak_bytes)),
            format!("outside the allocator {}", Bytes(phase.outside_bytes)),
        ])
        .data("stage", stage)
        .data("phase", &phase.phase);
        let outside = frame.y(phase.outside_bytes);
        let held = frame.y(phase.outside_bytes.saturating_add(*bytes));
        let all = frame.y(phase.device_bytes);
        canvas.rect([x, outside, each, frame.foot - outside], GREY.fill, &about);
        canvas.rect([x, held, each, outside - held], BLUE.fill, &about);
        canvas.rect([x, all, each, held - all], kept, &about);
    }
}
