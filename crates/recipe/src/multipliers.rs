//! Constants that some models multiply activations with: Granite's four, Falcon-H1's by branch. One
//! is the same as none.

use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// Fixed factors of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// On token embeddings.
    pub embedding: f64,
    /// On what a block adds to the residual stream.
    pub residual: f64,
    /// Score scale of attention, in the place of `1 / sqrt(head width)`.
    pub attention: Option<f64>,
    /// On the logits. Granite's configs say its inverse, `logits_scaling`.
    pub logits: f64,
    /// On keys before rotation.
    pub key: f64,
    /// On the input of attention.
    pub attention_in: f64,
    /// On the output of attention.
    pub attention_out: f64,
    /// On the input of the Mamba mixer.
    pub ssm_in: f64,
    /// On the output of the Mamba mixer.
    pub ssm_out: f64,
    /// On the five parts of what the Mamba mixer projects in: z, x, B, C, dt.
    pub ssm: [f64; 5],
    /// On the gate of an MLP before its activation, and on its output.
    pub mlp: [f64; 2],
}

impl Default for Multipliers {
    /// None of them.
    fn default() -> Multipliers {
        Multipliers {
            embedding: 1.0,
            residual: 1.0,
            attention: None,
            logits: 1.0,
            key: 1.0,
            attention_in: 1.0,
            attention_out: 1.0,
            ssm_in: 1.0,
            ssm_out: 1.0,
            ssm: [1.0; 5],
            mlp: [1.0; 2],
        }
    }
}

impl Multipliers {
    /// The keys that are set, by name.
    pub fn set(&self) -> Vec<&'static str> {
        let usual = Multipliers::default();
        let all = [
            ("embedding", self.embedding != usual.embedding),
            ("residual", self.residual != usual.residual),
            ("attention", self.attention != usual.attention),
            ("logits", self.logits != usual.logits),
            ("key", self.key != usual.key),
            ("attention_in", self.attention_in != usual.attention_in),
            ("attention_out", self.attention_out != usual.attention_out),
            ("ssm_in", self.ssm_in != usual.ssm_in),
            ("ssm_out", self.ssm_out != usual.ssm_out),
            ("ssm", self.ssm != usual.ssm),
            ("mlp", self.mlp != usual.mlp),
        ];
        all.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
    }

    /// Reads `[multipliers]`.
    pub(crate) fn read(section: Option<Section>) -> Multipliers {
        let usual = Multipliers::default();
        let Some(mut section) = section else { return usual };
        let attention = section.positive("attention");
        let (ssm, mlp) = (list(&mut section, "ssm"), list(&mut section, "mlp"));
        let mut one = |key| section.positive(key).unwrap_or(1.0);
        let multipliers = Multipliers {
            embedding: one("embedding"),
            residual: one("residual"),
            attention,
            logits: one("logits"),
            key: one("key"),
            attention_in: one("attention_in"),
            attention_out: one("attention_out"),
            ssm_in: one("ssm_in"),
            ssm_out: one("ssm_out"),
            ssm,
            mlp,
        };
        section.finish();
        multipliers
    }

    /// Writes `[multipliers]`, if there are any.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.optional_table("multipliers");
        toml.float_unless("embedding", self.embedding, 1.0);
        toml.float_unless("residual", self.residual, 1.0);
        toml.some_float("attention", self.attention);
        toml.float_unless("logits", self.logits, 1.0);
        toml.float_unless("key", self.key, 1.0);
        toml.float_unless("attention_in", self.attention_in, 1.0);
        toml.float_unless("attention_out", self.attention_out, 1.0);
        toml.float_unless("ssm_in", self.ssm_in, 1.0);
        toml.float_unless("ssm_out", self.ssm_out, 1.0);
        toml.floats_unless_ones("ssm", &self.ssm);
        toml.floats_unless_ones("mlp", &self.mlp);
    }
}

/// A list of exactly `N` positive numbers; ones when it is left out.
fn list<const N: usize>(section: &mut Section, key: &'static str) -> [f64; N] {
    let Some(numbers) = section.positives(key) else { return [1.0; N] };
    let found = numbers.len();
    numbers.try_into().unwrap_or_else(|_| {
        let message = format!("`multipliers.{key}` has {found} numbers, and there are {N} parts");
        section.report(key, Finding::error("recipe/limit", Blame::Recipe, format!("multipliers.{key}"), message));
        [1.0; N]
    })
}
