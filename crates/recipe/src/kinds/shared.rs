//! `S`: a transformer block whose weights several layers share (Zamba, arXiv 2405.16712; Zamba2, arXiv 2411.15242). It reads
//! the residual stream beside the token embeddings, attends, and feeds forward without a residual of its own. What it gives is
//! added to nothing but the input of the block behind it, through a projection of the layer's own; low-rank factors, the layer's
//! own too, may stand beside the shared projections. Its weights stand once, before the first layer; its activations at every use.

use super::{Activation, Bias, Emitter, Norm};
use crate::limits;
use crate::pattern::Family;
use crate::tensor::{Dim, Place, Role, Surface};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The shared blocks of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Shared {
    /// How many there are; layers run them in turn.
    pub blocks: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads, shared by groups of query heads.
    pub kv_heads: u64,
    /// Width of a head. Scores are divided by the root of half of it.
    pub head_dim: u64,
    /// Inner width of the feed-forward part; of each of gate and up when gated.
    pub ffn: u64,
    /// Function between its projections.
    pub activation: Activation,
    /// Whether they add biases.
    pub bias: bool,
    /// Rank of the factors that a layer adds to the projection into the feed-forward part.
    pub rank: Option<u64>,
    /// Whether it adds such to queries, keys and values as well.
    pub adapts_attention: bool,
}

impl Shared {
    /// Reads `[shared]`.
    pub(crate) fn read(mut section: Section) -> Option<Shared> {
        let blocks = section.count_or("blocks", limits::DEPTH, 1);
        let heads = section.count("heads", limits::HEADS);
        let kv_heads = section.optional_count("kv_heads", limits::HEADS).or(heads);
        let head_dim = section.count("head_dim", limits::WIDTH);
        let ffn = section.count("ffn", limits::WIDTH);
        let activation = section.choice("activation", Activation::ALL, Activation::SwiGlu);
        let bias = section.flag_or("bias", false);
        let rank = section.optional_count("rank", limits::WIDTH);
        let adapts_attention = section.flag_or("adapts_attention", false);
        let refuse = |rule, key: &'static str, message: String| {
            let finding = Finding::error(rule, Blame::Recipe, format!("shared.{key}"), message);
            section.report(key, finding.hint("give another number, or leave the key out"));
        };
        if let (Some(heads), Some(kv_heads)) = (heads, kv_heads) {
            if !heads.is_multiple_of(kv_heads) {
                refuse(
                    "shared/heads",
                    "kv_heads",
                    format!("{heads} query heads do not share {kv_heads} KV heads evenly"),
                );
            }
            if adapts_attention && heads != kv_heads {
                let message = format!("factors are as wide as {heads} query heads, and keys have {kv_heads}");
                refuse("shared/factors", "adapts_attention", message);
            }
        }
        if let (Some(heads), Some(head_dim)) = (heads, head_dim)
            && heads.checked_mul(head_dim).is_none_or(|inner| inner > limits::WIDTH)
        {
            let message = format!("{heads} heads of {head_dim} are wider than {}", limits::WIDTH);
            refuse("recipe/limit", "heads", message);
        }
        if adapts_attention && rank.is_none() {
            refuse(
                "shared/factors",
                "adapts_attention",
                "factors of queries, keys and values need a `rank`".to_string(),
            );
        }
        section.finish();
        let (heads, kv_heads, head_dim, ffn) = (heads?, kv_heads?, head_dim?, ffn?);
        Some(Shared { blocks: blocks?, heads, kv_heads, head_dim, ffn, activation, bias, rank, adapts_attention })
    }

    /// Writes `[shared]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("shared");
        toml.int_unless("blocks", self.blocks, 1);
        toml.int("heads", self.heads);
        toml.int_unless("kv_heads", self.kv_heads, self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int("ffn", self.ffn);
        toml.word_unless("activation", self.activation.name(), Activation::SwiGlu.name());
        toml.flag_unless("bias", self.bias, false);
        toml.some_int("rank", self.rank);
        toml.flag_unless("adapts_attention", self.adapts_attention, false);
    }

    /// The block that the layer with so many uses before it runs.
    pub fn block_of(&self, uses_before: u64) -> u64 {
        uses_before % self.blocks
    }

    /// Width of queries, and of what attention gives.
    pub fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of keys, and of values.
    pub fn kv(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Rows of the projection into the feed-forward part.
    pub fn fc1(&self) -> u64 {
        self.activation.in_dim(self.ffn).len()
    }

    /// Projections that a layer adds factors to: their names, rows and columns.
    pub fn adapted(&self, hidden: u64) -> Vec<(&'static str, u64, u64)> {
        let all = [
            ("q", self.inner(), 2 * hidden),
            ("k", self.inner(), 2 * hidden),
            ("v", self.inner(), 2 * hidden),
            ("fc1", self.fc1(), hidden),
        ];
        let first = if self.adapts_attention { 0 } else { 3 };
        all[first..].iter().copied().filter(|_| self.rank.is_some()).collect()
    }

    /// What several layers share: every block, before the first layer.
    pub(crate) fn shared_tensors(&self, hidden: u64, norm: Norm, out: &mut Emitter) {
        for block in 0..self.blocks {
            out.stand(Place::Embedding, Family::A, format!("shared.{block}"));
            out.norm("norm", Surface::Norm, norm, 2 * hidden);
            matrix("q", self.inner(), 2 * hidden, Bias::No, out);
            matrix("k", self.kv(), 2 * hidden, Bias::No, out);
            matrix("v", self.kv(), 2 * hidden, Bias::No, out);
            matrix("out", hidden, self.inner(), Bias::No, out);
            out.norm("mlp_norm", Surface::Norm, norm, hidden);
            matrix("fc1", self.fc1(), hidden, self.bias.into(), out);
            matrix("fc2", hidden, self.ffn, self.bias.into(), out);
        }
    }

    /// What a layer that runs one has of its own.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        for (name, rows, columns) in self.adapted(hidden) {
            let rank = self.rank.unwrap_or_default();
            matrix(&format!("{name}_down"), rank, columns, Bias::No, out);
            matrix(&format!("{name}_up"), rows, rank, Bias::No, out);
        }
        matrix("join", hidden, hidden, Bias::No, out);
    }
}

