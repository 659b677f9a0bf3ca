//! Sliding windows in Megatron's flags. `core/transformer/utils.py`, `is_layer_window_attention`: layers count from one,
//! blocks of a hybrid stack are layers of their own, and prediction heads count from one again.

use super::super::list::List;
use super::{Shape, unsayable};
use crate::emission::Kind;
use crate::job::Job;
use diag::Finding;
use recipe::kinds::attention::Window;
use recipe::pattern::Block;
use recipe::{Mixer, Recipe};

const NATIVE: Kind = Kind::RecipeNative;

/// Adds the window and the layers that see everything.
pub fn arguments(job: &Job, window: &Window, list: &mut List, findings: &mut Vec<Finding>) {
    if window.chunked {
        return findings.push(unsayable("attention.chunked", "windows slide, and no flag cuts a sequence into chunks"));
    }
    let Some(places) = Places::of(job.recipe, Shape::of(job), window) else {
        let message = "a prediction head counts its layers from one, and would see everything where that layer does";
        return findings.push(unsayable("attention.full_attention_layers", message));
    };
    // transformer_engine: a query sees keys from `i - left` to `i + right`, both included.
    let why = "keys before and after a query's own that it sees";
    list.set(NATIVE, "--window-size", format!("{},0", window.tokens - 1), "attention.window", why);
    if let Some(frequency) = places.frequency() {
        let why = "a number n: every nth layer sees everything; a list: those at 0";
        list.set(NATIVE, "--window-attn-skip-freq", frequency, "attention.full_attention_layers", why);
    }
}

/// Whether the attention at each of the engine's layers has the window; none where no attention stands.
struct Places(Vec<Option<bool>>);

impl Places {
    /// None where a prediction head would be told otherwise than the layer of its number.
    fn of(recipe: &Recipe, shape: Shape, window: &Window) -> Option<Places> {
        let mut ordinal = 0;
        let mut place = |attends: bool| {
            let has_window = attends.then_some(!window.full_layers.contains(&ordinal));
            ordinal += u64::from(attends);
            has_window
        };
        let attends = |block: &Block| block.mixers.contains(&Mixer::Attention);
        let mut places: Vec<Option<bool>> = match shape {
            Shape::Gpt => recipe.layers.iter().map(|layer| place(layer.has(Mixer::Attention))).collect(),
            Shape::Hybrid => recipe.layers.iter().flat_map(|l| &l.blocks).map(|b| place(attends(b))).collect(),
        };
        let heads: Vec<bool> = match (recipe.features.mtp(), shape) {
            (None, _) => Vec::new(),
            (Some(mtp), Shape::Gpt) => vec![mtp.layer.has(Mixer::Attention); mtp.stacks() as usize],
            (Some(mtp), Shape::Hybrid) => mtp.layer.blocks.iter().map(attends).collect(),
        };
        places.resize(places.len().max(heads.len()), None);
        for (place, _) in places.iter_mut().zip(heads).filter(|(_, attends)| *attends) {
            if *place == Some(false) {
                return None;
            }
            *place = Some(true);
        }
        Some(Places(places))
    }

    /// Which layers see everything, as the engine is told; none where no layer does.
    fn frequency(&self) -> Option<String> {
        let known = || self.0.iter().enumerate().filter_map(|(at, place)| Some((at + 1, (*place)?)));
        if known().all(|(_, has_window)| has_window) {
            return None;
        }
        let every = |n: &usize| known().all(|(at, has_window)| has_window != at.is_multiple_of(*n));
        if let Some(n) = (1..=self.0.len()).find(every) {
            return Some(n.to_string());
        }
        // Where nothing attends, an entry says nothing: it goes on as the one before.
        let mut told: Vec<bool> = Vec::new();
        for place in &self.0 {
            told.push(place.unwrap_or(told.last().copied().unwrap_or(true)));
        }
        let runs = told.chunk_by(|a, b| a == b).map(|run| format!("[{}]*{}", u8::from(run[0]), run.len()));
        Some(format!("({})", runs.collect::<Vec<_>>().join("+")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::builtin;

    fn told(name: &str, shape: Shape, full: &[u64], change: impl Fn(&mut Recipe)) -> Option<Option<String>> {
        let mut recipe = builtin::find(name).unwrap();
        change(&mut recipe);
        Places::of(&recipe, shape, &Window::sliding(4096, full.to_vec())).map(|places| places.frequency())
    }

    #[test]
    fn layers_that_see_everything_are_a_number_or_a_list() {
        let gpt = |full: &[u64]| told("llama3-8b", Shape::Gpt, full, |_| {}).unwrap();
        assert_eq!(gpt(&[]), None);
        assert_eq!(gpt(&[3, 7, 11, 15, 19, 23, 27, 31]).as_deref(), Some("4"));
        assert_eq!(gpt(&[31]).as_deref(), Some("32"));
        assert_eq!(gpt(&[0, 1]).as_deref(), Some("([0]*2+[1]*30)"));
        assert_eq!(gpt(&(0..32).collect::<Vec<_>>()).as_deref(), Some("1"));
    }

    #[test]
    fn blocks_of_a_hybrid_stack_are_layers() {
        // Two blocks a layer: attention stands at 1, 3, 5, …
        let hybrid = |full: &[u64]| told("llama3-8b", Shape::Hybrid, full, |_| {}).unwrap();
        assert_eq!(hybrid(&[1]).as_deref(), Some("([1]*2+[0]*2+[1]*60)"));
        assert_eq!(hybrid(&[]), None);
    }

    #[test]
    fn prediction_heads_count_from_one_again() {
        let on = |recipe: &mut Recipe| recipe.features.mtp.as_mut().unwrap().on = true;
        let with_heads = |full: &[u64]| told("deepseek-v3", Shape::Gpt, full, on);
        assert_eq!(with_heads(&[0]), None);
        assert_eq!(with_heads(&[60]).unwrap().as_deref(), Some("61"));
    }
}
