//! Every writing command on a file system that fails at a random call.

use super::field::{Field, WRITERS, said, tree};
use super::{Random, number};
use std::fs;

/// How a call fails: once, or from then on (a full disk, a device that is gone).
const KINDS: [&str; 6] = ["enospc", "eio", "eintr", "short", "full", "gone"];

#[test]
fn a_file_system_that_fails_at_random_calls() {
    let (field, mut random) = (Field::new("faults"), Random::new(7));
    let log = field.root.with_extension("log");
    let (mut refused, mut leaving) = (0, 0);
    let runs = number("SHARDWRIGHT_FAULTS", 27);
    for run in 0..runs {
        let at = run as usize % WRITERS.len();
        let (writer, reference) = (&WRITERS[at], &field.references[at]);
        let kind = KINDS[random.below(KINDS.len() as u64) as usize];
        let call = 1 + random.below(reference.calls);
        let what = format!("run {run}: `{}`, {kind} at call {call} of {}", writer.line, reference.calls);
        field.prepare(writer, random.below(2) == 0);
        let before = tree(&field.root).0;
        let _ = fs::remove_file(&log);
        let mut command = field.shimmed(writer.line);
        command.env("SHIM_KIND", kind).env("SHIM_AT", call.to_string()).env("SHIM_LOG", &log);
        if random.below(4) == 0 {
            command.env("SHIM_OLD", "1");
        }
        let output = command.output().unwrap();
        let failed = fs::read_to_string(&log).unwrap_or_default();
        let (is_whole, left) = field.check(at, &before, &what);
        let what = format!("{what}: {}{failed}", said(&output));
        let code = output.status.code().unwrap_or_else(|| panic!("{what}: ended by a signal"));
        assert!(code == reference.code || code == 1, "{what}");
        // Lines are broken anywhere between words.
        let words: Vec<String> = [&output.stdout, &output.stderr].map(|t| String::from_utf8_lossy(t).into()).into();
        let is_said = words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ").contains("os error");
        assert!(is_whole || code != 0 && is_said, "{what}: a failure that was not said");
        assert!(left.is_empty() || failed.contains("remove"), "{what}: {left:?} were left, and could be removed");
        refused += u64::from(code != reference.code);
        leaving += u64::from(!left.is_empty());
        field.run_again(at, &what);
    }
    let _ = fs::remove_file(&log);
    println!("{runs} runs with faults: {refused} refused, {leaving} left something that the next run removed");
    assert!(refused > runs / 4, "{refused} of {runs} runs noticed a fault");
}
