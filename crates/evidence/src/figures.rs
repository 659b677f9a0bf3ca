//! Figures of a run. A figure that was not written down is `None`, never zero.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use crate::events::Event;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Steps at the start of an attempt that no figure of speed is made of: allocation, autotuning and compilation
/// fall into them.
pub const WARM_UP: u64 = 3;

/// Everything that was read of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Evidence {
    /// What was read; figures name one by its place here.
    pub sources: Vec<Source>,
    /// Steps in the order they ran; a step that was run again after a restart stands again, in a later attempt.
    pub steps: Vec<Step>,
    /// Bytes held, rank by rank.
    pub memory: Vec<Memory>,
    /// What happened beside steps.
    pub events: Vec<Event>,
    /// Time on the device by kernel, of one profiled step.
    pub kernels: Vec<Kernel>,
    /// What the engine's own timers say, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<Timer>,
    /// Micro-benchmarks that ran beside the steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub benches: Vec<Bench>,
    /// Norms by logical tensor path, as the hook writes them.
    pub tensors: Vec<TensorStat>,
    /// Versions of what ran, by package.
    pub versions: BTreeMap<String, String>,
    /// Arguments as the engine itself printed them.
    pub arguments: BTreeMap<String, String>,
    /// Facts of the machine as it named them: device, driver, count.
    pub machine: BTreeMap<String, String>,
    /// What was dispatched, by what was asked to choose it: `attention` → `flash_attn_3`.
    pub ran: BTreeMap<String, String>,
}

/// One file or stream that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub format: Format,
    /// As it was typed.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
    /// Significant decimal digits that the format prints of a figure, by the figure's name; a figure that is not
    /// listed was read as it was held.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub digits: BTreeMap<String, u8>,
    /// Lines that looked like the format's and could not be read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u64,
    /// The first of them, or of those that were skipped for their length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_unread: Option<Unread>,
}

/// A line that was not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    pub line: u64,
    /// Its beginning.
    pub text: String,
    pub why: String,
}

/// The spelling a source is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    MegatronLm,
    MegatronProgress,
    MegatronBridge,
    Nemo,
    Torchtitan,
    Deepspeed,
    Nanotron,
    Maxtext,
    /// What the programs print that `launch` writes for FSDP2 and XLA.
    Shardwright,
    Mllog,
    /// torch's `memory._snapshot()`, pickled.
    TorchSnapshot,
    /// torch's `memory_stats()` as JSON.
    TorchMemoryStats,
    NvidiaSmi,
    /// `shardwright rehearse --json`.
    Rehearsal,
    /// Lines of `shardwright_receipt.py`.
    Hook,
    /// What `shardwright_probe.py` wrote.
    Probe,
    /// `summary-nodeN.json` that a `launch.sh` leaves.
    Summary,
    /// A log of no engine known here, of which only failures are read.
    Text,
}

impl Format {
    /// Every format by its name, as `--format` takes it.
    pub const ALL: [(&str, Format); 18] = [
        ("megatron-lm", Format::MegatronLm),
        ("megatron-progress", Format::MegatronProgress),
        ("megatron-bridge", Format::MegatronBridge),
        ("nemo", Format::Nemo),
        ("torchtitan", Format::Torchtitan),
        ("deepspeed", Format::Deepspeed),
        ("nanotron", Format::Nanotron),
        ("maxtext", Format::Maxtext),
        ("shardwright", Format::Shardwright),
        ("mllog", Format::Mllog),
        ("torch-snapshot", Format::TorchSnapshot),
        ("torch-memory-stats", Format::TorchMemoryStats),
        ("nvidia-smi", Format::NvidiaSmi),
        ("rehearsal", Format::Rehearsal),
        ("hook", Format::Hook),
        ("probe", Format::Probe),
        ("summary", Format::Summary),
        ("text", Format::Text),
    ];

    /// As it is typed and written.
    pub fn name(self) -> &'static str {
        Format::ALL.iter().find(|(_, format)| *format == self).map_or("text", |(name, _)| name)
    }
}

/// One step of the optimizer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// As the engine counts, from one.
    pub number: u64,
    /// Starts of the job before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempt: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Seconds since 1970 when it was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::float::optional")]
    pub loss: Option<f64>,
    /// Before clipping, of all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::float::optional")]
    pub grad_norm: Option<f64>,
    /// Of all devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Of one device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_tokens_per_second: Option<f64>,
    /// Model TFLOP/s of one device, as the engine counts its own model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tflops: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Of one device, in the whole step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Of one device, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Further figures of the step under the engine's own names: losses of routers, of further predicted tokens.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, f64>,
    /// Among the first [`WARM_UP`] of its attempt.
    #[serde(default, skip_serializing_if = "is_false")]
    pub warm_up: bool,
    /// The update was left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub skipped: bool,
    /// The loss or a gradient was no number.
    #[serde(default, skip_serializing_if = "is_false")]
    pub nan: bool,
    /// Place of its source.
    pub source: usize,
    /// Line in its source, from one.
    pub line: u64,
}

/// What a figure of memory counts. None is another's estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryKind {
    /// Bytes of live tensors, rounded as torch's allocator does.
    Allocated,
    AllocatedPeak,
    /// Bytes that torch's allocator took from the driver.
    Reserved,
    ReservedPeak,
    /// Everything on the device: context, libraries and other processes too.
    DeviceUsed,
    DeviceUsedPeak,
    /// Pinned or resident on the host.
    HostUsed,
}

