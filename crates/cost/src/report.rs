//! What a step comes to, as a person argues with it: lines that sum to the total, traffic by axis,
//! rates under a named convention, and what bounds it.

use crate::comm::dispatched;
use crate::data::{OnceAStep, inside, replicas, widths};
use crate::flops::Convention;
use crate::interval::Interval;
use crate::layer::LayerPrice;
use crate::part::Part;
use crate::prices::{Counts, Prices};
use crate::traffic::{Collective, Crossing, Spread};
use layout::{Engine, Layout, Schedule, ZeroStage};
use serde::Serialize;
use units::Basis;

/// What a part of a step is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spent {
    /// Kernels of the device.
    Compute,
    /// The host: kernels it starts, counts it reads, state it steps.
    Host,
    /// Links between devices, beyond what compute hides.
    Comm,
    /// Other stages.
    Bubble,
    /// What no mechanism here stands for.
    Reserve,
}

/// One line of the breakdown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The part's name.
    pub name: &'static str,
    /// What it is spent on.
    pub kind: Spent,
    /// Seconds of the step.
    pub seconds: f64,
    /// Of the whole step.
    pub share: f64,
    /// Where the figure comes from.
    #[serde(serialize_with = "Basis::write_word")]
    pub basis: Basis,
    /// What it is.
    pub what: &'static str,
}

/// One stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// Seconds it computes or waits for collectives of its own.
    pub busy: f64,
    /// Seconds it waits for other stages.
    pub idle: f64,
    /// Seconds it does nothing but send to them.
    pub sending: f64,
}

/// What moves over one axis in a step, on the stage that bounds the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// The axis.
    pub axis: &'static str,
    /// Bytes one rank sends.
    pub bytes: f64,
    /// The algorithm, by the name libraries have for it.
    pub algorithm: &'static str,
    /// Where its group lies.
    pub spread: Spread,
    /// Whether the group leaves the fast island.
    pub crosses_island: bool,
    /// Seconds somebody waits for it.
    pub exposed: f64,
    /// Seconds it runs beside compute.
    pub hidden: f64,
    /// What of it changes rails; none where the network has none, or the group stays on its island.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rails: Option<Crossing>,
}

/// What a step takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// All of it.
    pub seconds: f64,
    /// Between which seconds runs like it lie; none where the job is not known, only its prices.
    pub interval: Option<Interval>,
    /// The breakdown, on the stage that bounds the pipeline.
    pub parts: Vec<Line>,
    /// Of the step, what the stage that bounds it waits for other stages: the share of the line of
    /// that name.
    pub bubble: f64,
    /// Every stage.
    pub stages: Vec<StageTime>,
    /// What moves, by axis.
    pub traffic: Vec<Traffic>,
    /// Tokens a second on one device.
    pub tokens_per_second_per_device: f64,
    /// Operations of the model.
    pub model_flops: f64,
    /// How they are counted.
    pub convention: Convention,
    /// In 10^12 a second on one device.
    pub tflops_per_device: f64,
    /// Against the device's stated peak in bf16, whatever the format of the products.
    pub mfu: f64,
    /// What bounds it, in words.
    pub bound: String,
}

/// The stage a report is about.
pub(crate) struct Slowest<'a> {
    pub counts: Counts<'a>,
    pub time: StageTime,
    pub once: OnceAStep,
    /// Seconds that the device waits for the host, for one microbatch.
    pub late: f64,
    /// What it sends to other stages for one microbatch: activations and their gradients.
    pub sends: usize,
}

impl Prices {
    /// Passes of a stage over the whole step. Under DualPipe a stage holds two chunks, and each
    /// sees the half of the microbatches that enters at its end.
    fn over_the_step(&self, layout: &Layout, counts: Counts) -> LayerPrice {
        self.of_chunk(counts).times(self.microbatches_a_chunk(layout))
    }

    /// Passes of a chunk or stage for one microbatch.
    pub(crate) fn of_chunk(&self, counts: Counts) -> LayerPrice {
        let mut sum = LayerPrice::default();
        for (price, &count) in self.layers.iter().zip(counts.layers.iter()) {
            sum.add(price.times(count as f64));
        }
        if counts.is_first {
            sum.add(self.front);
        }
        if counts.is_last {
            sum.add(self.back);
        }
        sum
    }

    /// Where seconds of kernels come from, and those of everything else.
    pub(crate) fn bases(&self) -> (Basis, Basis) {
        let compute = match self.setting.meter.is_measured() {
            true => Basis::Measured(format!("curves of {}", self.setting.cluster.device.name)),
            false => Basis::Modelled("curves of another device, or of its maker"),
        };
        (compute, Basis::Modelled("links, hosts and schedules, docs/time.md"))
    }

