//! Splitting a Megatron argument list and looking flags up in the engine's own list. What a flag
//! means is not known here.

use super::values;
use crate::limits;
use diag::{Blame, Finding, did_you_mean};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// The 847 option strings of Megatron-Core 0.19.2, with what each takes.
const OPTIONS: &str = include_str!("../../../../../data/engines/megatron_flags_0.19.2.json");

/// The engine's flags by name.
pub fn options() -> &'static Value {
    static FLAGS: OnceLock<Value> = OnceLock::new();
    FLAGS.get_or_init(|| {
        let mut file: Value = serde_json::from_str(OPTIONS).unwrap_or_default();
        file["flags"].take()
    })
}

/// An argument list: each flag with its values.
pub struct Flags {
    given: BTreeMap<String, Vec<String>>,
    /// Ranks the launcher starts, where it says so.
    pub ranks: Option<u64>,
    /// What is wrong with it.
    pub findings: Vec<Finding>,
    /// Flags that something is wrong with.
    refused: BTreeSet<String>,
}

/// The words of each line of a shell script: quotes, backslashes, continued lines and comments.
fn lines(text: &str) -> Vec<Vec<String>> {
    let mut lines = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (_, '\\') => match chars.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            (None, c) if c.is_whitespace() => {
                lines.last_mut().expect("one at least").extend(word.take());
                if c == '\n' {
                    lines.push(Vec::new());
                }
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    lines.last_mut().expect("one at least").extend(word);
    lines
}

/// Splits a shell command line.
pub fn words(text: &str) -> Vec<String> {
    lines(text).concat()
}

/// The words of an argument list. Of a script that does more, such as the one `launch` writes, the one line that
/// hands flags of the engine to a Python file; a list may stand on several lines otherwise.
fn command(text: &str, known: &Value) -> Vec<String> {
    let lines = lines(text);
    let starts = |line: &&Vec<String>| {
        let script = line.iter().position(|word| word.ends_with(".py"));
        script
            .is_some_and(|at| line[at..].iter().any(|word| known.get(word.split('=').next().unwrap_or(word)).is_some()))
    };
    let mut starting = lines.iter().filter(starts);
    match (starting.next(), starting.next()) {
        (Some(line), None) if line.len() > 2 => line.clone(),
        _ => lines.concat(),
    }
}

/// How many words the launcher takes: those up to the script, unless a flag of Megatron's stands
/// before it.
fn launcher(words: &[String], known: &Value) -> usize {
    let script = words.iter().position(|w| w.ends_with(".py")).map_or(0, |at| at + 1);
    let is_known = |w: &String| known.get(w.split('=').next().unwrap_or(w)).is_some();
    if words[..script].iter().any(is_known) { 0 } else { script }
}

/// Ranks that `torchrun` starts: processes a node times nodes, when both are plain numbers.
fn ranks(launcher: &[String]) -> Option<u64> {
    let value = |name: &str| {
        let spelled = |w: &String| w.split('=').next().is_some_and(|w| w.replace('_', "-") == name);
        let at = launcher.iter().position(spelled)?;
        let inline = launcher[at].split_once('=').map(|(_, value)| value.to_string());
        inline.or_else(|| launcher.get(at + 1).cloned())
    };
    let processes: u64 = value("--nproc-per-node")?.parse().ok()?;
    let nodes: u64 = value("--nnodes").map_or(Some(1), |n| n.parse().ok())?;
    processes.checked_mul(nodes).filter(|ranks| (1..=1 << 24).contains(ranks))
}

/// A text short enough to print.
pub fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

impl Flags {
    /// Reads an argument list; whatever stands before the script is the launcher's. Every value is
    /// held against the engine's list: how many, of which type, among which choices.
    pub fn read(text: &str) -> Flags {
        let known = options();
        let words = command(text, known);
        let (before, after) = words.split_at(launcher(&words, known));
        let mut flags =
            Flags { given: BTreeMap::new(), ranks: ranks(before), findings: Vec::new(), refused: BTreeSet::new() };
        let mut current: Option<&str> = None;
        for word in after {
            if let Some((flag, value)) = word.split_once('=').filter(|(flag, _)| flag.starts_with("--")) {
                flags.start(flag, known);
                flags.given.entry(flag.to_string()).or_default().push(value.to_string());
                current = None;
            } else if word.starts_with("--") {
                flags.start(word, known);
                current = Some(word);
            } else if let Some(flag) = current {
                flags.given.entry(flag.to_string()).or_default().push(word.clone());
            } else if word.contains('$') {
                let message = format!("`{}` stands for arguments that cannot be seen", shown(word));
                let finding = Finding::error("import/megatron-flag", Blame::Recipe, shown(word), message);
                flags.findings.push(finding.hint("give the command line with its variables expanded"));
            }
        }
        let complain = |(flag, given): (&String, &Vec<String>)| values::complaint(known.get(flag)?, flag, given);
        let complaints: Vec<(String, Finding)> =
            flags.given.iter().filter_map(|given| Some((given.0.clone(), complain(given)?))).collect();
        for (flag, complaint) in complaints {
            flags.refused.insert(flag);
            flags.findings.push(complaint);
        }
        flags
    }

    fn start(&mut self, flag: &str, known: &Value) {
        if known.get(flag).is_none() {
            let message = format!("`{}` is no flag of Megatron-Core 0.19.2", shown(flag));
            let names = known.as_object().into_iter().flat_map(|m| m.keys().map(String::as_str));
            // A slip is one flag of many, not every one.
            let names = names.take(if self.findings.len() < diag::MOST_SHOWN { usize::MAX } else { 0 });
            let mut finding = Finding::error("import/megatron-flag", Blame::Recipe, shown(flag), message);
            if let Some(close) = did_you_mean(flag, names) {
                finding = finding.hint(format!("did you mean `{close}`?"));
            }
            self.findings.push(finding);
        }
        // A repeated flag overrides, as argparse does.
        self.given.insert(flag.to_string(), Vec::new());
    }

    /// Whether something is wrong with the flag already.
    pub fn is_refused(&self, flag: &str) -> bool {
        self.refused.contains(flag)
    }

    /// Whether the flag was given.
    pub fn has(&self, flag: &str) -> bool {
        self.given.contains_key(flag)
    }

    /// The flag's first value.
    pub fn text(&self, flag: &str) -> Option<&str> {
        self.given.get(flag)?.first().map(String::as_str)
    }

    /// All values of the flag.
    pub fn list(&self, flag: &str) -> &[String] {
        self.given.get(flag).map_or(&[], Vec::as_slice)
    }

    /// Reports a refusal about a flag.
    pub fn refuse(&mut self, flag: &str, message: impl Into<String>) {
        self.refused.insert(flag.to_string());
        self.findings.push(Finding::error("import/value", Blame::Recipe, flag, message));
    }

    /// Reports what Megatron itself refuses, in its own words.
    pub fn refuse_as(&mut self, flag: &str, message: impl Into<String>, quote: &str) {
        self.refused.insert(flag.to_string());
        self.findings.push(Finding::error("import/value", Blame::Engine, flag, message).quote(quote));
    }

    /// A whole number, if the flag was given; at least one, at most what a recipe may ask for.
    pub fn number(&mut self, flag: &str) -> Option<u64> {
        let text = self.text(flag)?.to_string();
        let most = most(flag);
        let number = text.parse::<u64>().ok().filter(|n| (1..=most).contains(n));
        if number.is_none() && !self.is_refused(flag) {
            self.refuse(flag, format!("`{flag} {}` is no whole number from 1 to {most}", shown(&text)));
        }
        number
    }

    /// A number above zero, if the flag was given with one; zero is what the engine takes for none.
    pub fn positive(&mut self, flag: &str) -> Option<f64> {
        let value: f64 = self.text(flag)?.parse().ok()?;
        let is_number = value >= 0.0 && value.is_finite();
        if !is_number && !self.is_refused(flag) {
            self.refuse(flag, format!("`{flag} {value}` is below zero"));
        }
        (value.is_finite() && value > 0.0).then_some(value)
    }

    /// A number that must be there.
    pub fn need(&mut self, flag: &str) -> Option<u64> {
        if !self.has(flag) {
            self.refuse(flag, format!("the argument list has no `{flag}`"));
        }
        self.number(flag)
    }

    /// Flags that were given, by name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.given.keys().map(String::as_str)
    }
}

