//! A finding as text for a terminal: severity, message, rule; the line it stands on; the hint.

use crate::quote::{is_visible, sentence};
use crate::{Finding, Severity, Span};

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const CYAN: &str = "\x1b[36m";

/// Findings about one text that are shown; whoever has more of them reads no further.
pub const MOST_SHOWN: usize = 100;

/// Renders findings about one text, the first of them where there are too many to read.
pub fn render_all(findings: &[Finding], source: Option<(&str, &str)>) -> Vec<String> {
    let mut all: Vec<String> = findings.iter().take(MOST_SHOWN).map(|finding| render(finding, source)).collect();
    if let Some(more) = findings.len().checked_sub(MOST_SHOWN).filter(|more| *more > 0) {
        all.push(format!("{BOLD}and {more} more{RESET}; --json has them all\n"));
    }
    all
}

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

/// Where a span starts: its line and the character in it, both from 1.
pub fn place(span: &Span, text: &str) -> (usize, usize) {
    let start = floor_char(text, span.start);
    let line = text[..start].matches('\n').count() + 1;
    (line, text[line_start(text, start)..start].chars().count() + 1)
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |i| i + 1)
}

/// The line a span starts on, with a caret under it.
fn snippet(span: &Span, name: &str, text: &str) -> String {
    let start = floor_char(text, span.start);
    let end = floor_char(text, span.end.max(span.start + 1));
    let line_start = line_start(text, start);
    let line_end = text[start..].find('\n').map_or(text.len(), |i| start + i);
    let (line_number, column) = place(span, text);
    let column = column - 1;
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
    fn of_many_findings_the_first_are_shown_and_the_rest_counted() {
        let one = Finding::error("recipe/unknown-key", Blame::Recipe, "x", "unknown key `x`");
        let shown = render_all(&vec![one; MOST_SHOWN + 7], None);
        assert_eq!(shown.len(), MOST_SHOWN + 1);
        assert_eq!(plain(&shown[MOST_SHOWN]), "and 7 more; --json has them all\n");
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
        assert!(shown.lines().all(crate::quote::is_plain), "{shown:?}");
    }

    #[test]
    fn hostile_spans_and_bytes_are_tame() {
        let text = "é\u{7}\n";
        let finding = Finding::error("r/x", Blame::Recipe, "o", "m").at(Some(Span { start: 1, end: 900 }));
        assert!(plain(&render(&finding, Some(("f", text)))).contains("é\u{fffd}"));
    }
}
