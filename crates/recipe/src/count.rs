//! How many parameters, by family and surface, and how many act on one token.

use crate::pattern::Family;
use crate::recipe::Recipe;
use crate::tensor::{Surface, Tensor};
use std::collections::BTreeMap;

/// A number of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// All of them.
    pub total: u64,
    /// Those that act on one token: routed experts count `top_k` of all.
    pub active: u64,
}

impl Count {
    fn add(&mut self, tensor: &Tensor) {
        self.total += tensor.elements();
        self.active += tensor.active_elements();
    }
}

/// The parameter counts of a recipe.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// The whole model. Both embedding tables count as active.
    pub all: Count,
    /// Of all, those that are stepped: adapters alone, where there are any.
    pub trained: u64,
    /// By block family.
    pub by_family: BTreeMap<Family, Count>,
    /// By surface.
    pub by_surface: BTreeMap<Surface, Count>,
}

impl Recipe {
    /// Counts every tensor.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for tensor in self.tensors() {
            counts.all.add(&tensor);
            counts.trained += if tensor.is_frozen { 0 } else { tensor.elements() };
            counts.by_family.entry(tensor.family).or_default().add(&tensor);
            counts.by_surface.entry(tensor.surface).or_default().add(&tensor);
        }
        counts
    }
}
