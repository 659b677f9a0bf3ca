//! What stands around the layers: token and position tables, final norm, output head.

use super::Emitter;
use crate::pattern::Family;
use crate::recipe::Recipe;
use crate::rope::Positions;
use crate::tensor::{Dim, Place, Role, Surface, Unit};

/// Tensors before the first layer.
pub(crate) fn front(recipe: &Recipe, out: &mut Emitter) {
    out.stand(Place::Embedding, Family::Edge, "embedding");
    let table = vec![Dim::of(Unit::Token, recipe.vocab, 1), Dim::whole(recipe.hidden)];
    out.add("tokens.weight", Surface::TokenEmbedding, Role::Embedding, table);
    if let Positions::Learned { count } = recipe.positions {
        let table = vec![Dim::whole(count), Dim::whole(recipe.hidden)];
        out.add("positions.weight", Surface::PositionEmbedding, Role::Embedding, table);
    }
    if recipe.embedding_norm {
        out.norm("norm", Surface::Norm, recipe.norm, recipe.hidden);
    }
    for (name, side) in recipe.features.sides() {
        out.stand(Place::Side(side.stage), Family::Edge, format!("side.{name}"));
        side.tensors(recipe.hidden, out);
    }
}

/// Tensors behind the last layer. A tied head is the token table, and so not listed twice.
pub(crate) fn back(recipe: &Recipe, out: &mut Emitter) {
    out.stand(Place::FinalNorm, Family::Edge, "final");
    out.norm("norm", Surface::Norm, recipe.norm, recipe.hidden);
    recipe.features.mhc().into_iter().for_each(|mhc| mhc.collapse(recipe.hidden, out));
    if !recipe.tied {
        out.stand(Place::Head, Family::Edge, "head");
        let table = vec![Dim::of(Unit::Token, recipe.vocab, 1), Dim::whole(recipe.hidden)];
        out.add("weight", Surface::OutputHead, Role::Head, table);
    }
    if recipe.head_bias {
        out.stand(Place::Head, Family::Edge, "head");
        out.add("bias", Surface::OutputHead, Role::Bias, vec![Dim::of(Unit::Token, recipe.vocab, 1)]);
    }
}
