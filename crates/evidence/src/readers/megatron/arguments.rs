//! Arguments as the engine settled them. `megatron/training/arguments.py`, `_print_args`:
//! `f'------------------------ {title} ------------------------'`, for each `'  {} {} {}'.format(arg, dots, value)` with
//! `dots = '.' * (48 - len(arg))`, and `f'-------------------- end of {title} ---------------------'`.

use crate::readers::log::Log;
use crate::readers::text::Line;

/// Arguments that are kept, and characters of each.
const MOST: usize = 4096;
const LONGEST: usize = 4096;

#[derive(Default)]
pub struct Arguments {
    is_open: bool,
}

pub fn is_header(text: &[u8]) -> bool {
    text.starts_with(b"------------------------ ") && text.ends_with(b" ------------------------")
}

impl Arguments {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if is_header(line.text.trim_ascii_end()) {
            self.is_open = true;
            log.started(line, None, "arguments printed");
            return true;
        }
        if line.text.starts_with(b"-------------------- end of ") {
            return std::mem::take(&mut self.is_open);
        }
        if !self.is_open {
            return false;
        }
        let Some((name, value)) = entry(line.text) else { return false };
        let arguments = &mut log.evidence.arguments;
        if arguments.len() < MOST || arguments.contains_key(&name) {
            arguments.insert(name, diag::quote::bytes(value.trim_ascii(), LONGEST));
        }
        true
    }
}

/// A name, at least one dot unless the name fills its width, and the value.
fn entry(text: &[u8]) -> Option<(String, &[u8])> {
    let text = text.strip_prefix(b"  ")?;
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let end = text.iter().take_while(|b| is_name(b)).count();
    let dotted = text[end..].strip_prefix(b" ")?;
    let dots = dotted.iter().take_while(|b| **b == b'.').count();
    let value = dotted[dots..].strip_prefix(b" ").or_else(|| dotted[dots..].is_empty().then_some(b""))?;
    let is_padded = end > 0 && (dots > 0 || end >= 48);
    is_padded.then(|| (String::from_utf8_lossy(&text[..end]).into_owned(), value))
}
