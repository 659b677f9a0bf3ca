//! Constants that were measured on one topology: sizes of buckets, and padding. A policy keeps them by
//! topology and engine (`[tuned."<topology>"]`); a job on that topology is told them, and priced with
//! them. On another topology they are refused, or left to the engine's defaults where the policy says
//! so: a bucket that was right for one fabric is a guess on the next.

use crate::lanes;
use crate::policy::{Policy, Tuned, Untuned};
use case::Case;
use case::words;
use diag::{Blame, Finding};
use recipe::import::megatron_args::shell_words;

const RULE: &str = "lane/buckets";

/// The case with the constants of its topology, and what a reader should know about them.
pub fn applied(case: Case, policy: &Policy) -> Result<(Case, Vec<Finding>), Vec<Finding>> {
    let mut misplaced = Vec::new();
    let here = lanes::topology(case.on(), &case.layout);
    for word in policy.run.engine_args.iter().flat_map(|text| constants(&case, text)) {
        let message = format!("`run.engine_args` sets `{word}`, which belongs to a topology and names none");
        let finding = Finding::error(RULE, Blame::Environment, "run.engine_args", message);
        misplaced.push(finding.hint(format!("put it into engine_args of [tuned.\"{here}\"]")));
    }
    if !misplaced.is_empty() {
        return Err(misplaced);
    }
    let found = policy.tuned.get(&here).filter(|tuned| tuned.engine == case.engine());
    match (found, policy.run.untuned) {
        (Some(tuned), _) => tell(&case, tuned, &here),
        (None, _) if policy.tuned.is_empty() => Ok((case, Vec::new())),
        (None, Untuned::Refuse) => Err(vec![elsewhere(&case, policy, &here, Finding::error)]),
        (None, Untuned::Engine) => {
            let finding = elsewhere(&case, policy, &here, Finding::note);
            Ok((case, vec![finding]))
        }
    }
}

/// The words of some engine arguments that are constants of a topology.
fn constants(case: &Case, text: &str) -> Vec<String> {
    let tuned = words::of(case.layout.engine).tuned;
    let names = shell_words(text).into_iter().map(|word| word.split('=').next().unwrap_or_default().to_string());
    names.filter(|name| tuned.contains(&name.as_str())).collect()
}

fn tell(case: &Case, tuned: &Tuned, here: &str) -> Result<(Case, Vec<Finding>), Vec<Finding>> {
    let object = format!("tuned.\"{here}\"");
    let said = tuned.engine_args.as_deref().unwrap_or_default();
    let known = words::of(case.layout.engine).tuned;
    let is_name = |word: &String| word.starts_with("--") || word.contains('.');
    let strangers: Vec<String> = shell_words(said)
        .into_iter()
        .filter(is_name)
        .map(|word| word.split('=').next().unwrap_or_default().to_string())
        .filter(|name| !known.contains(&name.as_str()))
        .collect();
    if !strangers.is_empty() {
        let message = format!("`{}` is no bucket size or padding of {}", strangers.join("`, `"), case.engine());
        let hint = match known {
            [] => format!("{} has none; what holds on any topology stands in run.engine_args", case.engine()),
            known => format!("these are: {}; what holds on any topology stands in run.engine_args", known.join(", ")),
        };
        return Err(vec![Finding::error(RULE, Blame::Environment, object, message).hint(hint)]);
    }
    let told = case.with(|asked| {
        if !said.is_empty() {
            asked.state.engine_args.insert(0, said.to_string());
        }
        asked.layout.vocab_multiple = asked.layout.vocab_multiple.or(tuned.vocab_multiple);
    })?;
    let padding = tuned.vocab_multiple.map(|multiple| format!("vocabulary padded to {multiple} times tp"));
    let all: Vec<String> = [said.to_string()].into_iter().filter(|text| !text.is_empty()).chain(padding).collect();
    let message = format!("tuned for this topology: {} ({})", all.join("; "), tuned.source);
    Ok((told, vec![Finding::note("lane/tuned", Blame::Environment, object, message)]))
}

/// Constants that belong elsewhere, with the way to those that belong here.
fn elsewhere(
    case: &Case,
    policy: &Policy,
    here: &str,
    level: fn(&'static str, Blame, String, String) -> Finding,
) -> Finding {
    let others: Vec<String> = policy.tuned.iter().map(|(key, tuned)| format!("`{key}` ({})", tuned.engine)).collect();
    let used = match policy.run.untuned {
        Untuned::Refuse => "",
        Untuned::Engine => "; the engine's own are used",
    };
    let engine = case.engine();
    let message =
        format!("bucket sizes and padding were tuned for {}, and this is `{here}` ({engine}){used}", others.join(", "));
    let hint = match words::of(case.layout.engine).tuned.first() {
        Some(word) => format!(
            "to tune here, launch this job a few times with --attempt and --engine-args \"{} N\", N from a quarter to four \
             times the default, compare their step times, and write the best into [tuned.\"{here}\"]; \
             run.untuned = \"engine\" takes the engine's own meanwhile",
            word
        ),
        None => format!("{engine} has no such constants: run.untuned = \"engine\" lets it run"),
    };
    level(RULE, Blame::Environment, "tuned".to_string(), message).hint(hint)
}
