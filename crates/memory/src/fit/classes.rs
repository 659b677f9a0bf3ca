//! Rank classes: ranks that hold the same. Tensor, context and data-parallel neighbours hold the
//! same shapes, so a class is a stage; its first rank is replayed and stands for the rest.

use super::lines::{Amount, Entry, basis_of, by_owner};
use super::offload::Offload;
use super::{Pricing, dispatch_bytes, reserve, scaling};
use case::Case;
use case::options::Elementwise;
use ledger::Ledger;
use ledger::fsdp2::Blocks;
use ledger::megatron::Segments;
use recipe::Mixer;
use replay::line::{Line, Origin};
use replay::{PhaseKind, Replay};
use units::Basis;

/// The highest point of one phase.
#[derive(Clone, Debug, PartialEq)]
pub struct PhasePeak {
    /// What runs in it.
    pub kind: PhaseKind,
    /// Allocated at its end.
    pub allocated: u64,
    /// The most allocated.
    pub allocated_peak: u64,
    /// The most allocated in forward, loss and backward, where the phase has them.
    pub parts: Option<[u64; 3]>,
    /// Reserved at its end.
    pub reserved: u64,
    /// The most reserved so far.
    pub reserved_peak: u64,
}

/// What compiling takes before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compile {
    /// Nothing: every operation is a kernel that is there.
    Nothing,
    /// A compiler runs, and nobody has measured what it and its autotuning take on the device.
    Unknown(&'static str),
}

impl Compile {
    fn of(pricing: Pricing) -> Compile {
        let is_compiled = pricing.case.options.kernels.elementwise == Elementwise::Compiled;
        match pricing.ledger {
            _ if is_compiled => Compile::Unknown("blocks under torch.compile"),
            // `launch/assets/fsdp2` compiles expert blocks that no axis cuts.
            Ledger::Fsdp2(options) if options.blocks == Blocks::Emitted && compiles_experts(pricing.case) => {
                Compile::Unknown("expert blocks under torch.compile")
            }
            Ledger::Megatron(_) => Compile::Unknown("fused elementwise functions under torch.compile"),
            _ => Compile::Nothing,
        }
    }

    /// In a few words.
    pub fn what(self) -> String {
        match self {
            Compile::Nothing => "nothing is compiled".to_string(),
            Compile::Unknown(what) => format!("{what}: not known, which is what headroom is for"),
        }
    }
}

fn compiles_experts(case: &Case) -> bool {
    case.recipe.uses(Mixer::Moe) && !case.layout.ep.splits()
}

/// Ranks that hold the same, priced.
#[derive(Clone, Debug)]
pub struct RankClass {
    /// The stage they are of.
    pub stage: usize,
    /// First rank of the stage and how many follow it.
    pub first_rank: u64,
    /// Ranks in the class.
    pub num_ranks: u64,
    /// Parameters one of them holds.
    pub params: u64,
    /// Lines at the peak, in the order of reports.
    pub lines: Vec<Amount>,
    /// Phases in order.
    pub phases: Vec<PhasePeak>,
    /// The phase the peak is in.
    pub peak_phase: PhaseKind,
    /// The block it stands in.
    pub peak_origin: Origin,
    /// The most bytes tensors hold.
    pub allocated_peak: u64,
    /// The most bytes the allocator holds.
    pub reserved_peak: u64,
    /// Bytes outside the allocator: from the first phase on, though a communicator is made at its first
    /// use.
    pub outside: u64,
    /// What compiling takes before the first step.
    pub compile: Compile,
    /// What the device has left; negative when it does not fit.
    pub headroom: i64,
    /// What was moved to the host.
    pub offload: Offload,
}

