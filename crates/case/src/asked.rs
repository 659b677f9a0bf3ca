//! What was asked: flags as typed, nothing derived. A command flattens what it takes of these.

use crate::documents::Documents;
use crate::options::{Format, Scaling};
use clap::{Args, Parser};
use diag::did_you_mean;
use layout::engines::DECLINED;
use layout::request::{Balance, Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::precision::OptimizerPolicy;
use recipe::{Dtype, Feature, Mode, Recipe};

/// A whole job as one command line, without the command: `nam56r --tp 2 --on 8xH200`.
#[derive(Parser, Clone, Debug, Default, PartialEq)]
#[command(name = "job", no_binary_name = true)]
pub struct Asked {
    /// Which model.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// The cluster: 8xH200, 64x8xH200, 64xH100@roce400, or a device file: 8x./mine.toml
    #[arg(long, value_name = "CLUSTER")]
    pub on: Option<String>,
    /// How it is split.
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// What its engine is told besides.
    #[command(flatten)]
    pub state: StateArgs,
}

impl Asked {
    /// Reads a job from words, as a shell would hand them over.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Asked, String> {
        Asked::try_parse_from(words.iter().map(AsRef::as_ref)).map_err(|error| {
            let text = error.to_string();
            text.lines().next().unwrap_or("no job").trim_start_matches("error: ").to_string()
        })
    }
}

/// Which model.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct RecipeArgs {
    /// Built-in name, recipe .toml, config.json or the folder that holds one, or org/name as it lies
    /// in the local Hugging Face cache
    pub recipe: String,
    /// Switch features on: mla, dsa, mtp, mhc, mod, engram, ngram_hash, structure, adapters
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature)]
    pub with: Vec<Feature>,
    /// Switch features off; `moe` turns E blocks into MLPs where the recipe has them (`moe=attention`: attention)
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature)]
    pub without: Vec<Feature>,
}

/// How it is split. What is left out is derived, and the answer says so.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Layout")]
pub struct LayoutArgs {
    /// The engine that runs it, whose rules then apply: megatron, fsdp2, torchtitan, deepspeed, nanotron, maxtext,
    /// xla-spmd, shardwright; or any
    #[arg(long, value_parser = engine)]
    pub engine: Option<EngineChoice>,
    /// Ranks in all; without it, the fewest these degrees need
    #[arg(long, value_name = "N")]
    pub world: Option<u64>,
    /// Tensor parallel: matrices and head groups
    #[arg(long, value_name = "N")]
    pub tp: Option<u64>,
    /// Sequence parallel: shard activations on the tensor axis (on by default when tp > 1)
    #[arg(long, overrides_with = "no_sp")]
    pub sp: bool,
    /// Keep activations whole between tensor-parallel regions
    #[arg(long)]
    pub no_sp: bool,
    /// Context parallel: parts of the timeline
    #[arg(long, value_name = "N")]
    pub cp: Option<u64>,
    /// Pipeline parallel: stages of depth
    #[arg(long, value_name = "N")]
    pub pp: Option<u64>,
    /// Virtual stages: chunks of depth a stage holds
    #[arg(long, value_name = "N")]
    pub vpp: Option<u64>,
    /// Expert parallel: whole experts to ranks
    #[arg(long, value_name = "N")]
    pub ep: Option<u64>,
    /// Expert tensor parallel: matrices inside experts (default: tp)
    #[arg(long, value_name = "N")]
    pub etp: Option<u64>,
    /// Data parallel: replicas (default: what the world leaves)
    #[arg(long, value_name = "N")]
    pub dp: Option<u64>,
    /// State shared out over replicas: 0 none, 1 optimizer, 2 + gradients, 3 + weights
    #[arg(long, value_name = "STAGE", value_parser = zero)]
    pub zero: Option<ZeroStage>,
    /// Sequences of a microbatch
    #[arg(long, value_name = "N")]
    pub mbs: Option<u64>,
    /// Sequences of a step
    #[arg(long, value_name = "N")]
    pub gbs: Option<u64>,
    /// Microbatches of a step on one replica
    #[arg(long, value_name = "N")]
    pub microbatches: Option<u64>,
    /// Tokens of a sequence, as 8192 or 8k (default: the recipe's)
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub seq: Option<u64>,
    /// Pipeline schedule: gpipe, 1f1b, interleaved, zb-h1, dualpipe, dualpipev
    #[arg(long, value_parser = schedule)]
    pub schedule: Option<Schedule>,
    /// What backward computes again: none, full, or selective:core_attn+moe_act
    #[arg(long, value_name = "POLICY", value_parser = Recompute::parse)]
    pub recompute: Option<Recompute>,
    /// First layer of every chunk but the first, as 13,26,39
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub boundaries: Option<Vec<u64>>,
    /// Deal layers out evenly by layers, params, memory or time; the last two need prices (`stages --on`, `plan`)
    #[arg(long, value_name = "WHAT", value_parser = balance)]
    pub balance: Option<Balance>,
    /// Pad the vocabulary to a multiple of this times tp
    #[arg(long, value_name = "N")]
    pub vocab_multiple: Option<u64>,
    /// Runtime mode, of recipes that have several: nemo_native (built-in mixers) or author_dp (custom mixers)
    #[arg(long, value_parser = mode)]
    pub mode: Option<Mode>,
}

