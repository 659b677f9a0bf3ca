//! Lines of a report: bytes with their basis.

use super::Pricing;
use super::scaling::Scaling;
use layout::ZeroStage;
use layout::ownership::Owner;
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
    /// What it grows with, and what leaves it alone.
    pub scaling: Scaling,
}

/// Bytes of weights outside experts that no axis inside a layer divides, and of those that the tensor
/// axis does, whatever its degree: what a replay holds of both, shared out as the ownership table
/// says. A ledger knows whose buffers a weight lies in, not who else holds it.
pub(super) fn by_owner(pricing: Pricing, stage: usize, held: u64) -> [u64; 2] {
    let (case, layout) = (pricing.case, &pricing.case.layout);
    let is_whole = matches!(pricing.ledger, Ledger::Megatron(_)) && layout.zero < ZeroStage::Three;
    // Where one format holds every weight, elements say how it is shared.
    let sum = |owner: Owner| -> u64 {
        let rows = case.table.owned(layout, stage, owner);
        rows.map(|(row, elements)| elements * if is_whole { row.tensor.dtype.bits() / 8 } else { 1 }).sum()
    };
    let [whole, cut] = [Owner::Replicated, Owner::Tensor].map(sum);
    let whole = match is_whole {
        // What buffers are padded to goes with what is cut.
        true => whole.min(held),
        false => (u128::from(held) * u128::from(whole) / u128::from((whole + cut).max(1))) as u64,
    };
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
