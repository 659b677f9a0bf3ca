//! Text that cannot become code: quoting for POSIX shells, YAML, TOML, JSON and Python. Recipe
//! names and paths may hold anything a file system allows; whatever they hold stays data.

use diag::{Blame, Finding};
use std::ffi::OsStr;

/// A word for a POSIX shell. Plain words stay as they are; anything else goes into single quotes,
/// inside which a shell expands nothing.
pub fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./:,@%".contains(c);
    // A leading tilde, equals sign or percent is not plain in every shell.
    let leads_plainly = word.starts_with(|c: char| c.is_ascii_alphanumeric() || "_-./".contains(c));
    if leads_plainly && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Words of a shell command, quoted and separated.
pub fn shell_line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| shell(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// A string of JSON, which YAML 1.2 reads as well. Everything beyond printable ASCII is escaped,
/// so that no reader's idea of a line break matters.
pub fn json(text: &str) -> String {
    let mut out = String::from('"');
    for unit in text.encode_utf16() {
        match char::from_u32(u32::from(unit)) {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some(c @ ' '..='~') => out.push(c),
            _ => out.push_str(&format!("\\u{unit:04x}")),
        }
    }
    out.push('"');
    out
}

/// A double-quoted scalar of YAML. Printable ASCII stays; the rest is escaped by code point, since
/// YAML's `\u` takes no surrogate pairs.
pub fn yaml(text: &str) -> String {
    by_code_point(text)
}

/// A basic string of TOML.
pub fn toml(text: &str) -> String {
    by_code_point(text)
}

/// A string literal of Python.
pub fn python(text: &str) -> String {
    by_code_point(text)
}

/// A double-quoted string with `\uXXXX` and `\UXXXXXXXX`, as YAML, TOML and Python read it.
fn by_code_point(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            ' '..='~' => out.push(c),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
    out
}

/// A comment's text: one line, so that nothing in it can end the comment.
pub fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || c == '\u{2028}' || c == '\u{2029}' { ' ' } else { c }).collect()
}

/// A path as text, or refused: text that lost bytes would name another file.
pub fn path(path: &OsStr) -> Result<&str, Finding> {
    match path.to_str() {
        Some(text) if !text.contains('\0') => Ok(text),
        _ => {
            let message = format!("path {path:?} is not UTF-8 text, and a job file cannot name it");
            Err(Finding::error("launch/path", Blame::Usage, "path", message).hint("rename it, or link to it"))
        }
    }
}
