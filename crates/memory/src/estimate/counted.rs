//! What a rank's state comes to at least under engines whose ledgers wrap units of a plain model: counted, so
//! that a layout whose state alone is too much is ruled out before anything is replayed for it.
//!
//! Only what is alive together at the second step's highest point is counted, without padding, persistent
//! weights or buffers: a replay never holds less.

use super::held::{Held, Holdings};
use super::{BEYOND, Highest, Shards, StageShape, State, Sum};
use case::ways::MomentumFormat;
use layout::{Layout, ZeroStage};
use ledger::Ledger;

/// State of a layout's stages, counted.
pub(super) struct Counted {
    pub holdings: Holdings,
    pub widths: Widths,
}

/// Bytes that an element of a parameter has on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Widths {
    weights: u64,
    gradients: u64,
    adam: u64,
    muon: u64,
    /// Whether gradients are kept whole whatever the ZeRO stage.
    has_whole_gradients: bool,
    /// The ZeRO stage that state is shared out by.
    zero: ZeroStage,
}

impl Widths {
    /// Of a ledger under a layout; none where nobody has counted them.
    pub fn of(ledger: &Ledger, layout: &Layout) -> Option<Widths> {
        let zero = layout.zero;
        match ledger {
            // Shards in fp32 with their moments; a pipeline puts reductions off to the end of the step, with
            // every gradient whole (`fsdp2/group.rs`).
            Ledger::Fsdp2(options) => {
                let is_put_off = layout.pp.splits();
                let (main, ways) = (options.main.bits() / 8, options.ways);
                let gradients = if is_put_off { ledger.gradients().bits() / 8 } else { main };
                let zero = ZeroStage::Three;
                // Of a quantised base, the edges alone are kept in the main format.
                let weights = if ways.base.is_quantised() { 0 } else { main };
                let muon = if ways.momentum == MomentumFormat::Int8 { 1 } else { 4 };
                let adam = ways.elements.state_bytes(main);
                Some(Widths { weights, gradients, adam, muon, has_whole_gradients: is_put_off, zero })
            }
            // bf16 weights beside fp32 ones and their moments; gradients go bucket by bucket, or are accumulated: whole
            // under ZeRO 1, in parts under ZeRO 3.
            Ledger::Deepspeed(options) => {
                let on_device = u64::from(options.offload_optimizer.is_none());
                let weights = if options.offload_param.is_none() { 2 } else { 0 };
                let adam = 12 * on_device;
                let has_whole_gradients = zero == ZeroStage::One && options.accumulates_wide() && on_device == 1;
                let is_kept = has_whole_gradients || (zero == ZeroStage::Three && on_device == 1);
                let gradients = if is_kept { options.gradient_bytes() } else { 0 };
                Some(Widths { weights, gradients, adam, muon: 0, has_whole_gradients, zero })
            }
            Ledger::Nanotron(_) => {
                Some(Widths { weights: 2, gradients: 0, adam: 12, muon: 0, has_whole_gradients: false, zero })
            }
            Ledger::Megatron(_) | Ledger::Shardwright(_) => None,
        }
    }

    /// The same where weights are frozen: they have neither gradients nor optimizer state.
    pub fn frozen(self) -> Widths {
        Widths { gradients: 0, adam: 0, muon: 0, ..self }
    }
}

impl Counted {
    /// One stage of a layout.
    pub fn stage(&self, layout: &Layout, shape: &StageShape) -> Sum {
        let (mut held, holdings) = (Held::default(), &self.holdings);
        for (&count, each) in shape.layers.iter().zip(holdings.layers.iter()) {
            held.add(*each, count);
        }
        held.add(holdings.front, u64::from(shape.is_first));
        held.add(holdings.back, u64::from(shape.is_last));
        Sum { state: self.state(&held, layout), kept: 0, above: 0, highest: Highest::Layer, left: 0 }
    }

    fn state(&self, held: &Held, layout: &Layout) -> State {
        let Widths { weights, gradients, adam, muon, has_whole_gradients, zero } = self.widths;
        // Experts that are not split may be shared out like dense tensors.
        let (dense, edp) = (layout.dense_shards(), layout.edp.get());
        let shards = Shards::new(zero, [dense, if layout.ep.splits() { edp } else { edp.max(dense) }]);
        let reduced = if has_whole_gradients { [1, 1] } else { shards.gradients };
        let bytes = |elements: [u64; 2], width: u64, shards: [u64; 2]| {
            let each = (0..2).map(|i| elements[i] / shards[i]).sum::<u64>();
            each.saturating_mul(width).min(BEYOND / 4)
        };
        let all = [held.adam[0] + held.muon[0], held.adam[1] + held.muon[1]];
        State {
            weights: bytes(all, weights, shards.weights),
            gradients: bytes(all, gradients, reduced),
            adam: bytes(held.adam, adam, shards.optimizer),
            muon: bytes(held.muon, muon, shards.optimizer),
        }
    }
}
