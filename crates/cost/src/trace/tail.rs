//! What happens once a step, behind the passes and beneath the first and last of them.

use super::{Slice, Track, What};
use crate::data::{OnceAStep, inside, once_a_step, replicas, widths};
use crate::prices::{Counts, Prices};
use crate::simulate::Timeline;
use layout::{Layout, ZeroStage};

/// The optimizer's line.
pub(super) const OPTIMIZER: &str = "optimizer";

/// Bytes a rank sends over replicas.
pub(super) struct StateMoved {
    /// In a forward and in a backward of one microbatch.
    pub inside: [f64; 2],
    /// Gradients and weights once a step.
    once: [f64; 2],
}

impl Prices {
    /// State that a chunk or stage moves over replicas, without that of adapters.
    pub(super) fn state_moved(&self, layout: &Layout, counts: Counts) -> StateMoved {
        let (held, (gradient, weight), inside) = (self.held(counts), widths(self), inside(self, layout));
        let (mut gather, mut reduce) = (0.0, 0.0);
        for (mesh, replicas) in replicas(self, layout).into_iter().enumerate() {
            let members = replicas.sharing.members as f64;
            gather += (members - 1.0) / members * held.elements[mesh] * weight;
            reduce += (members - 1.0) / members * held.trained[mesh] * gradient;
        }
        let reductions = if layout.zero == ZeroStage::Zero { 2.0 } else { 1.0 };
        let [forward, backward] = inside.gathers.map(|times| times as f64 * gather);
        let reduced = |is: bool| if is { reduce * reductions } else { 0.0 };
        let gathers_once = layout.zero != ZeroStage::Zero && inside.gathers == [0, 0];
        StateMoved {
            inside: [forward, backward + reduced(inside.reduces)],
            once: [reduced(!inside.reduces), if gathers_once { gather } else { 0.0 }],
        }
    }

    /// Draws what every stage does once a step, and gives the step's seconds.
    pub(super) fn draw_tail(
        &self,
        layout: &Layout,
        stages: &[Counts],
        timeline: &Timeline,
        slices: &mut Vec<Slice>,
    ) -> f64 {
        let (placed, tied) = (self.placed(layout), self.tied_tables(layout));
        let done = timeline.makespan + self.once(layout, stages).exposed();
        let seconds = self.with_reserve(done);
        let mut slack = 0.0;
        for (index, counts) in stages.iter().enumerate() {
            let load = self.load(&placed, *counts);
            let once = once_a_step(self, &placed, &load, slack);
            slack += self.slack(layout, load.times);
            let moved = self.state_moved(layout, *counts).once;
            let mut drawn = Tail { stage: index as u32, clock: timeline.makespan, slices: &mut *slices };
            let schedule = |what, start: f64, end: f64| Slice {
                stage: index as u32,
                track: Track::Schedule,
                what,
                start,
                seconds: end - start,
                bytes: None,
            };
            let is_edge = counts.is_first || counts.is_last;
            drawn.behind(&once, moved, if is_edge { tied } else { 0.0 });
            let own = drawn.clock;
            let here = &timeline.stages[index];
            drawn.beneath(&once, moved, [here.first_start, here.last_end], [load.times.forward, load.times.backward()]);
            if own > timeline.makespan {
                slices.push(schedule(What::Update, timeline.makespan, own));
            }
            if done > own {
                slices.push(schedule(What::WaitForUpdate, own, done));
            }
            slices.push(schedule(What::Line("reserve"), done, seconds));
        }
        seconds
    }
}

struct Tail<'a> {
    stage: u32,
    clock: f64,
    slices: &'a mut Vec<Slice>,
}

impl Tail<'_> {
    fn put(&mut self, track: Track, what: What, start: f64, seconds: f64, bytes: Option<f64>) {
        if seconds > 0.0 {
            self.slices.push(Slice { stage: self.stage, track, what, start, seconds, bytes });
        }
    }

    fn next(&mut self, track: Track, line: &'static str, seconds: f64, bytes: Option<f64>) {
        self.put(track, What::Line(line), self.clock, seconds, bytes);
        self.clock += seconds;
    }

    /// What shows, one after another.
    fn behind(&mut self, once: &OnceAStep, [gradients, weights]: [f64; 2], tied: f64) {
        let shown =
            |[all, shown]: [f64; 2], bytes: f64| if all > 0.0 { Some(bytes * (shown / all).min(1.0)) } else { None };
        self.next(Track::Axis("dp"), "gradients exposed", once.gradients[1], shown(once.gradients, gradients));
        self.next(Track::Axis("pp"), "gradients exposed", tied, None);
        self.next(Track::Compute, OPTIMIZER, once.optimizer, None);
        self.next(Track::Host, "offload", once.offload, None);
        self.next(Track::Axis("dp"), "weights exposed", once.weights[1], shown(once.weights, weights));
    }

    /// What hides: gradients beneath the last backward, weights beneath the first forward.
    fn beneath(&mut self, once: &OnceAStep, moved: [f64; 2], [first, last]: [f64; 2], [forward, backward]: [f64; 2]) {
        let hides = |[all, shown]: [f64; 2], bytes: f64| match all {
            0.0 => (0.0, None),
            all => ((all - shown).max(0.0), Some(bytes * (1.0 - shown / all).max(0.0))),
        };
        let (weights, bytes) = hides(once.weights, moved[1]);
        self.put(Track::Axis("dp"), What::HiddenLine("weights exposed"), first, weights.min(forward), bytes);
        let (gradients, bytes) = hides(once.gradients, moved[0]);
        let gradients = gradients.min(backward);
        self.put(Track::Axis("dp"), What::HiddenLine("gradients exposed"), last - gradients, gradients, bytes);
    }
}
