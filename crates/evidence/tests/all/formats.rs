use crate::{GIB, MIB, digits, events, memory, sample};
use evidence::MemoryKind::{Allocated, AllocatedPeak, DeviceUsed, DeviceUsedPeak, HostUsed, Reserved, ReservedPeak};
use evidence::{EventKind, Format, TensorKind};

const HUNDREDTH: u64 = (0.005 * GIB as f64) as u64;

fn gib(value: f64) -> u64 {
    (value * GIB as f64).round() as u64
}

#[test]
fn nemo() {
    let read = sample("nemo.log", Format::Nemo);
    let (one, two) = (&read.steps[0], &read.steps[1]);
    assert_eq!((one.number, one.loss, one.seconds, one.samples), (1, Some(11.03), Some(12.35), Some(512)));
    assert_eq!((two.number, two.seconds, two.learning_rate, two.tflops), (2, Some(5.6), Some(3e-7), Some(612.3)));
    assert_eq!((two.tokens_per_second, two.others["val_loss"]), (Some(748_900.0), 10.9));
    assert_eq!((digits(&read, "loss"), digits(&read, "seconds")), (Some(4), Some(4)));
    assert_eq!((read.steps.len(), read.sources[0].unread), (2, 0));
}

/// Rank 0 holds the first stage and has no loss; rank 4 knows it. Memory is reserved, at its peak, of each rank.
#[test]
fn torchtitan() {
    let read = sample("torchtitan.log", Format::Torchtitan);
    let steps: Vec<_> =
        read.steps.iter().map(|s| (s.number, s.loss, s.grad_norm, s.device_tokens_per_second)).collect();
    assert_eq!(steps, [(1, Some(12.27211), Some(4.5), Some(1234.0)), (10, Some(9.5), Some(2.125), Some(12346.0))]);
    assert_eq!((read.steps[1].tflops, read.steps[1].at), (Some(1098.7), Some(1_787_392_854.123)));
    assert_eq!((read.steps[0].seconds, read.steps[0].tokens_per_second), (None, None));
    let expected = [
        (Some(0), ReservedPeak, gib(3.78), HUNDREDTH, Some("model")),
        (Some(0), ReservedPeak, gib(40.25), HUNDREDTH, None),
        (Some(4), ReservedPeak, gib(47.5), HUNDREDTH, None),
        (Some(4), ReservedPeak, gib(47.75), HUNDREDTH, None),
        (Some(0), ReservedPeak, gib(41.0), HUNDREDTH, Some("validation")),
    ];
    assert_eq!(memory(&read), expected);
    let timed = |kind| events(&read, kind).iter().map(|e| e.seconds).collect::<Vec<_>>();
    assert_eq!(timed(EventKind::CheckpointLoaded), [Some(6.25)]);
    assert_eq!(timed(EventKind::CheckpointSaved), [Some(3.5)]);
    assert_eq!(events(&read, EventKind::Evaluation)[0].step, Some(10));
    assert_eq!(events(&read, EventKind::AllocationRetry).len(), 1);
    assert_eq!(events(&read, EventKind::Start).len(), 1);
    assert_eq!(events(&read, EventKind::End)[0].detail, "finished: Training completed");
    assert_eq!((read.arguments["dp_shard"].as_str(), read.machine["device"].as_str()), ("4", "NVIDIA H200"));
    assert_eq!(read.sources[0].unread, 0);
}

/// No gradient norm, four digits of the loss, no colours.
#[test]
fn torchtitan_0_1() {
    let read = sample("torchtitan-0.1.log", Format::Torchtitan);
    let step = &read.steps[0];
    assert_eq!((step.number, step.loss, step.grad_norm, step.tflops), (1, Some(8.1234), None, Some(7.89)));
    assert_eq!(memory(&read), [(Some(0), ReservedPeak, gib(9.87), HUNDREDTH, None)]);
}

