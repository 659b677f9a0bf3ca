//! Conditions of latent heads: what fused kernels of sparse attention take, and where a rotation is one kernel
//! (Megatron-Core 0.19.2).

use super::refuse;
use crate::options::Options;
use diag::Finding;
use layout::{Engine, Layout};
use recipe::kinds::attention::AttentionKind;
use recipe::{Mixer, Mode, Recipe, Scaling, Seam};

/// What TileLang's kernels of sparse attention take; Megatron runs eager ones where they do not, and says so in a debug
/// log alone. In author_dp kernels of one's own stand where they decline ([`seam`]).
pub(super) fn fusion(recipe: &Recipe, layout: &Layout, options: &Options) -> Option<Finding> {
    if !options.kernels.sparse_fusion {
        return None;
    }
    let refused = |message: &str, hint: &'static str| {
        Some(refuse("megatron/dsa-kernels", "--dsa-kernel-backend", message).hint(hint))
    };
    if recipe.features.dsa().is_none() {
        return refused("no layer has an indexer", "leave --dsa-kernel-backend out, or say --with dsa");
    }
    let declined = kernels_decline(recipe, layout).filter(|_| layout.mode != Some(Mode::AuthorDp))?;
    refused(&declined, "leave --dsa-kernel-backend out, or another --tp")
}

/// Columns of queries and keys, and of values, that TileLang's sparse attention is written for
/// (`ops/tilelang_dsa.py` `fused_sparse_mla_absorbed`).
const SPARSE_COLUMNS: (u64, u64) = (576, 512);

/// Why TileLang's kernels leave a recipe's sparse layers to eager ones (`ops/tilelang_dsa.py`,
/// `ops/tilelang_indexer_bwd.py`); nothing where they run.
pub(crate) fn kernels_decline(recipe: &Recipe, layout: &Layout) -> Option<String> {
    let (dsa, attention) = (recipe.features.dsa()?, recipe.attention()?);
    let AttentionKind::Mla(latent) = &attention.kind else { return Some("heads are not latent".to_string()) };
    let heads = attention.heads / layout.tp.get();
    // Fewer are padded to 16.
    if !heads.max(16).is_power_of_two() {
        return Some(format!("{heads} attention heads a rank are no power of two from 16 on: eager kernels would run"));
    }
    let columns = (latent.kv_rank + latent.rope_dim, latent.kv_rank);
    if columns != SPARSE_COLUMNS {
        return Some(format!(
            "latents are {} columns wide with {} that turn, and kernels are written for {} with {}: eager ones would run",
            latent.kv_rank,
            latent.rope_dim,
            SPARSE_COLUMNS.1,
            SPARSE_COLUMNS.0 - SPARSE_COLUMNS.1
        ));
    }
    (dsa.heads > 64 || !dsa.heads.is_multiple_of(8) || !dsa.top_k.is_multiple_of(256)).then(|| {
        format!(
            "{} index heads that choose {} tokens: kernels take a multiple of 8 up to 64, and of 256 tokens",
            dsa.heads, dsa.top_k
        )
    })
}

/// What runs sparse attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseKernels {
    /// Single operations of torch over every pair, by head.
    Eager,
    /// TileLang's, which Megatron-Core calls (`--dsa-kernel-backend tilelang`).
    Tilelang,
    /// Those that `launch` writes (`shardwright_megatron/sparse_kernels.py`).
    Ours,
}

/// What runs a layout's sparse layers.
pub fn kernels(recipe: &Recipe, layout: &Layout, options: &Options) -> SparseKernels {
    let is_fused = options.kernels.sparse_fusion;
    let is_ours = is_custom(layout) && ours_take(recipe, layout, options);
    match is_fused && kernels_decline(recipe, layout).is_none() {
        false if is_ours => SparseKernels::Ours,
        // Declined and not ours: kernels that somebody brings, which are priced as TileLang's.
        _ if is_fused => SparseKernels::Tilelang,
        _ => SparseKernels::Eager,
    }
}