/// The largest value of a flag that a recipe could hold.
fn most(flag: &str) -> u64 {
    match flag {
        "--vocab-size" | "--padded-vocab-size" => limits::VOCAB,
        "--num-layers" => limits::DEPTH,
        "--num-experts" | "--moe-router-topk" => limits::EXPERTS,
        "--seq-length" | "--max-position-embeddings" => limits::SEQUENCE,
        "--mtp-num-layers" => limits::MTP,
        "--num-attention-heads" | "--num-query-groups" | "--dsa-indexer-n-heads" => limits::HEADS,
        "--mamba-num-heads" | "--mamba-num-groups" | "--mamba-state-dim" => limits::HEADS,
        "--linear-num-key-heads" | "--linear-num-value-heads" => limits::HEADS,
        "--linear-conv-kernel-dim" => 64,
        "--rotary-base" => 1 << 40,
        "--make-vocab-size-divisible-by" => 1 << 20,
        _ => limits::WIDTH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_split_as_a_shell_does() {
        let text = "torchrun x.py \\\n --a 'b c' # note\n --d=\"e\\\"f\" g";
        assert_eq!(words(text), ["torchrun", "x.py", "--a", "b c", "--d=e\"f", "g"]);
        assert_eq!(words("--x ''"), ["--x", ""]);
    }

    #[test]
    fn of_a_script_the_line_that_starts_the_engine_is_read() {
        let script = "mkdir -p -- \"$logs\"\nengine() {\n  exec torchrun \\\n  --nnodes 1 x.py \\\n  --swiglu\n}\nengine --fast\n";
        let flags = Flags::read(script);
        assert_eq!((flags.findings.len(), flags.names().collect::<Vec<_>>()), (0, vec!["--swiglu"]));
        let two = Flags::read("x.py --swiglu\ny.py --bf16\n");
        assert_eq!(two.names().collect::<Vec<_>>(), ["--bf16", "--swiglu"]);
    }

    #[test]
    fn the_launchers_flags_are_its_own() {
        let flags = Flags::read("torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py --swiglu");
        assert_eq!((flags.findings.len(), flags.ranks), (0, Some(16)));
        assert_eq!(flags.names().collect::<Vec<_>>(), ["--swiglu"]);
        assert!(!Flags::read("--swiglu --nproc_per_node 8 x.py").findings.is_empty());
    }

    #[test]
    fn arguments_behind_a_variable_are_not_guessed() {
        let findings = Flags::read("pretrain_gpt.py ${MODEL_ARGS[@]} --swiglu").findings;
        assert_eq!(findings[0].hint.as_deref(), Some("give the command line with its variables expanded"));
        assert!(!Flags::read("pretrain_gpt.py --swiglu $MORE").findings.is_empty());
    }
}
