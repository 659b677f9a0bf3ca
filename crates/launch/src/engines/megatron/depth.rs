//! Depth in Megatron's words: a hybrid pattern with `|` between stages and `/` before prediction
//! depths, or transformer layers with frequencies and a pipeline layout.

use super::super::list::List;
use super::{replaced, side, spec};
use crate::emission::Kind;
use crate::job::Job;
use diag::Finding;
use recipe::{Layer, Mixer};

/// Which of the engine's two models runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `HybridModel`: a symbol a block.
    Hybrid,
    /// `GPTModel`: transformer layers.
    Gpt,
}

impl Shape {
    /// Transformer layers throughout make a GPT; anything else, and anything patched, a hybrid.
    pub fn of(job: &Job) -> Shape {
        let recipe = job.recipe;
        let suffix = recipe.features.mtp().map(|mtp| &mtp.layer);
        // GPTModel's prediction heads repeat the last layer (`models/gpt/gpt_layer_specs.py`).
        let repeats_last = suffix.is_none_or(|layer| recipe.layers.last() == Some(layer));
        let is_plain = recipe.layers.iter().all(is_transformer) && repeats_last;
        let sparse_everywhere = recipe.features.dsa().is_none();
        let is_built_in = !spec::is_needed(job) && !side::is_on(job);
        if is_plain && sparse_everywhere && is_built_in { Shape::Gpt } else { Shape::Hybrid }
    }

    /// The script that builds it.
    pub fn script(self) -> &'static str {
        match self {
            Shape::Hybrid => "pretrain_hybrid.py",
            Shape::Gpt => "pretrain_gpt.py",
        }
    }
}

/// Softmax attention, then a dense or an expert block: GPTModel's layer.
fn is_transformer(layer: &Layer) -> bool {
    let mixers: Vec<Mixer> = layer.mixers().collect();
    layer.blocks.len() == 2 && matches!(mixers[..], [Mixer::Attention, Mixer::Mlp | Mixer::Moe])
}

/// Adds what stands where, and the cuts.
pub fn arguments(job: &Job, shape: Shape, list: &mut List, findings: &mut Vec<Finding>) {
    match shape {
        Shape::Hybrid => hybrid(job, list, findings),
        Shape::Gpt => gpt(job, list),
    }
}

fn hybrid(job: &Job, list: &mut List, findings: &mut Vec<Finding>) {
    let segments = if job.layout.pp.splits() { job.stages.layer_counts() } else { Vec::new() };
    // The mode is applied already; naming it again keeps R behind `M` a named seam.
    let pattern = match recipe::megatron::write(job.source, job.layout.mode, &segments) {
        Ok(written) => written.text,
        Err(refused) => return findings.extend(refused),
    };
    spec::argument(job, list);
    let kind = replaced(job, "recurrent-mixer");
    let why = "one symbol a block; `|` is a pipeline boundary of the plan, `/` a prediction depth";
    list.set(kind, "--hybrid-layer-pattern", pattern, "recipe.pattern, stages", why);
    repeated(job, list);
}

/// All depths run one stack.
fn repeated(job: &Job, list: &mut List) {
    if job.recipe.features.mtp().is_some_and(|mtp| mtp.shared) {
        let why = "one stack for every prediction depth";
        list.switch(Kind::RecipeNative, "--mtp-use-repeated-layer", "features.mtp.shared", why);
    }
}

fn gpt(job: &Job, list: &mut List) {
    let recipe = job.recipe;
    let native = Kind::RecipeNative;
    list.set(native, "--num-layers", recipe.depth(), "recipe.depth", "a layer is attention and a feed-forward block");
    if recipe.has(Mixer::Moe) {
        let frequency = frequency(&recipe.layers);
        list.set(
            native,
            "--moe-layer-freq",
            frequency,
            "recipe.pattern",
            "1 where a layer routes, 0 where it is dense",
        );
    }
    if let Some(mtp) = recipe.features.mtp() {
        let why = "prediction depths, on the objective's suffix";
        list.set(native, "--mtp-num-layers", mtp.depth, "features.mtp.depth", why);
        repeated(job, list);
    }
    let counts = job.stages.layer_counts();
    if job.layout.pp.splits() {
        let is_even = counts.iter().all(|n| *n == counts[0]) && recipe.features.mtp().is_none();
        match (is_even, job.layout.vpp.get()) {
            (true, 1) => {}
            (true, vpp) => {
                let why = "chunks of depth a stage holds";
                list.set(Kind::Layout, "--num-virtual-stages-per-pipeline-rank", vpp, "layout.vpp", why);
            }
            (false, _) => {
                let why = "uneven stages, symbol by symbol: E embedding, t layer, m prediction, L loss";
                list.set(Kind::Layout, "--pipeline-model-parallel-layout", stages(job, &counts), "stages", why);
            }
        }
    }
}

/// `1` when every layer routes, else a list such as `([0]*3+[1]*58)`.
fn frequency(layers: &[Layer]) -> String {
    let routed: Vec<bool> = layers.iter().map(|layer| layer.has(Mixer::Moe)).collect();
    let runs = routed.chunk_by(|a, b| a == b).map(|run| format!("[{}]*{}", u8::from(run[0]), run.len()));
    let runs: Vec<String> = runs.collect();
    if routed.iter().all(|r| *r) { "1".to_string() } else { format!("({})", runs.join("+")) }
}

/// The pipeline layout: chunks in the order of depth.
fn stages(job: &Job, counts: &[usize]) -> String {
    let last = counts.len() - 1;
    let depths = job.recipe.features.mtp().map_or(0, |mtp| mtp.depth as usize);
    let chunk = |(index, count): (usize, &usize)| {
        let mut text = String::new();
        text += if index == 0 { "E" } else { "" };
        text += &"t".repeat(*count);
        if index == last {
            text += &"m".repeat(depths);
            text.push('L');
        }
        text
    };
    counts.iter().enumerate().map(chunk).collect::<Vec<_>>().join("|")
}
