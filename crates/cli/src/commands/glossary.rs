//! `glossary`: a word of this project, as docs/glossary.md explains it.

use crate::args::GlossaryArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{heading, wrap};
use diag::{Blame, Finding, did_you_mean_name};
use serde_json::json;

/// The one source of every explanation.
const TEXT: &str = include_str!("../../../../docs/glossary.md");

/// An entry: its section, the words it explains, its text without marks.
struct Entry {
    section: &'static str,
    words: Vec<String>,
    text: String,
}

pub fn run(args: &GlossaryArgs) -> Outcome {
    let entries = entries();
    let Some(word) = &args.word else { return Ok(every(&entries)) };
    let found: Vec<&Entry> =
        entries.iter().filter(|entry| entry.words.iter().any(|known| is_same(known, word))).collect();
    if found.is_empty() {
        return Err(unknown(word, &entries).into());
    }
    let text = found.iter().map(|entry| wrap(&entry.text, "", 100)).collect::<Vec<_>>().join("\n");
    let list: Vec<_> = found.iter().map(|entry| json!({ "words": entry.words, "text": entry.text })).collect();
    Ok(Report::new(text, json!({ "entries": list })))
}

fn is_same(known: &str, word: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace([' ', '-', '_'], "");
    plain(known) == plain(word)
}

fn every(entries: &[Entry]) -> Report {
    let mut text = "`shardwright glossary WORD` explains one of these words\n".to_string();
    let mut section = "";
    for entry in entries {
        if entry.section != section {
            section = entry.section;
            let of_section = entries.iter().filter(|entry| entry.section == section);
            let words: Vec<&str> = of_section.flat_map(|entry| &entry.words).map(String::as_str).collect();
            text += &(heading(section) + &wrap(&words.join(", "), "  ", 100));
        }
    }
    let list: Vec<_> = entries.iter().map(|entry| json!({ "words": entry.words, "text": entry.text })).collect();
    Report::new(text, json!({ "entries": list }))
}

fn unknown(word: &str, entries: &[Entry]) -> Finding {
    let shown: String = word.chars().take(60).collect();
    let known = entries.iter().flat_map(|entry| &entry.words).map(String::as_str);
    let hint = match did_you_mean_name(word, known) {
        Some(close) => format!("did you mean `{close}`? `shardwright glossary` lists every word"),
        None => "`shardwright glossary` lists every word".to_string(),
    };
    Finding::error("glossary/unknown", Blame::Usage, shown.clone(), format!("the glossary has no `{shown}`")).hint(hint)
}

/// The entries of the file: `- **word, word**: text`, over several lines.
fn entries() -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::new();
    let mut section = "";
    for line in TEXT.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        } else if let Some(begun) = line.strip_prefix("- ") {
            out.push(Entry { section, words: Vec::new(), text: begun.to_string() });
        } else if let (Some(rest), Some(entry)) = (line.strip_prefix("  "), out.last_mut()) {
            entry.text += " ";
            entry.text += rest;
        }
    }
    for entry in &mut out {
        // Every other piece stands between marks; a word that is explained has a colon behind it.
        let pieces: Vec<&str> = entry.text.split("**").collect();
        let explained = (1..pieces.len()).step_by(2).filter(|i| pieces.get(i + 1).is_some_and(|p| p.starts_with(':')));
        entry.words = explained.flat_map(|i| pieces[i].split(", ")).map(str::to_string).collect();
        entry.text = entry.text.replace("**", "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn every_entry_is_read_with_its_words() {
        let entries = entries();
        let count = super::TEXT.lines().filter(|line| line.starts_with("- ")).count();
        assert_eq!(entries.len(), count);
        for entry in &entries {
            assert!(!entry.words.is_empty() && !entry.section.is_empty(), "{}", entry.text);
        }
        let text = |word: &str| &entries.iter().find(|e| e.words.iter().any(|w| w == word)).expect(word).text;
        for word in ["mode", "lane", "seam", "NAM52", "NAM56R", "ablock", "SP", "bubble", "receipt"] {
            assert!(text(word).len() > 40, "{word}");
        }
    }
}