/// An engine, or none in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// Whatever some engine could run.
    Any,
    /// This one.
    One(Engine),
}

impl EngineChoice {
    /// The engine whose rules apply.
    pub fn engine(self) -> Option<Engine> {
        match self {
            EngineChoice::Any => None,
            EngineChoice::One(engine) => Some(engine),
        }
    }
}

impl LayoutArgs {
    /// The flags as a request.
    pub fn request(&self) -> LayoutRequest {
        LayoutRequest {
            world: self.world,
            tp: self.tp,
            sp: if self.no_sp { Some(false) } else { self.sp.then_some(true) },
            cp: self.cp,
            pp: self.pp,
            vpp: self.vpp,
            ep: self.ep,
            etp: self.etp,
            dp: self.dp,
            zero: self.zero,
            micro_batch: self.mbs,
            global_batch: self.gbs,
            microbatches: self.microbatches,
            sequence: self.seq,
            schedule: self.schedule,
            recompute: self.recompute.clone(),
            mode: self.mode,
            boundaries: self.boundaries.clone(),
            balance: self.balance,
            engine: self.engine.and_then(EngineChoice::engine),
            vocab_multiple: self.vocab_multiple,
        }
    }
}

impl From<&LayoutRequest> for LayoutArgs {
    /// The flags that ask for the same. No engine is `any`: nobody picked one.
    fn from(request: &LayoutRequest) -> LayoutArgs {
        LayoutArgs {
            world: request.world,
            tp: request.tp,
            sp: request.sp == Some(true),
            no_sp: request.sp == Some(false),
            cp: request.cp,
            pp: request.pp,
            vpp: request.vpp,
            ep: request.ep,
            etp: request.etp,
            dp: request.dp,
            zero: request.zero,
            mbs: request.micro_batch,
            gbs: request.global_batch,
            microbatches: request.microbatches,
            seq: request.sequence,
            schedule: request.schedule,
            recompute: request.recompute.clone(),
            mode: request.mode,
            boundaries: request.boundaries.clone(),
            balance: request.balance,
            engine: Some(request.engine.map_or(EngineChoice::Any, EngineChoice::One)),
            vocab_multiple: request.vocab_multiple,
        }
    }
}

/// What an engine is told besides the layout.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Precision and state")]
pub struct StateArgs {
    /// Products in bf16, fp8 (tensorwise), fp8-delayed, fp8-blockwise, mxfp8 or nvfp4 (Blackwell);
    /// f32 or f64 for --engine shardwright (default: the recipe's)
    #[arg(long, value_parser = precision)]
    pub precision: Option<PrecisionChoice>,
    /// Override the recipe's optimizers: adamw, or muon+adamw (matrices by Muon)
    #[arg(long, value_parser = optimizer)]
    pub optimizer: Option<OptimizerChoice>,
    /// Accumulate gradients in bf16 or fp32 (default: the recipe's)
    #[arg(long, value_parser = dtype, value_name = "DTYPE")]
    pub gradients: Option<Dtype>,
    /// Fuse the loss over the vocabulary (Megatron's --cross-entropy-loss-fusion)
    #[arg(long)]
    pub ce_fusion: bool,
    /// Keep and gather weights in fp8 (Megatron's --fp8-param-gather)
    #[arg(long)]
    pub fp8_param_gather: bool,
    /// Keep this share of AdamW's state on the host, 0 to 1: whole tensors, largest first
    #[arg(long, value_name = "SHARE")]
    pub offload_optimizer: Option<f64>,
    /// Keep weights that ZeRO 3 shares out on the host (DeepSpeed's offload_param)
    #[arg(long)]
    pub offload_params: bool,
    /// Keep what is offloaded on a drive below this folder instead of in the host's memory (DeepSpeed)
    #[arg(long, value_name = "PATH")]
    pub offload_nvme: Option<String>,
    /// Keep this share of saved activations on the host, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub offload_activations: f64,
    /// Documents of this many tokens are packed into a sequence and see nothing of one another, as 512 or 512,512,8k: a
    /// pattern that begins anew until the sequence is full
    #[arg(long, value_name = "TOKENS", value_parser = Documents::parse)]
    pub documents: Option<Documents>,
    /// Options of the engine in its own words, as "--moe-token-dispatcher-type allgather
    /// --no-gradient-accumulation-fusion"; `--no-` before a switch takes it out of the launch.
    /// `shardwright options ENGINE` lists them
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub engine_args: Vec<String>,
}

/// Formats products may run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// bf16 throughout.
    Bf16,
    /// 32-bit floats throughout.
    F32,
    /// 64-bit floats throughout.
    F64,
    /// fp8 or fp4 with this scaling.
    Scaled(Scaling),
}

