//! Every writing command killed at random moments, and many at once on one target.

use super::field::{Field, WRITERS, tree};
use super::{Random, number};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Microseconds that every call on a file is held up in two of three runs, so that most kills strike a write.
const PAUSE: u64 = 2000;

#[test]
fn kills_at_random_moments() {
    let (field, mut random) = (Field::new("kills"), Random::new(11));
    let (mut run, mut killed, mut inside) = (0, 0, 0);
    let kills = number("SHARDWRIGHT_KILLS", 24);
    // Some end before they are struck.
    while killed < kills {
        assert!(run < 4 * kills, "only {killed} of {run} runs were killed");
        let at = run as usize % WRITERS.len();
        let (writer, reference) = (&WRITERS[at], &field.references[at]);
        field.prepare(writer, random.below(2) == 0);
        let before = tree(&field.root).0;
        let (mut command, mut longest) = (field.shimmed(writer.line), reference.time);
        let call = 1 + random.below(reference.calls);
        let how = (run / WRITERS.len() as u64) % 3;
        match how {
            // At a call, as exactly as can be.
            0 => drop(command.env("SHIM_KIND", "kill").env("SHIM_AT", call.to_string())),
            1 => {
                command.env("SHIM_PAUSE", PAUSE.to_string());
                longest += Duration::from_micros(PAUSE * reference.calls);
            }
            _ => {}
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        if how > 0 {
            std::thread::sleep(longest.mul_f64(random.below(1000) as f64 / 1000.0));
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        let what = format!("kill {run}: `{}`, way {how}, call {call}", writer.line);
        let (is_whole, left) = field.check(at, &before, &what);
        if status.signal().is_none() {
            assert!(status.code() == Some(reference.code) && is_whole && left.is_empty(), "{what}: {status} {left:?}");
        }
        killed += u64::from(status.signal() == Some(9));
        inside += u64::from(!left.is_empty());
        field.run_again(at, &what);
        run += 1;
    }
    println!("{run} runs, {killed} killed, {inside} of them while something was half written");
    assert!(inside > kills / 20, "{inside} of {killed} kills struck a write");
}

/// Starts a command several times at once, slowed down so that they meet.
fn at_once(field: &Field, line: &str, is_old: bool) -> Vec<Child> {
    let start = |_| {
        let mut command = field.shimmed(line);
        command.env("SHIM_PAUSE", "1000").stdout(Stdio::null()).stderr(Stdio::piped());
        if is_old {
            command.env("SHIM_OLD", "1");
        }
        command.spawn().unwrap()
    };
    (0..8).map(start).collect()
}

/// One of them gets the name, what it wrote is whole, and nobody takes a living one's work for left behind.
#[test]
fn many_at_once_on_one_target() {
    let field = Field::new("many");
    for (at, wins) in [(1, 1), (0, 8)] {
        for is_old in [false, true] {
            let (writer, before) = (&WRITERS[at], tree(&field.root).0);
            let ended = at_once(&field, writer.line, is_old).into_iter().map(|child| child.wait_with_output().unwrap());
            let (good, bad): (Vec<_>, Vec<_>) = ended.partition(|output| output.status.success());
            assert_eq!(good.len(), wins, "{}: {bad:?}", writer.line);
            for output in bad {
                let text = String::from_utf8(output.stderr).unwrap();
                assert!(text.contains("launch/out") && text.contains("is there already"), "{text}");
            }
            assert_eq!(field.check(at, &before, writer.line), (true, Vec::new()));
            field.clear(writer);
        }
    }
}
