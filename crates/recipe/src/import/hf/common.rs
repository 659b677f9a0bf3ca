//! What every config says alike: sizes, norms, positions, the sequence to train on.

use super::config::Config;
use super::rope::{Usual, rope};
use crate::features::Features;
use crate::kinds::Norm;
use crate::pattern::{Layer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::recipe::Recipe;
use crate::rope::{Positions, Rope, Scaling, Yarn};

impl Config<'_> {
    /// A recipe with the fields every config has; the caller fills in its kinds.
    pub fn recipe(&mut self, layers: Vec<Layer>, hidden: u64, vocab: u64, theta: f64) -> Option<Recipe> {
        let vocab = self.count("vocab_size", vocab)?;
        let rope = rope(self, Usual { theta, fraction: self.usual_fraction(), scaling: self.usual_scaling() });
        let (sequence, rule) = self.sequence(&rope)?;
        if layers.is_empty() {
            self.refuse("num_hidden_layers", "the model has no layers");
            return None;
        }
        Some(Recipe {
            name: self.model_type.as_str().into(),
            source: format!("Hugging Face config.json, model type {}; sequence: {rule}", self.model_type).into(),
            pattern: Pattern::describe(&layers),
            layers,
            hidden,
            vocab,
            tied: self.flag("tie_word_embeddings", self.described.is_some_and(|model| model.tied)),
            sequence,
            norm: Norm::RmsNorm,
            norm_place: crate::kinds::NormPlace::Before,
            embedding_norm: false,
            head_bias: false,
            norm_eps: self.norm_eps(),
            init_std: self.init_std(),
            dropout: self.share("hidden_dropout", 0.0),
            positions: Positions::Rope(rope),
            multipliers: Default::default(),
            modes: Vec::new(),
            attention: None,
            moe: None,
            mamba: None,
            recurrent: None,
            gated_delta: None,
            linear: None,
            mlp: None,
            shared: None,
            features: Features::default(),
            precision: Precision::default(),
            optimizer: OptimizerPolicy::default(),
            not_carried: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// The sequence to train on, and the rule that gave it: `max_position_embeddings` is how far a model
    /// reaches, not what it is trained on.
    fn sequence(&mut self, rope: &Rope) -> Option<(u64, String)> {
        let other = self.model_type == "bailing_hybrid" && self.has("model_max_length");
        let key = if other { "model_max_length" } else { "max_position_embeddings" };
        let longest = self.count(key, DEFAULT_SEQUENCE)?;
        let named = self.has(key);
        Some(match (self.asked_sequence, rope.scaling.and_then(|s| s.original())) {
            (Some(asked), _) => (asked, "as asked".to_string()),
            (None, Some(original)) => (original, "original length of the rotary scaling".to_string()),
            (None, None) if !named => (longest, "the config names none".to_string()),
            (None, None) if longest > MOST_SEQUENCE => {
                (MOST_SEQUENCE, format!("{MOST_SEQUENCE} of max_position_embeddings {longest}"))
            }
            (None, None) => (longest, "max_position_embeddings".to_string()),
        })
    }

    /// Share of a head that turns where the config does not say it: `configuration_*.py`.
    fn usual_fraction(&self) -> f64 {
        if let Some(model) = self.described {
            return model.fraction;
        }
        match self.model_type.as_str() {
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => 0.25,
            "glm4_moe" | "bamba" | "recurrent_gemma" => 0.5,
            _ => 1.0,
        }
    }

    /// Scaling of a config that has none: `GptOssConfig.__post_init__`.
    fn usual_scaling(&self) -> Option<Scaling> {
        (self.model_type == "gpt_oss").then_some(Scaling::Yarn(Yarn { rounds: false, ..Yarn::usual(32.0, 4096) }))
    }

    /// What norms add under the root; the class default where the config does not say it.
    fn norm_eps(&mut self) -> f64 {
        let names = ["rms_norm_eps", "layer_norm_epsilon", "norm_eps", "layer_norm_eps", "norm_epsilon"];
        let key = match self.model_type.as_str() {
            "lfm2" | "lfm2_moe" | "xlstm" | "rwkv7" => "norm_eps",
            "mamba" | "falcon_mamba" | "mamba2" | "nemotron_h" => "layer_norm_epsilon",
            _ => "rms_norm_eps",
        };
        let key = if self.has(key) { key } else { names.into_iter().find(|name| self.has(name)).unwrap_or(key) };
        let usual = match self.model_type.as_str() {
            _ if self.described.is_some() => self.described.map_or(1e-6, |model| model.eps),
            "lfm2" | "lfm2_moe" | "rwkv7" | "minimax" | "mamba" | "falcon_mamba" | "zamba" | "zamba2" | "mixtral"
            | "olmoe" | "gpt_oss" | "glm4_moe" | "kimi_linear" | "nemotron_h" | "bamba" | "falcon_h1" | "mamba2" => {
                1e-5
            }
            _ => 1e-6,
        };
        let eps = self.positive(key).unwrap_or(usual);
        names.into_iter().filter(|name| *name != key).for_each(|name| self.agrees(name, &eps.into()));
        eps
    }

    fn init_std(&mut self) -> Option<f64> {
        let usual = if self.model_type == "mamba2" { 0.1 } else { 0.02 };
        Some(self.share("initializer_range", usual)).filter(|std| *std > 0.0)
    }

    /// Drops the rotation of a model that has none, and the keys that describe it.
    pub fn has_no_positions(&mut self, recipe: &mut Recipe) {
        recipe.positions = Positions::None;
        let keys = ["rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_interleave"];
        self.unused(&keys, "the model has no rotary positions");
    }
}

/// Longest sequence that a recipe gets without being asked: what most published models are trained on for most
/// of their tokens; longer contexts come in later stages.
const MOST_SEQUENCE: u64 = 8192;

/// Sequence of a config that names no length.
const DEFAULT_SEQUENCE: u64 = 4096;
