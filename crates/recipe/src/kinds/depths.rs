//! Mixture of depths (arXiv 2404.02258): on named layers a router scores every token, and the `capacity` of each
//! sequence that scores highest goes through the layer, in order; the others stay as they are on the residual stream.
//! What the layer adds to a token is multiplied with the token's score, so that the router learns.
//!
//! The choice reads whole sequences, so that training alone can make it: how a server guesses it is not said here.

use super::Emitter;
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// Which layers choose, and how many tokens they take.
#[derive(Clone, Debug, PartialEq)]
pub struct Depths {
    /// Layers that take some tokens only, counted from zero.
    pub layers: Vec<u64>,
    /// Share of a sequence's tokens that they take: the paper's best is an eighth, on every other layer.
    pub capacity: f64,
}

impl Depths {
    /// Reads `[features.mod]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Depths> {
        let layers = section.naturals("layers", limits::DEPTH).unwrap_or_default();
        let capacity = section.positive("capacity");
        if layers.is_empty() {
            let message = "a mixture of depths needs `layers`, those that take some tokens only";
            let finding = Finding::error("recipe/missing-key", Blame::Recipe, "features.mod.layers", message);
            section.report("layers", finding.hint("such as layers = [1, 3, 5]"));
        }
        if capacity.is_none_or(|capacity| capacity > 1.0) {
            let message = "a mixture of depths needs `capacity`, the share of a sequence that its layers take";
            let finding = Finding::error("mod/capacity", Blame::Recipe, "features.mod.capacity", message);
            section.report("capacity", finding.hint("above 0 and up to 1, such as 0.125"));
        }
        section.finish();
        Some(Depths { layers, capacity: capacity.unwrap_or(1.0) })
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.ints("layers", &self.layers);
        toml.float("capacity", self.capacity);
    }

    /// Tokens of a sequence that go through, one at least.
    pub fn tokens(&self, sequence: u64) -> u64 {
        ((self.capacity * sequence as f64) as u64).clamp(1, sequence)
    }

    /// The router of one layer.
    pub(crate) fn tensors(hidden: u64, out: &mut Emitter) {
        out.add("mod.weight", Surface::DepthRouter, Role::Router, vec![Dim::whole(1), Dim::whole(hidden)]);
    }
}

#[cfg(test)]
mod tests {
    use crate::features::Feature;
    use crate::{Recipe, builtin};

    fn with(table: &str) -> Result<Recipe, Vec<diag::Finding>> {
        Recipe::parse(&format!("{}\n[features.mod]\n{table}", builtin::find("llama3-8b").unwrap().to_toml()))
    }

    #[test]
    fn named_layers_have_a_router_and_are_kinds_of_their_own() {
        let plain = builtin::find("llama3-8b").unwrap();
        let mixed = with("layers = [1, 3]\ncapacity = 0.125\n").unwrap();
        assert_eq!(mixed.counts().all.total - plain.counts().all.total, 2 * 4096);
        let marked: Vec<usize> = (0..mixed.depth()).filter(|&layer| mixed.layers[layer].is_partial).collect();
        assert_eq!(marked, [1, 3]);
        assert_eq!(Recipe::parse(&mixed.to_toml()).unwrap(), mixed);
        let depths = mixed.features.depths().unwrap();
        assert_eq!((depths.tokens(8192), depths.tokens(7)), (1024, 1));
        let off = mixed.with_features(&[], &[Feature::Mod]).unwrap();
        assert_eq!((off.tensors(), off.layers), (plain.tensors(), plain.layers));
    }

    #[test]
    fn places_and_shares_are_held_to_the_model() {
        for (table, rule) in [
            ("layers = [32]\ncapacity = 0.5\n", "features/placement"),
            ("layers = [1]\ncapacity = 1.5\n", "mod/capacity"),
            ("layers = [1]\n", "mod/capacity"),
            ("capacity = 0.5\n", "recipe/missing-key"),
            ("layers = [1]\ncapacity = 0.5\n[features.mhc]\nstreams = 2\n", "features/placement"),
        ] {
            let findings = with(table).unwrap_err();
            assert!(findings.iter().any(|finding| finding.rule == rule), "{table}: {findings:?}");
        }
    }
}
