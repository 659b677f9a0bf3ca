//! How much of a collective shows: what an engine lets run beside it, and what running beside costs
//! the compute, whose multiprocessors the collective takes some of.

use crate::comm::Waits;
use crate::ops::Direction;
use crate::part::{Part, Times};
use case::options::{EpOverlap, Overlap, TpOverlap};

/// Seconds in which links were busy without anybody waiting, by axis: tp, cp, ep.
pub(crate) type Hidden = [f64; 3];

/// Share of backward's tensor-parallel collectives that may run beside a product: the input's
/// gradient is reduced beside the weight's product, the repeated gather runs beside the input's; the
/// gather of the output's gradient comes first and waits (Megatron-Core, `tensor_parallel/layers.py`).
const ASYNC: f64 = 2.0 / 3.0;

/// Share of a product's time that collectives fit under: the ends of both do not meet.
const FITS: f64 = 0.8;

/// Share of expert exchanges that another microbatch's compute hides at most: passes differ in
/// length, and both run on halves of what they did alone. Calibrated on runs of the Megatron-Core
/// MoE model zoo with and without it.
const EXCHANGES: f64 = 0.5;

/// Compute that collectives of one pass may hide under.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cover {
    /// Products beside which tensor-parallel collectives run.
    pub products: f64,
    pub attention: f64,
    pub all: f64,
}

/// What decides how much shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub overlap: Overlap,
    /// Tensor-parallel ranks.
    pub tp: f64,
    /// Share of the multiprocessors a collective takes from compute beside it.
    pub occupied: f64,
}

impl Rules {
    /// Books what shows of a pass's collectives, and returns what hides. `again` are gathers that
    /// backward repeats.
    pub fn expose(&self, pass: Direction, waits: Waits, again: f64, cover: Cover, times: &mut Times) -> Hidden {
        let tensor = waits.tp + again;
        let under_products = FITS * cover.products;
        let tp = match (self.overlap.tp, pass) {
            (TpOverlap::None, _) | (TpOverlap::Async, Direction::Forward) => 0.0,
            (TpOverlap::Async, Direction::Backward) => (ASYNC * tensor).min(under_products),
            // One piece of `tp` cannot hide: the first to arrive or the last to leave.
            (TpOverlap::Userbuffers, _) => (tensor * (1.0 - 1.0 / self.tp)).min(under_products),
        };
        let cp = if self.overlap.ring { waits.ring.min(cover.attention) } else { 0.0 };
        let ep = match self.overlap.ep {
            EpOverlap::None => 0.0,
            EpOverlap::Microbatches => (EXCHANGES * waits.ep).min(FITS * cover.all),
        };
        let hidden = [tp, cp, ep];
        for (part, all, hides) in [(Part::Tp, tensor, tp), (Part::Cp, waits.cp, cp), (Part::Ep, waits.ep, ep)] {
            times.add(part, all - hides + self.occupied * hides);
        }
        hidden
    }

    /// What shows of collectives that may run beside `cover` seconds of a pass, in `busy` of which the port of the network
    /// carries what the pass itself sends: who waits for it has the port first, and what hides has the rest.
    pub fn beside(occupied: f64, moved: Over, cover: f64, busy: f64) -> f64 {
        let late = (moved.all - cover).max((moved.on_port - (cover - busy)).min(moved.on_port)).max(0.0);
        late + occupied * (moved.all - late)
    }
}

/// Seconds of collectives, and of them those over a port of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Over {
    pub all: f64,
    pub on_port: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(tp: TpOverlap, pass: Direction) -> f64 {
        let overlap = Overlap {
            gradients: true,
            weights: true,
            tp,
            ep: EpOverlap::None,
            delay_wgrad: false,
            ring: true,
            p2p: true,
        };
        let rules = Rules { overlap, tp: 8.0, occupied: 0.1 };
        let waits = Waits { tp: 1.0, ..Waits::default() };
        let cover = Cover { products: 10.0, attention: 0.0, all: 10.0 };
        let mut times = Times::default();
        rules.expose(pass, waits, 0.5, cover, &mut times);
        times.of(Part::Tp)
    }

    #[test]
    fn more_overlap_shows_less() {
        for pass in [Direction::Forward, Direction::Backward] {
            assert_eq!(shown(TpOverlap::None, pass), 1.5);
            assert!(shown(TpOverlap::Async, pass) <= shown(TpOverlap::None, pass));
            assert!(shown(TpOverlap::Userbuffers, pass) < shown(TpOverlap::Async, pass));
        }
        // Seven of eight pieces hide, at a tenth of their time.
        assert!((shown(TpOverlap::Userbuffers, Direction::Forward) - 1.5 * (0.125 + 0.0875)).abs() < 1e-12);
    }

    #[test]
    fn nothing_hides_under_no_compute() {
        let moved = Over { all: 2.0, on_port: 2.0 };
        assert_eq!(Rules::beside(0.1, moved, 0.0, 0.0), 2.0);
        assert_eq!(Rules::beside(0.1, moved, 5.0, 0.0), 0.2);
    }

    /// A port that is busy for four of five seconds leaves one for what hides; a fast fabric does not care.
    #[test]
    fn what_hides_has_what_is_left_of_the_port() {
        let shown = |on_port: f64, busy: f64| Rules::beside(0.1, Over { all: 2.0, on_port }, 5.0, busy);
        assert_eq!(shown(2.0, 3.0), 0.2);
        assert!((shown(2.0, 4.0) - (1.0 + 0.1)).abs() < 1e-12);
        assert_eq!(shown(0.0, 4.0), 0.2);
        assert_eq!(shown(2.0, 9.0), 2.0);
    }
}
