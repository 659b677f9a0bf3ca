//! How the help is laid out: what a newcomer needs first, and examples that run as they stand.

use super::Cli;
use clap::{Command, CommandFactory, Error, FromArgMatches, Parser};
use std::ffi::OsString;

/// Commands by what they are for, in the order somebody new needs them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start here", &["plan", "fit", "launch", "serve", "report"]),
    ("Look closer", &["params", "splits", "check", "choices", "stages", "mesh", "schedule", "diff", "axes"]),
    ("Models, machines, engines", &["recipes", "import", "hardware", "lanes", "options"]),
    ("Run, and keep what came of it", &["preflight", "rehearse", "probe", "receipt", "checkpoint", "diagnose"]),
    ("About Shardwright", &["fidelity", "glossary", "man", "completions", "help"]),
];

/// Lines that a reader may type. Each runs as printed in a test.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "plan",
        &[
            "plan llama3-8b --on 8xH100",
            "plan nam56r --on 8xH200 --engine megatron",
            "plan mixtral-8x7b --on 16xH100 --gbs 128 --top 3",
            "plan llama3-8b --on ?xH100 --tokens 1T --days 30",
        ],
    ),
    (
        "fit",
        &[
            "fit llama3-70b --on 64xH100 --tp 8 --pp 2 --engine megatron",
            "fit mixtral-8x7b --on 16xH200 --ep 8 --recompute full",
            "fit llama3-8b --on 1xH100 --serve --context 8192",
        ],
    ),
    (
        "launch",
        &[
            "launch llama3-8b --on 8xH100 --tp 2 --engine megatron --explain",
            "launch llama3-8b --on 8xH100 --engine torchtitan --out run1",
        ],
    ),
    ("params", &["params nam56r", "params deepseek-v3 --json"]),
    ("splits", &["splits nam56r --tp 2", "splits qwen3-30b-a3b --ep 8 --rank 3"]),
    (
        "check",
        &["check nam56r --tp 2 --mode nemo_native --engine megatron", "check mixtral-8x7b --on 16xH100 --ep 8 --pp 2"],
    ),
    ("choices", &["choices nam56r --on 8xH200 --tp 2 --engine megatron"]),
    ("stages", &["stages nam56r --pp 4", "stages llama3-70b --pp 4 --vpp 5"]),
    ("mesh", &["mesh --tp 4 --pp 2 --world 16 --rank 5"]),
    ("schedule", &["schedule llama3-8b --on 8xH100 --tp 2 --pp 4 --microbatches 8"]),
    ("diff", &["diff \"nam56r --mbs 4\" \"nam56r --mbs 8\" --on 8xH200"]),
    ("axes", &["axes", "axes cp"]),
    ("recipes", &["recipes", "recipes nam56r"]),
    ("hardware", &["hardware", "hardware H200"]),
    ("lanes", &["lanes", "lanes --for nam56r --on 8xH200"]),
    ("options", &["options megatron"]),
    ("rehearse", &["rehearse nam56r-mini --tp 2", "rehearse nam56r-mini --pp 2 --steps 3"]),
    ("probe", &["probe llama3-8b --engine fsdp2 --on 8xH200 --rank 0 --out probe1"]),
    ("receipt", &["receipt list --store receipts"]),
    ("diagnose", &["diagnose \"all-to-all hangs\""]),
    ("glossary", &["glossary", "glossary lane"]),
    ("man", &["man", "man --out pages"]),
    ("completions", &["completions bash"]),
];

const FOOTER: &str = "\
A RECIPE is a built-in name (`shardwright recipes`), a recipe .toml, a Hugging Face config.json or its folder, or \
org/name in the local Hugging Face cache; nothing is downloaded.
Words such as mode, lane and seam: shardwright glossary WORD
Exit codes: 0 yes, 1 the answer is no or the input is wrong, 2 usage, 3 does not fit, 70 our bug.";

/// The command line with its help laid out.
pub fn command() -> Command {
    let mut command = Cli::command();
    for (name, lines) in EXAMPLES {
        command = command.mut_subcommand(name, |sub| sub.after_help(typed("Examples:", lines)));
    }
    let mut listed = String::new();
    let widest = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    for (title, names) in GROUPS {
        listed += &format!("\x1b[1;4m{title}:\x1b[0m\n");
        for name in *names {
            let about = match command.find_subcommand(name).and_then(|sub| sub.get_about()) {
                Some(about) => about.to_string(),
                None if *name == "help" => "This, or the help of a command".to_string(),
                None => continue,
            };
            listed += &hanging(&format!("  \x1b[1m{name:widest$}\x1b[0m  "), &about, widest + 4);
        }
        listed.push('\n');
    }
    let first = typed("Begin with:", &["plan llama3-8b --on 8xH100", "fit nam56r --on 8xH200 --tp 2", "serve"]);
    command
        .help_template(format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{first}\n{listed}\x1b[1;4mOptions:\x1b[0m\n{{options}}{{after-help}}"))
        .after_help(FOOTER)
}

/// Lines to type, below a title.
fn typed(title: &str, lines: &[&str]) -> String {
    let lines: String = lines.iter().map(|line| format!("  shardwright {line}\n")).collect();
    format!("\x1b[1;4m{title}\x1b[0m\n{lines}")
}

/// A text behind a head, its further lines below where it began, within 80 columns.
fn hanging(head: &str, text: &str, indent: usize) -> String {
    let (mut out, mut column) = (head.to_string(), indent);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > indent && column + 1 + len > 80 {
            out += &format!("\n{}", " ".repeat(indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += len;
    }
    out + "\n"
}

/// What was typed. Help is laid out only where it is shown: a server parses a line for every question.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Error> {
    let words = with_engines(words.into_iter().collect());
    Cli::try_parse_from(&words)
        .or_else(|_| command().try_get_matches_from(&words).and_then(|matches| Cli::from_arg_matches(&matches)))
}

/// A list of engines behind `--engine`, which only `plan` takes, as the `--engines` that it is there.
fn with_engines(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_several = |word: &str| word == "all" || word.contains(',');
    if words
        .get(1..)
        .is_some_and(|words| words.iter().find(|word| *word != "--json").is_some_and(|word| word == "plan"))
    {
        for at in 2..words.len() {
            let one = words[at].to_string_lossy().into_owned();
            let next = words.get(at + 1).map(|next| next.to_string_lossy().into_owned()).unwrap_or_default();
            match one.strip_prefix("--engine=") {
                Some(list) if is_several(list) => words[at] = format!("--engines={list}").into(),
                None if one == "--engine" && is_several(&next) => words[at] = "--engines".into(),
                _ => {}
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Cli::command();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for sub in command.get_subcommands() {
            assert_eq!(grouped.iter().filter(|name| **name == sub.get_name()).count(), 1, "{}", sub.get_name());
        }
        assert_eq!(grouped.len(), command.get_subcommands().count() + 1, "a group lists what there is, and help");
    }
}