#[test]
fn deepspeed() {
    let read = sample("deepspeed.log", Format::Deepspeed);
    let steps: Vec<_> =
        read.steps.iter().map(|s| (s.number, s.seconds, s.learning_rate, s.skipped, s.samples)).collect();
    assert_eq!(steps, [(10, Some(2.0), Some(1e-4), true, Some(32)), (20, Some(1.0), Some(2e-4), false, Some(32))]);
    assert_eq!(read.steps[0].at, Some(1_787_400_010.501));
    let at = Some("before forward");
    let expected = [
        (Some(0), Allocated, gib(12.34), HUNDREDTH, at),
        (Some(0), AllocatedPeak, gib(15.5), HUNDREDTH, at),
        (Some(0), Reserved, gib(20.25), HUNDREDTH, at),
        // Whole GiB.
        (Some(0), ReservedPeak, 21 * GIB, GIB / 2, at),
        (Some(0), HostUsed, gib(123.45), HUNDREDTH, None),
        (None, Allocated, gib(12.5), HUNDREDTH, None),
        (None, AllocatedPeak, gib(60.25), HUNDREDTH, None),
        (None, AllocatedPeak, gib(61.5), HUNDREDTH, None),
    ];
    assert_eq!(memory(&read), expected);
    assert_eq!(events(&read, EventKind::CheckpointSaved)[0].step, Some(20));
    assert_eq!(events(&read, EventKind::AllocationRetry).len(), 1);
    assert_eq!(read.arguments["zero_optimization_stage"], "3");
    assert_eq!(read.sources[0].unread, 0);
}

#[test]
fn deepspeed_pipeline() {
    let read = sample("deepspeed-pipeline.log", Format::Deepspeed);
    let steps: Vec<_> = read.steps.iter().map(|s| (s.number, s.loss, s.seconds, s.samples, s.nan)).collect();
    let expected = [
        (10, Some(9.1234), Some(1.25), Some(32), false),
        (20, Some(8.5), Some(1.0), Some(32), false),
        (30, None, Some(1.0), Some(32), true),
    ];
    assert_eq!(steps, expected);
    assert_eq!(digits(&read, "seconds"), Some(4));
}

/// Three digits, thousands as letters.
#[test]
fn nanotron() {
    let read = sample("nanotron.log", Format::Nanotron);
    let (one, two) = (&read.steps[0], &read.steps[1]);
    assert_eq!((one.number, one.seconds, one.tokens_per_second), (1, Some(12.3), Some(85_200.0)));
    assert_eq!((one.loss, one.grad_norm, one.tflops), (Some(11.2), Some(3.2), Some(412.0)));
    assert_eq!((two.seconds, two.tokens_per_second), (Some(0.987), Some(1.06e6)));
    assert_eq!((two.device_tokens_per_second, two.others["z_loss"]), (Some(133e3), 0.01));
    assert_eq!((one.others["global_batch_size"], one.samples), (1.05e6, None));
    assert_eq!((digits(&read, "loss"), digits(&read, "seconds")), (Some(3), Some(3)));
    let (built, off) = (Some("after model building"), 5242);
    let expected = [
        (None, Allocated, 2048 * MIB + MIB / 2, off, built),
        (None, AllocatedPeak, 2049 * MIB, off, built),
        (None, ReservedPeak, 2050 * MIB, off, built),
        (None, Allocated, 2100 * MIB, off, None),
        (None, AllocatedPeak, 30000 * MIB + MIB / 4, off, None),
        (None, ReservedPeak, 31000 * MIB, off, None),
    ];
    assert_eq!(memory(&read), expected);
    assert_eq!(read.sources[0].unread, 0);
}

/// Counted from zero there, from one here.
#[test]
fn maxtext() {
    let read = sample("maxtext.log", Format::Maxtext);
    let steps: Vec<_> = read.steps.iter().map(|s| (s.number, s.seconds, s.tflops, s.loss)).collect();
    let expected =
        [(1, Some(25.123), Some(12.345), Some(10.123)), (2, Some(2.5), None, Some(9.5)), (3, None, None, Some(9.25))];
    assert_eq!(steps, expected);
    assert_eq!(read.steps[0].device_tokens_per_second, Some(1234.5));
    assert_eq!((read.steps[0].others["total_weights"], read.steps[1].others["moe_lb_loss"]), (65536.0, 0.0125));
    assert_eq!(events(&read, EventKind::Evaluation)[0].step, Some(3));
    let place = Some("After params initialized on TPU_0(process=0,(0,0,0,0))");
    assert_eq!(memory(&read), [(None, DeviceUsed, gib(6.65), HUNDREDTH, place)]);
    assert_eq!(read.sources[0].unread, 0);
}