impl PrecisionChoice {
    /// Every choice with the word it is typed as; the first word of a choice is the one printed.
    const ALL: &'static [(&'static str, PrecisionChoice)] = &[
        ("bf16", PrecisionChoice::Bf16),
        ("f32", PrecisionChoice::F32),
        ("f64", PrecisionChoice::F64),
        ("fp8-tensorwise", PrecisionChoice::Scaled(Scaling::Tensorwise)),
        ("fp8", PrecisionChoice::Scaled(Scaling::Tensorwise)),
        ("fp8-delayed", PrecisionChoice::Scaled(Scaling::Delayed)),
        ("fp8-blockwise", PrecisionChoice::Scaled(Scaling::Blockwise)),
        ("mxfp8", PrecisionChoice::Scaled(Scaling::Mxfp8)),
        ("nvfp4", PrecisionChoice::Scaled(Scaling::Nvfp4)),
    ];

    /// As typed.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, choice)| *choice == self).map_or("bf16", |(word, _)| word)
    }

    /// Every choice once, with the word that is printed.
    pub(crate) fn named() -> impl Iterator<Item = (&'static str, PrecisionChoice)> {
        Self::ALL.iter().copied().filter(|(word, choice)| choice.name() == *word)
    }

    /// The format a device must multiply in; none where only this project's runtime computes in it.
    pub fn format(self) -> Option<Format> {
        match self {
            PrecisionChoice::Bf16 => Some(Format::Bf16),
            PrecisionChoice::F32 | PrecisionChoice::F64 => None,
            PrecisionChoice::Scaled(scaling) => Some(scaling.format()),
        }
    }
}

/// Optimizers a whole recipe may be put under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizerChoice {
    /// AdamW throughout.
    AdamW,
    /// Muon for matrices, AdamW for the rest.
    MuonAdamW,
}

impl OptimizerChoice {
    const ALL: &'static [(&'static str, OptimizerChoice)] =
        &[("adamw", OptimizerChoice::AdamW), ("muon+adamw", OptimizerChoice::MuonAdamW)];

    /// As typed.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, choice)| *choice == self).map_or("adamw", |(word, _)| word)
    }

    /// Every choice with its word.
    pub(crate) fn named() -> impl Iterator<Item = (&'static str, OptimizerChoice)> {
        Self::ALL.iter().copied()
    }

    /// The recipe under these optimizers.
    pub fn applied(self, mut recipe: Recipe) -> Recipe {
        recipe.optimizer = match self {
            OptimizerChoice::AdamW => OptimizerPolicy::default(),
            OptimizerChoice::MuonAdamW => OptimizerPolicy::muon(),
        };
        recipe
    }
}

/// Reads a number of tokens: `8192`, `8k` for 8 × 1024, `1m` for 1024 × 1024.
pub fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| "tokens are a whole number, as `8192` or `8k` (8 × 1024); they have no bytes".to_string())
}

/// Picks one of several words, with a suggestion when none is meant exactly.
pub fn pick<T: Copy>(text: &str, words: &[(&'static str, T)]) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*value);
    }
    let known = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    Err(match did_you_mean(text, words.iter().map(|(word, _)| *word)) {
        Some(close) => format!("did you mean `{close}`? known are {known}"),
        None => format!("known are {known}"),
    })
}

fn precision(text: &str) -> Result<PrecisionChoice, String> {
    pick(text, PrecisionChoice::ALL)
}

/// Reads an optimizer choice.
pub fn optimizer(text: &str) -> Result<OptimizerChoice, String> {
    pick(text, OptimizerChoice::ALL)
}

/// Reads a dtype.
pub fn dtype(text: &str) -> Result<Dtype, String> {
    pick(text, Dtype::ALL)
}

/// Reads a feature.
pub fn feature(text: &str) -> Result<Feature, String> {
    pick(text, Feature::ALL)
}

/// Reads a mode.
pub fn mode(text: &str) -> Result<Mode, String> {
    pick(text, Mode::ALL)
}

fn zero(text: &str) -> Result<ZeroStage, String> {
    pick(text, ZeroStage::ALL)
}

fn schedule(text: &str) -> Result<Schedule, String> {
    pick(text, Schedule::ALL)
}

fn balance(text: &str) -> Result<Balance, String> {
    pick(text, Balance::ALL)
}

fn engine(text: &str) -> Result<EngineChoice, String> {
    match DECLINED.iter().find(|(name, _)| *name == text) {
        Some((name, why)) => Err(format!("{name} is declined: {why}")),
        None if text == "any" => Ok(EngineChoice::Any),
        None => pick(text, Engine::ALL).map(EngineChoice::One),
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, tokens};

    #[test]
    fn tokens_may_be_counted_in_thousands() {
        for (typed, number) in [("4096", 4096), ("8k", 8192), ("128K", 131_072), ("1m", 1 << 20)] {
            assert_eq!(tokens(typed), Ok(number), "{typed}");
        }
        for wrong in ["8kb", "8 k", "k", "", "-1", "1.5k", "8g", "99999999999999999999", "18446744073709551615k"] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Asked::parse(&["nam56r", "--seq", "8k"]).unwrap().layout.seq, Some(8192));
        assert!(Asked::parse(&["nam56r", "--seq", "8kb"]).unwrap_err().contains("8kb"));
    }
}
