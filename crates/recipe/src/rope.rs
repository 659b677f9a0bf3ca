//! How position enters, and how rotary frequencies are stretched for longer sequences.

use crate::limits;
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;
use units::named;

/// How position enters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Rotation of queries and keys.
    Rope(Rope),
    /// A learned table.
    Learned {
        /// Rows of the table.
        count: u64,
    },
    /// Not at all: the mixers carry order themselves.
    None,
}

/// Rotation of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the rotation frequencies.
    pub theta: f64,
    /// Share of a head's columns that turn (`partial_rotary_factor`); the first ones. Latent attention
    /// turns the whole of its own rotary slice.
    pub fraction: f64,
    /// How frequencies are changed for sequences longer than those the model was first trained on.
    pub scaling: Option<Scaling>,
}

impl Rope {
    /// The factor on rotated columns.
    pub fn amplitude(&self) -> f64 {
        if let Some(Scaling::Yarn(yarn)) = self.scaling { yarn.amplitude() } else { 1.0 }
    }

    /// The whole head turns, at unscaled frequencies.
    pub fn plain(theta: f64) -> Rope {
        Rope { theta, fraction: 1.0, scaling: None }
    }

    /// Columns of a head of `head_dim` that turn, as transformers rounds them.
    pub fn width(&self, head_dim: u64) -> u64 {
        (head_dim as f64 * self.fraction) as u64
    }
}

named! {
    /// The kinds of scaling, by name.
    pub enum ScalingKind {
        /// Positions divided.
        Linear = "linear",
        /// Low frequencies divided, high ones kept, a blend between.
        Llama3 = "llama3",
        /// The same by rotations over the first length, with a factor on the rotated columns.
        Yarn = "yarn",
    }
}

/// A scaling of rotary frequencies with its own figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Every frequency over `factor`.
    Linear {
        /// By what frequencies are divided.
        factor: f64,
    },
    /// Llama 3.1's: `transformers/modeling_rope_utils.py`, `_compute_llama3_parameters`.
    Llama3 {
        /// By what low frequencies are divided.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Sequence the model was first trained on.
        original: u64,
    },
    /// YaRN, arXiv 2309.00071; `_compute_yarn_parameters`.
    Yarn(Yarn),
}

/// The figures of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// By what low frequencies are divided.
    pub factor: f64,
    /// Sequence the model was first trained on.
    pub original: u64,
    /// Rotations over `original` above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations below which it is divided.
    pub beta_slow: f64,
    /// Weight of `ln(factor)` in the factor on rotated columns, over that of `mscale_all_dim`.
    pub mscale: Option<f64>,
    /// The same on all columns: latent attention squares it into its score scale (DeepSeek).
    pub mscale_all_dim: Option<f64>,
    /// Factor on rotated columns, where it is given outright.
    pub attention_factor: Option<f64>,
    /// Whether the blend's borders are rounded to whole columns.
    pub rounds: bool,
}

impl Yarn {
    /// The usual figures, as transformers defaults them.
    pub fn usual(factor: f64, original: u64) -> Yarn {
        Yarn {
            factor,
            original,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            attention_factor: None,
            rounds: true,
        }
    }

    /// What rotated columns of queries and of keys are multiplied with.
    pub fn amplitude(&self) -> f64 {
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(factor), ..) => factor,
            (None, Some(mscale), Some(all)) => magnitude(self.factor, mscale) / magnitude(self.factor, all),
            _ => magnitude(self.factor, 1.0),
        }
    }

    /// What latent attention multiplies its scores with besides `1 / sqrt(width)`.
    pub fn latent_score(&self) -> f64 {
        self.mscale_all_dim.map_or(1.0, |all| magnitude(self.factor, all).powi(2))
    }
}

/// `0.1 · weight · ln(factor) + 1`, or one for a factor that stretches nothing.
fn magnitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}

impl Scaling {
    /// Its kind.
    pub fn kind(&self) -> ScalingKind {
        match self {
            Scaling::Linear { .. } => ScalingKind::Linear,
            Scaling::Llama3 { .. } => ScalingKind::Llama3,
            Scaling::Yarn(_) => ScalingKind::Yarn,
        }
    }

    /// Sequence the model was first trained on, where the kind says it.
    pub fn original(&self) -> Option<u64> {
        match self {
            Scaling::Linear { .. } => None,
            Scaling::Llama3 { original, .. } => Some(*original),
            Scaling::Yarn(yarn) => Some(yarn.original),
        }
    }

