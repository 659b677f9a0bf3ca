//! The passes of one layer: its operations on the meter, its collectives on the fabric, what the
//! host can start, and what recompute runs again.

use crate::comm::{LayerWaits, Waits};
use crate::nanotron;
use crate::ops::{Direction, Op, Shape, Work};
use crate::overlap::{Cover, Hidden, Rules};
use crate::part::{Part, Times};
use crate::roofline::{Meter, Pass as Passing};
use case::options::{Again, GraphsBy};
use hardware::PowerCurve;
use layout::request::RecomputeModule;
use layout::{Engine, Recompute};
use std::ops::Range;

/// Seconds of one layer for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LayerPrice {
    pub forward: Times,
    pub input: Times,
    pub weight: Times,
    pub recompute: Times,
    /// Seconds of the host that run ahead of the device, forward and backward, recompute among it. What the
    /// host waits for inside the layer is in the passes already.
    pub host: [f64; 2],
    /// Seconds of collectives nobody waited for, all passes together.
    pub hidden: Hidden,
    /// Bytes a rank sends over tp, cp and ep, all passes together.
    pub moved: [f64; 3],
    /// Seconds in which this rank's port of the network is busy with them, forward and backward, recompute among it.
    pub port: [f64; 2],
    /// Of the two before, what belongs to forward.
    pub forward_hidden: Hidden,
    pub forward_moved: [f64; 3],
}

impl LayerPrice {
    /// The passes as the pipeline sees them where kernels take `slowest` times as long: forward, towards the input,
    /// towards the weight; then the host's, forward and backward.
    pub fn passes(&self, slowest: f64) -> [f64; 5] {
        let on = |times: &Times| times.seconds() + (slowest - 1.0) * times.compute();
        let input = on(&self.input) + on(&self.recompute);
        [on(&self.forward), input, on(&self.weight), self.host[0], self.host[1]]
    }

    /// All passes together.
    pub fn all(&self) -> Times {
        let mut all = self.forward;
        all += self.input;
        all += self.weight;
        all += self.recompute;
        all
    }

    /// The forward pass by itself, which no backward follows.
    pub fn forward_alone(&self) -> LayerPrice {
        LayerPrice {
            forward: self.forward,
            host: [self.host[0], 0.0],
            hidden: self.forward_hidden,
            moved: self.forward_moved,
            port: [self.port[0], 0.0],
            forward_hidden: self.forward_hidden,
            forward_moved: self.forward_moved,
            ..LayerPrice::default()
        }
    }

    /// The same, several times.
    pub fn times(self, count: f64) -> LayerPrice {
        LayerPrice {
            forward: self.forward * count,
            input: self.input * count,
            weight: self.weight * count,
            recompute: self.recompute * count,
            host: self.host.map(|seconds| seconds * count),
            hidden: self.hidden.map(|seconds| seconds * count),
            moved: self.moved.map(|bytes| bytes * count),
            port: self.port.map(|seconds| seconds * count),
            forward_hidden: self.forward_hidden.map(|seconds| seconds * count),
            forward_moved: self.forward_moved.map(|bytes| bytes * count),
        }
    }

    /// One behind the other.
    pub fn add(&mut self, other: LayerPrice) {
        self.forward += other.forward;
        self.input += other.input;
        self.weight += other.weight;
        self.recompute += other.recompute;
        self.host.iter_mut().zip(other.host).for_each(|(a, b)| *a += b);
        self.hidden.iter_mut().zip(other.hidden).for_each(|(a, b)| *a += b);
        self.port.iter_mut().zip(other.port).for_each(|(a, b)| *a += b);
        self.moved.iter_mut().zip(other.moved).for_each(|(a, b)| *a += b);
        self.forward_hidden.iter_mut().zip(other.forward_hidden).for_each(|(a, b)| *a += b);
        self.forward_moved.iter_mut().zip(other.forward_moved).for_each(|(a, b)| *a += b);
    }
}

/// Seconds of one piece of work: the device's, booked under a part, of which power costs some, and the host's.
#[derive(Clone, Copy, Debug)]
struct Timed {
    part: Part,
    seconds: f64,
    powered: f64,
    host: f64,
}

/// A pass being summed: device seconds by part, and the host's.
#[derive(Default)]
struct Pass {
    times: Times,
    /// What power costs its products, dense and of experts.
    powered: [f64; 2],
    host: f64,
}

