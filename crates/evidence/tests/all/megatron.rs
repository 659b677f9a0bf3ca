use crate::{GIB, MIB, digits, events, memory, sample};
use evidence::MemoryKind::{Allocated, AllocatedPeak, DeviceUsed, Reserved, ReservedPeak};
use evidence::{EventKind, Format};

/// A hundredth of a MiB, half of it either way.
const MB: u64 = 5242;

#[test]
fn iterations() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let numbers: Vec<(u64, u64, bool)> = read.steps.iter().map(|s| (s.number, s.attempt, s.warm_up)).collect();
    let first = [(101, 0, true), (102, 0, true), (103, 0, true)];
    let second = [(103, 1, true), (104, 1, true), (105, 1, true), (106, 1, false), (107, 1, false), (108, 1, false)];
    assert_eq!(numbers, [&first[..], &second[..]].concat());
    let step = &read.steps[0];
    assert_eq!(
        (step.seconds, step.tflops, step.joules, step.watts),
        (Some(9.8765), Some(101.2), Some(5432.1), Some(550.0))
    );
    assert_eq!((step.loss, step.grad_norm, step.learning_rate), (Some(9.876543), Some(3.21), Some(3e-4)));
    assert_eq!((step.samples, step.at), (Some(512), Some(1_787_220_100.125)));
    let others: Vec<(&str, f64)> = step.others.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let expected = [("load_balancing_loss", 1.03), ("mtp_1 loss", 10.5), ("params norm", 1234.567)];
    assert_eq!(others, [&expected[..], &[("z_loss", 0.02)]].concat());
    assert_eq!((step.line, step.tokens_per_second), (18, None));
    // The printed digits: six behind the point of a loss; of milliseconds the fewest that any line has.
    assert_eq!(
        (digits(&read, "loss"), digits(&read, "seconds"), digits(&read, "grad_norm")),
        (Some(7), Some(5), Some(4))
    );
}

/// A loss that is no number is not printed at all; a gradient norm is.
#[test]
fn skipped_and_nan_iterations() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let step = &read.steps[2];
    assert_eq!((step.skipped, step.nan, step.loss, step.grad_norm), (true, true, None, None));
    assert!(!read.steps[1].skipped && !read.steps[1].nan);
}

/// A line that was cut off is counted; its number is kept.
#[test]
fn a_line_cut_off_is_counted() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let source = &read.sources[0];
    assert_eq!(source.unread, 1);
    let first = source.first_unread.as_ref().unwrap();
    assert!(first.text.contains("iteration      108/     500"), "{first:?}");
    assert_eq!(first.why, "an iteration of which not every figure can be read");
}

#[test]
fn memory_of_the_first_rank_of_each_group() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let at = Some("after 101 iterations");
    let mut expected = Vec::new();
    for rank in 0..3 {
        let quarter = |mib: u64| mib * MIB + MIB / 4;
        expected.push((Some(rank), Allocated, (40960 + rank) * MIB + MIB / 2, MB, at));
        expected.push((Some(rank), AllocatedPeak, quarter(61440 + rank), MB, at));
        expected.push((Some(rank), Reserved, (65536 + 2 * rank) * MIB, MB, at));
        expected.push((Some(rank), ReservedPeak, (65536 + 2 * rank) * MIB, MB, at));
        expected.push((Some(rank), DeviceUsed, (70000 + rank) * MIB + 3 * MIB / 4, MB, at));
    }
    assert_eq!(memory(&read)[..15], expected);
    assert!(read.memory[..15].iter().all(|m| m.step == Some(101)));
}

#[test]
fn memory_that_ran_out_names_the_pass() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let oom = events(&read, EventKind::OutOfMemory);
    assert_eq!(oom.len(), 1);
    assert_eq!((oom[0].rank, oom[0].step, oom[0].attempt), (Some(3), Some(104), 0));
    assert!(
        oom[0].detail.starts_with("in backward: CUDA out of memory. Tried to allocate 1.95 GiB."),
        "{}",
        oom[0].detail
    );
    let at = Some("out of memory in backward");
    let hundredth = (0.005 * GIB as f64) as u64;
    let used = (139.72 * GIB as f64).round() as u64 - (1.58 * GIB as f64).round() as u64;
    assert_eq!(
        memory(&read)[15..],
        [
            (Some(3), Allocated, 130 * GIB + GIB / 4, hundredth, at),
            (Some(3), Reserved, 135 * GIB + 3 * GIB / 4, 2 * hundredth, at),
            (Some(3), DeviceUsed, used, 2 * hundredth, at),
        ]
    );
}

#[test]
fn timers_over_all_prints() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let timer = |name: &str| read.timers.iter().find(|timer| timer.name == name).unwrap();
    let passes = timer("forward-backward");
    assert_eq!((passes.count, passes.least_seconds, passes.most_seconds), (2, Some(4.00012), 7.10034));
    assert!((passes.mean_seconds - 5.60034).abs() < 1e-12, "{}", passes.mean_seconds);
    assert_eq!(timer("optimizer").most_seconds, 0.30125);
    assert_eq!(read.timers.len(), 3);
}

