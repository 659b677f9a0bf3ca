//! Lines of a report: bytes with their basis, what they scale with and what leaves them alone.

use case::Case;
use ledger::Ledger;
use replay::line::Line;
use units::Basis;

/// A line of the report: one of the ledger's, or of what stands around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// Booked by the ledger.
    Ledger(Line),
    /// Reserved by the caching allocator beyond what is allocated at the peak.
    AllocatorOverhead,
    /// Context and libraries.
    RuntimeReserve,
    /// Communicators.
    Communicators,
}

impl Entry {
    /// Stable name.
    pub fn name(self) -> &'static str {
        match self {
            Entry::Ledger(line) => line.name(),
            Entry::AllocatorOverhead => "allocator-overhead",
            Entry::RuntimeReserve => "runtime-reserve",
            Entry::Communicators => "communicators",
        }
    }

    /// What it grows with.
    pub fn scales_with(self) -> &'static str {
        match self {
            Entry::Ledger(line) => match line {
                Line::ReplicatedParams => "hidden width, vocabulary side tables, layers of the stage",
                Line::TpParams => "width and depth over tp and pp",
                Line::ExpertParams => "experts and expert width over ep, etp and pp",
                Line::Gradients => "parameters of the rank, gradient format; ZeRO 2 shares them out",
                Line::MatrixOptimizer => "parameters Muon steps, over data-parallel ranks from ZeRO 1",
                Line::OtherOptimizer => "parameters AdamW steps, over data-parallel ranks from ZeRO 1",
                Line::Activations => {
                    "microbatch, sequence over cp, layers of the stage, microbatches in flight, recompute"
                }
                Line::ActivationGradients => "microbatch, sequence, the widest block in backward",
                Line::FeatureActivations => "the features switched on, microbatch, sequence",
                Line::RoutingScratch => "routed tokens, top-k, overload of the rank's experts",
                Line::Loss => "microbatch, sequence, vocabulary over tp",
                Line::Workspaces => "libraries in use, gathered buffers they keep, fp8 copies of weights",
                Line::Communication => "microbatch, sequence, gathers and receives in flight",
            },
            Entry::AllocatorOverhead => "sizes that come and go: rounding, splits, segments kept",
            Entry::RuntimeReserve => "device, driver, libraries loaded",
            Entry::Communicators => "axes in use: one communicator each",
        }
    }

    /// What leaves it alone.
    pub fn ignores(self) -> &'static str {
        match self {
            Entry::Ledger(line) => match line {
                Line::ReplicatedParams => "tp, ep, sp, cp",
                Line::TpParams => "ep, sp, cp, microbatch",
                Line::ExpertParams => "tp of dense blocks, sp, cp",
                Line::Gradients => "sp, cp, serving cache",
                Line::MatrixOptimizer | Line::OtherOptimizer => {
                    "sp, microbatch, sequence (but for the slack of blocks)"
                }
                Line::Activations => "ep on non-expert blocks, ZeRO, optimizer",
                Line::ActivationGradients => "ZeRO, optimizer, microbatches in flight",
                Line::FeatureActivations => "ep, ZeRO",
                Line::RoutingScratch => "tp of dense blocks, ZeRO, optimizer",
                Line::Loss => "ep, layers, every stage but the last",
                Line::Workspaces => "optimizer, microbatches in flight",
                Line::Communication => "ZeRO 1, optimizer",
            },
            Entry::AllocatorOverhead => "any one axis directly",
            Entry::RuntimeReserve => "model, layout, batch",
            Entry::Communicators => "model size, batch",
        }
    }
}

/// Bytes on a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    /// Which line.
    pub entry: Entry,
    /// How many.
    pub bytes: u64,
    /// Where the number comes from.
    pub basis: Basis,
}

/// Bytes of weights outside experts that every tensor-parallel rank holds, and of those that are cut:
/// what a replay holds of both, shared out as the ownership table says. A ledger knows whose buffers a
/// weight lies in, not who else holds it.
pub(super) fn by_owner(case: &Case, stage: usize, held: u64) -> [u64; 2] {
    let [mut whole, mut cut] = [0u64; 2];
    for row in case.table.rows.iter().filter(|row| row.tensor.acting.is_none()) {
        let is_cut = row.cuts.iter().any(|cut| case.layout.degree(cut.axis).splits());
        let elements = row.part_elements(&case.layout) * case.table.copies_on_stage(row, stage);
        *(if is_cut { &mut cut } else { &mut whole }) += elements * row.tensor.dtype.bits() / 8;
    }
    // What buffers are padded to goes with what is cut, where anything is.
    let share = u128::from(held) * u128::from(whole) / u128::from((whole + cut).max(1));
    let whole = if cut == 0 { held } else { share as u64 };
    [whole, held - whole]
}

/// The basis of a ledger line.
pub(super) fn basis_of(line: Line, ledger: &Ledger) -> Basis {
    match line {
        Line::ReplicatedParams | Line::TpParams | Line::ExpertParams => Basis::Counted,
        Line::Gradients | Line::MatrixOptimizer | Line::OtherOptimizer => Basis::Counted,
        _ => Basis::Modelled(ledger.source()),
    }
}
