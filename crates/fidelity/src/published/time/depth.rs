//! Where a row's pipeline cuts fall. Rows do not say; engines do.

use super::engine::Family;
use recipe::Recipe;
use recipe::kinds::Activation;

/// First layer of every chunk but the first; none where layers are dealt out evenly.
pub(super) fn boundaries(family: Family, recipe: &Recipe, chunks: u64) -> Option<Vec<u64>> {
    let depth = recipe.depth() as u64;
    if chunks < 2 || chunks > depth {
        return None;
    }
    match family {
        Family::Nanotron => Some(by_cost(recipe, chunks)),
        _ if depth.is_multiple_of(chunks) => None,
        _ if (depth + 2).is_multiple_of(chunks) => Some(edges_as_layers(depth, chunks)),
        Family::Megatron => last_takes_the_rest(depth, chunks),
        _ => None,
    }
}

/// Embedding and loss each count as a layer: Megatron's `--account-for-embedding-in-pipeline-split`
/// and `--account-for-loss-in-pipeline-split`, and the `transformer|embedding` partition of
/// DeepSpeed's pipeline.
fn edges_as_layers(depth: u64, chunks: u64) -> Vec<u64> {
    let each = (depth + 2) / chunks;
    (1..chunks).map(|chunk| chunk * each - 1).collect()
}

/// Full chunks, and what is left beside the loss: the layouts Megatron-Bridge ships for depths that
/// do not divide (`recipes/deepseek/deepseek_v3.py`).
fn last_takes_the_rest(depth: u64, chunks: u64) -> Option<Vec<u64>> {
    let each = depth.div_ceil(chunks);
    let starts: Vec<u64> = (1..chunks).map(|chunk| chunk * each).collect();
    starts.last().is_some_and(|last| *last < depth).then_some(starts)
}

/// nanotron closes a stage behind the block with which the running cost passes its even share
/// (`models/base.py` build_model, `models/llama.py` get_block_compute_costs); the head may end up
/// alone, which is written here as beside the last layer.
fn by_cost(recipe: &Recipe, stages: u64) -> Vec<u64> {
    let depth = recipe.depth() as u64;
    let (hidden, ffn) = (recipe.hidden, recipe.mlp.as_ref().map_or(0, |mlp| mlp.ffn));
    let gated = matches!(recipe.mlp.as_ref().map(|mlp| mlp.activation), Some(Activation::SwiGlu));
    let layer = 4 * hidden * hidden + (2 + u64::from(gated)) * ffn * hidden;
    let total = depth * layer + recipe.vocab * hidden;
    let mut starts = Vec::new();
    for taken in 1..=depth {
        let stage = starts.len() as u64 + 1;
        // In whole numbers: taken·layer > stage·total/stages.
        if stage < stages && u128::from(taken * layer) * u128::from(stages) > u128::from(stage) * u128::from(total) {
            starts.push(taken);
        }
    }
    starts.resize(stages as usize - 1, depth);
    for (chunk, start) in starts.iter_mut().enumerate() {
        *start = (*start).min(depth + chunk as u64 + 1 - stages);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_fall_where_engines_put_them() {
        assert_eq!(edges_as_layers(70, 12)[..2], [5, 11]);
        assert_eq!(last_takes_the_rest(61, 16).unwrap()[13..], [56, 60]);
        assert_eq!(last_takes_the_rest(61, 32), None);
    }

    #[test]
    fn a_stage_closes_behind_the_layer_that_passes_its_share() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let costs = |stages| by_cost(&recipe, stages);
        assert_eq!(costs(2)[0], 18);
        assert_eq!(costs(4)[0], 9);
        let many = costs(32);
        assert!(many.windows(2).all(|pair| pair[0] < pair[1]) && many.len() == 31, "{many:?}");
    }
}