impl RankClass {
    /// Prices the ranks of one stage by the replay of its first.
    pub(super) fn price(pricing: Pricing, stage: usize, replay: &Replay) -> RankClass {
        let num_ranks = pricing.case.layout.world / pricing.case.layout.pp.get();
        let first_rank = stage as u64 * num_ranks;
        let (case, device) = (pricing.case, &pricing.case.on().device);
        let highest = replay.highest();
        let offload = Offload::new(pricing, stage, replay);
        let moved = offload.moved_bytes();
        let allocated_peak = replay.allocated_peak() - moved;
        let reserved_peak = replay.reserved_peak() - moved;
        let dense = replay.line(Line::ReplicatedParams) + replay.line(Line::TpParams);
        let [whole, cut] = by_owner(pricing, stage, dense);
        let held = |line: Line| match line {
            Line::ReplicatedParams => whole,
            Line::TpParams => cut,
            _ => replay.line(line),
        };
        let mut lines: Vec<Amount> = Line::ALL
            .into_iter()
            .map(|line| {
                let taken = match line {
                    Line::OtherOptimizer => offload.optimizer_bytes,
                    Line::Activations => offload.activation_bytes,
                    _ => 0,
                };
                let (entry, basis) = (Entry::Ledger(line), basis_of(line, pricing.ledger));
                Amount { entry, bytes: held(line) - taken, basis, scaling: scaling::of(pricing, entry) }
            })
            .collect();
        lines.push(Amount {
            entry: Entry::AllocatorOverhead,
            bytes: reserved_peak - allocated_peak,
            basis: match pricing.ledger {
                Ledger::Shardwright(_) => Basis::Counted,
                Ledger::Megatron(options) if options.segments == Segments::Expandable => {
                    Basis::Modelled("replay of torch 2.11's caching allocator with expandable segments")
                }
                _ => Basis::Modelled("replay of the caching allocator of torch 2.11"),
            },
            scaling: scaling::of(pricing, Entry::AllocatorOverhead),
        });
        let dispatch = dispatch_bytes(&case.recipe, &case.layout, &case.options);
        let outside: Vec<Amount> = match pricing.ledger {
            // Our own runtime has no device context and no communicators.
            Ledger::Shardwright(_) => Vec::new(),
            _ => reserve::outside(device, &case.layout, case.recipe.uses(Mixer::Moe), dispatch)
                .into_iter()
                .map(|held| Amount {
                    entry: held.entry,
                    bytes: held.bytes,
                    scaling: scaling::of(pricing, held.entry),
                    basis: held.basis,
                })
                .collect(),
        };
        let outside_bytes: u64 = outside.iter().map(|a| a.bytes).sum();
        lines.extend(outside);
        let total = reserved_peak.checked_add(outside_bytes).expect("a rank's bytes are below the bound of its sizes");
        let booked: u128 = lines.iter().map(|line| u128::from(line.bytes)).sum();
        assert_eq!(booked, u128::from(total), "every byte of a rank is booked on one line");
        let headroom = i128::from(device.visible_bytes()) - i128::from(total);
        RankClass {
            stage,
            first_rank,
            num_ranks,
            params: replay.params,
            lines,
            phases: replay.phases.iter().map(|p| phase(p, &offload)).collect(),
            peak_phase: highest.kind,
            peak_origin: highest.peak.origin,
            allocated_peak,
            reserved_peak,
            outside: outside_bytes,
            compile: Compile::of(pricing),
            headroom: headroom.try_into().expect("a rank's bytes and a device's are signed figures too"),
            offload,
        }
    }

    /// The same class standing at another stage.
    pub(super) fn at_stage(mut self, stage: usize) -> RankClass {
        self.stage = stage;
        self.first_rank = stage as u64 * self.num_ranks;
        self
    }

    /// Bytes on a line.
    pub fn line(&self, entry: Entry) -> u64 {
        self.lines.iter().filter(|a| a.entry == entry).map(|a| a.bytes).sum()
    }

    /// Everything the device must hold.
    pub fn total(&self) -> u64 {
        self.reserved_peak + self.outside
    }
}

/// A phase, less what the host holds by then: main weights from the start, moments from the first
/// step on.
fn phase(phase: &replay::Phase, offload: &Offload) -> PhasePeak {
    let has_passes = matches!(phase.kind, PhaseKind::Passes(_));
    let activations = if has_passes { offload.activation_bytes } else { 0 };
    let state = match phase.kind {
        PhaseKind::Context | PhaseKind::Model | PhaseKind::Buffers => 0,
        PhaseKind::Optimizer | PhaseKind::Passes(0) => offload.optimizer_bytes / 3,
        _ => offload.optimizer_bytes,
    };
    let gone = activations + state;
    PhasePeak {
        kind: phase.kind,
        allocated: phase.allocated.saturating_sub(state),
        allocated_peak: phase.peak.allocated.saturating_sub(gone),
        parts: has_passes.then_some(phase.by_part.map(|bytes| bytes.saturating_sub(gone))),
        reserved: phase.reserved.saturating_sub(gone),
        reserved_peak: phase.reserved_peak.saturating_sub(gone),
    }
}
