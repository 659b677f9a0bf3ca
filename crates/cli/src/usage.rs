//! A command line that cannot be read: what clap says, with our suggestions, and as JSON when that was
//! asked for.

use crate::args;
use crate::outcome::{Report, USAGE};
use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use diag::{Blame, Finding, did_you_mean, quote};
use serde_json::json;
use std::ffi::OsString;

/// Other tools' words for flags of ours, without dashes.
const SAME: &[(&str, &str)] = &[
    ("tensor-parallel", "tp"),
    ("tensor-parallel-size", "tp"),
    ("tensor-parallel-degree", "tp"),
    ("tensor-model-parallel-size", "tp"),
    ("tp-size", "tp"),
    ("pipeline-parallel", "pp"),
    ("pipeline-parallel-size", "pp"),
    ("pipeline-parallel-degree", "pp"),
    ("pipeline-model-parallel-size", "pp"),
    ("pp-size", "pp"),
    ("virtual-pipeline", "vpp"),
    ("virtual-pipeline-model-parallel-size", "vpp"),
    ("expert-parallel", "ep"),
    ("expert-parallel-size", "ep"),
    ("expert-parallel-degree", "ep"),
    ("expert-model-parallel-size", "ep"),
    ("expert-tensor-parallel", "etp"),
    ("expert-tensor-parallel-size", "etp"),
    ("context-parallel", "cp"),
    ("context-parallel-size", "cp"),
    ("context-parallel-degree", "cp"),
    ("data-parallel", "dp"),
    ("data-parallel-size", "dp"),
    ("data-parallel-shard-degree", "dp"),
    ("sequence-parallel", "sp"),
    ("zero-stage", "zero"),
    ("micro-batch-size", "mbs"),
    ("local-batch-size", "mbs"),
    ("global-batch-size", "gbs"),
    ("batch-size", "gbs"),
    ("seq-length", "seq"),
    ("seq-len", "seq"),
    ("sequence-length", "seq"),
    ("max-seq-len", "seq"),
    ("world-size", "world"),
    ("gpus", "on"),
    ("num-gpus", "on"),
    ("cluster", "on"),
    ("device", "on"),
    ("hardware", "on"),
    ("framework", "engine"),
    ("backend", "engine"),
    ("output", "out"),
];

/// What is printed for a command line that clap refuses.
pub fn refused(error: Error, typed: &[OsString], is_json: bool) -> Report {
    let error = suggesting(shown(error, typed), typed);
    let text = error.render().ansi().to_string();
    if !error.use_stderr() {
        return Report::text(text);
    }
    let plain = error.render().to_string();
    let lines: Vec<&str> = plain.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let message = lines.first().map_or("", |line| line.trim_start_matches("error: "));
    let tips: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("tip: ")).collect();
    let hint = if tips.is_empty() { "--help shows what may be typed".to_string() } else { tips.join("; ") };
    let finding = Finding::error("usage/arguments", Blame::Usage, "arguments", message).hint(hint);
    let messages = if is_json { Vec::new() } else { vec![text] };
    Report { messages, ..Report::new(String::new(), json!({ "findings": [finding] })) }.refused(USAGE, [])
}

/// The same refusal of words that are safe to show: what is typed may come from anybody's file or folder.
fn shown(error: Error, typed: &[OsString]) -> Error {
    let is_shown = |word: &OsString| word.to_str().is_some_and(quote::is_plain);
    if typed.iter().all(is_shown) {
        return error;
    }
    let words = typed.iter().map(|word| if is_shown(word) { word.clone() } else { shown_word(word).into() });
    match args::parse(words) {
        Err(same) => same,
        Ok(_) => {
            let odd =
                typed.iter().filter(|word| word.to_str().is_none()).map(shown_word).collect::<Vec<_>>().join("`, `");
            args::command().error(ErrorKind::InvalidUtf8, format!("`{odd}` is no UTF-8 text"))
        }
    }
}

fn shown_word(word: impl AsRef<std::path::Path>) -> String {
    quote::shown(word.as_ref())
}

/// Our suggestion in the place of clap's, which takes `--ep` for a slip of `--tensor-parallel`.
fn suggesting(mut error: Error, words: &[OsString]) -> Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return error };
    if !typed.starts_with("--") {
        return error;
    }
    let close = flag(typed, &flags(words));
    error.remove(ContextKind::SuggestedArg);
    // The usage that clap shows is built from its own suggestion.
    error.remove(ContextKind::Usage);
    if let Some(close) = close {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{close}")));
    }
    error
}

/// Flags of the command that was typed.
fn flags(words: &[OsString]) -> Vec<String> {
    let command = args::command();
    let typed = words.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    let sub = typed.and_then(|name| command.find_subcommand(name)).unwrap_or(&command);
    sub.get_arguments().filter_map(|arg| arg.get_long().map(str::to_string)).collect()
}

/// The flag that is meant: by another tool's word for it, or by a slip.
fn flag(typed: &str, flags: &[String]) -> Option<String> {
    let name = typed.trim_start_matches('-').split('=').next().unwrap_or_default().replace('_', "-");
    let same = SAME.iter().find(|(other, ours)| *other == name && flags.iter().any(|flag| flag == ours));
    let close = || did_you_mean(&name, flags.iter().map(String::as_str)).map(str::to_string);
    same.map(|(_, ours)| ours.to_string()).or_else(close)
}

#[cfg(test)]
mod tests {
    use super::{SAME, flag, flags};

    #[test]
    fn words_of_other_tools_are_understood() {
        let known: Vec<String> = ["tp", "ep", "pp", "mbs", "headroom"].map(str::to_string).to_vec();
        let meant = |typed: &str| flag(typed, &known);
        assert_eq!(meant("--tensor-parallel").as_deref(), Some("tp"));
        assert_eq!(meant("--tensor_model_parallel_size=2").as_deref(), Some("tp"));
        assert_eq!(meant("--headrom").as_deref(), Some("headroom"));
        assert_eq!(meant("--colour"), None);
        assert_eq!(meant("--seq-length"), None, "a flag that this command does not have");
        assert!(flags(&[]).iter().any(|flag| flag == "json"));
    }

    #[test]
    fn the_list_leads_to_flags_that_exist() {
        let command = crate::args::command();
        let all: Vec<String> = command
            .get_subcommands()
            .flat_map(|sub| {
                sub.get_arguments().filter_map(|arg| arg.get_long().map(str::to_string)).collect::<Vec<_>>()
            })
            .collect();
        for (_, ours) in SAME {
            assert!(all.iter().any(|flag| flag == ours), "{ours}");
        }
    }
}
