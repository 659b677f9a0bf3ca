//! What an engine can do besides for a flag or a library. Whether it helps is for a price of the layout to say.

use crate::conditions::exchanges::is_rack;
use crate::conditions::sparse_kernels_decline;
use crate::options::{CrossEntropy, Dispatch, EpOverlap, Format, GraphsBy, Options};
use hardware::Cluster;
use layout::{Engine, Layout, Recompute};
use recipe::{Mixer, Recipe};

/// Of a step, less than this is not worth a flag.
pub const WORTH: f64 = 0.01;

/// One thing to turn on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// In words.
    pub what: &'static str,
    /// For `--engine-args`.
    pub args: String,
    /// What has to be installed for it besides the engine.
    pub needs: Option<&'static str>,
    /// Whether it asks nothing of the degrees.
    pub of_any_layout: bool,
}

/// What is off in a job and could be on, in the order in which to try it. Its engine may refuse one beside another.
pub fn offers(recipe: &Recipe, layout: &Layout, options: &Options, on: Option<&Cluster>) -> Vec<Offer> {
    if layout.engine != Some(Engine::Megatron) {
        return Vec::new();
    }
    let has = |mixer| recipe.uses(mixer);
    let travels = has(Mixer::Moe) && layout.ep.splits();
    let kernels = &options.kernels;
    let loss = kernels.cross_entropy == CrossEntropy::Eager;
    let flex = travels && kernels.dispatch == Dispatch::AllToAll;
    let is_rack = on.is_some_and(is_rack);
    let fused = has(Mixer::Moe) && options.format == Format::Mxfp8 && !kernels.expert_fusion;
    let sparse = recipe.features.dsa().is_some() && !kernels.sparse_fusion;
    let overlap = travels && options.overlap.ep == EpOverlap::None;
    // What is computed again, or differs from sample to sample, is not recorded.
    let graphs =
        kernels.graphs.by == GraphsBy::None && layout.recompute == Recompute::None && options.documents.is_none();
    let modules: Vec<&str> = [
        (has(Mixer::Attention), "attn"),
        (has(Mixer::Mamba), "mamba"),
        // Recorded feed-forward blocks rule out the overlap of exchanges beside them.
        (has(Mixer::Mlp) && !has(Mixer::Moe), "mlp"),
        (has(Mixer::Moe), "moe_router moe_preprocess"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect();
    let all = [
        (loss, "the loss in one kernel", "--cross-entropy-loss-fusion".to_string(), None, true),
        (
            sparse && sparse_kernels_decline(recipe, layout).is_none(),
            "sparse attention in fused kernels",
            "--dsa-kernel-backend tilelang".to_string(),
            Some("tilelang"),
            false,
        ),
        (
            flex && !is_rack,
            "tokens by DeepEP",
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep".to_string(),
            Some("DeepEP"),
            false,
        ),
        (
            flex && is_rack,
            "tokens by HybridEP",
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep".to_string(),
            Some("HybridEP"),
            false,
        ),
        (
            fused,
            "experts in fused kernels",
            "--use-transformer-engine-op-fuser".to_string(),
            Some("Transformer Engine 2.16 and cuDNN's front end"),
            false,
        ),
        (
            overlap,
            "exchanges under another microbatch",
            "--overlap-moe-expert-parallel-comm --delay-wgrad-compute".to_string(),
            None,
            false,
        ),
        (
            graphs && !modules.is_empty(),
            "graphs",
            format!("--cuda-graph-impl transformer_engine --cuda-graph-modules {}", modules.join(" ")),
            None,
            true,
        ),
    ];
    let open = all.into_iter().filter(|(is_open, ..)| *is_open);
    open.map(|(_, what, args, needs, of_any_layout)| Offer { what, args, needs, of_any_layout }).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Asked, Case, Terms};
    use hardware::Cluster;
    use recipe::import::megatron_args::shell_words;

    /// What is offered for a job on 16 H200.
    fn offered(words: &str) -> Vec<(&'static str, String)> {
        offered_on(words, "2x8xH200")
    }

    fn offered_on(words: &str, on: &str) -> Vec<(&'static str, String)> {
        let asked = Asked::parse(&shell_words(&format!("{words} --on {on}"))).unwrap();
        let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        let case = Case::new(asked, recipe, Some(Cluster::parse(on).unwrap()), Terms::RUN).unwrap();
        let offers = super::offers(&case.recipe, &case.layout, &case.options, case.cluster.as_ref()).into_iter();
        offers.map(|offer| (offer.what, offer.args)).collect()
    }

    fn names_of(offers: Vec<(&'static str, String)>) -> Vec<&'static str> {
        offers.into_iter().map(|(what, _)| what).collect()
    }

    fn names(words: &str) -> Vec<&'static str> {
        names_of(offered(words))
    }

    /// Trays of a rack reach one another by HybridEP, and experts are fused in mxfp8.
    #[test]
    fn racks_are_offered_what_is_made_for_them() {
        let on = |words: &str| names_of(offered_on(words, "16xGB200"));
        let (loss, overlap, graphs) = ("the loss in one kernel", "exchanges under another microbatch", "graphs");
        let (hybridep, fused) = ("tokens by HybridEP", "experts in fused kernels");
        assert_eq!(on("qwen3-30b-a3b --ep 8"), [loss, hybridep, overlap, graphs]);
        assert_eq!(on("qwen3-30b-a3b --ep 8 --precision mxfp8"), [loss, hybridep, fused, overlap, graphs]);
        assert_eq!(on("llama3-8b --precision mxfp8"), [loss, graphs]);
        for (what, args) in offered_on("qwen3-30b-a3b --ep 8 --precision mxfp8", "16xGB200") {
            assert!(!on(&format!("qwen3-30b-a3b --ep 8 --precision mxfp8 --engine-args '{args}'")).contains(&what));
        }
    }

    #[test]
    fn what_is_on_or_impossible_is_not_offered() {
        let (loss, graphs) = ("the loss in one kernel", "graphs");
        let (deepep, overlap) = ("tokens by DeepEP", "exchanges under another microbatch");
        assert_eq!(names("llama3-8b"), [loss, graphs]);
        assert_eq!(names("llama3-8b --recompute full"), [loss]);
        assert_eq!(
            names("llama3-8b --engine-args '--cross-entropy-loss-fusion --cuda-graph-impl transformer_engine'"),
            [""; 0]
        );
        assert_eq!(names("qwen3-30b-a3b --ep 8"), [loss, deepep, overlap, graphs]);
        assert_eq!(
            names("qwen3-30b-a3b --ep 8 --engine-args '--moe-token-dispatcher-type flex'"),
            [loss, overlap, graphs]
        );
        assert_eq!(names("qwen3-30b-a3b --ep 1"), [loss, graphs]);
        assert_eq!(names("llama3-8b --engine fsdp2"), [""; 0]);
    }

    /// NAM56R's heads are none that TileLang's kernels take (`conditions/sparse.rs`); with DeepSeek's latents they are.
    #[test]
    fn fused_sparse_attention_is_offered_where_its_kernels_run() {
        let words = "nam56r --mode nemo_native --tp 1 --ep 4 --with mla,dsa --on 2x8xH200";
        let offered = |change: &dyn Fn(&mut recipe::Recipe)| {
            let asked = Asked::parse(&shell_words(words)).unwrap();
            let mut recipe = recipe::builtin::find("nam56r").unwrap();
            change(&mut recipe);
            let case = Case::new(asked, recipe, Some(Cluster::parse("2x8xH200").unwrap()), Terms::RUN).unwrap();
            let offers = super::offers(&case.recipe, &case.layout, &case.options, case.cluster.as_ref());
            offers.into_iter().find(|offer| offer.needs == Some("tilelang"))
        };
        assert_eq!(offered(&|_| {}), None);
        let found = offered(&|recipe| {
            recipe.attention.as_mut().unwrap().heads = 64;
            let latent = &mut recipe.features.mla.as_mut().unwrap().value;
            (latent.kv_rank, latent.rope_dim) = (512, 64);
        });
        assert_eq!(found.unwrap().args, "--dsa-kernel-backend tilelang");
    }

    #[test]
    fn graphs_are_of_the_blocks_that_are_there() {
        let modules = |words: &str| offered(words).pop().unwrap().1.split_once("modules ").unwrap().1.to_string();
        assert_eq!(modules("llama3-8b"), "attn mlp");
        assert_eq!(modules("nemotron-h-8b"), "attn mamba mlp");
        assert_eq!(modules("nemotron-3-nano-30b-a3b --ep 8"), "attn mamba moe_router moe_preprocess");
    }

    /// Every offer is words that the engine's vocabulary reads, and asked for it is on.
    #[test]
    fn offers_can_be_taken() {
        for words in ["llama3-8b", "nemotron-h-8b", "qwen3-30b-a3b --ep 8", "deepseek-v3 --ep 16"] {
            for (what, args) in offered(words) {
                let taken = format!("{words} --engine-args '{args}'");
                assert!(!names(&taken).contains(&what), "{taken}");
            }
        }
    }
}
