//! Examples of split rules: a tensor of a built-in recipe under a layout, and what a rank holds of
//! it. A rule cannot be declared without them.

use super::{Quality, Rule};
use crate::legality::example::request;
use crate::{OwnershipTable, check};
use recipe::Recipe;

/// A tensor and what a rank holds.
#[derive(Debug)]
pub struct Example {
    recipe: &'static str,
    layout: &'static str,
    tensor: &'static str,
    held: &'static str,
    with: fn(&mut Recipe),
}

/// A rank holds so much: the split and the sizes of its part.
pub const fn held(recipe: &'static str, layout: &'static str, tensor: &'static str, held: &'static str) -> Example {
    Example { recipe, layout, tensor, held, with: |_| {} }
}

impl Example {
    /// The same of a recipe that is changed first.
    pub const fn with(self, with: fn(&mut Recipe)) -> Example {
        Example { with, ..self }
    }

    /// What a rank holds.
    fn words(&self, rule: &Rule) -> String {
        let mut recipe = recipe::builtin::find(self.recipe).unwrap();
        (self.with)(&mut recipe);
        let layout = check(&recipe, &request(self.layout)).layout.unwrap();
        let table = OwnershipTable::new(&recipe, &layout).unwrap();
        let row = table.rows.iter().find(|row| row.tensor.path == self.tensor);
        let row = row.unwrap_or_else(|| panic!("{} has no `{}`", self.recipe, self.tensor));
        assert_eq!(row.rule.id, rule.id, "{}", self.tensor);
        let shape: Vec<_> = row.part_shape(&layout).iter().map(u64::to_string).collect();
        format!("{}: {}", row.split(), shape.join("×"))
    }
}

impl Rule {
    /// Holds the rule to its examples. One that cuts must be seen to cut, and to leave whole what one
    /// rank holds alone.
    pub fn hold(&self) {
        for example in self.examples {
            assert_eq!(example.words(self), example.held, "{} under `{}`", example.tensor, example.layout);
        }
        let is_whole = |example: &Example| ["replicated", "whole at"].iter().any(|word| example.held.starts_with(word));
        let never_cuts = matches!(self.quality, Quality::Replicated | Quality::Explicit);
        assert!(self.examples.iter().any(is_whole), "{} lacks an example of a whole tensor", self.id);
        assert_eq!(self.examples.iter().all(is_whole), never_cuts, "{}", self.id);
    }
}
