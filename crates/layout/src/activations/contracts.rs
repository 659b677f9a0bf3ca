//! The state contracts of recurrent blocks: what must hold where a cut crosses their state.

use super::recurrent::{carries_time, trades_heads};
use crate::layout::Layout;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};

/// The state contract of one state-carrying family.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StateContract {
    /// The recipe table.
    pub mixer: &'static str,
    /// Blocks that carry it.
    pub blocks: u64,
    /// Recurrent state of a sequence in one block, in elements, before tensor parallelism.
    pub state_elements: u64,
    /// The convolution's tail, likewise.
    pub conv_elements: u64,
    /// What holds when a context cut crosses it.
    pub under_cp: &'static str,
    /// What holds when a stage cut stands beside it.
    pub under_pp: &'static str,
}

/// The state contracts of a recipe under a layout, whose engine decides what a cut in time does.
pub fn contracts(recipe: &Recipe, layout: &Layout) -> Vec<StateContract> {
    let mut out = Vec::new();
    let beside = "a block is never cut by a stage: its state stays whole on its stage";
    if let Some(mamba) = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)) {
        let (state_elements, conv_elements) = mamba.state_elements();
        let under_cp = match mamba {
            Mamba::One(_) => "refused: the scan takes no initial state",
            Mamba::Two(m) if trades_heads(m, layout) => "heads are exchanged for time, so no state crosses",
            Mamba::Two(m) if m.conv == 0 => "state is handed to the next part",
            Mamba::Two(_) => "state and the convolution's tail are handed to the next part",
            Mamba::Three(m) if carries_time(m.state_carry, layout) => {
                "state, rotation and last step are handed to the next part"
            }
            Mamba::Three(_) => "refused until the mixer carries its state",
        };
        let blocks = recipe.count(Mixer::Mamba);
        out.push(StateContract { mixer: "mamba", blocks, state_elements, conv_elements, under_cp, under_pp: beside });
    }
    if let Some(recurrent) = recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent)) {
        let (state_elements, conv_elements) = recurrent.state_elements();
        out.push(StateContract {
            mixer: "recurrent",
            blocks: recipe.count(Mixer::Recurrent),
            state_elements,
            conv_elements,
            under_cp: if carries_time(recurrent.state_carry, layout) {
                "state is handed from part to part, one after another"
            } else {
                "refused until the mixer carries its state"
            },
            under_pp: if recurrent.depth_carry.is_some() {
                "state runs up the depth at its borders and crosses (virtual) stage cuts with the activations"
            } else {
                beside
            },
        });
    }
    if let Some(delta) = recipe.gated_delta.as_ref().filter(|_| recipe.uses(Mixer::GatedDelta)) {
        let (state_elements, conv_elements) = delta.state_elements();
        out.push(StateContract {
            mixer: "gated_delta",
            blocks: recipe.count(Mixer::GatedDelta),
            state_elements,
            conv_elements,
            under_cp: "heads are exchanged for time, so no state crosses",
            under_pp: beside,
        });
    }
    if let Some(linear) = recipe.linear.as_ref().filter(|_| recipe.uses(Mixer::Linear)) {
        let (state_elements, conv_elements) = linear.state_elements(recipe.hidden);
        out.push(StateContract {
            mixer: "linear",
            blocks: recipe.count(Mixer::Linear),
            state_elements,
            conv_elements,
            under_cp: "refused: nothing hands its state on",
            under_pp: beside,
        });
    }
    out
}