    /// The frequencies of a rotation over `width` columns, from the unscaled ones.
    pub fn rates(&self, theta: f64, width: usize) -> Vec<f64> {
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / width as f64);
        (0..width / 2).map(|i| self.rate(plain(i), i, theta, width as f64)).collect()
    }

    fn rate(&self, rate: f64, column: usize, theta: f64, width: f64) -> f64 {
        match self {
            Scaling::Linear { factor } => rate / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let turns = *original as f64 * rate / std::f64::consts::TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                rate * keep + rate / factor * (1.0 - keep)
            }
            Scaling::Yarn(yarn) => {
                let border = |turns: f64| {
                    width * (yarn.original as f64 / (turns * std::f64::consts::TAU)).ln() / (2.0 * theta.ln())
                };
                let (first, last) = (border(yarn.beta_fast), border(yarn.beta_slow));
                let (first, last) = if yarn.rounds { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(width - 1.0));
                let span = if first == last { 0.001 } else { last - first };
                let divide = ((column as f64 - first) / span).clamp(0.0, 1.0);
                rate / yarn.factor * divide + rate * (1.0 - divide)
            }
        }
    }

    fn read(mut section: Section) -> Option<Scaling> {
        let kind = match section.required_text("kind") {
            Some(_) => section.choice("kind", ScalingKind::ALL, ScalingKind::Linear),
            None => {
                section.finish();
                return None;
            }
        };
        let factor = section.required_positive("factor");
        let scaling = match kind {
            ScalingKind::Linear => factor.map(|factor| Scaling::Linear { factor }),
            ScalingKind::Llama3 => {
                let (low, high) = (section.required_positive("low"), section.required_positive("high"));
                let original = section.count("original", limits::SEQUENCE);
                if let (Some(low), Some(high)) = (low, high)
                    && low >= high
                {
                    let message = format!("`low` {low} is not below `high` {high}: nothing lies between them");
                    section.report("low", Finding::error("rope/scaling", Blame::Recipe, "rope.scaling.low", message));
                }
                (|| Some(Scaling::Llama3 { factor: factor?, low: low?, high: high?, original: original? }))()
            }
            ScalingKind::Yarn => {
                let original = section.count("original", limits::SEQUENCE);
                let (beta_fast, beta_slow) = (section.positive("beta_fast"), section.positive("beta_slow"));
                let (mscale, mscale_all_dim) = (section.not_negative("mscale"), section.not_negative("mscale_all_dim"));
                let attention_factor = section.positive("attention_factor");
                let rounds = section.flag_or("rounds", true);
                (|| {
                    let usual = Yarn::usual(factor?, original?);
                    Some(Scaling::Yarn(Yarn {
                        beta_fast: beta_fast.unwrap_or(usual.beta_fast),
                        beta_slow: beta_slow.unwrap_or(usual.beta_slow),
                        mscale,
                        mscale_all_dim,
                        attention_factor,
                        rounds,
                        ..usual
                    }))
                })()
            }
        };
        section.finish();
        scaling
    }

    fn write(&self, toml: &mut Toml) {
        toml.table("rope.scaling");
        toml.text("kind", self.kind().name());
        match self {
            Scaling::Linear { factor } => toml.float("factor", *factor),
            Scaling::Llama3 { factor, low, high, original } => {
                toml.float("factor", *factor);
                toml.float("low", *low);
                toml.float("high", *high);
                toml.int("original", *original);
            }
            Scaling::Yarn(yarn) => {
                let usual = Yarn::usual(yarn.factor, yarn.original);
                toml.float("factor", yarn.factor);
                toml.int("original", yarn.original);
                toml.float_unless("beta_fast", yarn.beta_fast, usual.beta_fast);
                toml.float_unless("beta_slow", yarn.beta_slow, usual.beta_slow);
                toml.some_float("mscale", yarn.mscale);
                toml.some_float("mscale_all_dim", yarn.mscale_all_dim);
                toml.some_float("attention_factor", yarn.attention_factor);
                toml.flag_unless("rounds", yarn.rounds, true);
            }
        }
    }
}

