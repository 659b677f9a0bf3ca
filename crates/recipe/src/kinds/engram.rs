//! Engram branches (arXiv 2601.07372): on named layers, before the first block, every token looks up rows by hashes of
//! the n-grams that end with it, and a gate decides by the residual stream how much of them is added.
//!
//! As deepseek-ai/Engram has them (`engram_demo_v1.py`) for one residual stream: for each length from two to `ngrams` a
//! token makes `heads` lookups into rows of their own, of `dim / heads` each; all are concatenated and projected onto
//! a key and a value. The gate is the sigmoid of the signed root of the normed key times the normed stream, and a causal
//! convolution with `ngrams` between its taps runs over the normed value beside it. Tokens that a tokenizer writes in several ways are not
//! made one first. Tables that stand beside the token embedding instead are `[features.ngram_hash]`.

use super::{Bias, Emitter, Norm};
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The branch of a layer, and which layers have one.
#[derive(Clone, Debug, PartialEq)]
pub struct Engram {
    /// Layers with a branch, counted from zero.
    pub layers: Vec<u64>,
    /// Rows of a layer's table, over all lookups.
    pub rows: u64,
    /// Width that all heads of one length look up together.
    pub dim: u64,
    /// Lookups for each length.
    pub heads: u64,
    /// The longest n-gram, in tokens.
    pub ngrams: u64,
    /// Taps of the convolution over the value.
    pub conv: u64,
}

impl Engram {
    /// Reads `[features.engram]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Engram> {
        let layers = section.naturals("layers", limits::DEPTH).unwrap_or_default();
        let rows = section.count("rows", limits::VOCAB);
        let dim = section.count("dim", limits::WIDTH);
        let heads = section.count_or("heads", limits::HEADS, 8);
        let ngrams = section.count_or("ngrams", limits::NGRAMS, 3);
        let conv = section.count_or("conv", limits::HEADS, 4);
        if layers.is_empty() {
            let message = "engram branches need `layers`, those that have one";
            let finding = Finding::error("recipe/missing-key", Blame::Recipe, "features.engram.layers", message);
            section.report("layers", finding.hint("such as layers = [1, 15]"));
        }
        let engram = || Some(Engram { layers, rows: rows?, dim: dim?, heads: heads?, ngrams: ngrams?, conv: conv? });
        let engram = engram();
        if let Some(message) = engram.as_ref().and_then(Engram::wrong) {
            let finding = Finding::error("engram/sizes", Blame::Recipe, "features.engram", message);
            section.report("dim", finding.hint("such as dim = 512, heads = 8, ngrams = 3, and rows for every lookup"));
        }
        section.finish();
        engram
    }

    fn wrong(&self) -> Option<String> {
        let Engram { rows, dim, heads, ngrams, .. } = self;
        if *ngrams < 2 {
            return Some(format!("n-grams of up to {ngrams} token are none: the shortest that is looked up has two"));
        }
        if dim % heads != 0 {
            return Some(format!("a width of {dim} is not shared out evenly over {heads} heads"));
        }
        (*rows < self.lookups())
            .then(|| format!("{rows} rows are fewer than the {} lookups of a token", self.lookups()))
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.ints("layers", &self.layers);
        toml.int("rows", self.rows);
        toml.int("dim", self.dim);
        toml.int_unless("heads", self.heads, 8);
        toml.int_unless("ngrams", self.ngrams, 3);
        toml.int_unless("conv", self.conv, 4);
    }

    /// Lookups of a token.
    pub fn lookups(&self) -> u64 {
        (self.ngrams - 1) * self.heads
    }

    /// Numbers a token that its lookups find.
    pub fn found(&self) -> u64 {
        (self.ngrams - 1) * self.dim
    }

    /// Tensors of one branch.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let surface = Surface::Engram;
        let table = vec![Dim::whole(self.rows), Dim::whole(self.dim / self.heads)];
        out.add("engram.table.weight", surface, Role::Embedding, table);
        for name in ["engram.key", "engram.value"] {
            out.linear(name, surface, Role::Matrix, Dim::whole(hidden), Dim::whole(self.found()), Bias::Yes);
        }
        for name in ["engram.key_norm", "engram.stream_norm", "engram.value_norm"] {
            out.norm(name, surface, Norm::RmsNorm, hidden);
        }
        let taps = vec![Dim::whole(hidden), Dim::whole(1), Dim::whole(self.conv)];
        out.add("engram.conv.weight", surface, Role::Conv, taps);
    }
}

#[cfg(test)]
mod tests {
    use crate::features::Feature;
    use crate::{Recipe, builtin};

    fn with(table: &str) -> Result<Recipe, Vec<diag::Finding>> {
        Recipe::parse(&format!("{}\n[features.engram]\n{table}", builtin::find("llama3-8b").unwrap().to_toml()))
    }

    /// `Engram` of the demo at one stream: an embedding, two projections with biases, three norms, a convolution.
    #[test]
    fn parameters_are_those_of_the_demo() {
        let plain = builtin::find("llama3-8b").unwrap();
        let branched = with("layers = [1, 15]\nrows = 10_342_400\ndim = 512\n").unwrap();
        let branch = 10_342_400 * 64 + 2 * (4096 * 1024 + 4096) + 3 * 4096 + 4 * 4096;
        assert_eq!(branched.counts().all.total - plain.counts().all.total, 2 * branch);
        assert_eq!(Recipe::parse(&branched.to_toml()).unwrap(), branched);
        let off = branched.with_features(&[], &[Feature::Engram]).unwrap();
        assert_eq!((off.tensors(), off.layers), (plain.tensors(), plain.layers));
    }

    #[test]
    fn sizes_and_places_are_held_to_the_model() {
        for (table, rule) in [
            ("layers = [1]\nrows = 8\ndim = 512\n", "engram/sizes"),
            ("layers = [1]\nrows = 800\ndim = 510\n", "engram/sizes"),
            ("layers = [1]\nrows = 800\ndim = 512\nngrams = 1\n", "engram/sizes"),
            ("layers = [40]\nrows = 800\ndim = 512\n", "features/placement"),
            ("rows = 800\ndim = 512\n", "recipe/missing-key"),
            ("layers = [1]\nrows = 800\ndim = 512\n[features.mhc]\nstreams = 2\n", "features/placement"),
            (
                "layers = [1]\nrows = 800\ndim = 512\n[features.mod]\nlayers = [1]\ncapacity = 0.5\n",
                "features/placement",
            ),
        ] {
            let findings = with(table).unwrap_err();
            assert!(findings.iter().any(|finding| finding.rule == rule), "{table}: {findings:?}");
        }
    }
}
