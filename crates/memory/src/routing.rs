//! Routing scratch: what one rank holds while tokens travel to experts and back, for one expert
//! layer. It is a line of its own because no dense axis shrinks it.
//!
//! Buffers are sized either by a capacity factor, before the exchange, or by what arrives
//! (dropless), in which case an overload factor says how far above the balanced share a rank may
//! be hit. Factors are read in millionths, so that no float rounding adds a token.
//!
//! The expert matrices' own activations are not here, nor are the router's scores.

use serde::Serialize;
use units::Bytes;

/// One, in the millionths that factors are read in.
const ONE: u128 = 1_000_000;

/// What decides how many rows a rank makes room for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Every expert accepts its balanced share times a factor; what is above is dropped.
    Factor {
        /// Over the balanced share of one rank's tokens.
        factor: f64,
        /// Ranks whose slots are live at once: one when buffers are filled and drained sender by
        /// sender, as the worked figure of the memory text counts them; the expert-parallel
        /// degree when every sender's slots are held together.
        senders: u64,
    },
    /// Nothing is dropped: a rank holds whatever arrives.
    Dropless {
        /// Expert-parallel degree: ranks that may send here.
        ep: u64,
        /// Tensor-parallel degree inside experts: its ranks gather each other's rows.
        etp: u64,
        /// What arrives over the balanced share; one is balanced.
        overload: f64,
    },
}

/// One expert layer as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoutingInput {
    /// Tokens the rank routes, before they are copied `top_k` times.
    pub tokens_per_rank: u64,
    /// Experts a token goes to.
    pub top_k: u64,
    /// Routed experts of the layer, over all ranks.
    pub experts: u64,
    /// Routed experts this rank owns.
    pub local_experts: u64,
    /// Width that travels: the hidden width, or the experts' latent.
    pub hidden: u64,
    /// Bytes of one travelling element.
    pub bytes_per_element: u64,
    /// Bytes of one entry of the dispatch table; four in every runtime we know.
    pub counts_bytes: u64,
    /// How room is made.
    pub capacity: Capacity,
}

/// One part of the scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// How large.
    pub bytes: Bytes,
    /// What makes it grow.
    pub scales_with: &'static str,
    /// What leaves it alone.
    pub ignores: &'static str,
}

/// The scratch of one expert layer on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoutingScratch {
    /// Slots of one expert, when a capacity factor sizes them.
    pub capacity_per_expert: Option<u64>,
    /// Rows of the receive buffer: tokens' copies it has room for.
    pub rows: u64,
    /// Where each copy of each token goes.
    pub dispatch_counts: Part,
    /// What arrives for the local experts.
    pub receive: Part,
    /// What they send back.
    pub combine: Part,
    /// The three together.
    pub total: Bytes,
}

impl RoutingInput {
    /// The scratch of one layer, or nothing when it is more than can be counted.
    pub fn scratch(&self) -> Option<RoutingScratch> {
        let (capacity_per_expert, rows) = self.room()?;
        let table = u128::from(self.tokens_per_rank) * u128::from(self.top_k);
        let table = bytes(table.checked_mul(self.counts_bytes.into())?)?;
        let row = u128::from(self.hidden) * u128::from(self.bytes_per_element);
        let buffer = bytes(u128::from(rows).checked_mul(row)?)?;
        let (scales_with, ignores) = self.words();
        Some(RoutingScratch {
            capacity_per_expert,
            rows,
            dispatch_counts: Part {
                name: "dispatch counts",
                bytes: table,
                scales_with: "tokens on the rank, top_k",
                ignores: "hidden width, experts, overload",
            },
            receive: Part { name: "receive buffer", bytes: buffer, scales_with, ignores },
            combine: Part { name: "combine buffer", bytes: buffer, scales_with, ignores },
            total: table.checked_add(buffer)?.checked_add(buffer)?,
        })
    }

    /// Slots of an expert, if capacity sizes them, and rows of the buffers.
    fn room(&self) -> Option<(Option<u64>, u64)> {
        match self.capacity {
            Capacity::Factor { factor, senders } => {
                let copies = u128::from(self.tokens_per_rank) * u128::from(self.top_k);
                let share = copies.checked_mul(millionths(factor))?;
                // An expert without a slot could never be chosen, so there is always one.
                let slots = u64::try_from(share.div_ceil(u128::from(self.experts.max(1)) * ONE)).ok()?.max(1);
                Some((Some(slots), slots.checked_mul(self.local_experts)?.checked_mul(senders)?))
            }
            Capacity::Dropless { overload, .. } => {
                let hit = self.balanced_rows()?.checked_mul(millionths(overload))?.div_ceil(ONE);
                Some((None, u64::try_from(hit.min(self.most_rows()?)).ok()?))
            }
        }
    }

    /// Rows that arrive when experts are chosen evenly: as many as the rank, with those it shares
    /// experts with, sends.
    fn balanced_rows(&self) -> Option<u128> {
        let sent = u128::from(self.tokens_per_rank) * u128::from(self.top_k);
        sent.checked_mul(self.etp().into())
    }

    /// Rows that arrive when every sender's every token chooses as many local experts as it can.
    fn most_rows(&self) -> Option<u128> {
        let ep = if let Capacity::Dropless { ep, .. } = self.capacity { ep } else { 1 };
        let chosen = u128::from(self.top_k.min(self.local_experts));
        let tokens = u128::from(self.tokens_per_rank) * u128::from(self.etp());
        tokens.checked_mul(ep.into())?.checked_mul(chosen)
    }

