//! The parallelism, as the layout flags of ours that say the same. What none of them says is
//! refused, so that the list may be taken at its word.

use super::depth::Depth;
use super::flags::Flags;
use crate::recipe::Recipe;

/// Our layout flags with their values.
pub type LayoutFlags = Vec<(&'static str, String)>;

/// Our layout flag for each of Megatron's that means the same.
const SAME: &[(&str, &str)] = &[
    ("--tensor-model-parallel-size", "tp"),
    ("--pipeline-model-parallel-size", "pp"),
    ("--context-parallel-size", "cp"),
    ("--expert-model-parallel-size", "ep"),
    ("--expert-tensor-parallel-size", "etp"),
    ("--micro-batch-size", "mbs"),
    ("--global-batch-size", "gbs"),
];

/// Modules whose recompute our flag can name; all that Megatron has.
const MODULES: &[&str] =
    &["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"];

/// Translates what the argument list says about ranks.
pub fn layout(flags: &mut Flags, recipe: &Recipe, depth: &Depth) -> LayoutFlags {
    let mut layout: LayoutFlags = flags.ranks.map(|ranks| ("world", ranks.to_string())).into_iter().collect();
    for (theirs, ours) in SAME {
        if let Some(degree) = flags.number(theirs) {
            layout.push((*ours, degree.to_string()));
        }
    }
    let tp = flags.number("--tensor-model-parallel-size").unwrap_or(1);
    if tp > 1 && !flags.has("--sequence-parallel") {
        layout.push(("no-sp", String::new()));
    }
    layout.push(("zero", zero(flags).to_string()));
    layout.extend(vocab_multiple(flags, recipe, tp));
    layout.extend(cuts(flags, recipe.depth() as u64, depth));
    layout.extend(recompute(flags));
    layout
}

/// How much of the state replicas share out.
fn zero(flags: &mut Flags) -> u8 {
    let muon = flags.text("--optimizer").is_some_and(|o| o != "adam");
    let fsdp = ["--use-megatron-fsdp", "--use-torch-fsdp2"].into_iter().filter(|f| flags.has(f)).collect::<Vec<_>>();
    match fsdp[..] {
        [] => u8::from(flags.has("--use-distributed-optimizer") || flags.text("--optimizer") == Some("dist_muon")),
        [flag] if muon => {
            let quote = "Emerging optimizer does not support";
            flags.refuse_as(flag, format!("`{flag}` does not step Muon"), quote);
            0
        }
        ["--use-megatron-fsdp"] => match flags.text("--data-parallel-sharding-strategy") {
            Some("no_shard") => 0,
            Some("optim") => 1,
            Some("optim_grads") => 2,
            _ => 3,
        },
        [flag] => {
            let splits = |degree: &str, flags: &mut Flags| flags.number(degree).is_some_and(|d| d > 1);
            let pipelined = splits("--pipeline-model-parallel-size", flags);
            let dealt = splits("--expert-model-parallel-size", flags);
            if pipelined || dealt || flags.has("--use-distributed-optimizer") {
                let quote = "--use-torch-fsdp2 is not supported with";
                flags.refuse_as(flag, "it excludes pp, ep and the distributed optimizer", quote);
            }
            3
        }
        _ => {
            flags.refuse("--use-torch-fsdp2", "`--use-torch-fsdp2` and `--use-megatron-fsdp` exclude each other");
            3
        }
    }
}

/// Megatron pads a vocabulary to 128 times tp unless told otherwise; a padded one stays as it is.
fn vocab_multiple(flags: &mut Flags, recipe: &Recipe, tp: u64) -> Option<(&'static str, String)> {
    if flags.has("--padded-vocab-size") {
        if !recipe.vocab.is_multiple_of(tp) {
            let message = format!("a padded vocabulary of {} does not divide over tp {tp}", recipe.vocab);
            flags.refuse("--padded-vocab-size", message);
        }
        return None;
    }
    let multiple = flags.number("--make-vocab-size-divisible-by").unwrap_or(128);
    Some(("vocab-multiple", multiple.to_string()))
}

/// Virtual stages and boundaries; boundaries only where chunks differ in layers.
fn cuts(flags: &mut Flags, depth: u64, described: &Depth) -> LayoutFlags {
    let pp = flags.number("--pipeline-model-parallel-size").unwrap_or(1);
    let segments = described.pattern().map_or(1, |p| p.segments.len());
    let chunks = match described.pattern() {
        Some(_) if refuse_beside_pattern(flags, segments) => None,
        Some(pattern) if segments > 1 => {
            let is_fair = (segments as u64).is_multiple_of(pp) && pp > 1;
            if !is_fair {
                let message = format!("{segments} pipeline segments are not dealt out to pp {pp}");
                let quote = "must be evenly divisible by --pipeline-model-parallel-size.";
                flags.refuse_as("--pipeline-model-parallel-size", message, quote);
            }
            is_fair.then(|| pattern.segments.iter().map(|s| s.len() as u64).collect())
        }
        _ => stages(flags, depth, pp).and_then(|stages| virtual_chunks(flags, &stages)),
    };
    let Some(chunks): Option<Vec<u64>> = chunks else { return Vec::new() };
    let mut layout = Vec::new();
    let vpp = chunks.len() as u64 / pp;
    if vpp > 1 {
        layout.push(("vpp", vpp.to_string()));
    }
    if segments > 1 || chunks.iter().any(|layers| *layers != chunks[0]) {
        let mut start = 0;
        let starts = chunks[..chunks.len() - 1].iter().map(|layers| {
            start += layers;
            start.to_string()
        });
        layout.push(("boundaries", starts.collect::<Vec<_>>().join(",")));
    }
    layout
}

/// Whether flags stand beside a hybrid pattern that Megatron refuses there.
fn refuse_beside_pattern(flags: &mut Flags, segments: usize) -> bool {
    let never = [
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
        "--account-for-embedding-in-pipeline-split",
        "--account-for-loss-in-pipeline-split",
    ];
    let without_cuts = ["--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"];
    let refused = never.iter().chain(without_cuts.iter().filter(|_| segments > 1)).filter(|f| flags.has(f));
    let refused: Vec<&str> = refused.copied().collect();
    for flag in &refused {
        let quote = "Pipeline stage layout is defined by | separators in the pattern.";
        flags.refuse_as(flag, "a hybrid pattern says itself where stages begin", quote);
    }
    !refused.is_empty()
}

/// Layers of each stage, embedding and loss counted as layers where flags say so.
fn stages(flags: &mut Flags, depth: u64, pp: u64) -> Option<Vec<u64>> {
    let embedding = u64::from(flags.has("--account-for-embedding-in-pipeline-split"));
    let loss = u64::from(flags.has("--account-for-loss-in-pipeline-split"));
    let first = flags.number("--decoder-first-pipeline-num-layers");
    let last = flags.number("--decoder-last-pipeline-num-layers");
    let flag = match (first, last) {
        (None, None) => "--pipeline-model-parallel-size",
        (Some(_), _) => "--decoder-first-pipeline-num-layers",
        (None, Some(_)) => "--decoder-last-pipeline-num-layers",
    };
    if (first.is_some() || last.is_some()) && embedding + loss > 0 {
        let quote = "Does not support standalone embedding stage and standalone loss stage with uneven pp";
        flags.refuse_as(flag, "embedding and loss count as layers only where stages are even", quote);
        return None;
    }
    let named = first.unwrap_or(0) + last.unwrap_or(0);
    let middle = (depth + embedding + loss).checked_sub(named);
    let middle_stages = pp.checked_sub(u64::from(first.is_some()) + u64::from(last.is_some()));
    let each = match (middle, middle_stages) {
        (Some(0), Some(0)) => Some(0),
        (Some(layers), Some(stages)) if layers > 0 && stages > 0 && layers % stages == 0 => Some(layers / stages),
        _ => None,
    };
    let Some(each) = each else {
        let message = format!("{depth} layers are not dealt out evenly to pp {pp} beside what first and last take");
        flags.refuse_as(flag, message, "must be divisible by");
        return None;
    };
    let middle = std::iter::repeat_n(each, middle_stages.unwrap_or(0) as usize);
    Some(first.into_iter().chain(middle).chain(last).collect())
}

/// Layers of each chunk in the order of depth: a stage's layers are shared out over its virtual
/// stages, and the depth runs through all stages once for each of them.
fn virtual_chunks(flags: &mut Flags, stages: &[u64]) -> Option<Vec<u64>> {
    let (count, size) = ("--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage");
    let is_even = stages.iter().all(|layers| *layers == stages[0]);
    let vpp = match (flags.number(count), flags.number(size)) {
        (Some(_), Some(_)) => {
            let quote = "No more than one of the following arguments can be set at the same time";
            flags.refuse_as(size, format!("`{count}` and `{size}` exclude each other"), quote);
            return None;
        }
        (Some(vpp), None) => vpp,
        (None, Some(layers)) if is_even && stages[0].is_multiple_of(layers) => stages[0] / layers,
        (None, Some(layers)) => {
            let quote =
                "number of layers per pipeline stage must be divisible number of layers per virtual pipeline stage";
            flags.refuse_as(size, format!("stages of {stages:?} layers are not cut into chunks of {layers}"), quote);
            return None;
        }
        (None, None) => 1,
    };
    if vpp > 1 && stages.len() == 1 {
        let quote = "When interleaved schedule is used, pipeline-model-parallel size should be greater than 1";
        flags.refuse_as(count, "one stage has no virtual stages", quote);
        return None;
    }
    if let Some(layers) = stages.iter().find(|layers| !layers.is_multiple_of(vpp)) {
        flags.refuse_as(
            count,
            format!("a stage of {layers} layers has no {vpp} equal chunks"),
            "should be divisible by vp_size",
        );
        return None;
    }
    let mut chunks: Vec<u64> = stages.iter().map(|layers| layers / vpp).collect::<Vec<_>>().repeat(vpp as usize);
    let end = chunks.len() - 1;
    chunks[0] -= u64::from(flags.has("--account-for-embedding-in-pipeline-split"));
    chunks[end] -= u64::from(flags.has("--account-for-loss-in-pipeline-split"));
    if chunks.contains(&0) {
        flags.refuse("--pipeline-model-parallel-size", "a chunk without layers has no layout flag");
        return None;
    }
    Some(chunks)
}

/// The recompute policy.
fn recompute(flags: &mut Flags) -> Option<(&'static str, String)> {
    let experts = flags.has("--moe-layer-recompute");
    let selective = flags.has("--recompute-activations") || experts;
    let granularity = if selective { Some("selective") } else { flags.text("--recompute-granularity") };
    match granularity? {
        "full" => {
            let by_layer = flags.text("--recompute-method") != Some("block")
                && flags.number("--recompute-num-layers").is_none_or(|n| n == 1);
            if !by_layer {
                let message = "full recompute that is not layer by layer (`uniform`, one layer) has no layout flag";
                flags.refuse("--recompute-method", message);
            }
            Some(("recompute", "full".to_string()))
        }
        _ => {
            let mut modules = flags.list("--recompute-modules").to_vec();
            if modules.is_empty() {
                modules.push("core_attn".to_string());
            }
            if experts && !modules.iter().any(|m| m == "moe") {
                modules.push("moe".to_string());
            }
            if modules.iter().any(|m| !MODULES.contains(&m.as_str())) {
                flags.refuse("--recompute-modules", format!("modules are {}", MODULES.join(", ")));
            }
            Some(("recompute", format!("selective:{}", modules.join("+"))))
        }
    }
}
