//! The attention-layer map: only attention owns cache slots. A hybrid stack that allocated by
//! total depth would be priced like a dense transformer.

use layout::StagePlan;
use recipe::pattern::Block;
use recipe::{Layer, Mixer, Recipe};
use serde::Serialize;

/// One cache slot: the keys and values of one attention block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionSlot {
    /// The layer it belongs to; prediction depths are numbered behind the last layer.
    pub layer: usize,
    /// Tokens it sees, when it does not see everything before.
    pub window: Option<u64>,
    /// Whether a sparse indexer keeps its own keys here.
    pub indexed: bool,
}

/// Which layers of a stage own cache slots, and which slot each owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionLayerMap {
    slots: Vec<AttentionSlot>,
    depth: usize,
}

impl AttentionLayerMap {
    /// The map of one stage. The stage must be one of the plan's.
    pub fn new(recipe: &Recipe, stages: &StagePlan, stage: usize) -> AttentionLayerMap {
        let held = held_layers(recipe, stages, stage);
        let slots = held.iter().flat_map(|held| slots_of_layer(recipe, held)).collect();
        AttentionLayerMap { slots, depth: held.len() }
    }

    /// The slots, in the order of depth.
    pub fn slots(&self) -> &[AttentionSlot] {
        &self.slots
    }

    /// The first slot of a layer, if attention stands in it.
    pub fn slot_of(&self, layer: usize) -> Option<usize> {
        self.slots.iter().position(|slot| slot.layer == layer)
    }

    /// Layers of the stage, prediction depths included: what an allocation by depth would count.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Layers that own a slot.
    pub fn owning_layers(&self) -> usize {
        let mut layers: Vec<usize> = self.slots.iter().map(|slot| slot.layer).collect();
        layers.dedup();
        layers.len()
    }

    /// Layers whose slots an allocation by depth would waste.
    pub fn saved_layers(&self) -> usize {
        self.depth - self.owning_layers()
    }
}

/// A layer that a stage holds.
pub(super) struct HeldLayer<'a> {
    /// Its index; prediction depths are numbered behind the last layer.
    pub index: usize,
    /// Its blocks.
    pub layer: &'a Layer,
    /// Attention blocks in the layers before it; nothing in a prediction depth.
    attention_before: Option<u64>,
}

impl HeldLayer<'_> {
    /// Its blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.layer.blocks
    }
}

/// Layers of a stage and, where the last chunk is, the prediction depths in force.
pub(super) fn held_layers<'a>(recipe: &'a Recipe, stages: &StagePlan, stage: usize) -> Vec<HeldLayer<'a>> {
    let mut attention_before = Vec::with_capacity(recipe.depth());
    let mut seen = 0;
    for layer in &recipe.layers {
        attention_before.push(seen);
        seen += layer.mixers().filter(|m| *m == Mixer::Attention).count() as u64;
    }
    let mut indices: Vec<usize> = stages.layers_of_stage(stage).collect();
    indices.sort_unstable();
    let layer = |index: usize| HeldLayer {
        index,
        layer: &recipe.layers[index],
        attention_before: Some(attention_before[index]),
    };
    let mut held: Vec<HeldLayer> = indices.into_iter().map(layer).collect();
    if let Some(mtp) = recipe.features.mtp().filter(|_| holds_last_chunk(stages, stage)) {
        let depth = |d: usize| HeldLayer { index: recipe.depth() + d, layer: &mtp.layer, attention_before: None };
        held.extend((0..mtp.depth as usize).map(depth));
    }
    held
}

/// Whether the stage holds the end of the depth.
pub(super) fn holds_last_chunk(stages: &StagePlan, stage: usize) -> bool {
    stages.by_stage[stage].contains(&(stages.chunks.len() - 1))
}

/// Windows and indexers are placed by an attention block's ordinal, which a prediction depth does
/// not have: it sees everything, and no indexer stands on it.
fn slots_of_layer(recipe: &Recipe, held: &HeldLayer) -> Vec<AttentionSlot> {
    let window = recipe.attention.as_ref().and_then(|a| a.window.as_ref());
    let attention_blocks = held.layer.mixers().filter(|m| *m == Mixer::Attention).count() as u64;
    let slot = |nth: u64| {
        let ordinal = held.attention_before.map(|before| before + nth);
        let windowed = window.filter(|w| ordinal.is_some_and(|o| !w.full_layers.contains(&o)));
        let indexed = recipe.features.dsa().is_some_and(|dsa| ordinal.is_some_and(|o| dsa.indexes(o)));
        AttentionSlot { layer: held.index, window: windowed.map(|w| w.tokens), indexed }
    };
    (0..attention_blocks).map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{LayoutRequest, Needs, settle};
    use recipe::kinds::attention::Window;
    use recipe::{Feature, builtin};

    fn map(recipe: &Recipe, pp: u64, stage: usize) -> AttentionLayerMap {
        let request = LayoutRequest { pp: Some(pp), ..LayoutRequest::default() };
        let (layout, _) = settle(&request, Needs::of(recipe)).unwrap();
        AttentionLayerMap::new(recipe, &StagePlan::new(recipe, &layout, None).unwrap(), stage)
    }

    #[test]
    fn nam56r_saves_39_of_52_layers() {
        let nam = builtin::find("nam56r").unwrap();
        let map = map(&nam, 1, 0);
        assert_eq!((map.slots().len(), map.depth(), map.saved_layers()), (13, 52, 39));
        assert_eq!(map.slot_of(0), Some(0));
        assert_eq!(map.slot_of(4), Some(1));
        for mixer in [Mixer::Moe, Mixer::Mamba, Mixer::Recurrent] {
            assert!(nam.layers_with(mixer).into_iter().all(|layer| map.slot_of(layer).is_none()), "{mixer:?}");
        }
    }

    #[test]
    fn stages_share_the_slots_out() {
        let nam = builtin::find("nam56r").unwrap();
        let halves = [map(&nam, 2, 0), map(&nam, 2, 1)];
        assert_eq!(halves.iter().map(AttentionLayerMap::depth).sum::<usize>(), 52);
        assert_eq!(halves.iter().map(AttentionLayerMap::saved_layers).sum::<usize>(), 39);
    }

    #[test]
    fn a_transformer_saves_nothing() {
        let map = map(&builtin::find("llama3-8b").unwrap(), 1, 0);
        assert_eq!((map.slots().len(), map.saved_layers()), (32, 0));
    }

    #[test]
    fn prediction_depths_own_slots_on_the_last_stage() {
        let nam = builtin::find("nam56r").unwrap().with_features(&[Feature::Mtp], &[]).unwrap();
        assert_eq!(map(&nam, 1, 0).slots().len(), 15);
        assert_eq!(map(&nam, 1, 0).slot_of(53), Some(14));
        let slots = |stage| map(&nam, 2, stage).slots().len();
        assert_eq!(slots(0) + slots(1), 15);
        assert!(map(&nam, 2, 0).slots().iter().all(|slot| slot.layer < 52));
    }

    #[test]
    fn windows_and_indexers_stand_on_their_ordinals() {
        let mut nam = builtin::find("nam56r").unwrap().with_features(&[Feature::Dsa], &[]).unwrap();
        nam.attention.as_mut().unwrap().window = Some(Window::sliding(512, vec![0, 12]));
        let map = map(&nam, 1, 0);
        let windowed = map.slots().iter().filter(|slot| slot.window == Some(512)).count();
        assert_eq!((windowed, map.slots()[0].window, map.slots()[12].window), (11, None, None));
        assert_eq!(map.slots().iter().filter(|slot| slot.indexed).count(), 9);
    }
}