    fn microbatches_a_chunk(&self, layout: &Layout) -> f64 {
        let share = if layout.schedule == Schedule::DualPipe && layout.pp.splits() { 0.5 } else { 1.0 };
        layout.microbatches as f64 * share
    }

    /// Lines that sum to the step.
    pub(crate) fn lines(&self, layout: &Layout, slow: &Slowest, seconds: f64) -> Vec<Line> {
        let mut inside = self.over_the_step(layout, slow.counts).all();
        let slowest = (self.setting.slowest - 1.0) * inside.compute();
        inside.add(Part::Launch, slow.late * self.microbatches_a_chunk(layout));
        // Chunks were timed with their gathers, layers without.
        let is_sharded = layout.zero >= ZeroStage::Two;
        let gathers = if is_sharded { (slow.time.busy - inside.seconds() - slowest).max(0.0) } else { 0.0 };
        let (compute, modelled) = self.bases();
        let once = &slow.once;
        use Spent::{Bubble, Comm, Compute, Host, Reserve};
        let mut parts: Vec<(&'static str, Spent, f64, Basis, &'static str)> = Vec::new();
        for &(name, part) in Part::ALL {
            let basis = if part.is_compute() { &compute } else { &modelled };
            let basis = basis.clone();
            parts.push((name, part.spent(), inside.of(part), basis, part.what()));
        }
        parts.extend([
            (
                "zero exposed",
                Comm,
                gathers,
                modelled.clone(),
                "sharded weights gathered and gradients reduced, beyond what the layers hide",
            ),
            ("bubble", Bubble, slow.time.idle, modelled.clone(), "waiting for other stages"),
            (
                "pp exposed",
                Comm,
                slow.time.sending,
                modelled.clone(),
                "sending activations and their gradients to other stages",
            ),
            (
                "gradients exposed",
                Comm,
                once.gradients[1],
                modelled.clone(),
                "gradients over replicas, beyond what backward hides",
            ),
            (
                "weights exposed",
                Comm,
                once.weights[1],
                modelled.clone(),
                "weights over replicas, beyond what forward hides",
            ),
            (
                "optimizer",
                Compute,
                once.optimizer,
                compute.clone(),
                "reading and writing optimizer state, and Muon's products",
            ),
            (
                "offload",
                Host,
                once.offload,
                modelled.clone(),
                "gradients and weights over the host link, the step on the host, and state to and from its drives",
            ),
        ]);
        let explained = slowest + parts.iter().map(|(_, _, s, _, _)| s).sum::<f64>();
        parts.extend([
            (
                "slowest rank",
                Compute,
                slowest,
                Basis::Modelled("spread of devices of one kind, docs/time.md"),
                "what kernels take longer on the slowest device, for which all wait",
            ),
            ("reserve", Reserve, seconds - explained, modelled.clone(), "data, logging, a step's own host time"),
        ]);
        let lines = parts.into_iter().filter(|(_, _, s, _, _)| *s > 0.0);
        lines
            .map(|(name, kind, s, basis, what)| Line { name, kind, seconds: s, share: s / seconds, basis, what })
            .collect()
    }

    /// What moves on the slowest stage, by axis.
    pub(crate) fn traffic(&self, layout: &Layout, slow: &Slowest) -> Vec<Traffic> {
        let inside = self.over_the_step(layout, slow.counts);
        let exposed = inside.all();
        let groups = self.groups;
        let probe = |collective, spread| self.setting.fabric.time(collective, 1e9, spread).algorithm;
        let tp = if layout.sp { Collective::AllGather } else { Collective::AllReduce };
        let dispatch = self.setting.options.kernels.dispatch;
        let rows = [
            ("tp", groups.tp, exposed.of(Part::Tp), probe(tp, groups.tp), Some(tp)),
            ("cp", groups.cp, exposed.of(Part::Cp), probe(Collective::Send, groups.cp), Some(Collective::Send)),
            ("ep", groups.ep, exposed.of(Part::Ep), dispatch.name(), dispatched(dispatch)),
        ];
        let mut traffic: Vec<Traffic> = Vec::new();
        for (index, (axis, spread, exposed, algorithm, collective)) in rows.into_iter().enumerate() {
            let (bytes, hidden) = (inside.moved[index], inside.hidden[index]);
            let crosses_island = spread.crosses();
            let rails = self.crossing(collective, bytes, spread);
            traffic.push(Traffic { axis, bytes, algorithm, spread, crosses_island, exposed, hidden, rails });
        }
        traffic.push(self.stage_traffic(layout, slow));
        traffic.extend(self.replica_traffic(layout, slow));
        traffic.retain(|row| row.bytes > 0.0);
        traffic
    }