/// Bytes of one rank at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// `None` where the source does not say, or says the largest of all.
    pub rank: Option<u64>,
    pub kind: MemoryKind,
    pub bytes: u64,
    /// The figure may be off by so much either way: what the format rounds to.
    pub resolution: u64,
    /// Where in a run: `model`, `optimizer`, `step 2`, `after backward`, as the source calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    pub source: usize,
    pub line: u64,
}

/// Launches of one kernel in a profiled step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    pub rank: u64,
    pub name: String,
    pub calls: u64,
    pub seconds: f64,
    pub source: usize,
}

/// A timer that an engine keeps itself, over all times it was printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timer {
    pub name: String,
    /// Times it was printed.
    pub count: u64,
    /// The fastest rank's, the shortest of all; none where only the slowest rank's is printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_seconds: Option<f64>,
    /// The slowest rank's, on average.
    pub mean_seconds: f64,
    /// The slowest rank's, the longest of all.
    pub most_seconds: f64,
    pub source: usize,
}

/// One micro-benchmark: what one call took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bench {
    pub rank: u64,
    pub name: String,
    /// Calls that were timed together.
    pub calls: u64,
    /// Until the device was done.
    pub seconds: f64,
    /// Until the host had asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issue_seconds: Option<f64>,
    /// That one call moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// That one call computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<u64>,
    pub source: usize,
    pub line: u64,
}

/// Which tensor of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// What a block hands on.
    Activation,
    /// Of the loss by that.
    ActivationGradient,
    Weight,
    /// Of a weight, after reduction over data parallelism.
    Gradient,
}

/// Statistics of a whole logical tensor, whatever the layout it is held in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorStat {
    pub step: u64,
    /// As the ownership table names it: `layers.7.mamba.in_proj.weight`; of an activation the block's: `layers.7`.
    pub path: String,
    pub kind: TensorKind,
    /// Root of the sum of squares over all elements.
    #[serde(with = "crate::float")]
    pub norm: f64,
    /// Elements that are no numbers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nonfinite: u64,
    pub source: usize,
    pub line: u64,
}

impl Evidence {
    /// Marks the first [`WARM_UP`] steps of every attempt. A step that several sources tell of is one.
    pub fn mark_warm_up(&mut self) {
        let mut first: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for step in &mut self.steps {
            let numbers = first.entry(step.attempt).or_default();
            if (numbers.len() as u64) < WARM_UP {
                numbers.insert(step.number);
            }
            step.warm_up = numbers.contains(&step.number);
        }
    }

    /// Takes in what was read elsewhere of the same run.
    pub fn add(&mut self, other: Evidence) {
        let shift = self.sources.len();
        let Evidence {
            sources,
            steps,
            memory,
            events,
            kernels,
            timers,
            benches,
            tensors,
            versions,
            arguments,
            machine,
            ran,
        } = other;
        self.sources.extend(sources);
        self.steps.extend(steps.into_iter().map(|s| Step { source: s.source + shift, ..s }));
        self.memory.extend(memory.into_iter().map(|m| Memory { source: m.source + shift, ..m }));
        self.events.extend(events.into_iter().map(|e| Event { source: e.source + shift, ..e }));
        self.kernels.extend(kernels.into_iter().map(|k| Kernel { source: k.source + shift, ..k }));
        self.timers.extend(timers.into_iter().map(|t| Timer { source: t.source + shift, ..t }));
        self.benches.extend(benches.into_iter().map(|b| Bench { source: b.source + shift, ..b }));
        self.tensors.extend(tensors.into_iter().map(|t| TensorStat { source: t.source + shift, ..t }));
        for (mine, theirs) in [
            (&mut self.versions, versions),
            (&mut self.arguments, arguments),
            (&mut self.machine, machine),
            (&mut self.ran, ran),
        ] {
            for (key, value) in theirs {
                mine.entry(key).or_insert(value);
            }
        }
    }

    /// Median seconds of a step behind the warm-up; the mean of the middle two where they are even.
    pub fn step_seconds(&self) -> Option<f64> {
        let seconds: Vec<f64> = self.steps.iter().filter(|s| !s.warm_up).filter_map(|s| s.seconds).collect();
        units::median(&seconds)
    }

    /// The largest figure of a kind, of a rank or of all.
    pub fn most(&self, kind: MemoryKind, rank: Option<u64>) -> Option<&Memory> {
        let of = |m: &&Memory| m.kind == kind && (rank.is_none() || m.rank == rank);
        self.memory.iter().filter(of).max_by_key(|m| m.bytes)
    }
}

pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64, attempt: u64, seconds: f64) -> Step {
        Step { number, attempt, seconds: Some(seconds), ..Step::default() }
    }

    #[test]
    fn speed_is_read_behind_the_warm_up_of_every_attempt() {
        let first = (1..=7).map(|n| step(n, 0, if n <= WARM_UP { 9.0 } else { n as f64 }));
        let mut run = Evidence { steps: first.collect(), ..Evidence::default() };
        run.steps.extend((7..=9).map(|n| step(n, 1, 50.0)));
        run.mark_warm_up();
        assert_eq!(run.step_seconds(), Some(5.5));
    }

    #[test]
    fn what_is_added_keeps_its_source() {
        let source = |path: &str| Source {
            format: Format::MegatronLm,
            path: path.to_string(),
            bytes: 0,
            sha256: String::new(),
            digits: BTreeMap::new(),
            unread: 0,
            first_unread: None,
        };
        let mut one = Evidence { sources: vec![source("a")], steps: vec![step(1, 0, 1.0)], ..Evidence::default() };
        one.add(Evidence { sources: vec![source("b")], steps: vec![step(2, 0, 1.0)], ..Evidence::default() });
        assert_eq!(one.sources[one.steps[1].source].path, "b");
    }
}
