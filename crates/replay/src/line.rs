//! The lines of an estimate, and where in the model a tensor stands.

use recipe::Mixer;
use std::fmt;

/// A line of an estimate: what bytes are for. Lines are separate because each scales with
/// something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// Weights that every tensor-parallel rank holds whole: norms, routers, latents.
    ReplicatedParams,
    /// Weights cut over tensor-parallel ranks.
    TpParams,
    /// Routed experts.
    ExpertParams,
    /// Gradients of weights: buffers, and the bf16 gradient on its way there.
    Gradients,
    /// State of the optimizer that steps matrices (Muon).
    MatrixOptimizer,
    /// State of every other optimizer: main weights and moments.
    OtherOptimizer,
    /// What forward computes and backward needs.
    Activations,
    /// Gradients of activations, and backward's temporaries.
    ActivationGradients,
    /// Activations of features: prediction heads, sparse indexers, side embeddings.
    FeatureActivations,
    /// What routed experts read and keep for backward, in the format they keep it.
    ExpertInputs,
    /// Scores, maps, and dispatch and combine buffers of expert layers.
    RoutingScratch,
    /// Logits and what the loss makes of them.
    Loss,
    /// What libraries keep: matrix-product workspaces, rotary tables, fp8 copies of weights.
    Workspaces,
    /// Tensors gathered over or received from other ranks.
    Communication,
}

impl Line {
    /// Every line, in the order reports list them.
    pub const ALL: [Line; 14] = [
        Line::ReplicatedParams,
        Line::TpParams,
        Line::ExpertParams,
        Line::Gradients,
        Line::MatrixOptimizer,
        Line::OtherOptimizer,
        Line::Activations,
        Line::ActivationGradients,
        Line::FeatureActivations,
        Line::ExpertInputs,
        Line::RoutingScratch,
        Line::Loss,
        Line::Workspaces,
        Line::Communication,
    ];

    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Line::ReplicatedParams => "replicated-params",
            Line::TpParams => "tp-params",
            Line::ExpertParams => "expert-params",
            Line::Gradients => "gradients",
            Line::MatrixOptimizer => "matrix-optimizer",
            Line::OtherOptimizer => "other-optimizer",
            Line::Activations => "activations",
            Line::ActivationGradients => "activation-gradients",
            Line::FeatureActivations => "feature-activations",
            Line::ExpertInputs => "expert-inputs",
            Line::RoutingScratch => "routing-scratch",
            Line::Loss => "loss",
            Line::Workspaces => "workspaces",
            Line::Communication => "communication",
        }
    }

    /// Whether a step must leave nothing on it, but for what an engine retains by name.
    pub fn is_of_a_step(self) -> bool {
        matches!(
            self,
            Line::Activations
                | Line::ActivationGradients
                | Line::FeatureActivations
                | Line::ExpertInputs
                | Line::RoutingScratch
                | Line::Loss
                | Line::Communication
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes by line; they sum to what the allocator has handed out.
pub type ByLine = [u64; Line::ALL.len()];

/// Where something stands: the part of the model, or of the step, that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Building the model, its buffers and its optimizer.
    Setup,
    /// Token table and what stands with it.
    Embedding,
    /// A block of a layer.
    Layer {
        /// The layer, from zero, over the whole model.
        index: u32,
        /// The block's mixer.
        mixer: Mixer,
    },
    /// Final norm, output head and loss.
    Head,
    /// A prediction depth: its join, its stack, its logits and loss.
    Prediction {
        /// The depth, from zero.
        depth: u32,
    },
    /// The sparse indexer of an attention block.
    Indexer {
        /// The layer, from zero, over the whole model.
        layer: u32,
    },
    /// A table beside the token table.
    SideEmbedding,
    /// Between stages.
    Pipeline,
    /// The optimizer's step.
    Optimizer,
}

impl Origin {
    /// The line something is booked on here: what a feature computes for backward is the
    /// feature's, whoever's code makes it.
    pub fn line_of(self, line: Line) -> Line {
        let is_feature = matches!(self, Origin::Prediction { .. } | Origin::Indexer { .. } | Origin::SideEmbedding);
        match line {
            Line::Activations | Line::Loss if is_feature => Line::FeatureActivations,
            _ => line,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Setup => f.pad("setup"),
            Origin::Embedding => f.pad("embedding"),
            Origin::Layer { index, mixer } => f.pad(&format!("layers.{index}.{}", mixer.table())),
            Origin::Head => f.pad("head"),
            Origin::Prediction { depth } => f.pad(&format!("mtp.{depth}")),
            Origin::Indexer { layer } => f.pad(&format!("layers.{layer}.indexer")),
            Origin::SideEmbedding => f.pad("side embedding"),
            Origin::Pipeline => f.pad("pipeline"),
            Origin::Optimizer => f.pad("optimizer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_index_their_own_table() {
        for (index, line) in Line::ALL.into_iter().enumerate() {
            assert_eq!(line as usize, index, "{line}");
        }
    }
}
