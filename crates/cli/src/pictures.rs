//! `--svg`: an answer as a picture in a file.

use crate::args::PictureArgs;
use crate::files::write_file;
use crate::outcome::Refusal;
use diag::{Blame, Finding};
use draw::{Options, Picture, Undrawn};
use serde_json::Value;

/// Writes an answer as the pictures that are asked for.
pub fn write(args: &PictureArgs, kind: Picture, answer: &Value) -> Result<(), Refusal> {
    let Some(path) = &args.svg else { return Ok(()) };
    let options = Options { titles: true, ..Options::default() };
    write_file(path, &draw::picture(kind, answer, &options).map_err(undrawn)?)
}

/// A refusal to draw.
fn undrawn(reason: Undrawn) -> Refusal {
    Finding::error("picture/undrawn", Blame::Usage, "picture", reason.to_string()).into()
}
