//! Layers that are alike: every figure of one layer is the figure of its kind, so kinds are counted
//! once here and indexed by a type of their own.

use recipe::{Layer, Recipe};
use std::ops::{Index, IndexMut};

/// A kind of layer of one recipe, in the order in which kinds first stand in the depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(u32);

impl KindId {
    /// Its place among the kinds.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The kinds of a recipe's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerKinds {
    of_layer: Vec<KindId>,
    /// The first layer of each kind.
    first: Vec<usize>,
}

impl LayerKinds {
    /// Sorts the layers of a recipe by kind.
    pub fn of(recipe: &Recipe) -> LayerKinds {
        let mut kinds: Vec<Option<&Layer>> = Vec::new();
        let (mut of_layer, mut first) = (Vec::new(), Vec::new());
        for (index, layer) in recipe.layers.iter().enumerate() {
            // The first layer may lack what others of its blocks have.
            let alone = index == 0 && recipe.first_layer_lacks();
            let known = kinds.iter().position(|kind| *kind == Some(layer));
            let kind = known.unwrap_or_else(|| {
                kinds.push((!alone).then_some(layer));
                first.push(index);
                kinds.len() - 1
            });
            of_layer.push(KindId(kind as u32));
        }
        LayerKinds { of_layer, first }
    }

    /// How many kinds there are.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Layers in all.
    pub fn depth(&self) -> usize {
        self.of_layer.len()
    }

    /// The kind of a layer.
    pub fn of_layer(&self, layer: usize) -> KindId {
        self.of_layer[layer]
    }

    /// The kind at a place among them, as [`LayerKinds::one_of_each`] orders layers.
    pub fn nth(&self, place: usize) -> KindId {
        self.of_layer[self.first[place]]
    }

    /// Every kind with the first layer of it.
    pub fn all(&self) -> impl Iterator<Item = (KindId, usize)> + '_ {
        self.first.iter().enumerate().map(|(kind, layer)| (KindId(kind as u32), *layer))
    }

    /// One layer of each kind, in their order: a recipe of these has every shape there is.
    pub fn one_of_each(&self, recipe: &Recipe) -> Vec<Layer> {
        self.first.iter().map(|layer| recipe.layers[*layer].clone()).collect()
    }

    /// How many of these layers are of each kind.
    pub fn count(&self, layers: impl IntoIterator<Item = usize>) -> PerKind<u64> {
        let mut counts = PerKind::new(self, |_| 0);
        layers.into_iter().for_each(|layer| counts[self.of_layer(layer)] += 1);
        counts
    }
}

/// A value for every kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerKind<T>(Vec<T>);

impl<T> PerKind<T> {
    /// One for each kind, made from a layer of it.
    pub fn new(kinds: &LayerKinds, of: impl FnMut(usize) -> T) -> PerKind<T> {
        PerKind(kinds.first.iter().copied().map(of).collect())
    }

    /// One for each kind.
    pub fn by_kind(kinds: &LayerKinds, of: impl FnMut(KindId) -> T) -> PerKind<T> {
        PerKind((0..kinds.len() as u32).map(KindId).map(of).collect())
    }

    /// Every kind with its value.
    pub fn entries(&self) -> impl Iterator<Item = (KindId, &T)> {
        self.0.iter().enumerate().map(|(kind, value)| (KindId(kind as u32), value))
    }

    /// The values in the order of kinds.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Likewise, to be changed.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// Each value turned into another.
    pub fn map<U>(&self, of: impl FnMut(&T) -> U) -> PerKind<U> {
        PerKind(self.0.iter().map(of).collect())
    }
}

impl<T> Index<KindId> for PerKind<T> {
    type Output = T;

    fn index(&self, kind: KindId) -> &T {
        &self.0[kind.index()]
    }
}

impl<T> IndexMut<KindId> for PerKind<T> {
    fn index_mut(&mut self, kind: KindId) -> &mut T {
        &mut self.0[kind.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_count_every_layer_once() {
        for (name, _) in recipe::builtin::RECIPES {
            let recipe = recipe::builtin::find(name).unwrap();
            let kinds = LayerKinds::of(&recipe);
            let counts = kinds.count(0..kinds.depth());
            assert_eq!(counts.iter().sum::<u64>(), recipe.depth() as u64, "{name}");
            for (kind, layer) in kinds.all() {
                assert_eq!(kinds.of_layer(layer), kind);
                assert!((0..layer).all(|before| recipe.layers[before] != recipe.layers[layer]));
            }
        }
    }
}
