//! Options of an engine that change time or memory and nothing that is trained: those that a search tries, and those
//! that it leaves off, with the reason. Whether one helps is for a price of the layout to say.

use crate::conditions::exchanges::is_rack;
use crate::conditions::{is_transformer, sparse_kernels_decline};
use crate::options::{CrossEntropy, Dispatch, Elementwise, EpOverlap, Format, GraphsBy, Options};
use crate::words;
use hardware::Cluster;
use layout::{Engine, Layout, Recompute};
use recipe::import::megatron_args::shell_words;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Mode, Recipe};

/// Of a step, less than this is not worth a flag.
pub const WORTH: f64 = 0.01;

/// One thing to turn on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// In words.
    pub what: &'static str,
    /// The words for `--engine-args`.
    pub args: String,
    /// The package it needs beside the engine; a search leaves such an option off.
    pub needs: Option<&'static str>,
    /// Whether it adds no complexity: it wants nothing of the layout and needs no package.
    pub is_plain: bool,
    /// What a layout must have for it.
    wants: Wants,
}

/// What a layout must have for an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Nothing,
    /// Experts on several ranks.
    Exchanges,
    /// Nothing computed again: that is not recorded.
    NoRecompute,
    /// Sizes that fused sparse attention takes.
    SparseKernels,
}

impl Offer {
    /// Whether a layout has what it wants. The engine may still refuse it.
    fn suits(&self, recipe: &Recipe, layout: &Layout) -> bool {
        match self.wants {
            Wants::Nothing => true,
            Wants::Exchanges => layout.ep.splits(),
            Wants::NoRecompute => layout.recompute == Recompute::None,
            Wants::SparseKernels => sparse_kernels_decline(recipe, layout).is_none(),
        }
    }
}

/// What is off in a job and could be on, in the order in which to try it. Its engine may refuse one beside another.
pub fn offers(recipe: &Recipe, layout: &Layout, options: &Options, on: Option<&Cluster>) -> Vec<Offer> {
    let all = all(layout.engine, recipe, options, on);
    all.into_iter().filter(|offer| offer.suits(recipe, layout)).collect()
}

/// Several options that are turned on together.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The words for `--engine-args`.
    pub args: String,
    /// What the engine then runs.
    pub options: Options,
    /// How many of them are not plain.
    pub complexity: u32,
    /// Whether it asks that nothing is computed again.
    pub no_recompute: bool,
}

/// The sets of options that a search tries beside a job's own: plain ones together, and the others on top of them one by
/// one and all at once.
pub fn bundles(engine: Option<Engine>, recipe: &Recipe, options: &Options, on: Option<&Cluster>) -> Vec<Bundle> {
    let all = all(engine, recipe, options, on).into_iter().filter(|offer| offer.needs.is_none());
    let (plain, more): (Vec<Offer>, Vec<Offer>) = all.partition(|offer| offer.is_plain);
    let sets = (0..1usize << more.len()).map(|set| more.iter().enumerate().filter(move |(i, _)| set >> i & 1 == 1));
    let bundles = sets.filter_map(|set| {
        let offers: Vec<&Offer> = plain.iter().chain(set.map(|(_, offer)| offer)).collect();
        let args: Vec<&str> = offers.iter().map(|offer| offer.args.as_str()).collect();
        let (args, mut own) = (args.join(" "), *options);
        words::read(engine, &shell_words(&args), &mut own).ok()?;
        Some(Bundle {
            options: own,
            complexity: offers.iter().filter(|offer| !offer.is_plain).count() as u32,
            no_recompute: offers.iter().any(|offer| offer.wants == Wants::NoRecompute),
            args,
        })
    });
    bundles.filter(|bundle| !bundle.args.is_empty()).collect()
}

fn all(engine: Option<Engine>, recipe: &Recipe, options: &Options, on: Option<&Cluster>) -> Vec<Offer> {
    match engine {
        Some(Engine::Megatron) => of_megatron(recipe, options, on),
        Some(Engine::Torchtitan) => of_torchtitan(recipe, options),
        _ => Vec::new(),
    }
}

