//! Two answers of `fit` beside each other: the worst rank of each, line by line.

use crate::memory::{Class, Fit};
use crate::palette::{EDGE, FREE, GREEN, SOFT};
use crate::parts::{PARTS, part_of};
use crate::scale::signed;
use crate::svg::{About, Anchor, Canvas, Font};
use crate::{Options, Undrawn};
use units::Bytes;

/// A line on both sides.
struct Row<'a> {
    name: &'a str,
    bytes: [u64; 2],
}

/// Every line that either side has, as bars are stacked.
fn rows<'a>(before: &'a Class, after: &'a Class) -> Vec<Row<'a>> {
    let mut rows: Vec<Row> = Vec::new();
    for (side, class) in [before, after].into_iter().enumerate() {
        for line in &class.lines {
            let at = rows.iter().position(|row| row.name == line.line).unwrap_or_else(|| {
                rows.push(Row { name: &line.line, bytes: [0, 0] });
                rows.len() - 1
            });
            rows[at].bytes[side] += line.bytes;
        }
    }
    rows.retain(|row| row.bytes != [0, 0]);
    rows.sort_by_key(|row| PARTS.iter().position(|part| part == part_of(row.name)));
    rows
}

/// Draws it.
pub fn draw(before: &Fit, after: &Fit, options: &Options) -> Result<String, Undrawn> {
    let (was, is) = (before.class(None)?, after.class(None)?);
    let rows = rows(was, is);
    let mut canvas = Canvas::new(options);
    let title = format!("{}, against the pinned case", after.name());
    let total = is.total_bytes as i128 - was.total_bytes as i128;
    let change = match total {
        0 => "as much".to_string(),
        more if more > 0 => format!("{} more", Bytes(more as u64)),
        less => format!("{} less", Bytes(less.unsigned_abs() as u64)),
    };
    let said = format!(
        "the worst rank holds {} instead of {}: {change} (pinned: {}, {})",
        Bytes(is.total_bytes),
        Bytes(was.total_bytes),
        before.name(),
        before.verdict()
    );
    let soft = Font { fill: SOFT, ..Font::default() };
    let foot = canvas.heading(&title, &said);
    let mut y = foot + 14.0;
    let (left, right) = if options.narrow { (12.0, 288.0) } else { (170.0, 800.0) };
    let most = rows.iter().flat_map(|row| row.bytes).max().unwrap_or(0).max(1) as f64;
    let at = |bytes: u64| (right - left) * bytes as f64 / most;
    for row in &rows {
        let colour = part_of(row.name).colour;
        let change = row.bytes[1] as i128 - row.bytes[0] as i128;
        let about = |case: &'static str, bytes: u64| {
            About::tip([format!("{}, {case}: {}", row.name, Bytes(bytes)), format!("{} in all", signed(change))])
                .data("line", row.name)
                .data("case", case)
        };
        if options.narrow {
            canvas.text(12.0, y + 11.0, Font::default(), row.name);
            y += 15.0;
        } else {
            canvas.text(12.0, y + 15.0, Font::default(), row.name);
        }
        canvas.rect([left, y, right - left, 20.0], FREE, &About::default());
        canvas.outline([left + 0.75, y + 0.75, at(row.bytes[0]), 7.5], colour.fill, "", &about("pinned", row.bytes[0]));
        canvas.rect([left, y + 10.0, at(row.bytes[1]), 10.0], colour.fill, &about("now", row.bytes[1]));
        let fill = match change {
            0 => SOFT,
            c if c > 0 => EDGE,
            _ => GREEN.fill,
        };
        let font = Font { fill, anchor: Anchor::End, bold: change != 0, ..Font::default() };
        canvas.text(canvas.width - 12.0, y + 14.0, font, &signed(change));
        y += 27.0;
    }
    let key = "outlined: pinned; filled: now; both of the worst rank at its peak";
    let end = canvas.paragraph(12.0, y + 12.0, soft, key, canvas.width - 24.0);
    Ok(canvas.finish(end + 14.0, &title, &said))
}
