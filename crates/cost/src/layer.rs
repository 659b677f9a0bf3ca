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
    }
}

/// A pass being summed: device seconds by part, and the host's.
#[derive(Default)]
struct Pass {
    times: Times,
    host: f64,
}

impl Pass {
    fn run(&mut self, meter: &Meter, part: Part, works: &[Work], times: f64) {
        for work in works {
            let part = if matches!(work, Work::Sync) { Part::Launch } else { part };
            self.times.add(part, times * meter.seconds(work));
            self.host += times * meter.host_seconds(work);
        }
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

/// Prices a layer.
pub(crate) fn price(meter: &Meter, shape: Shape, ops: &[Op], waits: LayerWaits, recompute: &Recompute) -> LayerPrice {
    let [mut forward, mut input, mut weight, mut again] = [(); 4].map(|()| Pass::default());
    for op in ops {
        forward.run(meter, op.part, &op.forward, 1.0);
        input.run(meter, op.part, &op.input, 1.0);
        weight.run(meter, op.part, &op.weight, 1.0);
        again.run(meter, op.part, &op.forward, runs_again(op, shape, recompute));
    }
    forward.host += meter.host_of_collectives(waits.calls.0);
    input.host += meter.host_of_collectives(waits.calls.1);
    for pass in [&mut forward, &mut input, &mut weight, &mut again] {
        pass.floor(shape.options.kernels.launch());
    }
    let occupied = meter.profile().collectives.occupied;
    let rules = Rules { overlap: shape.options.overlap, tp: shape.tp, occupied };
    let beside = cover(&forward.times, &Times::default());
    let ahead = rules.expose(Direction::Forward, waits.forward, 0.0, beside, &mut forward.times);
    let beside = cover(&input.times, &weight.times);
    let behind = rules.expose(Direction::Backward, waits.backward, waits.again, beside, &mut input.times);
    let repeated = match (recompute, shape.options.again) {
        (_, Again::ByOperator) => Waits::default(),
        (Recompute::Full, Again::Layout) => waits.forward,
        (Recompute::Full, Again::EveryOther) => waits.forward.times(0.5),
        (Recompute::Selective(modules), _) if modules.contains(&RecomputeModule::Moe) => {
            Waits { ep: waits.forward.ep, ..Waits::default() }
        }
        _ => Waits::default(),
    };
    let beside = cover(&again.times, &Times::default());
    let once_more = rules.expose(Direction::Forward, repeated, 0.0, beside, &mut again.times);
    LayerPrice {
        forward: forward.times,
        input: input.times,
        weight: weight.times,
        recompute: again.times,
        hidden: std::array::from_fn(|axis| ahead[axis] + behind[axis] + once_more[axis]),
        moved: moved(&waits, &repeated),
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

/// How often an operation runs again, on average over layers.
fn runs_again(op: &Op, shape: Shape, recompute: &Recompute) -> f64 {
    let by_layout = match recompute {
        Recompute::None => 0.0,
        Recompute::Full => 1.0,
        Recompute::Selective(chosen) => f64::from(u8::from(op.modules.iter().any(|module| chosen.contains(module)))),
    };
    match (shape.options.again, op.part) {
        (Again::Layout, _) => by_layout,
        (Again::EveryOther, _) => 0.5 * by_layout,
        (Again::ByOperator, Part::Attention) => 0.0,
        (Again::ByOperator, Part::Gemm | Part::Experts) => 0.5,
        (Again::ByOperator, _) => 1.0,
    }
}
