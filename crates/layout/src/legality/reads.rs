//! What of a layout decides whether a rule speaks, as a set. A search asks a rule once for every
//! value of what it reads, so a rule that reads more than it declares would be answered wrongly:
//! a property test changes everything else, and the answer must stay.

use std::ops::BitOr;

/// A set of things in a layout. What is the same for a whole search (engine, mode, sequence, sp and
/// boundaries as typed, vocabulary) is in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads(u32);

impl Reads {
    /// Nothing that a search varies: the recipe, the engine, the sequence.
    pub const NOTHING: Reads = Reads(0);
    /// Whether there is more than one tensor-parallel rank, and with it whether sp is on.
    pub const TP_SPLITS: Reads = Reads(1);
    /// The tensor-parallel degree.
    pub const TP: Reads = Reads(1 << 1 | Reads::TP_SPLITS.0);
    /// The context-parallel degree.
    pub const CP: Reads = Reads(1 << 2);
    /// Whether experts are dealt out at all.
    pub const EP_SPLITS: Reads = Reads(1 << 3);
    /// The expert-parallel degree.
    pub const EP: Reads = Reads(1 << 4 | Reads::EP_SPLITS.0);
    /// The degree inside experts.
    pub const ETP: Reads = Reads(1 << 5);
    /// Whether there is a pipeline.
    pub const PP_SPLITS: Reads = Reads(1 << 6);
    /// Pipeline stages.
    pub const PP: Reads = Reads(1 << 7 | Reads::PP_SPLITS.0);
    /// Chunks of a stage.
    pub const VPP: Reads = Reads(1 << 8);
    /// The pipeline's order.
    pub const SCHEDULE: Reads = Reads(1 << 9);
    /// Microbatches of a step, as far as comparing them with pp and 2·pp, and asking for multiples
    /// of pp and of 2, tells them apart.
    pub const MICROBATCHES: Reads = Reads(1 << 10);
    /// Sequences that all replicas take at once (mbs·dp), against the global batch.
    pub const BATCH: Reads = Reads(1 << 11);
    /// The ZeRO stage.
    pub const ZERO: Reads = Reads(1 << 12);
    /// What is computed again.
    pub const RECOMPUTE: Reads = Reads(1 << 13);
    /// The product tp·cp·pp with dp, against the world.
    pub const DENSE_RANKS: Reads = Reads(1 << 14);
    /// The product etp·ep·pp, against the world.
    pub const EXPERT_RANKS: Reads = Reads(1 << 15);
    /// Ranks of one stage, dp·cp·tp.
    pub const STAGE_RANKS: Reads = Reads(1 << 16);

    /// Both sets together.
    pub const fn and(self, other: Reads) -> Reads {
        Reads(self.0 | other.0)
    }

    /// Whether everything of `other` is in here.
    pub const fn covers(self, other: Reads) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Reads {
    type Output = Reads;

    fn bitor(self, other: Reads) -> Reads {
        self.and(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_degree_covers_whether_it_splits() {
        assert!(Reads::TP.covers(Reads::TP_SPLITS) && !Reads::TP_SPLITS.covers(Reads::TP));
        assert!((Reads::EP | Reads::CP).covers(Reads::CP) && !Reads::EP.covers(Reads::CP));
        assert!(Reads::CP.covers(Reads::NOTHING));
    }
}