/// Whether Megatron runs with blocks of one's own.
fn is_custom(layout: &Layout) -> bool {
    matches!(layout.engine, None | Some(Engine::Megatron)) && layout.mode == Some(Mode::AuthorDp)
}

/// Columns of a latent and of what turns beside it. Compiled for an H200 and an A100, a program of our backward fits their
/// shared memory at these widths without spilling registers; at 256 columns of a latent it needs more than an A100 has.
const COLUMNS: (u64, u64) = (128, 64);

/// Whether our kernels run a recipe's sparse layers. They keep no documents apart, and read no ring.
fn ours_take(recipe: &Recipe, layout: &Layout, options: &Options) -> bool {
    let Some(attention) = recipe.attention() else { return false };
    let AttentionKind::Mla(latent) = &attention.kind else { return false };
    let fits = latent.kv_rank <= COLUMNS.0 && latent.rope_dim <= COLUMNS.1;
    fits && recipe.features.dsa().is_some() && options.documents.is_none() && !layout.cp.splits()
}

/// Sparse attention in kernels that Megatron-Core does not have, where a mode keeps custom blocks.
pub(crate) fn seam(recipe: &Recipe, layout: &Layout, options: &Options) -> Option<Seam> {
    let is_ours = kernels(recipe, layout, options) == SparseKernels::Ours;
    let declined = kernels_decline(recipe, layout).filter(|_| options.kernels.sparse_fusion);
    let wanted = match declined {
        _ if !is_custom(layout) => return None,
        Some(why) => format!("fused sparse attention, which Megatron-Core's kernels decline: {why}"),
        None if is_ours => {
            "sparse attention, which Megatron-Core runs by single operations over every pair".to_string()
        }
        None => return None,
    };
    let dsa = recipe.features.dsa()?;
    let layers = recipe.layers_with(Mixer::Attention).into_iter().zip(0u64..);
    Some(Seam {
        name: "sparse-kernels",
        layers: layers.filter(|(_, ordinal)| dsa.covers(*ordinal)).map(|(layer, _)| layer).collect(),
        wanted,
        runs: "custom kernels".to_string(),
        gives_up: false,
        filled_by: is_ours.then_some("shardwright_megatron/sparse.py"),
    })
}

/// Rotation in one kernel of latent heads (`transformer/transformer_config.py`).
pub(super) fn rope_fusion(recipe: &Recipe, options: &Options) -> Option<Finding> {
    if !options.kernels.rope_fusion || !recipe.is_latent() {
        return None;
    }
    let is_yarn = matches!(recipe.positions.rope().and_then(|rope| rope.scaling), Some(Scaling::Yarn(_)));
    let (message, quote) = match (recipe.features.dsa(), is_yarn) {
        (Some(_), _) => {
            ("sparse layers have no rotation in one kernel", "RoPE fusion is not supported for DSAttention")
        }
        (None, false) => (
            "latent heads are turned in one kernel under YaRN alone",
            "apply_rope_fusion for MLA only works with YARN RoPE.",
        ),
        (None, true) => return None,
    };
    Some(refuse("megatron/rope-fusion", "--rope-fusion", message).quote(quote).hint("--no-rope-fusion"))
}

#[cfg(test)]
mod tests {
    use super::{SparseKernels, kernels};
    use crate::{Asked, Case, Terms};
    use diag::Finding;
    use hardware::Cluster;
    use layout::Layout;
    use recipe::Recipe;
    use recipe::import::megatron_args::shell_words;
    use units::Degree;

    /// A recipe that is changed first, on 16 H200.
    fn case(words: &str, change: impl FnOnce(&mut Recipe)) -> Result<Case, Vec<Finding>> {
        let asked = Asked::parse(&shell_words(&format!("{words} --on 2x8xH200"))).unwrap();
        let mut recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        change(&mut recipe);
        Case::new(asked, recipe, Some(Cluster::parse("2x8xH200").unwrap()), Terms::RUN)
    }

