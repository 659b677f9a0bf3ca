//! Hyper-connections: several residual streams instead of one, mixed by learned weights around every block
//! (arXiv 2409.19606), the mixing kept doubly stochastic (mHC, arXiv 2512.24880).
//!
//! As DeepSeek-V4's class has them (transformers 5.22, `models/deepseek_v4`): token embeddings are copied into
//! every stream. Before a block one projection of all streams gives three sets of weights a token: `pre` collapses
//! the streams into the block's input, `post` adds its output to each, and a matrix mixes the streams, its rows
//! and columns brought to one by Sinkhorn's iterations. Behind the last layer weights of the same kind collapse
//! them before the final norm. They stand around every block: what layers without them do with several streams, no
//! source says.

use super::Emitter;
use crate::limits;
use crate::tensor::{Dim, Role, Surface};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// Streams, and how their mixing is brought onto the manifold.
#[derive(Clone, Debug, PartialEq)]
pub struct Mhc {
    /// Residual streams.
    pub streams: u64,
    /// Times that rows and columns are divided by their sums.
    pub sinkhorn: u64,
}

/// DeepSeek-V4's figure (`hc_sinkhorn_iters`), and the paper's.
const SINKHORN: u64 = 20;

impl Mhc {
    /// Reads `[features.mhc]` but for its switch, which the caller reads.
    pub(crate) fn read(mut section: Section) -> Option<Mhc> {
        let streams = section.count("streams", limits::STREAMS);
        let sinkhorn = section.count_or("sinkhorn", limits::SINKHORN, SINKHORN);
        if streams == Some(1) {
            let message = "one residual stream is the usual one, and has nothing to mix";
            let finding = Finding::error("mhc/streams", Blame::Recipe, "features.mhc.streams", message);
            section.report("streams", finding.hint("give two or more, or leave `[features.mhc]` out"));
        }
        section.finish();
        Some(Mhc { streams: streams?, sinkhorn: sinkhorn? })
    }

    /// Writes its keys into the open table.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("streams", self.streams);
        toml.int_unless("sinkhorn", self.sinkhorn, SINKHORN);
    }

    /// Weights that a token's streams are given around a block: to collapse, to expand, and to mix them.
    pub fn weights(&self) -> u64 {
        self.streams * (self.streams + 2)
    }

    /// Tensors around one block.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        self.projection(self.weights(), 3, hidden, out);
    }

    /// Tensors of the collapse behind the last layer.
    pub(crate) fn collapse(&self, hidden: u64, out: &mut Emitter) {
        self.projection(self.streams, 1, hidden, out);
    }

    fn projection(&self, rows: u64, scales: u64, hidden: u64, out: &mut Emitter) {
        let surface = Surface::HyperConnection;
        let matrix = vec![Dim::whole(rows), Dim::whole(self.streams * hidden)];
        out.add("mhc.weight", surface, Role::Matrix, matrix);
        out.add("mhc.bias", surface, Role::Bias, vec![Dim::whole(rows)]);
        out.add("mhc.scale", surface, Role::Norm, vec![Dim::whole(scales)]);
    }
}

#[cfg(test)]
mod tests {
    use crate::features::Feature;
    use crate::{Recipe, builtin};

    fn with(table: &str) -> Result<Recipe, Vec<diag::Finding>> {
        Recipe::parse(&format!("{}\n[features.mhc]\n{table}", builtin::find("llama3-8b").unwrap().to_toml()))
    }

    /// `fn`, `base` and `scale` of `DeepseekV4HyperConnection` and `DeepseekV4HyperHead` at 4 streams of 4096.
    #[test]
    fn parameters_are_those_of_the_class() {
        let plain = builtin::find("llama3-8b").unwrap();
        let streams = with("streams = 4\n").unwrap();
        let around = 24 * 4 * 4096 + 24 + 3;
        let head = 4 * 4 * 4096 + 4 + 1;
        assert_eq!(streams.counts().all.total - plain.counts().all.total, 2 * 32 * around + head);
        assert_eq!(Recipe::parse(&streams.to_toml()).unwrap(), streams);
        assert_eq!((streams.residual_width(), plain.residual_width()), (4 * 4096, 4096));
        let off = streams.with_features(&[], &[Feature::Mhc]).unwrap();
        assert_eq!(off.tensors(), plain.tensors());
    }

    #[test]
    fn one_stream_is_none() {
        assert_eq!(with("streams = 1\n").unwrap_err()[0].rule, "mhc/streams");
        assert!(with("streams = 4\nsinkhorn = 0\n").is_err());
    }

    /// What a prediction depth reads of several streams is nowhere said.
    #[test]
    fn no_prediction_depth_reads_streams() {
        let text = "streams = 2\n[features.mtp]\nenabled = false\ndepth = 1\npattern = \"(AF)\"\n";
        let recipe = with(text).unwrap();
        let finding = recipe.with_features(&[Feature::Mtp], &[]).unwrap_err();
        assert_eq!(finding.rule, "features/placement");
        assert!(with(&text.replace("enabled = false\n", "")).is_err());
    }
}
