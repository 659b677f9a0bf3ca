//! How wide the reader's screen is, and prose folded to it. What is to be copied (a command, a path) is
//! never broken.

use std::sync::OnceLock;

/// Columns where nobody says: no terminal, no `COLUMNS`.
const USUAL: usize = 80;

/// No screen is taken to be narrower.
const LEAST: usize = 40;

/// The longest text in brackets that is kept in one piece: a shape such as `[256, 7168, 2048]`.
const SHAPE: usize = 24;

/// Columns that the answer may take: `COLUMNS`, or the terminal's, or 80.
pub fn columns() -> usize {
    static COLUMNS: OnceLock<usize> = OnceLock::new();
    *COLUMNS.get_or_init(|| {
        let said = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse::<usize>().ok());
        let terminal = || terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
        said.filter(|width| *width > 0).or_else(terminal).unwrap_or(USUAL).max(LEAST)
    })
}

/// Characters that a reader sees: styles take none.
pub fn visible(text: &str) -> usize {
    let mut is_style = false;
    let shown = text.chars().filter(|c| match (is_style, c) {
        (false, '\x1b') => {
            is_style = true;
            false
        }
        (true, c) => {
            is_style = *c != 'm';
            false
        }
        (false, c) => *c != '\n',
    });
    shown.count()
}

/// Pieces that a line may be broken between: words, and whole what belongs together: a command in
/// backticks, a shape, a flag with its value.
pub fn pieces(text: &str) -> Vec<&str> {
    let (mut out, mut start, mut whole_until) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        let behind = &text[at + c.len_utf8()..];
        let end = match c {
            '`' if at >= whole_until && behind.starts_with("shardwright ") => behind.find('`'),
            '[' if at >= whole_until && !text[..at].ends_with('\x1b') => {
                behind.find(']').filter(|length| *length <= SHAPE)
            }
            _ => None,
        };
        if let Some(length) = end {
            whole_until = at + 1 + length;
        } else if c == ' ' && at >= whole_until && !has_value(&text[start..at], behind) {
            out.push(&text[start..at]);
            start = at + 1;
        }
    }
    out.push(&text[start..]);
    out
}

/// Whether a word is a flag that the text behind it gives a value.
fn has_value(word: &str, behind: &str) -> bool {
    word.starts_with("--") && !word.contains(' ') && behind.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Every line at most this wide, the rest of it below, two columns further in.
pub fn fold(text: &str, width: usize) -> String {
    text.split_inclusive('\n')
        .map(|line| if visible(line) > width { folded(line, width) } else { line.into() })
        .collect()
}

fn folded(line: &str, width: usize) -> String {
    let body = line.trim_end_matches('\n');
    if is_copied(body) {
        return line.to_string();
    }
    let indent = body.chars().take_while(|c| *c == ' ').count();
    let hang = " ".repeat(indent + 2);
    let (mut out, mut row) = (String::new(), " ".repeat(indent));
    let mut is_begun = false;
    for piece in pieces(&body[indent..]) {
        let space = usize::from(is_begun);
        if is_begun && visible(&row) + space + visible(piece) > width {
            out += row.trim_end();
            out.push('\n');
            (row, is_begun) = (hang.clone(), false);
        }
        if !is_begun && piece.is_empty() {
            continue;
        }
        if is_begun {
            row.push(' ');
        }
        row += piece;
        is_begun = true;
    }
    out += row.trim_end();
    if line.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// A command on a line of its own, or a line of a file with its number or its caret.
fn is_copied(line: &str) -> bool {
    let plain = line.trim_start();
    let behind = plain.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_quoted = behind.starts_with(" | ") || behind.starts_with("| ") || plain.starts_with("--> ");
    is_quoted
        || ["shardwright ", "cd ", "sbatch ", "kubectl ", "bash ", "torchrun "]
            .iter()
            .any(|word| plain.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_folded_behind_its_indent_and_styles_take_no_room() {
        assert_eq!(fold("  one two three\nshort\n", 10), "  one two\n    three\nshort\n");
        assert_eq!(fold("\x1b[1mone\x1b[0m two", 7), "\x1b[1mone\x1b[0m two");
        assert_eq!(visible("\x1b[1;32mfits\x1b[0m\n"), 4);
    }

    #[test]
    fn what_is_copied_stays_whole() {
        let command = "  shardwright fit nam56r --tp 1 --ep 8 --on 8xH200\n";
        assert_eq!(fold(command, 20), command);
        assert_eq!(fold(" 12 | hiden = 3584 and more\n", 12), " 12 | hiden = 3584 and more\n");
        assert_eq!(fold("with --seq 4096 --sp (gbs 4)", 15), "with --seq 4096\n  --sp (gbs 4)");
        assert_eq!(fold("\x1b[1mlong\x1b[0m [tp/heads]", 12), "\x1b[1mlong\x1b[0m\n  [tp/heads]");
        assert_eq!(fold("ask `shardwright check nam56r` now", 14), "ask\n  `shardwright check nam56r`\n  now");
    }
}