    #[track_caller]
    fn refused(words: &str, change: impl FnOnce(&mut Recipe), rule: &str, says: &str) {
        let findings = case(words, change).unwrap_err();
        let found = findings.iter().find(|finding| finding.rule == rule).unwrap_or_else(|| panic!("{findings:?}"));
        let quote = found.quote.as_ref().map_or(String::new(), ToString::to_string);
        assert!(found.message.contains(says) || quote.contains(says), "{found:?}");
    }

    /// NAM56R's sparse layers with latents as DeepSeek-V3's.
    fn as_deepseek(recipe: &mut Recipe) {
        recipe.attention.as_mut().unwrap().heads = 64;
        let latent = &mut recipe.features.mla.as_mut().unwrap().value;
        (latent.kv_rank, latent.rope_dim) = (512, 64);
    }

    const SPARSE: &str = "nam56r --mode nemo_native --tp 1 --ep 4 --with mla,dsa --engine megatron";
    const FUSED: &str = "--engine-args '--dsa-kernel-backend tilelang'";

    #[test]
    fn fused_kernels_are_written_for_some_widths() {
        let rule = "megatron/dsa-kernels";
        let fused = format!("{SPARSE} {FUSED}");
        assert!(case(&fused, as_deepseek).is_ok());
        // Two heads a rank are padded to 16.
        assert!(case(&fused.replace("--tp 1", "--tp 8 --etp 1"), as_deepseek).is_ok());
        refused(&fused, |_| {}, rule, "56 attention heads a rank");
        refused(&fused, |recipe| recipe.attention.as_mut().unwrap().heads = 64, rule, "64 columns wide");
        let few = |recipe: &mut Recipe| {
            as_deepseek(recipe);
            recipe.features.dsa.as_mut().unwrap().value.top_k = 128;
        };
        refused(&fused, few, rule, "choose 128 tokens");
        refused(&format!("llama3-8b {FUSED}"), |_| {}, rule, "no layer has an indexer");
    }

    #[test]
    fn authors_have_our_kernels_where_those_decline() {
        let seam = |words: &str, change: fn(&mut Recipe)| {
            let case = case(words, change).unwrap();
            let kernels = kernels(&case.recipe, &case.layout, &case.options);
            let seam = case.seams.iter().find(|seam| seam.name == "sparse-kernels");
            (kernels, seam.map(|seam| seam.filled_by.is_some()))
        };
        let own = SPARSE.replace("nemo_native", "author_dp");
        let fused = format!("{own} {FUSED}");
        assert_eq!(seam(SPARSE, |_| {}), (SparseKernels::Eager, None));
        assert_eq!(seam(&own, |_| {}), (SparseKernels::Ours, Some(true)));
        assert_eq!(seam(&fused, |_| {}), (SparseKernels::Ours, Some(true)));
        assert_eq!(seam(&fused, as_deepseek), (SparseKernels::Tilelang, None));
        // Latents that are too wide for ours, and heads that are too many for theirs.
        let neither = |recipe: &mut Recipe| {
            as_deepseek(recipe);
            recipe.attention.as_mut().unwrap().heads = 56;
        };
        assert_eq!(seam(&fused, neither), (SparseKernels::Tilelang, Some(false)));
        assert_eq!(seam(&own, neither), (SparseKernels::Eager, None));
        // They read no ring.
        let case = case(&own, |_| {}).unwrap();
        let ring = Layout { cp: Degree::new(2).unwrap(), ..case.layout.clone() };
        assert_eq!(kernels(&case.recipe, &ring, &case.options), SparseKernels::Eager);
    }

    #[test]
    fn latent_heads_are_turned_in_one_kernel_under_yarn_alone() {
        let rule = "megatron/rope-fusion";
        let told = "--engine-args --rope-fusion";
        refused(
            &format!("deepseek-v3 --ep 16 {told}"),
            |_| {},
            rule,
            "apply_rope_fusion for MLA only works with YARN RoPE",
        );
        refused(&format!("{SPARSE} {told}"), |_| {}, rule, "RoPE fusion is not supported for DSAttention");
        assert!(case("deepseek-v3 --ep 16", |_| {}).is_ok());
        assert!(case(&format!("llama3-8b {told}"), |_| {}).is_ok());
    }
}