impl Pass {
    fn run(&mut self, timed: Timed, times: f64) {
        self.times.add(timed.part, times * timed.seconds);
        self.powered[usize::from(timed.part == Part::Experts)] += times * timed.powered;
        self.host += times * timed.host;
    }

    /// All kernels of a pass share one clock. Those that draw less than products leave them power: what a
    /// clock that stays up saves is no more than what they leave. Attention, timed by itself on a cooler
    /// device, runs at the clock that is left.
    fn share_power(&mut self, power: &PowerCurve) {
        let powered: f64 = self.powered.iter().sum();
        if powered <= 0.0 {
            return;
        }
        let products = self.times.of(Part::Gemm) + self.times.of(Part::Experts);
        let saved = powered.min((1.0 - power.streams) * (self.times.compute() - products));
        for (part, powered_here) in [(Part::Gemm, self.powered[0]), (Part::Experts, self.powered[1])] {
            self.times.add(part, -saved * powered_here / powered);
        }
        let slower = (products - saved) / (products - powered);
        let attention = self.times.of(Part::Attention);
        self.times.add(Part::Attention, attention * (power.same_attention * slower - 1.0).max(0.0));
    }

    /// The device waits where the host starts kernels more slowly than they run. The host runs ahead while
    /// the device computes or its links are busy, until it has to wait for it: then its lead is gone, and the layer takes
    /// what the longer of the two takes. Returns what runs ahead.
    fn floor(&mut self, waits: Waiting) -> f64 {
        let late = match waits {
            Waiting::Ahead => return self.host,
            Waiting::ForEach => self.host,
            Waiting::Once => self.host - self.times.seconds(),
        };
        self.times.add(Part::Launch, late.max(0.0));
        0.0
    }
}

/// Whether the host waits for the device inside a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// It runs ahead.
    Ahead,
    /// It waits for a figure.
    Once,
    /// It waits for every kernel.
    ForEach,
}

/// Forward work of one operation, which recompute may repeat.
#[derive(Clone, Debug)]
struct Repeatable {
    part: Part,
    modules: &'static [RecomputeModule],
    block: Option<RecomputeModule>,
    work: Range<usize>,
}

/// A layer whatever recompute repeats of it: its passes, and what there is to repeat.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    forward: Times,
    input: Times,
    weight: Times,
    hidden: [Hidden; 2],
    waits: LayerWaits,
    ops: Vec<Repeatable>,
    work: Vec<Timed>,
    again: Again,
    host: [f64; 2],
    waiting: Waiting,
    power: PowerCurve,
    rules: Rules,
}

impl Once {
    /// Times operations and collectives.
    pub fn new(meter: &Meter, shape: Shape, ops: &[Op], waits: LayerWaits) -> Once {
        let graphs = shape.options.kernels.graphs;
        let is_nanotron = shape.layout.engine == Some(Engine::Nanotron);
        let also = |work: &Work, pass| if is_nanotron { nanotron::also_starts(meter, shape, work, pass) } else { 0.0 };
        let timed = |op: &Op, work: &Work, pass: Passing| Timed {
            part: if matches!(work, Work::Sync) { Part::Launch } else { op.part },
            seconds: meter.seconds(work),
            powered: meter.powered(work),
            host: if graphs.records(op.scope) { 0.0 } else { meter.host_seconds(work, pass) + also(work, pass) },
        };
        let [mut forward, mut input, mut weight] = [(); 3].map(|()| Pass::default());
        let (mut repeatable, mut works) = (Vec::with_capacity(ops.len()), Vec::new());
        let mut waits_once = false;
        for op in ops {
            let first = works.len();
            works.extend(op.forward.iter().map(|work| timed(op, work, Passing::Forward)));
            waits_once |= op.forward.contains(&Work::Sync);
            works[first..].iter().for_each(|work| forward.run(*work, 1.0));
            op.input.iter().for_each(|work| input.run(timed(op, work, Passing::Input), 1.0));
            op.weight.iter().for_each(|work| weight.run(timed(op, work, Passing::Weight), 1.0));
            let work = first..works.len();
            repeatable.push(Repeatable { part: op.part, modules: op.modules, block: op.block, work });
        }
        if graphs.by != GraphsBy::FullIteration {
            let (ahead, behind) = meter.host_of_collectives(waits.calls);
            forward.host += ahead;
            input.host += behind;
        }
        let power = meter.profile().power;
        for pass in [&mut forward, &mut input, &mut weight] {
            pass.share_power(&power);
        }
        let blocks = shape.options.kernels.blocking;
        let waiting = |once: bool| match (blocks, once) {
            (true, _) => Waiting::ForEach,
            (false, true) => Waiting::Once,
            (false, false) => Waiting::Ahead,
        };
        let ahead_of = waiting(waits_once);
        let occupied = meter.profile().collectives.occupied;
        let rules = Rules { overlap: shape.options.overlap, tp: shape.tp, occupied };
        let beside = cover(&forward.times, &Times::default());
        let ahead = rules.expose(Direction::Forward, waits.forward, 0.0, beside, &mut forward.times);
        let beside = cover(&input.times, &weight.times);
        let behind = rules.expose(Direction::Backward, waits.backward, waits.again, beside, &mut input.times);
        let host = [forward.floor(ahead_of), input.floor(waiting(false)) + weight.floor(waiting(false))];
        Once {
            forward: forward.times,
            input: input.times,
            weight: weight.times,
            hidden: [ahead, behind],
            waits,
            ops: repeatable,
            work: works,
            again: shape.options.again,
            host,
            waiting: ahead_of,
            power,
            rules,
        }
    }