    fn etp(&self) -> u64 {
        if let Capacity::Dropless { etp, .. } = self.capacity { etp } else { 1 }
    }

    fn words(&self) -> (&'static str, &'static str) {
        match self.capacity {
            Capacity::Factor { .. } => (
                "tokens on the rank, top_k, capacity factor, local experts over all experts, hidden width",
                "where tokens really go, expert width, tp of dense layers",
            ),
            Capacity::Dropless { .. } => (
                "tokens on the rank, top_k, overload, etp, hidden width",
                "number of experts (but for the bound), expert width, tp of dense layers",
            ),
        }
    }
}

/// A factor in millionths; what is no factor (negative, or not a number) is none at all.
fn millionths(factor: f64) -> u128 {
    (factor * ONE as f64).round() as u128
}

fn bytes(n: u128) -> Option<Bytes> {
    u64::try_from(n).ok().map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layer of the memory text.
    fn worked() -> RoutingInput {
        RoutingInput {
            tokens_per_rank: 4096,
            top_k: 2,
            experts: 128,
            local_experts: 4,
            hidden: 4096,
            bytes_per_element: 2,
            counts_bytes: 4,
            capacity: Capacity::Factor { factor: 1.2, senders: 1 },
        }
    }

    fn dropless(overload: f64) -> RoutingInput {
        RoutingInput { capacity: Capacity::Dropless { ep: 32, etp: 1, overload }, ..worked() }
    }

    fn total(input: RoutingInput) -> u64 {
        input.scratch().unwrap().total.0
    }

    #[test]
    fn the_worked_figure_comes_out() {
        let scratch = worked().scratch().unwrap();
        assert_eq!(scratch.capacity_per_expert, Some(77));
        assert_eq!(scratch.dispatch_counts.bytes, Bytes(32 << 10));
        assert_eq!(scratch.receive.bytes, Bytes(2_523_136));
        assert_eq!(scratch.combine.bytes, Bytes(2_523_136));
        assert_eq!(scratch.total, Bytes(5_079_040));
    }

    #[test]
    fn float_noise_adds_no_token() {
        // 10 · 1.1 is a little above 11 in binary.
        let capacity = Capacity::Factor { factor: 1.1, senders: 1 };
        let input = RoutingInput { tokens_per_rank: 10, top_k: 1, experts: 1, capacity, ..worked() };
        assert_eq!(input.scratch().unwrap().capacity_per_expert, Some(11));
    }

    #[test]
    fn every_sender_held_at_once_is_that_many_times_the_buffers() {
        let capacity = Capacity::Factor { factor: 1.2, senders: 32 };
        let held = RoutingInput { capacity, ..worked() }.scratch().unwrap();
        assert_eq!(held.receive.bytes, Bytes(32 * 2_523_136));
        assert_eq!(held.dispatch_counts, worked().scratch().unwrap().dispatch_counts);
    }

    #[test]
    fn an_expert_always_has_a_slot() {
        for tokens_per_rank in [0, 1] {
            let scratch = RoutingInput { tokens_per_rank, ..worked() }.scratch().unwrap();
            assert_eq!(scratch.capacity_per_expert, Some(1));
        }
        let none = Capacity::Factor { factor: f64::NAN, senders: 1 };
        assert_eq!(RoutingInput { capacity: none, ..worked() }.scratch().unwrap().capacity_per_expert, Some(1));
    }

    #[test]
    fn no_tokens_need_no_dropless_scratch() {
        let input = RoutingInput { tokens_per_rank: 0, ..dropless(2.0) };
        assert_eq!(total(input), 0);
    }

    #[test]
    fn balanced_a_rank_receives_what_it_sends() {
        assert_eq!(dropless(1.0).scratch().unwrap().rows, 4096 * 2);
        let etp = RoutingInput { capacity: Capacity::Dropless { ep: 32, etp: 2, overload: 1.0 }, ..worked() };
        assert_eq!(etp.scratch().unwrap().rows, 2 * 4096 * 2);
    }

    #[test]
    fn scratch_rises_with_overload_up_to_the_bound() {
        let rows = [0.5, 1.0, 1.5, 2.0, 32.0, 33.0, 1e9].map(|overload| dropless(overload).scratch().unwrap().rows);
        assert_eq!(rows, [4096, 8192, 12_288, 16_384, 262_144, 262_144, 262_144]);
    }

    #[test]
    fn one_local_expert_is_chosen_once_a_token() {
        let input = RoutingInput { local_experts: 1, ..dropless(1e9) };
        assert_eq!(input.scratch().unwrap().rows, 32 * 4096);
        // Alone, a rank receives what it sends, however uneven the choice.
        let alone = Capacity::Dropless { ep: 1, etp: 1, overload: 7.0 };
        let alone = RoutingInput { experts: 4, capacity: alone, ..worked() };
        assert_eq!(alone.scratch().unwrap().rows, 4096 * 2);
    }

    #[test]
    fn what_cannot_be_counted_is_not_guessed() {
        let huge = RoutingInput { tokens_per_rank: u64::MAX, top_k: u64::MAX, ..dropless(1.0) };
        assert_eq!(huge.scratch(), None);
    }
}
