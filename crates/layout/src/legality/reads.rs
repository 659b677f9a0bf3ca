//! What of a layout decides whether a rule speaks, as a set. A search asks a rule once for every
//! value of what it reads, so a rule that reads more than it declares would be answered wrongly:
//! a test changes everything else, and the answer must stay.

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
    use crate::legality::example::Example;
    use crate::legality::{Case, every_rule};
    use crate::{Layout, LayoutRequest, Needs, settle};
    use units::Degree;

    #[test]
    fn a_rule_reads_nothing_that_it_does_not_declare() {
        let others: Vec<LayoutRequest> = every_rule().flat_map(|rule| rule.examples).map(Example::request).collect();
        for rule in every_rule() {
            for example in rule.examples {
                let (recipe, request) = (example.recipe(), example.request());
                let Ok((layout, _)) = settle(&request, Needs::of(&recipe)) else { continue };
                let severities = |layout: &Layout| {
                    let found = rule.findings(&Case { recipe: &recipe, layout, request: &request });
                    found.into_iter().map(|finding| finding.severity).collect::<Vec<_>>()
                };
                let said = severities(&layout);
                for other in &others {
                    let Ok((other, _)) = settle(other, Needs::of(&recipe)) else { continue };
                    let mixed = with_undeclared(rule.reads, &layout, &other);
                    assert_eq!(said, severities(&mixed), "{}: {layout:?} and {mixed:?}", rule.id);
                }
            }
        }
    }

    /// `a`, with everything that a rule did not declare taken from `b`.
    fn with_undeclared(reads: Reads, a: &Layout, b: &Layout) -> Layout {
        let is_read = |any: &[Reads]| any.iter().any(|one| reads.covers(*one));
        let mut mixed = a.clone();
        let degree = |whole: Reads, splits: Reads, products: &[Reads], ours: Degree, theirs: Degree| {
            let is_kept =
                is_read(&[whole]) || is_read(products) || is_read(&[splits]) && ours.splits() != theirs.splits();
            if is_kept { ours } else { theirs }
        };
        let (dense, expert, stage) = (Reads::DENSE_RANKS, Reads::EXPERT_RANKS, Reads::STAGE_RANKS);
        mixed.tp = degree(Reads::TP, Reads::TP_SPLITS, &[dense, stage], a.tp, b.tp);
        mixed.sp = if is_read(&[Reads::TP_SPLITS]) { a.sp } else { b.sp };
        mixed.cp = degree(Reads::CP, Reads::CP, &[dense, stage], a.cp, b.cp);
        mixed.ep = degree(Reads::EP, Reads::EP_SPLITS, &[expert], a.ep, b.ep);
        mixed.etp = degree(Reads::ETP, Reads::ETP, &[expert], a.etp, b.etp);
        mixed.pp = degree(Reads::PP, Reads::PP_SPLITS, &[dense, expert], a.pp, b.pp);
        mixed.vpp = degree(Reads::VPP, Reads::VPP, &[], a.vpp, b.vpp);
        mixed.dp = degree(Reads::BATCH, Reads::BATCH, &[dense, stage], a.dp, b.dp);
        mixed.edp = b.edp;
        if !is_read(&[dense, expert]) {
            mixed.world = b.world;
        }
        if !is_read(&[Reads::BATCH]) {
            (mixed.micro_batch, mixed.global_batch) = (b.micro_batch, b.global_batch);
        }
        if !is_read(&[Reads::BATCH, Reads::MICROBATCHES]) {
            mixed.microbatches = b.microbatches;
        }
        if !is_read(&[Reads::SCHEDULE]) {
            mixed.schedule = b.schedule;
        }
        if !is_read(&[Reads::ZERO]) {
            mixed.zero = b.zero;
        }
        if !is_read(&[Reads::RECOMPUTE]) {
            mixed.recompute = b.recompute.clone();
        }
        mixed
    }

    #[test]
    fn a_degree_covers_whether_it_splits() {
        assert!(Reads::TP.covers(Reads::TP_SPLITS) && !Reads::TP_SPLITS.covers(Reads::TP));
        assert!((Reads::EP | Reads::CP).covers(Reads::CP) && !Reads::EP.covers(Reads::CP));
        assert!(Reads::CP.covers(Reads::NOTHING));
    }
}
