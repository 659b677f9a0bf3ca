//! Pictures of answers, drawn once: from the JSON that a command prints to SVG, for the page, a report, a
//! notebook and a file. Knows no model and prices nothing: what an answer does not say is not drawn.
//!
//! What a pointer finds stands in `data-tip`, what can be picked in `data-stage`, `data-rank`, `data-line` and
//! `data-case`. Colours are custom properties with a value for light paper behind them ([`palette`]).

mod difference;
mod frontier;
pub mod html;
mod kinds;
mod memory;
mod mesh;
pub mod page;
pub mod palette;
pub mod parts;
mod pattern;
mod phases;
#[cfg(feature = "png")]
mod png;
mod scale;
mod schedule;
mod still;
mod svg;
mod sweep;

pub use kinds::{Picture, Undrawn};
#[cfg(feature = "png")]
pub use png::png;
pub use svg::width as text_width;

use serde_json::Value;

/// How a picture is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// For a screen of 390 pixels instead of 960: fewer things in a row, and text as large.
    pub narrow: bool,
    /// Tips as `<title>` elements, which viewers show without a script, instead of `data-tip`.
    pub titles: bool,
    /// The stage that is looked at closely, where the picture has one; by itself the worst.
    pub stage: Option<u64>,
    /// How many times as wide time is drawn; nothing where once. Texts stay as large.
    pub zoom: Option<u64>,
}

/// Draws an answer.
pub fn picture(kind: Picture, answer: &Value, options: &Options) -> Result<String, Undrawn> {
    match kind {
        Picture::Pattern => pattern::draw(&kinds::read(kind, answer)?, options),
        Picture::Memory => memory::draw(&kinds::read(kind, answer)?, options),
        Picture::Phases => phases::draw(&kinds::read(kind, answer)?, options),
        Picture::Schedule => schedule::draw(&kinds::read(kind, answer)?, options),
        Picture::Frontier => frontier::draw(&kinds::read(kind, answer)?, options),
        Picture::Sweep => sweep::draw(&kinds::read(kind, answer)?, options),
        Picture::Mesh => mesh::draw(&kinds::read(kind, answer)?, options),
    }
}

/// What changed in memory from one answer of `fit` to another, line by line.
pub fn difference(before: &Value, after: &Value, options: &Options) -> Result<String, Undrawn> {
    difference::draw(&kinds::read(Picture::Memory, before)?, &kinds::read(Picture::Memory, after)?, options)
}