fn of_torchtitan(recipe: &Recipe, options: &Options) -> Vec<Offer> {
    // No ledger says what a compiler keeps of experts.
    if options.kernels.elementwise == Elementwise::Compiled || recipe.uses(Mixer::Moe) {
        return Vec::new();
    }
    let args = "compile.enable=true".to_string();
    vec![Offer { what: "blocks compiled", args, needs: None, is_plain: true, wants: Wants::Nothing }]
}

fn of_megatron(recipe: &Recipe, options: &Options, on: Option<&Cluster>) -> Vec<Offer> {
    let has = |mixer| recipe.uses(mixer);
    let has_experts = has(Mixer::Moe);
    let kernels = &options.kernels;
    let flex = has_experts && kernels.dispatch == Dispatch::AllToAll;
    let is_rack = on.is_some_and(is_rack);
    let fused = has_experts && options.format == Format::Mxfp8 && !kernels.expert_fusion;
    let sparse = recipe.features.dsa().is_some() && !kernels.sparse_fusion;
    let overlap = has_experts && options.overlap.ep == EpOverlap::None && recipe.layers.iter().all(is_transformer);
    // A graph needs the same shapes in every step, and graphs of our own mixers were never run.
    // Sparse attention may run in kernels of ours too.
    let sparse_of_ours = recipe.features.dsa().is_some() && recipe.modes.contains(&Mode::AuthorDp);
    let brought = has(Mixer::Recurrent) || matches!(recipe.mamba, Some(Mamba::Three(_))) || sparse_of_ours;
    let graphs = kernels.graphs.by == GraphsBy::None && options.documents.is_none() && !brought;
    let modules: Vec<&str> = [
        (has(Mixer::Attention), "attn"),
        (has(Mixer::Mamba), "mamba"),
        // Recorded feed-forward blocks rule out the overlap of exchanges beside them.
        (has(Mixer::Mlp) && !has_experts, "mlp"),
        (has_experts, "moe_router moe_preprocess"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect();
    let offer = |what, args: &str, needs: Option<&'static str>, wants| {
        let is_plain = wants == Wants::Nothing && needs.is_none();
        Offer { what, args: args.to_string(), needs, is_plain, wants }
    };
    let flex_of = |backend| format!("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend}");
    let graphs_of = format!("--cuda-graph-impl transformer_engine --cuda-graph-modules {}", modules.join(" "));
    let all = [
        (
            kernels.cross_entropy == CrossEntropy::Eager,
            offer("the loss in one kernel", "--cross-entropy-loss-fusion", None, Wants::Nothing),
        ),
        (
            sparse,
            offer(
                "sparse attention in fused kernels",
                "--dsa-kernel-backend tilelang",
                Some("tilelang"),
                Wants::SparseKernels,
            ),
        ),
        (flex && !is_rack, offer("tokens by DeepEP", &flex_of("deepep"), Some("DeepEP"), Wants::Exchanges)),
        (flex && is_rack, offer("tokens by HybridEP", &flex_of("hybridep"), Some("HybridEP"), Wants::Exchanges)),
        (
            fused,
            offer(
                "experts in fused kernels",
                "--use-transformer-engine-op-fuser",
                Some("Transformer Engine 2.16 and cuDNN's front end"),
                Wants::Nothing,
            ),
        ),
        (
            overlap,
            offer(
                "exchanges under another microbatch",
                "--overlap-moe-expert-parallel-comm --delay-wgrad-compute",
                None,
                Wants::Exchanges,
            ),
        ),
        (graphs && !modules.is_empty(), offer("graphs", &graphs_of, None, Wants::NoRecompute)),
    ];
    all.into_iter().filter_map(|(is_open, offer)| is_open.then_some(offer)).collect()
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