fn matrix(name: &str, rows: u64, columns: u64, bias: Bias, out: &mut Emitter) {
    out.linear(name, Surface::SharedBlock, Role::Matrix, Dim::whole(rows), Dim::whole(columns), bias);
}

#[cfg(test)]
mod tests {
    use crate::Recipe;

    const TINY: &str = include_str!("../../../../data/engines/parity/tiny-shared.toml");

    fn refused(from: &str, to: &str) -> Vec<(&'static str, String)> {
        assert!(TINY.contains(from), "{from}");
        let findings = Recipe::parse(&TINY.replace(from, to)).unwrap_err();
        findings.into_iter().map(|finding| (finding.rule, finding.message)).collect()
    }

    #[test]
    fn blocks_stand_once_and_factors_at_every_use() {
        let recipe = Recipe::parse(TINY).unwrap();
        let tensors = recipe.tensors();
        let count = |end: &str| tensors.iter().filter(|t| t.path.ends_with(end)).count();
        assert_eq!((count("q.weight"), count("q_down.weight"), count("join.weight")), (2, 3, 3));
        let uses = (0..3).map(|uses| recipe.shared.as_ref().unwrap().block_of(uses)).collect::<Vec<_>>();
        assert_eq!(uses, [0, 1, 0]);
        assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap(), recipe);
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        assert_eq!(refused("blocks = 2", "blocks = 4")[0].1, "4 shared blocks stand beside 3 layers that run one");
        for pattern in ["M(SM)M(SM)S", "M(SM)M(SSM)(SM)", "M(MS)(SM)(SM)"] {
            let found = refused("M(SM)M(SM)(SM)", pattern);
            assert!(found[0].1.contains("has no block behind its shared one"), "{pattern}: {found:?}");
        }
        assert_eq!(refused("heads = 4\nhead_dim", "heads = 4\nkv_heads = 2\nhead_dim")[0].0, "shared/factors");
        assert_eq!(refused("rank = 4\n", "")[0].0, "shared/factors");
        assert_eq!(refused("tied = true", "tied = true\nnorm_place = \"after\"")[0].0, "shared/placement");
        assert_eq!(refused("head_dim = 16", "head_dim = 15")[0].0, "shared/placement");
    }
}
