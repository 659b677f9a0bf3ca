//! A picture as pixels: the same bytes on every machine. Texts become outlines first, so that no font has to be
//! there and nothing that reads fonts has to be compiled.

use crate::Undrawn;
use crate::palette::resolved;
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::LazyLock;

/// Advance and path of characters, in 2048ths of the size; `assets/LICENSE-DejaVu` is their licence.
type Glyphs = HashMap<char, (f64, &'static str)>;

static REGULAR: LazyLock<Glyphs> = LazyLock::new(|| glyphs(include_str!("../assets/regular.glyphs")));
static BOLD: LazyLock<Glyphs> = LazyLock::new(|| glyphs(include_str!("../assets/bold.glyphs")));

/// Units of a glyph to its size.
const EM: f64 = 2048.0;

/// Pixels of a picture's unit.
const SCALE: f32 = 2.0;

/// Pixels of a side at most: pictures that are taller are drawn smaller.
const MOST: f32 = 16_000.0;

fn glyphs(text: &'static str) -> Glyphs {
    let read = |line: &'static str| {
        let mut words = line.splitn(3, ' ');
        let code = char::from_u32(u32::from_str_radix(words.next()?, 16).ok()?)?;
        Some((code, (words.next()?.parse().ok()?, words.next().unwrap_or_default())))
    };
    text.lines().filter_map(read).collect()
}

/// A picture of ours as a PNG file.
pub fn png(picture: &str) -> Result<Vec<u8>, Undrawn> {
    let failed = |what: String| Undrawn(format!("the picture cannot be made a PNG: {what}"));
    let plain = outlined(&resolved(picture));
    let tree = Tree::from_str(&plain, &Options::default()).map_err(|error| failed(error.to_string()))?;
    let size = tree.size();
    let scale = SCALE.min(MOST / size.width().max(size.height()));
    let (width, height) = ((size.width() * scale).ceil() as u32, (size.height() * scale).ceil() as u32);
    let mut pixels = Pixmap::new(width, height).ok_or_else(|| failed("it has no size".to_string()))?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| failed(error.to_string()))
}

/// The picture with every `<text>`, as `Canvas` writes them, made paths.
fn outlined(svg: &str) -> String {
    let mut out = String::with_capacity(svg.len() * 2);
    let mut rest = svg;
    while let Some((before, inside)) = rest.split_once("<text ") {
        out.push_str(before);
        let Some((attributes, behind)) = inside.split_once('>') else { break };
        let Some((text, behind)) = behind.split_once("</text>") else { break };
        outline(&mut out, attributes, &unescaped(text));
        rest = behind;
    }
    out + rest
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = attributes.split_once(&format!("{name}=\""))?;
    value.split_once('"').map(|(value, _)| value)
}

fn outline(out: &mut String, attributes: &str, text: &str) {
    let number = |name: &str| attribute(attributes, name).and_then(|value| value.parse::<f64>().ok());
    let size = number("font-size").unwrap_or(crate::svg::TEXT);
    let glyphs = if attribute(attributes, "font-weight").is_some() { &*BOLD } else { &*REGULAR };
    let shown: Vec<(f64, &str)> =
        text.chars().filter_map(|c| glyphs.get(&c).or(glyphs.get(&'\u{fffd}')).copied()).collect();
    let wide: f64 = shown.iter().map(|(advance, _)| advance * size / EM).sum();
    // `x` also stands in other attributes' names.
    let padded = format!(" {attributes}");
    let at = |name: &str| attribute(&padded, name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
    let (x, y) = (at(" x"), at(" y"));
    let start = match attribute(attributes, "text-anchor") {
        Some("middle") => x - wide / 2.0,
        Some("end") => x - wide,
        _ => x,
    };
    let fill = attribute(attributes, "fill").map_or(String::new(), |fill| format!(" fill=\"{fill}\""));
    let turned = attribute(attributes, "transform").map_or(String::new(), |turn| format!(" transform=\"{turn}\""));
    let _ = write!(out, "<g{fill}{turned}>");
    let (mut pen, scale) = (start, size / EM);
    for (advance, path) in shown {
        if !path.is_empty() {
            let _ =
                write!(out, "<path transform=\"translate({pen:.3} {y}) scale({scale:.6} -{scale:.6})\" d=\"{path}\"/>");
        }
        pen += advance * scale;
    }
    out.push_str("</g>");
}

fn unescaped(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_as_wide_as_they_are_measured() {
        for c in ' '..='~' {
            let measured = crate::svg::width(c.encode_utf8(&mut [0; 4]), 1000.0);
            let drawn = REGULAR[&c].0 / EM * 1000.0;
            assert!((measured - drawn).abs() < 1.0 || c == '\\', "{c}: {measured} and {drawn}");
        }
    }

    #[test]
    fn a_text_becomes_paths() {
        let svg = "<svg><text x=\"5\" y=\"9\" text-anchor=\"end\">a&lt;&amp;lt;</text><rect/></svg>";
        let out = outlined(svg);
        assert!(!out.contains("<text") && out.contains("<rect/>"), "{out}");
        assert_eq!(out.matches("<path").count(), 6);
        assert_eq!(unescaped("&amp;lt;"), "&lt;");
    }
}
