//! Parameters that a rank holds, counted off the ownership table: nothing is replayed for it.

use case::{LayerKinds, PerKind};
use layout::{Engine, Layout, LayoutRequest, Needs, OwnershipTable, settle};
use recipe::{Layer, Mixer, Optimizer, Place, Recipe, Surface};
use replay::Unmodelled;
use std::collections::HashMap;
use std::sync::Mutex;

/// Elements of one layer kind, or of an edge, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Parameters stepped by AdamW, dense and expert.
    pub adam: [u64; 2],
    /// Parameters stepped by Muon, dense and expert.
    pub muon: [u64; 2],
}

impl Held {
    pub fn add(&mut self, other: Held, times: u64) {
        for i in 0..2 {
            self.adam[i] += other.adam[i] * times;
            self.muon[i] += other.muon[i] * times;
        }
    }

    pub fn elements(&self) -> u64 {
        self.adam.iter().chain(&self.muon).sum()
    }
}

/// What a rank of tensor and expert parallel groups holds, before anybody shares it out.
#[derive(Clone, Debug)]
pub(super) struct Holdings {
    /// A layer of each kind.
    pub layers: PerKind<Held>,
    /// What stands before the first layer.
    pub front: Held,
    /// What stands behind the last.
    pub back: Held,
    /// The copy of the token table that a tied head needs away from the first stage.
    pub tied: Held,
}

/// tp, ep, etp, the multiple the vocabulary is padded to; and whose rules of ownership.
type Degrees = ([u64; 4], Option<Engine>);

/// Counts each set of degrees once.
pub(super) struct Counter {
    kinds: LayerKinds,
    /// One layer of each kind.
    recipe: Recipe,
    known: Mutex<HashMap<Degrees, Holdings>>,
}

impl Counter {
    /// Of a recipe without its layers, and one layer of each kind.
    pub fn new(bare: &Recipe, kinds: &LayerKinds, layers: &PerKind<Layer>) -> Counter {
        let mut recipe = bare.clone();
        recipe.layers = layers.iter().cloned().collect();
        Counter { kinds: kinds.clone(), recipe, known: Mutex::default() }
    }

    /// What a rank holds under the degrees of a layout, by the rules of an engine.
    pub fn under(&self, layout: &Layout, engine: Option<Engine>) -> Result<Holdings, Unmodelled> {
        let key = ([layout.tp.get(), layout.ep.get(), layout.etp.get(), layout.vocab_multiple], engine);
        if let Some(known) = self.known.lock().unwrap_or_else(|e| e.into_inner()).get(&key) {
            return Ok(known.clone());
        }
        let found = self.count(key)?;
        self.known.lock().unwrap_or_else(|e| e.into_inner()).insert(key, found.clone());
        Ok(found)
    }

    fn count(&self, ([tp, ep, etp, vocab_multiple], engine): Degrees) -> Result<Holdings, Unmodelled> {
        let recipe = &self.recipe;
        let request = LayoutRequest {
            tp: Some(tp),
            ep: Some(ep),
            etp: Some(etp),
            vocab_multiple: Some(vocab_multiple),
            engine,
            ..LayoutRequest::default()
        };
        let refused = |f: Vec<diag::Finding>| Unmodelled::new("this layout", f[0].message.clone());
        let (layout, _) = settle(&request, Needs::of(recipe)).map_err(refused)?;
        let table = OwnershipTable::new(recipe, &layout).map_err(refused)?;
        let mut layers = PerKind::new(&self.kinds, |_| Held::default());
        let (mut front, mut back, mut tied) = (Held::default(), Held::default(), Held::default());
        for row in &table.rows {
            let slot = match row.tensor.place {
                Place::Layer(layer) => &mut layers[self.kinds.nth(layer)],
                Place::Embedding | Place::Side(_) => &mut front,
                Place::FinalNorm | Place::Head | Place::Mtp(_) => &mut back,
            };
            let group = usize::from(row.tensor.acting.is_some());
            let side = if row.tensor.optimizer == Optimizer::Muon { &mut slot.muon } else { &mut slot.adam };
            side[group] += row.part_elements(&layout);
            if recipe.tied && row.tensor.surface == Surface::TokenEmbedding {
                tied.adam[0] += row.part_elements(&layout);
            }
        }
        debug_assert!(recipe.has(Mixer::Moe) || layers.iter().all(|h| h.adam[1] + h.muon[1] == 0));
        Ok(Holdings { layers, front, back, tied })
    }
}
