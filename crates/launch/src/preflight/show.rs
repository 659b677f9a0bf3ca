//! Foreign bytes for people: paths, command lines and values from a machine, so that none can move
//! the cursor, hide itself, or become code when a fix is copied.

/// Characters of one text that are shown; the rest is cut, and said to be.
const MOST: usize = 160;

/// Bytes as one line of printable text: what is not printable is escaped as `\n` or `\xff`, and a
/// backslash as two, so that two texts never look alike.
pub fn bytes(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (count, chunk) in pieces(bytes).enumerate() {
        if count == MOST {
            out.push('…');
            break;
        }
        match chunk {
            Ok('\\') => out.push_str("\\\\"),
            Ok('\n') => out.push_str("\\n"),
            Ok('\t') => out.push_str("\\t"),
            Ok(c) if is_visible(c) => out.push(c),
            Ok(c) => out.extend(c.escape_unicode()),
            Err(byte) => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

/// A text in the same way.
pub fn text(text: &str) -> String {
    bytes(text.as_bytes())
}

/// A word that a shell reads back as exactly these bytes. Anything unprintable goes into `$'…'`,
/// which bash, zsh and ksh read, and in which nothing is expanded.
pub fn shell(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(text) if text.chars().all(is_visible) => crate::quote::shell(text),
        _ => {
            let mut out = String::from("$'");
            for &byte in word {
                match byte {
                    b'\'' | b'\\' => out.extend(['\\', char::from(byte)]),
                    b' '..=b'~' => out.push(char::from(byte)),
                    // Three octal digits end by themselves; hexadecimal ones would run on.
                    _ => out.push_str(&format!("\\{byte:03o}")),
                }
            }
            out.push('\'');
            out
        }
    }
}

/// Whether a character shows itself and nothing else: no control, no change of direction, no
/// invisible joiner.
fn is_visible(c: char) -> bool {
    let hides = matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !c.is_control() && !hides
}

/// Characters where the bytes are UTF-8, single bytes where they are not.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = Result<char, u8>> {
    bytes.utf8_chunks().flat_map(|chunk| chunk.valid().chars().map(Ok).chain(chunk.invalid().iter().copied().map(Err)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_bytes_are_escaped() {
        assert_eq!(bytes(b"/mnt/a b/$(rm)'\"`"), "/mnt/a b/$(rm)'\"`");
        assert_eq!(bytes(b"a\nb\tc\\d\x1b[2J\xff"), "a\\nb\\tc\\\\d\\u{1b}[2J\\xff");
        assert_eq!(text("\u{202e}txt"), "\\u{202e}txt");
        assert_eq!(bytes(&[b'x'; 400]).chars().count(), MOST + 1);
        assert_eq!(shell(b"/mnt/a b"), "'/mnt/a b'");
        assert_eq!(shell(b"a\n'$(x)\\\xff"), "$'a\\012\\'$(x)\\\\\\377'");
    }

    proptest! {
        #[test]
        fn nothing_that_moves_the_cursor_is_shown(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            for shown in [bytes(&raw), shell(&raw)] {
                prop_assert!(shown.chars().all(is_visible), "{shown:?}");
            }
        }
    }
}