#[test]
fn a_life_with_a_restart() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    let starts: Vec<(u64, &str)> =
        events(&read, EventKind::Start).iter().map(|e| (e.attempt, e.detail.as_str())).collect();
    assert_eq!(starts.len(), 2);
    assert_eq!(starts[0], (0, "arguments printed"));
    assert!(starts[1].0 == 1 && starts[1].1.ends_with("2/3 attempts left; will restart worker group"), "{starts:?}");
    let setups: Vec<(u64, Option<f64>)> =
        events(&read, EventKind::Setup).iter().map(|e| (e.attempt, e.seconds)).collect();
    assert_eq!(setups, [(0, Some(90.0)), (1, Some(60.0))]);
    let saved = events(&read, EventKind::CheckpointSaved);
    assert_eq!((saved.len(), saved[0].step, saved[0].seconds), (1, Some(102), Some(8.5)));
    let loaded = events(&read, EventKind::CheckpointLoaded);
    assert_eq!((loaded.len(), loaded[0].step, loaded[0].seconds), (1, Some(100), Some(2.34567)));
    let slow = events(&read, EventKind::Straggler);
    assert_eq!((slow.len(), slow[0].rank, slow[0].step), (1, Some(5), Some(102)));
    assert!((slow[0].seconds.unwrap() - 0.8005).abs() < 1e-9);
    let failed = events(&read, EventKind::Failure);
    assert_eq!((failed.len(), failed[0].rank), (1, Some(5)));
    assert!(failed[0].detail.starts_with("observed_distributed_operation_timeout (root): "), "{}", failed[0].detail);
    assert_eq!(events(&read, EventKind::Evaluation)[0].step, Some(103));
    let ends = events(&read, EventKind::End);
    assert_eq!((ends.len(), ends[0].detail.as_str()), (1, "finished: after training is done"));
}

#[test]
fn arguments_as_the_engine_settled_them() {
    let read = sample("megatron-lm.log", Format::MegatronLm);
    assert_eq!(read.arguments.len(), 7);
    assert_eq!(read.arguments["hidden_size"], "4096");
    assert_eq!(read.arguments["data_path"], "['/data/text_document']");
}

/// Core 0.5: no times, memory with every digit, three digits of the learning rate, other timer options.
#[test]
fn as_older_versions_print() {
    let read = sample("megatron-lm-0.5.log", Format::MegatronLm);
    let step = &read.steps[0];
    assert_eq!((step.number, step.at, step.seconds, step.grad_norm), (1, None, Some(12345.6 / 1e3), None));
    assert_eq!((step.skipped, step.learning_rate, digits(&read, "learning_rate")), (true, Some(1.5e-4), Some(4)));
    let at = Some("after 1 iterations");
    let expected = [
        (Some(4), Allocated, 10_782_516_736, 0, at),
        (Some(4), AllocatedPeak, 12000 * MIB + MIB / 2, 0, at),
        (Some(4), Reserved, 13312 * MIB, 0, at),
        (Some(4), ReservedPeak, 13312 * MIB, 0, at),
    ];
    assert_eq!(memory(&read), expected);
    let saved = events(&read, EventKind::CheckpointSaved);
    assert_eq!((saved[0].step, saved[0].seconds), (Some(1), Some(1.60025)));
    let timer = |name: &str| read.timers.iter().find(|timer| timer.name == name).unwrap();
    assert_eq!((timer("forward-backward").least_seconds, timer("forward-backward").most_seconds), (None, 0.9005));
    assert_eq!((timer("optimizer").least_seconds, timer("optimizer").most_seconds), (Some(0.01), 0.03));
    assert_eq!(read.sources[0].unread, 0);
}

#[test]
fn progress_txt() {
    let read = sample("progress.txt", Format::MegatronProgress);
    let starts: Vec<(u64, Option<f64>)> = events(&read, EventKind::Start).iter().map(|e| (e.attempt, e.at)).collect();
    assert_eq!(starts, [(0, Some(1_787_220_000.0)), (1, Some(1_787_227_200.0))]);
    let saved: Vec<(u64, Option<u64>)> =
        events(&read, EventKind::CheckpointSaved).iter().map(|e| (e.attempt, e.step)).collect();
    assert_eq!(saved, [(0, Some(500)), (1, Some(1000))]);
    assert!(read.events[1].detail.contains("Job throughput: 412.3 TFLOP/s/GPU"), "{}", read.events[1].detail);
    assert_eq!((read.machine["devices"].as_str(), read.sources[0].unread), ("64", 0));
}

/// GB of 10^9 bytes in five digits, unlike Megatron-LM's MB of 2^20.
#[test]
fn megatron_bridge() {
    let read = sample("megatron-bridge.log", Format::MegatronBridge);
    let steps: Vec<_> = read.steps.iter().map(|s| (s.number, s.seconds, s.tflops, s.loss)).collect();
    assert_eq!(steps, [(1, Some(3.2512), Some(456.7), Some(11.25)), (2, Some(3.0012), Some(494.8), Some(11.0))]);
    let at = Some("after 1 iterations");
    let expected = [
        (Some(0), Allocated, 31_337_000_000, 500_000, at),
        (Some(0), Reserved, 66_500_000_000, 500_000, at),
        (Some(0), AllocatedPeak, 60_125_000_000, 500_000, at),
        (Some(0), ReservedPeak, 66_504_000_000, 500_000, at),
    ];
    assert_eq!(memory(&read), expected);
    let retries = events(&read, EventKind::AllocationRetry);
    assert_eq!((retries.len(), retries[0].rank, retries[0].detail.as_str()), (1, Some(0), "2 since the start"));
    assert_eq!(read.sources[0].unread, 0);
}
