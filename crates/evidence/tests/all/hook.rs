//! `shardwright_receipt.py` as a script without torch imports it; under torch, `tools/engines/check_hook.py` runs it.

use crate::events;
use evidence::{EventKind, Evidence, Format};
use std::process::Command;

/// What a script leaves, and how it exits.
fn ran(name: &str, script: &str) -> (Option<i32>, Option<Evidence>) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hook-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("shardwright_receipt.py"), evidence::HOOK).unwrap();
    // torch is not there, whatever the machine has.
    std::fs::write(folder.join("torch.py"), "raise ImportError('none')\n").unwrap();
    std::fs::write(folder.join("train.py"), script).unwrap();
    let mut python = Command::new("python3");
    let python = python.arg("train.py").current_dir(&folder).env("RANK", "0").env("WORLD_SIZE", "4");
    let status = python.env("TORCHELASTIC_RESTART_COUNT", "2").output().expect("python3 runs");
    let log = std::fs::read(folder.join("logs/hook.jsonl")).ok();
    let read = log.map(|log| evidence::read("hook.jsonl", &log[..], None, &mut |_| ()).unwrap());
    (status.status.code(), read)
}

#[test]
fn a_run_is_written_down() {
    let (code, read) = ran(
        "run",
        "import math, shardwright_receipt
receipt = shardwright_receipt.Receipt('logs/hook.jsonl', engine='mine')
receipt.ran('attention', 'sdpa')
receipt.step(loss=10.5, grad_norm=2.0, samples=64)
receipt.event('checkpoint-saved', seconds=1.5, step=1, detail='/ckpt/1')
receipt.step(loss=math.nan, grad_norm=math.inf, skipped=True)
receipt.step(number=7, loss=9.5, others={'z_loss': 0.5})
receipt.end()
",
    );
    let read = read.unwrap();
    assert_eq!((code, read.sources[0].format, read.sources[0].unread), (Some(0), Format::Hook, 0));
    let steps: Vec<_> = read.steps.iter().map(|s| (s.number, s.attempt, s.loss, s.nan, s.skipped)).collect();
    assert_eq!(steps, [(1, 2, Some(10.5), false, false), (2, 2, None, true, true), (7, 2, Some(9.5), false, false)]);
    assert_eq!((read.steps[0].samples, read.steps[0].grad_norm), (Some(64), Some(2.0)));
    assert!(read.steps.iter().all(|s| s.seconds.is_some_and(|s| s >= 0.0) && s.at.is_some()));
    assert_eq!((read.steps[2].others["z_loss"], read.ran["attention"].as_str()), (0.5, "sdpa"));
    assert_eq!(events(&read, EventKind::CheckpointSaved)[0].seconds, Some(1.5));
    assert_eq!((read.machine["world"].as_str(), read.versions.contains_key("python")), ("4", true));
    assert_eq!(events(&read, EventKind::End)[0].detail, "finished");
}

#[test]
fn a_run_that_fails_says_so() {
    let (code, read) = ran(
        "fails",
        "import shardwright_receipt
class OutOfMemoryError(Exception): pass
receipt = shardwright_receipt.Receipt('logs/hook.jsonl')
receipt.step(loss=1.0)
raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')
",
    );
    let read = read.unwrap();
    assert_eq!(code, Some(1));
    let oom = events(&read, EventKind::OutOfMemory);
    let said = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB";
    assert_eq!((oom.len(), oom[0].step, oom[0].detail.as_str()), (1, Some(2), said));
    let ends = events(&read, EventKind::End);
    assert_eq!((ends.len(), ends[0].detail.as_str()), (1, format!("failed: {said}").as_str()));
}

#[test]
fn what_trainers_call_besides() {
    let (code, read) = ran(
        "besides",
        "import shardwright_receipt, time
receipt = shardwright_receipt.Receipt('logs/hook.jsonl')
receipt.step(loss=1.0)
time.sleep(0.3)
receipt.beside('evaluation', step=1)
receipt.look(2)
receipt.step(loss=0.5)
receipt.step(loss=0.4, seconds=7.0)
receipt.failed(ValueError('no more data'))
receipt.failed(ValueError('again'))
receipt.end()
",
    );
    let read = read.unwrap();
    assert_eq!(code, Some(0));
    assert!(events(&read, EventKind::Evaluation)[0].seconds.is_some_and(|s| s >= 0.3));
    assert!(read.steps[1].seconds.is_some_and(|s| s < 0.3), "an evaluation is no part of the step after it");
    assert_eq!(read.steps[2].seconds, Some(7.0));
    let (failures, ends) = (events(&read, EventKind::Failure), events(&read, EventKind::End));
    assert_eq!((failures.len(), ends.len(), ends[0].detail.as_str()), (1, 1, "failed: ValueError: no more data"));
}

/// Other ranks call everything and write nothing; an event of no known name is refused where it is written.
#[test]
fn who_does_not_write_leaves_nothing() {
    let script = "import os, shardwright_receipt
receipt = shardwright_receipt.Receipt('logs/hook.jsonl', ranks=(3,))
receipt.step(loss=1.0)
receipt.end()
receipt.event('danced')
";
    assert_eq!(ran("silent", script).0, Some(1));
    assert!(ran("silent", script).1.is_none());
}