    /// The layer under a policy.
    pub fn under(&self, recompute: &Recompute) -> LayerPrice {
        let mut again = Pass::default();
        for op in &self.ops {
            let times = self.runs_again(op, recompute);
            if times > 0.0 {
                self.work[op.work.clone()].iter().for_each(|work| again.run(*work, times));
            }
        }
        again.share_power(&self.power);
        let waits = &self.waits;
        let repeated = match (recompute, self.again) {
            (_, Again::ByOperator) => Waits::default(),
            (Recompute::Full, Again::Layout) => waits.forward,
            (Recompute::Full, Again::EveryOther) => waits.forward.times(0.5),
            (Recompute::Selective(modules), _) if modules.contains(&RecomputeModule::Moe) => {
                Waits { ep: waits.forward.ep, ..Waits::default() }
            }
            _ => Waits::default(),
        };
        let beside = cover(&again.times, &Times::default());
        let once_more = self.rules.expose(Direction::Forward, repeated, 0.0, beside, &mut again.times);
        let again_ahead = again.floor(self.waiting);
        let [ahead, behind] = self.hidden;
        LayerPrice {
            forward: self.forward,
            input: self.input,
            weight: self.weight,
            recompute: again.times,
            host: [self.host[0], self.host[1] + again_ahead],
            hidden: std::array::from_fn(|axis| ahead[axis] + behind[axis] + once_more[axis]),
            moved: moved(waits, &repeated),
            port: [waits.port[0], waits.port[1] + share(total(&repeated), total(&waits.forward)) * waits.port[0]],
            forward_hidden: ahead,
            forward_moved: waits.moved[0],
        }
    }

    /// How often an operation runs again, on average over layers.
    fn runs_again(&self, op: &Repeatable, recompute: &Recompute) -> f64 {
        let by_layout = match recompute {
            Recompute::None => 0.0,
            Recompute::Full => 1.0,
            Recompute::Selective(chosen) => {
                let is_chosen = op.modules.iter().chain(&op.block).any(|module| chosen.contains(module));
                f64::from(u8::from(is_chosen))
            }
        };
        match (self.again, op.part) {
            (Again::Layout, _) => by_layout,
            (Again::EveryOther, _) => 0.5 * by_layout,
            (Again::ByOperator, Part::Attention) => 0.0,
            (Again::ByOperator, Part::Gemm | Part::Experts) => 0.5,
            (Again::ByOperator, _) => 1.0,
        }
    }
}

/// Of what happened once, what happens again.
fn share(again: f64, once: f64) -> f64 {
    if once > 0.0 { again / once } else { 0.0 }
}

fn total(waits: &Waits) -> f64 {
    waits.tp + waits.cp + waits.ep
}

/// Bytes of both passes, and of what recompute repeats of the forward's.
fn moved(waits: &LayerWaits, repeated: &Waits) -> [f64; 3] {
    let forward = waits.forward;
    let shares = [share(repeated.tp, forward.tp), share(repeated.cp, forward.cp), share(repeated.ep, forward.ep)];
    std::array::from_fn(|axis| waits.moved[0][axis] * (1.0 + shares[axis]) + waits.moved[1][axis])
}

fn cover(first: &Times, second: &Times) -> Cover {
    let products = |t: &Times| t.of(Part::Gemm) + t.of(Part::Experts);
    Cover {
        products: products(first) + products(second),
        attention: first.of(Part::Attention),
        all: first.compute() + second.compute(),
    }
}
