//! What one pass over one chunk consists of, laid end to end.
//!
//! Prices know how much of a pass every part takes and not in which order layers mix them, so a pass is
//! drawn as the breakdown lists it: compute, then what the host makes it wait for, then what shows of
//! collectives. What hides of a collective is drawn beside the compute, from its beginning.

use super::{Track, What};
use crate::layer::LayerPrice;
use crate::part::{Part, Times};
use crate::report::Spent;
use layout::order::Pass;

/// One run of a pass, with its place from the pass's start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub track: Track,
    pub what: What,
    pub at: f64,
    pub seconds: f64,
    pub bytes: Option<f64>,
}

/// Exchanges of state inside a pass: seconds that show, and the bytes a rank sends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sharded {
    pub seconds: [f64; 2],
    pub bytes: [f64; 2],
}

/// The pieces of every kind of pass of one chunk.
#[derive(Clone, Debug)]
pub(super) struct Passes([Vec<Piece>; 4]);

/// What hides of an axis's collectives in a pass, and bytes that hide and that show.
#[derive(Clone, Copy, Default)]
struct Link {
    hidden: f64,
    hidden_bytes: f64,
    shown_bytes: f64,
}

const AXES: [(&str, Part); 3] = [("tp", Part::Tp), ("cp", Part::Cp), ("ep", Part::Ep)];

impl Passes {
    /// Of a chunk that takes this for one microbatch, and waits `late` for the host besides, in forward and in
    /// backward; kernels take a share `longer` on the slowest device.
    pub fn new(price: &LayerPrice, sharded: Sharded, late: [f64; 2], longer: f64) -> Passes {
        let (none, zero) = (Times::default(), |pass: usize| (sharded.seconds[pass], sharded.bytes[pass]));
        let mut whole = price.input;
        whole += price.weight;
        let mut backward = whole;
        backward += price.recompute;
        let compute = price.weight.compute();
        let later = if compute > 0.0 { compute / backward.compute() } else { 0.0 };
        let ahead = links(&price.forward, price.forward_hidden, price.forward_moved);
        let rest = |all: [f64; 3], first: [f64; 3]| std::array::from_fn(|axis| all[axis] - first[axis]);
        let moved = rest(price.moved, price.forward_moved);
        let behind = links(&backward, rest(price.hidden, price.forward_hidden), moved);
        let share = |by: f64, shown: f64| behind.map(|link| link.times(by, shown));
        Passes([
            lay([&none, &with_late(price.forward, late[0])], longer, ahead, zero(0)),
            lay([&price.recompute, &with_late(whole, late[1])], longer, behind, zero(1)),
            lay([&price.recompute, &with_late(price.input, late[1])], longer, share(1.0 - later, 1.0), zero(1)),
            lay([&none, &price.weight], longer, share(later, 0.0), (0.0, 0.0)),
        ])
    }

    pub fn of(&self, pass: Pass) -> &[Piece] {
        let at = match pass {
            Pass::Forward => 0,
            Pass::Backward => 1,
            Pass::BackwardInput => 2,
            Pass::BackwardWeight => 3,
        };
        &self.0[at]
    }

    /// The most pieces of a pass.
    pub fn most(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }
}

impl Link {
    fn times(self, hidden: f64, shown: f64) -> Link {
        Link {
            hidden: self.hidden * hidden,
            hidden_bytes: self.hidden_bytes * hidden,
            shown_bytes: self.shown_bytes * shown,
        }
    }
}

fn with_late(mut times: Times, late: f64) -> Times {
    times.add(Part::Launch, late);
    times
}

/// Bytes go with the seconds they take.
fn links(shown: &Times, hidden: [f64; 3], moved: [f64; 3]) -> [Link; 3] {
    std::array::from_fn(|axis| {
        let (all, hides) = (shown.of(AXES[axis].1) + hidden[axis], hidden[axis].max(0.0));
        let share = if all > 0.0 { hides / all } else { 0.0 };
        Link { hidden: hides, hidden_bytes: moved[axis] * share, shown_bytes: moved[axis] * (1.0 - share) }
    })
}

/// Lays out a pass: `again` is what recompute runs before it.
fn lay([again, main]: [&Times; 2], longer: f64, links: [Link; 3], (zero, zero_bytes): (f64, f64)) -> Vec<Piece> {
    let (mut pieces, mut at) = (Vec::new(), 0.0);
    let mut put = |track: Track, what: What, seconds: f64, bytes: Option<f64>| {
        if seconds > 0.0 {
            pieces.push(Piece { track, what, at, seconds, bytes });
            at += seconds;
        }
    };
    let compute = || Part::ALL.iter().map(|(_, part)| *part).filter(|part| part.spent() == Spent::Compute);
    compute().for_each(|part| put(Track::Compute, What::Again(part), again.of(part), None));
    compute().for_each(|part| put(Track::Compute, What::Part(part), main.of(part), None));
    let under = again.compute() + main.compute();
    put(Track::Compute, What::Line("slowest rank"), longer * under, None);
    let both = |part: Part| again.of(part) + main.of(part);
    for (_, part) in Part::ALL.iter().filter(|(_, part)| part.spent() == Spent::Host) {
        put(Track::Host, What::Part(*part), both(*part), None);
    }
    for ((axis, part), link) in AXES.into_iter().zip(links) {
        put(Track::Axis(axis), What::Part(part), both(part), Some(link.shown_bytes));
    }
    put(Track::Axis("dp"), What::Line("zero exposed"), zero, Some(zero_bytes));
    for ((axis, part), link) in AXES.into_iter().zip(links).filter(|(_, link)| link.hidden > 0.0) {
        let (what, bytes) = (What::Hidden(part), Some(link.hidden_bytes));
        pieces.push(Piece { track: Track::Axis(axis), what, at: 0.0, seconds: link.hidden.min(under), bytes });
    }
    pieces
}
