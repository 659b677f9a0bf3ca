//! `--svg` and `--png`: an answer as a picture in a file.

use crate::args::PictureArgs;
use crate::files::{write_bytes, write_file};
use crate::outcome::Refusal;
use diag::{Blame, Finding};
use draw::{Options, Picture, Undrawn, palette};
use serde_json::Value;

/// Writes an answer as the pictures that are asked for.
pub fn write(args: &PictureArgs, kind: Picture, answer: &Value) -> Result<(), Refusal> {
    if args.given().next().is_none() {
        return Ok(());
    }
    let options = Options { titles: true, ..Options::default() };
    let svg = draw::picture(kind, answer, &options).map_err(undrawn)?;
    if let Some(path) = &args.svg {
        // Not every viewer of files knows custom properties.
        write_file(path, &palette::resolved(&svg))?;
    }
    if let Some(path) = &args.png {
        write_bytes(path, &pixels(&svg)?)?;
    }
    Ok(())
}

/// That a picture which is asked for is not written, beside an answer that stands.
pub fn none(args: &PictureArgs, why: &str) -> Option<Finding> {
    let (flag, _) = args.given().next()?;
    Some(Finding::warning("picture/undrawn", Blame::Usage, flag, format!("`{flag}` writes nothing: {why}")))
}

#[cfg(feature = "png")]
fn pixels(svg: &str) -> Result<Vec<u8>, Refusal> {
    draw::png(svg).map_err(undrawn)
}

#[cfg(not(feature = "png"))]
fn pixels(_: &str) -> Result<Vec<u8>, Refusal> {
    let message = "this build makes no PNG files: its feature `png` is off";
    Err(Finding::error("picture/png", Blame::Usage, "png", message).hint("--svg writes the same picture").into())
}

/// A refusal to draw.
pub fn undrawn(reason: Undrawn) -> Refusal {
    Finding::error("picture/undrawn", Blame::Usage, "picture", reason.to_string()).into()
}