impl Positions {
    /// Reads `positions`, `rope_theta`, `learned_positions` and `[rope]`.
    pub(crate) fn read(root: &mut Section) -> Option<Positions> {
        let kind = root.choice("positions", &[("rope", 0), ("learned", 1), ("none", 2)], 0);
        let theta = root.positive("rope_theta");
        let count = root.optional_count("learned_positions", limits::SEQUENCE);
        let given = [
            ("rope_theta", theta.is_some(), 0),
            ("rope", root.has("rope"), 0),
            ("learned_positions", count.is_some(), 1),
        ];
        for (key, is_given, wanted) in given {
            if is_given && kind != wanted {
                let message = format!("`{key}` has no use with these `positions`");
                root.report(key, Finding::error("recipe/unused-key", Blame::Recipe, key, message).hint("take it out"));
            }
        }
        let plain = Rope::plain(theta.unwrap_or(10_000.0));
        let rope = root.section("rope").map_or(Some(plain), |section| read_rope(section, plain));
        match kind {
            0 => rope.map(Positions::Rope),
            2 => Some(Positions::None),
            _ => {
                if count.is_none() {
                    let message = "learned positions need `learned_positions`, the rows of their table";
                    root.report(
                        "positions",
                        Finding::error("recipe/missing-key", Blame::Recipe, "learned_positions", message),
                    );
                }
                Some(Positions::Learned { count: count? })
            }
        }
    }

    /// The rotation, if positions are rotary.
    pub fn rope(&self) -> Option<&Rope> {
        match self {
            Positions::Rope(rope) => Some(rope),
            _ => None,
        }
    }

    /// Writes the keys that stand in the root.
    pub(crate) fn write(&self, toml: &mut Toml) {
        match self {
            Positions::Rope(rope) => toml.float("rope_theta", rope.theta),
            Positions::Learned { count } => {
                toml.text("positions", "learned");
                toml.int("learned_positions", *count);
            }
            Positions::None => toml.text("positions", "none"),
        }
    }

    /// Writes `[rope]`, where it says more than `rope_theta`.
    pub(crate) fn write_table(&self, toml: &mut Toml) {
        let Positions::Rope(rope) = self else { return };
        toml.optional_table("rope");
        toml.float_unless("fraction", rope.fraction, 1.0);
        if let Some(scaling) = &rope.scaling {
            scaling.write(toml);
        }
    }
}

fn read_rope(mut section: Section, plain: Rope) -> Option<Rope> {
    let fraction = section.positive("fraction").unwrap_or(1.0);
    if fraction > 1.0 {
        let message = format!("`fraction` is {fraction}, and no more than the whole head turns");
        let finding = Finding::error("rope/fraction", Blame::Recipe, "rope.fraction", message);
        section.report("fraction", finding.hint("it is above 0 and at most 1"));
    }
    let asked = section.has("scaling");
    let scaling = section.section("scaling").and_then(Scaling::read);
    section.finish();
    (!asked || scaling.is_some()).then_some(Rope { fraction, scaling, ..plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LlamaConfig` of Llama-3.1-8B through transformers' `_compute_llama3_parameters`: the fast half keeps its
    /// frequencies, the slow end is divided by 8.
    #[test]
    fn llama3_keeps_fast_and_divides_slow_frequencies() {
        let scaling = Scaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192 };
        let rates = scaling.rates(500_000.0, 128);
        let plain = |i: usize| 500_000f64.powf(-2.0 * i as f64 / 128.0);
        assert_eq!(rates[0], 1.0);
        assert_eq!(rates[20], plain(20));
        assert!((rates[63] - plain(63) / 8.0).abs() < 1e-18);
        assert!(rates[31] < plain(31) && rates[31] > plain(31) / 8.0);
    }

    #[test]
    fn yarns_factors_are_deepseeks() {
        let both = Yarn { mscale: Some(1.0), mscale_all_dim: Some(1.0), ..Yarn::usual(40.0, 4096) };
        assert_eq!(both.amplitude(), 1.0);
        assert!((both.latent_score() - (0.1 * 40f64.ln() + 1.0).powi(2)).abs() < 1e-12);
        assert!((Yarn::usual(40.0, 4096).amplitude() - (0.1 * 40f64.ln() + 1.0)).abs() < 1e-12);
        let rates = Scaling::Yarn(both).rates(10_000.0, 64);
        assert_eq!(rates[0], 1.0);
        assert!((rates[31] - 10_000f64.powf(-62.0 / 64.0) / 40.0).abs() < 1e-12);
    }
}
