//! Sliding windows out of Megatron's flags (`core/transformer/utils.py`, `is_layer_window_attention`): layers count from
//! one, symbols of a hybrid pattern are layers, and prediction heads count from one again.

use super::depth::{Depth, frequency};
use super::flags::{Flags, shown};
use crate::kinds::attention::Window;
use crate::limits;
use crate::pattern::Mixer;
use crate::recipe::Recipe;

/// Reads `--window-size` and the layers that `--window-attn-skip-freq` leaves out; without a size the frequency means
/// nothing.
pub fn window(flags: &mut Flags, recipe: &mut Recipe, depth: &Depth) -> Option<()> {
    let Some(text) = flags.text("--window-size").map(shown) else { return Some(()) };
    let Some(tokens) = tokens(&text) else {
        let message = "it is two numbers such as `4095,0`: tokens before a query's own, and none behind";
        flags.refuse("--window-size", message);
        return None;
    };
    let count = recipe.layers.len() as u64;
    let has_window = match flags.has("--window-attn-skip-freq") {
        true => frequency(flags, "--window-attn-skip-freq", "1", count, |i, n| !(i + 1).is_multiple_of(n))?,
        false => vec![true; recipe.layers.len()],
    };
    let at_heads = match (recipe.features.mtp(), depth) {
        (None, _) => Vec::new(),
        (Some(mtp), Depth::Transformer(_)) => vec![mtp.layer.has(Mixer::Attention); mtp.stacks() as usize],
        (Some(mtp), Depth::Hybrid(_)) => mtp.layer.mixers().map(|mixer| mixer == Mixer::Attention).collect(),
    };
    let is_told_otherwise = |(at, attends): (usize, &bool)| *attends && has_window.get(at) != Some(&true);
    if at_heads.iter().enumerate().any(is_told_otherwise) {
        let message = "a prediction head without the window that layers have has no recipe: heads count from one again";
        flags.refuse("--window-attn-skip-freq", message);
        return None;
    }
    let attends = recipe.layers.iter().zip(&has_window).filter(|(layer, _)| layer.has(Mixer::Attention));
    let of_attention: Vec<bool> = attends.map(|(_, has)| *has).collect();
    let full = of_attention.iter().enumerate().filter(|(_, has)| !**has).map(|(at, _)| at as u64);
    let full_layers: Vec<u64> = full.collect();
    if let Some(attention) = recipe.attention.as_mut().filter(|_| full_layers.len() < of_attention.len()) {
        attention.window = tokens.map(|tokens| Window::sliding(tokens, full_layers));
    }
    Some(())
}

/// Tokens a query sees, itself included; the inner none where `-1` leaves all before it.
fn tokens(text: &str) -> Option<Option<u64>> {
    let (left, right) = text.trim_matches(['(', ')']).split_once(',')?;
    let (left, right) = (left.trim().parse::<i64>().ok()?, right.trim().parse::<i64>().ok()?);
    match (left, right) {
        (-1, -1 | 0) => Some(None),
        (0.., 0) => Some(Some(left as u64 + 1)).filter(|tokens| *tokens <= Some(limits::SEQUENCE)),
        _ => None,
    }
}
