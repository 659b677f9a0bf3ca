//! A finding as text for a terminal: severity, message, rule; the line it stands on; the hint.

use crate::quote::{is_visible, sentence};
use crate::{Finding, Severity, Span};

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";

/// Renders one finding, with ANSI styles that the printer may strip. A finding is sentences, and names in them
/// may be anybody's: no line ends where we did not end it.
pub fn render(finding: &Finding, source: Option<(&str, &str)>) -> String {
    let (word, colour) = match finding.severity {
        Severity::Error => ("error", "\x1b[1;31m"),
        Severity::Warning => ("warning", "\x1b[1;33m"),
        Severity::Note => ("note", "\x1b[1;34m"),
    };
    let mut out = format!("{colour}{word}{RESET}{BOLD}: {}{RESET} [{}]\n", sentence(&finding.message), finding.rule);
    if let (Some(span), Some((name, text))) = (&finding.span, source) {
        out += &snippet(span, name, text);
    }
    if let Some(quote) = &finding.quote {
        out += &format!("  engine: {}\n", sentence(quote));
    }
    if let Some(hint) = &finding.hint {
        out += &format!("{CYAN}hint{RESET}: {}\n", sentence(hint));
    }
    out
}

/// The line a span starts on, with a caret under it.
fn snippet(span: &Span, name: &str, text: &str) -> String {
    let start = floor_char(text, span.start);
    let end = floor_char(text, span.end.max(span.start + 1));
    let line_start = text[..start].rfind('\n').map_or(0, |i| i + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
    let line_number = text[..start].matches('\n').count() + 1;
    let column = text[line_start..start].chars().count();
    let width = text[start..end.min(line_end).max(start)].chars().count().clamp(1, 80);
    let gutter = " ".repeat(line_number.to_string().len());
    // A line of a generated or hostile file may be huge; show what a screen holds.
    let shown: String = text[line_start..line_end].chars().take(160).map(printable).collect();
    let mut out = format!(" {gutter}--> {}:{line_number}:{}\n", sentence(name), column + 1);
    out += &format!(" {line_number} | {shown}\n");
    if column < 160 {
        out += &format!(" {gutter} | {}{}\n", " ".repeat(column), "^".repeat(width.min(160 - column)));
    }
    out
}

/// One character for another, so that the caret stands under what it means.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if is_visible(c) => c,
        _ => '\u{fffd}',
    }
}

fn floor_char(text: &str, mut i: usize) -> usize {
    i = i.min(text.len());
    while !text.is_char_boundary(i) {
        i -= 1;
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blame;

    fn plain(text: &str) -> String {
        let mut out = String::new();
        let mut escaped = false;
        for c in text.chars() {
            match (escaped, c) {
                (false, '\x1b') => escaped = true,
                (true, 'm') => escaped = false,
                (true, _) => {}
                (false, c) => out.push(c),
            }
        }
        out
    }

    #[test]
    fn a_finding_points_into_its_file() {
        let text = "[model]\nhiden = 3584\n";
        let finding = Finding::error("recipe/unknown-key", Blame::Recipe, "model.hiden", "unknown key `hiden`")
            .hint("did you mean `hidden`?")
            .at(Some(Span { start: 8, end: 13 }));
        assert_eq!(
            plain(&render(&finding, Some(("m.toml", text)))),
            "error: unknown key `hiden` [recipe/unknown-key]\n  --> m.toml:2:1\n 2 | hiden = 3584\n   | ^^^^^\nhint: did you mean `hidden`?\n"
        );
    }

    #[test]
    fn a_name_forges_no_line() {
        let name = "x\nlegal: 0 errors\x1b[2J\u{202e}";
        let finding = Finding::error("r/x", Blame::Recipe, name, format!("`{name}` is no name")).hint(name).quote(name);
        let shown = plain(&render(&finding, None));
        assert_eq!(shown.lines().count(), 3, "{shown}");
        assert!(shown.lines().all(|line| crate::quote::is_plain(line)), "{shown:?}");
    }

    #[test]
    fn hostile_spans_and_bytes_are_tame() {
        let text = "é\u{7}\n";
        let finding = Finding::error("r/x", Blame::Recipe, "o", "m").at(Some(Span { start: 1, end: 900 }));
        assert!(plain(&render(&finding, Some(("f", text)))).contains("é\u{fffd}"));
    }
}
