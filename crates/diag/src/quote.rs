//! Text from outside, written so that it stays text: for a terminal, for POSIX shells, YAML, TOML, JSON,
//! Python and XML. Names and paths may hold anything a file system allows; whatever they hold stays data.
//! The one place for this: no other file of the project escapes by itself.

use crate::{Blame, Finding};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

/// Whether a character shows itself and nothing else: no control, no change of direction, nothing
/// invisible, nothing that XML 1.0 cannot hold. Format characters (Cf), line separators, blank fillers and
/// noncharacters are those of Unicode 16.
pub fn is_visible(c: char) -> bool {
    let hides = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}'
        | '\u{8e2}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}');
    !c.is_control() && !hides
}

/// Whether the whole text does.
pub fn is_plain(text: &str) -> bool {
    text.chars().all(is_visible)
}

/// A name or a value for people, on one line: what is not visible is escaped (`\n`, `\u{1b}`), and a
/// backslash doubled, so that two texts never look alike.
pub fn terminal(text: &str) -> String {
    bytes(text.as_bytes(), usize::MAX)
}

/// A path in the same way; bytes that are no UTF-8 become `\xff`.
pub fn shown(path: &Path) -> String {
    bytes(path.as_os_str().as_encoded_bytes(), usize::MAX)
}

/// Bytes in the same way, `most` characters of them; where there are more, it ends in `…`.
pub fn bytes(bytes: &[u8], most: usize) -> String {
    let mut out = String::new();
    for (count, piece) in pieces(bytes).enumerate() {
        if count == most {
            out.push('…');
            break;
        }
        match piece {
            Ok('\\') => out.push_str("\\\\"),
            Ok(c) => push_visible(&mut out, c),
            Err(byte) => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out
}

/// A sentence of ours with names in it, on one line. What was escaped before stays as it is.
pub fn sentence(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|c| push_visible(&mut out, c));
    out
}

/// Whole lines of ours, styles (`ESC [ … m`), tabs and line ends kept, everything else escaped: nothing
/// that goes to a terminal through here moves the cursor or hides.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '\n' | '\t' => 1,
            '\x1b' => style(rest).unwrap_or(0),
            _ => 0,
        };
        if taken > 0 {
            out.push_str(&rest[..taken]);
            rest = &rest[taken..];
        } else {
            push_visible(&mut out, c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Length of the style that a text begins with.
fn style(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\x1b[")?;
    let end = codes.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    codes[end..].starts_with('m').then_some(2 + end + 1)
}

fn push_visible(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if is_visible(c) => out.push(c),
        c => out.extend(c.escape_unicode()),
    }
}

/// Characters where the bytes are UTF-8, single bytes where they are not.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = Result<char, u8>> {
    bytes.utf8_chunks().flat_map(|chunk| chunk.valid().chars().map(Ok).chain(chunk.invalid().iter().copied().map(Err)))
}

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

/// A word that a person copies from a screen, and a shell reads back as exactly these bytes. What is not
/// visible goes into `$'…'`, which bash, zsh and ksh read, and in which nothing is expanded.
pub fn typed(word: impl AsRef<OsStr>) -> String {
    typed_bytes(word.as_ref().as_encoded_bytes())
}

/// Bytes in the same way.
pub fn typed_bytes(word: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(word)
        && is_plain(text)
    {
        return shell(text);
    }
    let mut out = String::from("$'");
    for &byte in word {
        match byte {
            b'\'' | b'\\' => out.extend(['\\', char::from(byte)]),
            b' '..=b'~' => out.push(char::from(byte)),
            // Three octal digits end by themselves; hexadecimal ones would run on.
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('\'');
    out
}

/// A command that a person copies from a screen.
pub fn typed_line<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(typed).collect::<Vec<_>>().join(" ")
}

/// A string of JSON, which YAML 1.2 reads as well. Everything beyond printable ASCII is escaped,
/// so that no reader's idea of a line break matters.
pub fn json(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(c),
            c => push_units(&mut out, c),
        }
    }
    out.push('"');
    out
}

/// A JSON document with what is not visible in its strings escaped: it says the same.
pub fn json_document(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || is_visible(c) { out.push(c) } else { push_units(&mut out, c) }
    }
    out
}

/// `\uXXXX`, in pairs beyond the first plane, as JSON writes them.
fn push_units(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// A double-quoted scalar of YAML: text, whatever a bare word of its spelling would be.
pub fn yaml(text: &str) -> String {
    by_code_point(text)
}

/// A basic string of TOML. Letters of every script stay.
pub fn toml(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if is_visible(c) => out.push(c),
            c => push_code_point(&mut out, c),
        }
    }
    out.push('"');
    out
}