    /// What changes rails; kernels of tokens, which are no collective, keep to theirs.
    fn crossing(&self, collective: Option<Collective>, bytes: f64, spread: Spread) -> Option<Crossing> {
        let crossing = self.setting.fabric.crossing(collective.unwrap_or(Collective::Send), bytes, spread)?;
        Some(if collective.is_some() { crossing } else { Crossing { share: 0.0, bytes: 0.0, ..crossing } })
    }

    /// Activations onwards and their gradients back.
    fn stage_traffic(&self, layout: &Layout, slow: &Slowest) -> Traffic {
        let times = slow.sends as f64 * self.microbatches_a_chunk(layout);
        let spread = self.neighbours(layout);
        let exposed = slow.time.sending;
        let bytes = times * self.transfer_bytes(layout);
        Traffic {
            axis: "pp",
            bytes,
            algorithm: self.setting.fabric.time(Collective::Send, 1e9, spread).algorithm,
            spread,
            crosses_island: spread.crosses(),
            exposed,
            hidden: (times * self.transfer(layout) - exposed).max(0.0),
            rails: self.crossing(Some(Collective::Send), bytes, spread),
        }
    }

    /// Gradients and weights over replicas, as often as microbatches ask for them from ZeRO 2 on.
    fn replica_traffic(&self, layout: &Layout, slow: &Slowest) -> Vec<Traffic> {
        let held = self.held(slow.counts);
        let (gradient, weight) = widths(self);
        let count = self.microbatches_a_chunk(layout);
        let inside = inside(self, layout);
        let gathers = match inside.gathers.iter().sum::<u64>() {
            0 if layout.zero == ZeroStage::Zero => 0.0,
            0 => 1.0,
            times => times as f64 * count,
        };
        let reductions = match (inside.reduces, layout.zero) {
            (true, _) => count,
            (false, ZeroStage::Zero) => 2.0,
            // nanotron sums them whole whoever steps them.
            (false, _) if layout.engine == Some(Engine::Nanotron) => 2.0,
            (false, _) => 1.0,
        };
        let all = [slow.once.gradients, slow.once.weights];
        let (total, exposed) = (all[0][0] + all[1][0], all[0][1] + all[1][1]);
        let elements: f64 = held.elements.iter().sum();
        let state = |mesh: usize| held.trained[mesh] * gradient * reductions + held.elements[mesh] * weight * gathers;
        // Summed there and back, in fp32.
        let adapters = |mesh: usize| 2.0 * held.adapters[mesh] * 4.0 * count;
        let row = |(mesh, replicas): (usize, crate::data::Replicas)| {
            let spread = replicas.sharing;
            let members = spread.members as f64;
            let share = held.elements[mesh] / elements.max(1.0);
            let bytes = (members - 1.0) / members * (state(mesh) + adapters(mesh));
            Traffic {
                axis: if mesh == 0 { "dp" } else { "edp" },
                bytes,
                algorithm: match (mesh, layout.zero) {
                    (0, ZeroStage::Zero) => replicas.ring(&self.setting.fabric, layout.world).all_reduce(1e9).1,
                    (0, _) => replicas.ring(&self.setting.fabric, layout.world).gathered(1e9).1,
                    _ => self.setting.fabric.time(Collective::AllGather, 1e9, spread).algorithm,
                },
                spread,
                crosses_island: spread.crosses(),
                exposed: exposed * share,
                hidden: (total - exposed).max(0.0) * share,
                rails: self.crossing(Some(Collective::AllGather), bytes, spread),
            }
        };
        replicas(self, layout).into_iter().enumerate().map(row).collect()
    }
}

/// What bounds a step: its largest line, and the second where it comes close.
pub(crate) fn bound(parts: &[Line]) -> String {
    let mut sorted: Vec<&Line> = parts.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let words = |line: &Line| format!("{} ({:.0}% of the step)", line.name, 100.0 * line.share);
    match sorted.as_slice() {
        [first, second, ..] if second.seconds > 0.6 * first.seconds => {
            format!("{}, then {}", words(first), words(second))
        }
        [first, ..] => words(first),
        [] => String::new(),
    }
}
