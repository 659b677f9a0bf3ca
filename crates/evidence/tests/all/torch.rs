use crate::{GIB, MIB, bytes, events, memory, sample};
use evidence::MemoryKind::{Allocated, AllocatedPeak, DeviceUsed, Reserved, ReservedPeak};
use evidence::snapshot::{Action, BlockState, Frame, Snapshot};
use evidence::{EventKind, Format};

#[test]
fn memory_stats() {
    let read = sample("memory_stats.json", Format::TorchMemoryStats);
    let of = |rank| {
        let figures = [(Allocated, 1000), (AllocatedPeak, 5000), (Reserved, 6000), (ReservedPeak, 8000)];
        figures.map(|(kind, bytes)| (Some(rank), kind, bytes, 0, None))
    };
    assert_eq!(memory(&read), [of(0), of(1)].concat());
    let retries = events(&read, EventKind::AllocationRetry);
    assert_eq!((retries.len(), retries[0].rank, retries[0].detail.as_str()), (1, Some(0), "num_alloc_retries 2"));
    assert_eq!(events(&read, EventKind::OutOfMemory).len(), 1);
}

#[test]
fn nested_memory_stats_are_the_same() {
    let nested =
        br#"{"allocated_bytes": {"all": {"current": 10, "peak": 20}}, "reserved_bytes": {"all": {"peak": 40}}}"#;
    let read = evidence::read("nested", &nested[..], None, &mut |_| ()).unwrap();
    let figures: Vec<_> = read.memory.iter().map(|m| (m.rank, m.kind, m.bytes)).collect();
    assert_eq!(figures, [(None, Allocated, 10), (None, AllocatedPeak, 20), (None, ReservedPeak, 40)]);
}

/// The peak is walked back from the end: 4 MiB were held beside what is left.
#[test]
fn snapshot() {
    let read = sample("snapshot.pickle", Format::TorchSnapshot);
    let now = 3 * MIB + 512;
    let peak = now + 4 * MIB;
    // Two large blocks were not split, each by less than a MiB.
    let expected = [
        (None, Allocated, now, 0, Some("snapshot")),
        (None, Reserved, 20 * MIB, 0, Some("snapshot")),
        (None, AllocatedPeak, peak + MIB, MIB, Some("recorded history")),
        (None, ReservedPeak, 24 * MIB, 0, Some("recorded history")),
    ];
    assert_eq!(memory(&read), expected);
    let oom = events(&read, EventKind::OutOfMemory);
    assert_eq!(oom[0].detail, format!("{} bytes asked for in forward (model.py:12)", 9 * GIB));
}

#[test]
fn a_snapshot_keeps_blocks_and_frames_for_whoever_compares() {
    let snapshot = Snapshot::read(&bytes("snapshot.pickle"), "snapshot.pickle").unwrap();
    let segment = &snapshot.segments[0];
    assert_eq!((segment.bytes, segment.is_expandable, segment.blocks.len()), (20 * MIB, false, 3));
    let block = &segment.blocks[0];
    assert_eq!((block.bytes, block.requested, block.state), (3 * MIB, 3 * MIB - 10, BlockState::Allocated));
    let frame = |file: &str, line, name: &str| Frame { file: file.to_string(), line, name: name.to_string() };
    assert_eq!(snapshot.stacks[block.stack], [frame("model.py", 12, "forward"), frame("train.py", 3, "main")]);
    assert_eq!(snapshot.stacks[segment.blocks[1].stack], []);
    // A stack that the pickle shares is read once.
    assert_eq!(snapshot.stacks.len(), 2);
    let trace = &snapshot.traces[0];
    assert_eq!(
        (trace.len(), trace[1].action, trace[1].bytes, trace[1].time_us),
        (10, Action::Alloc, 3 * MIB - 10, Some(1))
    );
    assert_eq!((trace[8].action, trace[8].address), (Action::OutOfMemory, None));
}

#[test]
fn a_pickle_that_would_run_something_is_refused_by_name() {
    let finding = Snapshot::read(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "x").unwrap_err();
    assert_eq!(finding.rule, "checkpoint/pickle");
    assert!(finding.message.contains("`os.system`"), "{}", finding.message);
    let finding = evidence::read("x", &b"\x80\x04]\x94."[..], None, &mut |_| ()).unwrap_err();
    assert_eq!(finding.rule, "evidence/snapshot");
}

/// What any process may print, in a log of no engine.
#[test]
fn failures_of_no_engine() {
    let read = sample("failures.log", Format::Text);
    let found: Vec<(&str, Option<u64>)> =
        events(&read, EventKind::Failure).iter().map(|e| (e.detail.split(':').next().unwrap(), e.rank)).collect();
    let expected = [
        ("observed_exception (root)", Some(2)),
        ("gpu_hardware_fault (root)", None),
        ("time_limit (root)", None),
        ("linux_oom_kill_confirmation (confirmation)", None),
        ("nccl_cascade (cascade)", Some(1)),
        ("framework_crash (root)", None),
        ("artifact_or_path_not_found (root)", None),
    ];
    assert_eq!(found, expected);
    assert_eq!(events(&read, EventKind::OutOfMemory).len(), 1);
    let at = Some("out of memory");
    let hundredth = (0.005 * GIB as f64) as u64;
    let gib = |value: f64| (value * GIB as f64).round() as u64;
    let expected = [
        (None, Allocated, (781.59 * MIB as f64).round() as u64, 5242, at),
        (None, Reserved, gib(1.24), hundredth, at),
        (None, DeviceUsed, gib(6.0) - gib(3.03), 2 * hundredth, at),
    ];
    assert_eq!(memory(&read), expected);
    assert_eq!(read.ran["attention"], "FlashAttention (version 2.7.3)");
    assert_eq!(read.versions["nccl"], "2.27.3+cuda12.9");
}