/// A string literal of Python.
pub fn python(text: &str) -> String {
    by_code_point(text)
}

/// A double-quoted string of printable ASCII with `\uXXXX` and `\UXXXXXXXX`, as YAML and Python read it:
/// neither takes pairs of surrogates.
fn by_code_point(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            ' '..='~' => out.push(c),
            c => push_code_point(&mut out, c),
        }
    }
    out.push('"');
    out
}

fn push_code_point(out: &mut String, c: char) {
    let code = u32::from(c);
    let _ = if code <= 0xffff { write!(out, "\\u{code:04X}") } else { write!(out, "\\U{code:08X}") };
}

/// Text of an XML element or attribute. XML 1.0 has no way to write most control characters, not even
/// as references, so that they are shown as they are on a terminal.
pub fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in terminal(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A comment's text: one line, so that nothing in it can end the comment.
pub fn comment(text: &str) -> String {
    sentence(text)
}

/// A path as text, or refused: text that lost bytes would name another file.
pub fn path(path: &OsStr) -> Result<&str, Finding> {
    match path.to_str() {
        Some(text) if !text.contains('\0') => Ok(text),
        _ => {
            let message = format!("path `{}` is not UTF-8 text, and a job file cannot name it", shown(Path::new(path)));
            Err(Finding::error("launch/path", Blame::Usage, "path", message).hint("rename it, or link to it"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_visible_is_escaped() {
        assert_eq!(terminal("/mnt/a b/$(rm)'\"`é"), "/mnt/a b/$(rm)'\"`é");
        assert_eq!(terminal("a\nb\tc\\d\r\x1b[2J\u{9b}"), "a\\nb\\tc\\\\d\\r\\u{1b}[2J\\u{9b}");
        assert_eq!(terminal("\u{202e}txt\u{200b}"), "\\u{202e}txt\\u{200b}");
        assert_eq!(bytes(b"a\xff\\", 9), "a\\xff\\\\");
        assert_eq!(bytes(&[b'x'; 400], 160).chars().count(), 161);
        assert_eq!(sentence(&format!("`{}`", terminal("a\n\\"))), "`a\\n\\\\`");
    }

    #[test]
    fn only_styles_pass() {
        let ours = "\x1b[1;32mfits\x1b[0m\n\tx\n";
        assert_eq!(lines(ours), ours);
        assert_eq!(lines("\x1b[2J\x1b]0;t\x07\x1b[1"), "\\u{1b}[2J\\u{1b}]0;t\\u{7}\\u{1b}[1");
    }

    #[test]
    fn words_to_copy_hold_no_line_end() {
        assert_eq!(typed("/mnt/a b"), "'/mnt/a b'");
        assert_eq!(typed("a\n'$(x)\\"), "$'a\\012\\'$(x)\\\\'");
        assert_eq!(typed_line(["fit", "é", "a;b"]), "fit 'é' 'a;b'");
    }

    #[test]
    fn every_language_has_its_own_escapes() {
        let text = "é\"\\\n\x1b\u{1f600}<&'>";
        assert_eq!(toml(text), "\"é\\\"\\\\\\n\\u001B\u{1f600}<&'>\"");
        assert_eq!(python(text), "\"\\u00E9\\\"\\\\\\n\\u001B\\U0001F600<&'>\"");
        assert_eq!(json(text), "\"\\u00e9\\\"\\\\\\u000a\\u001b\\ud83d\\ude00<&'>\"");
        assert_eq!(xml(text), "é&quot;\\\\\\n\\u{1b}\u{1f600}&lt;&amp;&#39;&gt;");
        assert_eq!(
            json_document("{\n \"a\": \"\u{202e}\u{7f}é\u{e0041}\"\n}"),
            "{\n \"a\": \"\\u202e\\u007fé\\udb40\\udc41\"\n}"
        );
        assert!(!comment("a\n\u{2028}b").contains(['\n', '\u{2028}']));
    }

    proptest! {
        #[test]
        fn nothing_invisible_is_left(raw in proptest::collection::vec(any::<u8>(), 0..300), text in any::<String>()) {
            let word = String::from_utf8_lossy(&raw).into_owned();
            for shown in [bytes(&raw, 160), typed(&word), terminal(&text), sentence(&text), xml(&text), toml(&text)] {
                prop_assert!(is_plain(&shown), "{shown:?}");
            }
            prop_assert_eq!(sentence(&sentence(&text)), sentence(&text));
            prop_assert_eq!(lines(&lines(&text)), lines(&text));
        }
    }
}
