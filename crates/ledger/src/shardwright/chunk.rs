//! What one microbatch keeps in a chunk of depth.

use super::saves::{Save, Sizes, carried, dropped, head, norm_input, of_routed, prediction};
use layout::activations::{Routed, Routing};
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

/// Rows of the expert blocks of a chunk in one microbatch, each with its block's path.
#[derive(Clone, Debug)]
pub(super) struct ByPath {
    balanced: Routed,
    dealt: Vec<(String, Routed)>,
}

impl ByPath {
    /// The rows of a chunk, as a prediction takes routing to be.
    pub fn new(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, at: (u32, u32), routing: Routing) -> ByPath {
        let balanced = Routed::balanced(recipe, layout);
        let Routing::Real(dealing) = routing else { return ByPath { balanced, dealt: Vec::new() } };
        let (microbatch, chunk) = at;
        let mut paths = Vec::new();
        for (layer, prefix) in levels(recipe, table, chunk as usize) {
            let blocks = mixers(layer, &prefix).into_iter().flatten();
            paths.extend(blocks.filter(|(mixer, _)| *mixer == Mixer::Moe).map(|(_, path)| path));
        }
        ByPath { balanced, dealt: paths.into_iter().zip(dealing.of(microbatch, chunk).iter().copied()).collect() }
    }

    /// The rows of one block.
    pub fn of(&self, path: &str) -> Routed {
        self.dealt.iter().find(|(p, _)| p == path).map_or(self.balanced, |(_, rows)| *rows)
    }
}

/// The layers of a chunk with their paths, prediction depths behind the last.
fn levels<'a>(recipe: &'a Recipe, table: &OwnershipTable, chunk: usize) -> Vec<(&'a Layer, String)> {
    let layers = table.stages.chunks[chunk].layers.clone();
    let mut all: Vec<_> = layers.map(|layer| (&recipe.layers[layer], format!("layers.{layer}"))).collect();
    let mtp = recipe.features.mtp().filter(|_| chunk + 1 == table.stages.chunks.len());
    all.extend(mtp.iter().flat_map(|mtp| (0..mtp.depth).map(|depth| (&mtp.layer, format!("mtp.{depth}")))));
    all
}

/// Everything one microbatch keeps in a chunk; `at` is both.
pub fn of_chunk(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    at: (u32, u32),
    routing: Routing,
) -> Vec<Save> {
    let chunk = at.1 as usize;
    let (rows, layers) = (ByPath::new(recipe, layout, table, at, routing), table.stages.chunks[chunk].layers.len());
    let cx = Cx { recipe, layout, table, rows: &rows };
    let levels = levels(recipe, table, chunk);
    let mut all = Vec::new();
    levels[..layers].iter().for_each(|(layer, prefix)| cx.stack(layer, prefix, &mut all));
    if chunk + 1 < table.stages.chunks.len() {
        return all;
    }
    let sizes = Sizes::of(layout);
    all.push(Save { name: "final norm input", ..norm_input(recipe, &sizes) });
    all.extend(head(recipe, layout, &sizes));
    for (layer, prefix) in &levels[layers..] {
        all.extend(prediction(recipe, &sizes));
        cx.stack(layer, prefix, &mut all);
        all.extend(head(recipe, layout, &sizes));
    }
    all
}

/// What a chunk's blocks are declared with.
struct Cx<'a> {
    recipe: &'a Recipe,
    layout: &'a Layout,
    table: &'a OwnershipTable,
    rows: &'a ByPath,
}

impl Cx<'_> {
    /// The input of every block, and what its mixers keep unless they are computed again.
    fn stack(&self, layer: &Layer, prefix: &str, all: &mut Vec<Save>) {
        let (recipe, layout, table) = (self.recipe, self.layout, self.table);
        for block in mixers(layer, prefix) {
            all.push(norm_input(recipe, &Sizes::of(layout)));
            for (mixer, path) in &block {
                if layout.recompute.repeats(*mixer) {
                    all.extend(carried(recipe, layout, table, *mixer, path));
                    continue;
                }
                let dropped = dropped(&layout.recompute, *mixer);
                let saves = of_routed(recipe, layout, table, *mixer, path, self.rows.of(path)).into_iter();
                all.extend(saves.filter(|save| !dropped.contains(&save.name)));
            }
        }
    }
}