/// Of the fullest rank, which the line names; a start that goes on is an attempt.
#[test]
fn shardwright() {
    let read = sample("shardwright.log", Format::Shardwright);
    let steps: Vec<_> = read.steps.iter().map(|s| (s.number, s.attempt, s.loss, s.seconds, s.grad_norm)).collect();
    let expected = [
        (1, 0, Some(11.093751), Some(140.250011), Some(3.25)),
        (2, 0, Some(11.002), Some(2.780123), Some(2.125)),
        (3, 0, None, Some(2.781), None),
        (3, 1, Some(10.9), Some(9.0), Some(1e-05)),
    ];
    assert_eq!(steps, expected);
    assert_eq!((read.steps[1].tokens_per_second, read.steps[2].nan), (Some(23574.4), true));
    let expected = [
        (Some(3), AllocatedPeak, 51_234_567_890, 0, None),
        (Some(0), ReservedPeak, 53_687_091_200, 0, None),
        (Some(3), AllocatedPeak, 51_234_570_000, 0, None),
        (Some(0), DeviceUsedPeak, 1 << 30, 0, None),
    ];
    assert_eq!(memory(&read), expected);
    assert_eq!((read.versions["torch"].as_str(), read.machine["device"].as_str()), ("2.15.0+cu130", "NVIDIA H200"));
    assert_eq!(read.machine["world"], "8");
    let saved = events(&read, EventKind::CheckpointSaved)[0];
    assert_eq!((saved.seconds, saved.step), (Some(12.5), Some(2)));
    assert_eq!(events(&read, EventKind::CheckpointLoaded).len(), 1);
    assert_eq!((digits(&read, "seconds"), read.sources[0].unread), (Some(7), 1));
}

/// Logs that were written before November 2026.
#[test]
fn shardwright_with_loss_and_seconds_alone() {
    let text = "[default0]:no checkpoint in /c yet: step 0 of 2\n[default0]:step 1 loss 9.500000 seconds 2.500\n";
    let read = evidence::read("x", text.as_bytes(), None, &mut |_| ()).unwrap();
    assert_eq!(read.sources[0].format, Format::Shardwright);
    assert_eq!((read.steps[0].loss, read.steps[0].seconds, read.sources[0].unread), (Some(9.5), Some(2.5), 0));
}

#[test]
fn mllog() {
    let read = sample("mllog.log", Format::Mllog);
    let kinds: Vec<_> = read.events.iter().map(|e| (e.kind, e.seconds, e.step)).collect();
    let expected = [
        (EventKind::Setup, Some(90.0), None),
        (EventKind::Start, None, None),
        (EventKind::Evaluation, None, Some(100)),
        (EventKind::Evaluation, Some(12.5), Some(100)),
        (EventKind::End, None, None),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(read.events[4].detail, "finished: run_stop, success");
    let settings: Vec<_> = read.arguments.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        settings,
        [("global_batch_size", "512"), ("opt_name", "adamw"), ("seed", "7"), ("tensor_parallelism", "4")]
    );
    assert_eq!(read.sources[0].unread, 1);
}

/// The most of all samples, of each device; everything on it, whole MiB.
#[test]
fn nvidia_smi() {
    let read = sample("nvidia-smi.csv", Format::NvidiaSmi);
    let expected = [
        (None, DeviceUsedPeak, 130_000 * MIB, MIB / 2, Some("gpu 0")),
        (None, DeviceUsedPeak, 131_000 * MIB, MIB / 2, Some("gpu 1")),
    ];
    assert_eq!(memory(&read), expected);
    assert_eq!((read.memory[0].line, read.memory[1].line), (4, 7));
    assert_eq!((read.machine["device"].as_str(), read.machine["driver"].as_str()), ("NVIDIA H200", "570.124.06"));
}

