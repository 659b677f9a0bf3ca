//! The recurrent-state pool: what Mamba, recurrent and gated-delta blocks carry from token to
//! token. It is as large for one token of context as for a million, so it never shares a line
//! with the key/value cache.

use super::map::HeldLayer;
use layout::ownership::Row;
use layout::{Layout, OwnershipTable};
use recipe::kinds::linear::Linear;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe, Role};

/// Elements one sequence carries through a stage, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StateElements {
    /// The recurrences' states.
    pub state: u128,
    /// The last tokens that convolutions and trapezoidal steps look back on.
    pub tail: u128,
}

impl StateElements {
    /// Heads are cut by the tensor axis, states and all. Convolution channels are counted from
    /// the ownership table, which knows that shared heads are copied rather than cut.
    pub fn new(
        recipe: &Recipe,
        layout: &Layout,
        table: &OwnershipTable,
        stage: usize,
        held: &[HeldLayer],
    ) -> StateElements {
        let mut sum = StateElements::default();
        for mixer in held.iter().flat_map(|layer| layer.layer.mixers()).filter(|m| m.carries_state()) {
            let (state, tail) = of_block(recipe, mixer);
            sum.state += u128::from(state.div_ceil(layout.tp.get()));
            sum.tail += u128::from(tail.div_ceil(layout.tp.get()));
        }
        let convolutions = table.rows.iter().filter(|row| row.tensor.role == Role::Conv);
        sum.tail += convolutions
            .map(|row| conv_tail(row, layout) * u128::from(table.copies_on_stage(row, stage)))
            .sum::<u128>();
        sum
    }
}

/// State of one block before any cut, and what it looks back on besides its convolution.
fn of_block(recipe: &Recipe, mixer: Mixer) -> (u64, u64) {
    match mixer {
        // The reference carries, besides the state, a head's angles in fp32 and its last key and
        // value: state-spaces/mamba, `mamba_ssm/modules/mamba3.py`, `allocate_inference_cache`.
        Mixer::Mamba => match recipe.mamba.as_ref() {
            Some(Mamba::Three(m)) => {
                (m.heads * (m.head_dim * m.state + m.angles), m.heads * (m.mimo_rank * m.state + m.head_dim))
            }
            Some(mamba) => (mamba.state_elements().0, 0),
            None => (0, 0),
        },
        Mixer::Recurrent => (recipe.recurrent.as_ref().map_or(0, |r| r.state_elements().0), 0),
        Mixer::GatedDelta => (recipe.gated_delta.as_ref().map_or(0, |g| g.state_elements().0), 0),
        // RWKV-7 mixes with the token before twice: in front of the mixer, and of the MLP behind it.
        Mixer::Linear => recipe.linear.as_ref().map_or((0, 0), |l| match l {
            Linear::Rwkv7(_) => (l.state_elements(recipe.hidden).0, 2 * recipe.hidden),
            _ => (l.state_elements(recipe.hidden).0, 0),
        }),
        Mixer::Attention | Mixer::Moe | Mixer::Mlp | Mixer::Shared => (0, 0),
    }
}

/// Tokens before the current one that a convolution of so many taps reads, in every channel.
fn conv_tail(row: &Row, layout: &Layout) -> u128 {
    let taps = row.tensor.dims.last().map_or(1, |dim| dim.len()).max(1);
    u128::from(row.part_elements(layout) / taps) * u128::from(taps - 1)
}
