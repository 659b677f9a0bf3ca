//! Checkpoints as files: our own format, torch's distributed checkpoints (DCP) and safetensors, read
//! into one description, verified, and written again under another layout.
//!
//! Reads and writes files, like `runtime`. Nothing here holds a tensor: bytes go from file to file
//! through buffers whose size does not depend on the checkpoint's, and no number is converted.
//! Pickles are read as data: nothing in one is ever called.

pub mod about;
mod cover;
pub mod dcp;
mod dtype;
pub mod files;
pub mod folder;
pub mod index;
mod open;
mod own;
pub mod pickle;
mod plan;
pub mod reader;
pub mod region;
mod reshard;
mod safetensors;
mod verify;
mod zip;

pub use about::About;
pub use dtype::Dtype;
pub use index::{Entry, Format, Index, Kind, NAME, Piece, SCHEMA, Written};
pub use open::{Checkpoint, Chunk, Layout as FileLayout, Tensor, Value, open};
pub use plan::Target;
pub use region::Region;
pub use reshard::{Copied, Job, reshard};
pub use verify::{Against, contents, verify};

use diag::{Blame, Finding};

/// Something that is wrong with the files.
fn damaged(rule: &'static str, object: &str, message: String) -> Finding {
    Finding::error(rule, Blame::Environment, object, message)
}

/// A shape as `[a, b]`.
fn shape_text(shape: &[u64]) -> String {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}
