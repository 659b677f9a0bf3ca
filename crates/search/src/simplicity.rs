//! How much a layout asks of the people who run it. Fewer axes, a plainer schedule and fewer
//! policies have fewer ways to go wrong; between layouts of the same speed and headroom the
//! simpler one is better.

use crate::cuts::Evenness;
use crate::point::{Offload, Point};
use crate::shape::Shape;
use layout::{Recompute, Schedule, ZeroStage};

/// One for every axis that cuts the model (tp, cp, pp, ep, and etp where it differs from tp); for
/// the schedule nothing (1f1b), one (interleaved), two (zb-h1, dualpipev) or three (dualpipe, which
/// keeps the weights twice); one each for an uneven partition, recompute, ZeRO beyond optimizer
/// state, and state on the host. Data parallelism, ZeRO 0 and 1 and the microbatch are free.
pub fn complexity(point: &Point, shape: &Shape, recompute: &Recompute) -> u32 {
    let key = &point.key;
    let axes = [key.tp > 1, key.cp > 1, point.pp > 1, key.ep > 1, key.ep > 1 && key.etp != key.tp];
    let schedule = match shape.order.schedule {
        Schedule::GPipe | Schedule::OneF1b => 0,
        Schedule::Interleaved => 1,
        Schedule::ZbH1 | Schedule::DualPipeV => 2,
        Schedule::DualPipe => 3,
    };
    let policies = [
        shape.cut.even != Evenness::Layers,
        *recompute != Recompute::None,
        point.zero >= ZeroStage::Two,
        point.offload == Offload::Host,
    ];
    let count = |flags: &[bool]| flags.iter().filter(|flag| **flag).count() as u32;
    count(&axes) + schedule + count(&policies)
}
