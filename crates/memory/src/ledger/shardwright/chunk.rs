//! What one microbatch keeps in a chunk of depth.

use super::saves::{Save, Sizes, carried, dropped, head, norm_input, of_mixer, prediction};
use layout::{Layout, OwnershipTable};
use recipe::{Layer, Mixer, Recipe};

/// The mixers of a layer's blocks, each with the path `recipe.tensors()` gives it.
pub fn mixers(layer: &Layer, prefix: &str) -> Vec<Vec<(Mixer, String)>> {
    let mut blocks = Vec::with_capacity(layer.blocks.len());
    for (index, block) in layer.blocks.iter().enumerate() {
        let first = block.mixers[0];
        let twin = layer.blocks[..index].iter().filter(|b| b.mixers[0] == first).count();
        let suffix = if twin == 0 { String::new() } else { format!("_{}", twin + 1) };
        blocks.push(block.mixers.iter().map(|m| (*m, format!("{prefix}.{}{suffix}", m.table()))).collect());
    }
    blocks
}

/// Everything one microbatch keeps in a chunk.
pub fn of_chunk(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, chunk: usize) -> Vec<Save> {
    let mut all = Vec::new();
    for layer in table.stages.chunks[chunk].layers.clone() {
        stack(recipe, layout, table, &recipe.layers[layer], &format!("layers.{layer}"), &mut all);
    }
    if chunk + 1 < table.stages.chunks.len() {
        return all;
    }
    let sizes = Sizes::of(layout);
    all.push(Save { name: "final norm input", ..norm_input(recipe, &sizes) });
    all.extend(head(recipe, layout, &sizes));
    let Some(mtp) = recipe.features.mtp() else { return all };
    for depth in 0..mtp.depth {
        all.extend(prediction(recipe, &sizes));
        stack(recipe, layout, table, &mtp.layer, &format!("mtp.{depth}"), &mut all);
        all.extend(head(recipe, layout, &sizes));
    }
    all
}

/// The input of every block, and what its mixers keep unless they are computed again.
fn stack(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, layer: &Layer, prefix: &str, all: &mut Vec<Save>) {
    for block in mixers(layer, prefix) {
        all.push(norm_input(recipe, &Sizes::of(layout)));
        for (mixer, path) in &block {
            match layout.recompute.repeats(*mixer) {
                true => all.extend(carried(recipe, layout, table, *mixer, path)),
                false => {
                    let dropped = dropped(&layout.recompute, *mixer);
                    let saves = of_mixer(recipe, layout, table, *mixer, path).into_iter();
                    all.extend(saves.filter(|save| !dropped.contains(&save.name)));
                }
            }
        }
    }
}
