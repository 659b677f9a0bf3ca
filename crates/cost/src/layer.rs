//! The passes of one layer: its operations on the meter, its collectives on the fabric, what the
//! host can start, and what recompute runs again.

use crate::comm::{LayerWaits, Waits};
use crate::ops::{Direction, Op, Shape, Work};
use crate::overlap::{Cover, Hidden, Rules};
use crate::part::{Part, Times};
use crate::roofline::Meter;
use case::options::{Again, Launch};
use layout::Recompute;
use layout::request::RecomputeModule;
use std::ops::Range;

/// Seconds of one layer for one microbatch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LayerPrice {
    pub forward: Times,
    pub input: Times,
    pub weight: Times,
    pub recompute: Times,
    /// Seconds of collectives nobody waited for, all passes together.
    pub hidden: Hidden,
    /// Bytes a rank sends over tp, cp and ep, all passes together.
    pub moved: [f64; 3],
    /// Of these two, what belongs to forward.
    pub forward_hidden: Hidden,
    pub forward_moved: [f64; 3],
}

impl LayerPrice {
    /// The passes as the pipeline sees them: forward, towards the input, towards the weight.
    pub fn passes(&self) -> [f64; 3] {
        [self.forward.seconds(), self.input.seconds() + self.recompute.seconds(), self.weight.seconds()]
    }

    /// All passes together.
    pub fn all(&self) -> Times {
        let mut all = self.forward;
        all += self.input;
        all += self.weight;
        all += self.recompute;
        all
    }

    /// The same, several times.
    pub fn times(self, count: f64) -> LayerPrice {
        LayerPrice {
            forward: self.forward * count,
            input: self.input * count,
            weight: self.weight * count,
            recompute: self.recompute * count,
            hidden: self.hidden.map(|seconds| seconds * count),
            moved: self.moved.map(|bytes| bytes * count),
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
        self.hidden.iter_mut().zip(other.hidden).for_each(|(a, b)| *a += b);
        self.moved.iter_mut().zip(other.moved).for_each(|(a, b)| *a += b);
        self.forward_hidden.iter_mut().zip(other.forward_hidden).for_each(|(a, b)| *a += b);
        self.forward_moved.iter_mut().zip(other.forward_moved).for_each(|(a, b)| *a += b);
    }
}

/// Seconds of one piece of work: the device's, booked under a part, and the host's.
#[derive(Clone, Copy, Debug)]
struct Timed {
    part: Part,
    seconds: f64,
    host: f64,
}

/// A pass being summed: device seconds by part, and the host's.
#[derive(Default)]
struct Pass {
    times: Times,
    host: f64,
}

impl Pass {
    fn run(&mut self, timed: Timed, times: f64) {
        self.times.add(timed.part, times * timed.seconds);
        self.host += times * timed.host;
    }

    /// The device waits where the host starts kernels more slowly than they run. The host runs
    /// ahead while the device is busy, so only the sum over a pass counts.
    fn floor(&mut self, launch: Launch) {
        let late = match launch {
            Launch::Blocking => self.host,
            Launch::Eager | Launch::Graphs => self.host - self.times.compute(),
        };
        if late > 0.0 {
            self.times.add(Part::Launch, late);
        }
    }
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
    launch: Launch,
    rules: Rules,
}

impl Once {
    /// Times operations and collectives.
    pub fn new(meter: &Meter, shape: Shape, ops: &[Op], waits: LayerWaits) -> Once {
        let timed = |part: Part, work: &Work| Timed {
            part: if matches!(work, Work::Sync) { Part::Launch } else { part },
            seconds: meter.seconds(work),
            host: meter.host_seconds(work),
        };
        let [mut forward, mut input, mut weight] = [(); 3].map(|()| Pass::default());
        let (mut repeatable, mut works) = (Vec::with_capacity(ops.len()), Vec::new());
        for op in ops {
            let first = works.len();
            works.extend(op.forward.iter().map(|work| timed(op.part, work)));
            works[first..].iter().for_each(|work| forward.run(*work, 1.0));
            op.input.iter().for_each(|work| input.run(timed(op.part, work), 1.0));
            op.weight.iter().for_each(|work| weight.run(timed(op.part, work), 1.0));
            let work = first..works.len();
            repeatable.push(Repeatable { part: op.part, modules: op.modules, block: op.block, work });
        }
        forward.host += meter.host_of_collectives(waits.calls.0);
        input.host += meter.host_of_collectives(waits.calls.1);
        let launch = shape.options.kernels.launch();
        for pass in [&mut forward, &mut input, &mut weight] {
            pass.floor(launch);
        }
        let occupied = meter.profile().collectives.occupied;
        let rules = Rules { overlap: shape.options.overlap, tp: shape.tp, occupied };
        let beside = cover(&forward.times, &Times::default());
        let ahead = rules.expose(Direction::Forward, waits.forward, 0.0, beside, &mut forward.times);
        let beside = cover(&input.times, &weight.times);
        let behind = rules.expose(Direction::Backward, waits.backward, waits.again, beside, &mut input.times);
        Once {
            forward: forward.times,
            input: input.times,
            weight: weight.times,
            hidden: [ahead, behind],
            waits,
            ops: repeatable,
            work: works,
            again: shape.options.again,
            launch,
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
        again.floor(self.launch);
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
        let [ahead, behind] = self.hidden;
        LayerPrice {
            forward: self.forward,
            input: self.input,
            weight: self.weight,
            recompute: again.times,
            hidden: std::array::from_fn(|axis| ahead[axis] + behind[axis] + once_more[axis]),
            moved: moved(waits, &repeated),
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

/// Bytes of both passes, and of what recompute repeats of the forward's.
fn moved(waits: &LayerWaits, repeated: &Waits) -> [f64; 3] {
    let share = |again: f64, once: f64| if once > 0.0 { again / once } else { 0.0 };
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
