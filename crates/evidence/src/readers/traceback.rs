//! Python's tracebacks, one open at a time for each process: where the exception that ends one was raised. Of several
//! ranks they come interleaved, told apart by their prefixes; lines without a prefix are one process's.

use super::text::{Line, around, behind, digits, leading};
use std::collections::HashMap;

/// Processes whose tracebacks are followed at once.
const MOST: usize = 4096;

/// Tracebacks that were begun, by process.
#[derive(Default)]
pub struct Tracebacks {
    open: HashMap<u64, Open>,
}

/// What the frames so far say.
#[derive(Default)]
struct Open {
    within: Option<Within>,
    /// The deepest frame that is neither torch's nor Python's own.
    place: Option<String>,
    /// The deepest of all.
    last: Option<String>,
}

/// Where a traceback leads, in the order in which one covers another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Within {
    Setup,
    Forward,
    Backward,
    Optimizer,
    Checkpoint,
}

impl Within {
    fn of(frame: &[u8]) -> Option<Within> {
        let name = behind(frame, b", in ")?.trim_ascii();
        let is_optimizer = behind(frame, b"optim").is_some();
        Some(match name {
            b"save_checkpoint" | b"load_checkpoint" | b"dcp_save" | b"dcp_load" => Within::Checkpoint,
            b"step" if is_optimizer => Within::Optimizer,
            b"backward" | b"backward_step" | b"_engine_run_backward" => Within::Backward,
            b"forward" | b"forward_step" => Within::Forward,
            b"setup_model_and_optimizer" | b"get_model" | b"build_model" => Within::Setup,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Within::Setup => "setup",
            Within::Forward => "forward",
            Within::Backward => "backward",
            Within::Optimizer => "optimizer",
            Within::Checkpoint => "checkpoint",
        }
    }
}

/// What was known of a traceback when its exception came.
pub struct Raised {
    pub within: Option<Within>,
    /// `training.py:4481 in train`.
    pub place: Option<String>,
}

impl Tracebacks {
    /// Takes a frame: `  File "…/training.py", line 4481, in train`.
    pub fn frame(&mut self, line: &Line) {
        if self.open.len() >= MOST && !self.open.contains_key(&line.stream) {
            return;
        }
        let open = self.open.entry(line.stream).or_default();
        open.within = open.within.max(Within::of(line.text));
        let Some((path, rest)) = behind(line.text, b"File \"").and_then(|rest| around(rest, b"\", line ")) else {
            return;
        };
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        let within = behind(rest, b", in ").map(|name| format!(" in {}", diag::quote::bytes(name.trim_ascii(), 60)));
        let number = leading(digits(rest)).unwrap_or(0);
        let place = format!("{}:{number}{}", diag::quote::bytes(name, 80), within.unwrap_or_default());
        if !is_of_a_library(path) {
            open.place = Some(place.clone());
        }
        open.last = Some(place);
    }

    /// Whether the line ends the traceback of its process: the first one that is not indented.
    pub fn is_ended_by(&self, line: &Line) -> bool {
        !self.open.is_empty() && self.open.contains_key(&line.stream) && !is_indented(line)
    }

    /// Closes the traceback of a process.
    pub fn take(&mut self, stream: u64) -> Option<Raised> {
        let open = self.open.remove(&stream)?;
        Some(Raised { within: open.within, place: open.place.or(open.last) })
    }
}

/// Torch's own prefix `[rank3]:` is followed by a space.
fn is_indented(line: &Line) -> bool {
    let text = if line.rank.is_some() { line.text.strip_prefix(b" ").unwrap_or(line.text) } else { line.text };
    text.is_empty() || text[0].is_ascii_whitespace()
}

/// Frames of torch and of Python itself say less than those of who called them.
fn is_of_a_library(path: &[u8]) -> bool {
    let is_installed = behind(path, b"-packages/").is_some();
    behind(path, b"-packages/torch/").is_some()
        || path.starts_with(b"<")
        || !is_installed && behind(path, b"/lib/python3").is_some()
}
