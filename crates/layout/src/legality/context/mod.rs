//! Context parallelism: parts of the timeline. Attention rebuilds the whole by exchange; a
//! recurrence may be cut only if its boundary state is carried or its heads are exchanged.

mod depth_carry;
mod gated_delta_heads;
mod mamba_groups;
mod mamba_heads;
pub(crate) mod recurrence;
mod sequence;
mod short_part;

use super::{Case, Rule, multiples_near};
use crate::activations::trades_heads;
use recipe::kinds::mamba::Mamba;
use recipe::kinds::mamba2::Mamba2;

/// Mamba-2 where it trades time for heads: each rank runs some heads over all tokens.
fn trading<'a>(case: &'a Case<'_>) -> Option<&'a Mamba2> {
    let Mamba::Two(mamba) = case.mamba()? else { return None };
    (case.layout.cp.splits() && trades_heads(mamba, case.layout)).then_some(mamba)
}

/// Heads and groups a rank has, where both divide over tp.
fn trading_share(case: &Case) -> Option<(u64, u64)> {
    let (mamba, tp) = (trading(case)?, case.layout.tp.get());
    let divide = mamba.heads.is_multiple_of(tp) && mamba.groups.is_multiple_of(tp);
    divide.then(|| (mamba.heads / tp, mamba.groups / tp))
}

/// Whether groups of a rank go to context ranks whole, or context ranks share one.
fn groups_fit(groups: u64, cp: u64) -> bool {
    groups.is_multiple_of(cp) || cp.is_multiple_of(groups)
}

/// Parts of the timeline that hand something on.
struct Parts {
    /// Tokens of one.
    tokens: u64,
    /// Tokens that the convolution of a mixer looks back.
    tails: Vec<(&'static str, u64)>,
    /// Tokens between two borders at which state runs up the depth.
    every: Option<u64>,
    /// Sequences that fit tails and borders both, so that mending one does not break the other.
    fits: Vec<u64>,
}

impl Parts {
    fn of(case: &Case) -> Option<Parts> {
        let layout = case.layout;
        if !layout.cp.splits() {
            return None;
        }
        let count = 2 * layout.cp.get();
        let mut tails: Vec<_> = case.recurrent().map(|r| ("recurrent", r.conv - 1)).into_iter().collect();
        if let Some(Mamba::Two(mamba)) = case.mamba()
            && trading(case).is_none()
        {
            tails.push(("mamba", mamba.conv.saturating_sub(1)));
        }
        let every = case.recurrent().and_then(|r| r.depth_carry);
        let step = every.unwrap_or(1).saturating_mul(count);
        let longest = tails.iter().map(|(_, tail)| tail * count).max().unwrap_or(0);
        let fits = multiples_near(layout.sequence.max(longest.next_multiple_of(step)), step);
        Some(Parts { tokens: layout.sequence / count, tails, every, fits })
    }
}

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &sequence::RULE,
    &recurrence::RULE,
    &short_part::RULE,
    &depth_carry::RULE,
    &mamba_heads::RULE,
    &mamba_groups::RULE,
    &gated_delta_heads::RULE,
];
