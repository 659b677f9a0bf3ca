use crate::bytes;
use evidence::{EventKind, Format, read};

fn iteration(number: u64) -> String {
    format!(" iteration {number:8}/     100 | elapsed time per iteration (ms): 100.0 | lm loss: 1.000000E+00 |\n")
}

#[test]
fn a_file_with_nothing_to_read_says_what_was_looked_for() {
    let finding = read("note.txt", &b"hello\nworld\n"[..], None, &mut |_| ()).unwrap_err();
    assert_eq!(
        (finding.rule, finding.message.as_str()),
        ("evidence/format", "nothing in `note.txt` is a figure of a run")
    );
    assert!(finding.hint.as_ref().unwrap().contains("megatron-lm, megatron-progress"), "{finding:?}");
    assert!(read("empty", &b""[..], None, &mut |_| ()).is_err());
    let finding = read("x.json", &br#"{"a": 1}"#[..], None, &mut |_| ()).unwrap_err();
    assert_eq!(finding.rule, "evidence/format");
}

#[test]
fn a_format_that_was_told_is_held_to() {
    let log = bytes("torchtitan.log");
    let finding = read("x", &log[..], Some(Format::Nanotron), &mut |_| ()).unwrap_err();
    assert!(finding.message.contains("no line that `nanotron` writes"), "{}", finding.message);
    assert_eq!(read("x", &log[..], Some(Format::Torchtitan), &mut |_| ()).unwrap().steps.len(), 2);
    let samples = b"0, 1000 MiB\n";
    let finding = read("x", &samples[..], Some(Format::NvidiaSmi), &mut |_| ()).unwrap_err();
    assert!(finding.hint.unwrap().contains("with its header"));
}

#[test]
fn every_format_has_one_name() {
    for (name, format) in Format::ALL {
        assert_eq!(format.name(), name);
        assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{name}\""));
    }
}

/// Steps that go back are a new start, and so is an engine that says it starts; two starts are not counted as three.
#[test]
fn steps_that_go_back_are_a_new_start() {
    let text: String = [1, 2, 3, 2, 3, 4].map(iteration).concat();
    let log = read("x", text.as_bytes(), None, &mut |_| ()).unwrap();
    let steps: Vec<(u64, u64)> = log.steps.iter().map(|s| (s.number, s.attempt)).collect();
    assert_eq!(steps, [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(log.events.iter().filter(|e| e.kind == EventKind::Start).count(), 1);
    assert_eq!(log.events[0].detail, "step 2 after step 3");
}

/// Failures that repeat a thousand times are kept a few times and counted.
#[test]
fn what_repeats_is_counted() {
    let mut text = iteration(1);
    for at in 0..1000 {
        text += &format!("[rank0]: RuntimeError: number {at}\n");
    }
    let log = read("x", text.as_bytes(), None, &mut |_| ()).unwrap();
    let failures: Vec<_> = log.events.iter().filter(|e| e.kind == EventKind::Failure).collect();
    assert_eq!(failures.len(), 17);
    let last = &failures[16].detail;
    assert!(
        last.starts_with("observed_exception: 984 more, the last of them: ") && last.ends_with("number 999"),
        "{last}"
    );
}

#[test]
fn whoever_watches_is_told_of_every_byte() {
    let text = iteration(1).repeat(400_000);
    let mut said = Vec::new();
    read("x", text.as_bytes(), None, &mut |bytes| said.push(bytes)).unwrap();
    assert_eq!(said.last(), Some(&(text.len() as u64)));
    assert!(said.len() > 2 && said.is_sorted(), "{said:?}");
}

/// A disk that fails in the middle of a log.
#[test]
fn a_file_that_cannot_be_read_on_is_an_error() {
    struct Broken(bool);
    impl std::io::Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(std::io::Error::other("the disk is gone"));
            }
            into[..6].copy_from_slice(b"hello\n");
            Ok(6)
        }
    }
    let finding = read("x", Broken(false), None, &mut |_| ()).unwrap_err();
    assert_eq!(finding.rule, "evidence/read");
    assert!(finding.message.ends_with("after 6 bytes: the disk is gone"), "{}", finding.message);
}

/// What fuzzing found: a rank's name that ends inside no character, and a time that no number holds.
#[test]
fn inputs_that_broke_a_reader_once() {
    assert!(read("x", "{\"ran\u{202e}\": 1}".as_bytes(), None, &mut |_| ()).is_err());
    let line = "[titan] 2026-08-22 10:01:00,000 - root - INFO - Finished loading the checkpoint in 31e308 seconds.\n";
    let log = read("x", line.as_bytes(), None, &mut |_| ()).unwrap();
    assert_eq!((log.events[0].kind, log.events[0].seconds), (EventKind::CheckpointLoaded, None));
}