#[test]
fn hook() {
    let read = sample("hook.jsonl", Format::Hook);
    let (one, two) = (&read.steps[0], &read.steps[1]);
    assert_eq!((one.number, one.seconds, one.loss, one.grad_norm), (1, Some(2.5), Some(10.5), Some(3.25)));
    assert_eq!((one.samples, one.learning_rate, one.tokens_per_second), (Some(64), Some(1e-3), Some(1000.0)));
    assert_eq!((two.loss, two.nan, two.skipped), (None, true, true));
    let model = Some("model");
    let expected = [
        (Some(0), Allocated, 1000, 0, model),
        (Some(0), AllocatedPeak, 1200, 0, model),
        (Some(0), Reserved, 2000, 0, model),
        (Some(0), ReservedPeak, 2000, 0, model),
        (Some(0), DeviceUsed, 5000, 0, model),
        (Some(0), HostUsed, 77, 0, model),
        (Some(0), AllocatedPeak, 3000, 0, Some("step")),
    ];
    assert_eq!(memory(&read), expected);
    let tensors: Vec<_> = read.tensors.iter().map(|t| (t.step, t.path.as_str(), t.kind, t.norm, t.nonfinite)).collect();
    let weight = "layers.0.mlp.fc1.weight";
    assert_eq!(tensors, [(1, "layers.0", TensorKind::Activation, 12.5, 0), (1, weight, TensorKind::Gradient, 0.5, 3)]);
    assert_eq!((read.versions["torch"].as_str(), read.machine["device"].as_str()), ("2.15.0", "NVIDIA H200"));
    assert_eq!((read.machine["world"].as_str(), read.ran["attention"].as_str()), ("8", "flash"));
    assert_eq!((read.kernels[0].name.as_str(), read.kernels[0].seconds), ("gemm", 0.25));
    assert_eq!((read.benches.len(), read.benches[0].issue_seconds, read.benches[0].seconds), (1, Some(1e-6), 2e-6));
    assert_eq!(events(&read, EventKind::CheckpointSaved)[0].seconds, Some(4.5));
    assert_eq!(events(&read, EventKind::OutOfMemory)[0].detail, "in backward: CUDA out of memory.");
    assert_eq!(events(&read, EventKind::AllocationRetry)[0].detail, "1 since the start");
    assert_eq!(events(&read, EventKind::End)[0].detail, "failed: in backward");
    // A kind that nobody knows.
    assert_eq!(read.sources[0].unread, 1);
}

#[test]
fn rehearsal() {
    let read = sample("rehearsal.json", Format::Rehearsal);
    let losses: Vec<_> = read.steps.iter().map(|s| (s.number, s.loss)).collect();
    assert_eq!((losses.len(), losses[0]), (4, (1, Some(4.590212393653697))));
    assert_eq!(read.memory.len(), 8);
    assert_eq!(memory(&read)[0], (Some(0), AllocatedPeak, 3_094_976, 0, Some("state")));
    assert_eq!(
        (events(&read, EventKind::End)[0].detail.as_str(), read.arguments["dtype"].as_str()),
        ("finished", "f64")
    );
    let read = sample("rehearsal-ended.json", Format::Rehearsal);
    assert!(events(&read, EventKind::Failure)[0].detail.starts_with("rank 1 died after all-gather"));
    assert_eq!(events(&read, EventKind::End)[0].detail, "failed");
}

#[test]
fn summary() {
    let read = sample("summary-node0.json", Format::Summary);
    let [start, end] = &read.events[..] else { panic!("{:?}", read.events) };
    assert_eq!((start.kind, start.attempt, start.at), (EventKind::Start, 1, Some(1_787_220_000.0)));
    assert_eq!((end.kind, end.seconds, end.detail.as_str()), (EventKind::End, Some(1800.0), "failed, exit status 1"));
    assert_eq!(read.machine["host of node 0"], "node-7");
}
