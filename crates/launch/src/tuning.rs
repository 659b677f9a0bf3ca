//! What the first step does that no later one does: kernels are tuned by trial, and modules compiled. Counts of kernels
//! are those that a launch is known to run; seconds are what they took without a cache on one machine.

use crate::emission::EnvVar;
use crate::job::Job;
use case::options::Elementwise;
use layout::Engine;
use recipe::Mixer;
use recipe::kinds::mamba::Mamba;
use serde::{Deserialize, Serialize};

/// Triton kernels under `@triton.autotune` that one shape of Mamba-2 runs (mamba_ssm 2.3.2.post1, `ops/triton/ssd_*.py`):
/// five in forward, eight more in backward.
const MAMBA2: u64 = 13;

/// Those of a Mamba-3 block (`ops/triton/mamba3`: angles twice, forward once, backward four times).
const MAMBA3: u64 = 7;

/// Seconds a kernel of those takes to tune without a cache: two minutes for a Mamba-2 hybrid on an H200, November 2026.
const SECONDS: u64 = 10;

/// What falls into the first step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstStep {
    /// Kernels that are tuned by trial.
    pub kernels: u64,
    /// About how long that takes where no cache has them.
    pub seconds: u64,
    /// Whether a compiler runs too, whose time is not known.
    pub compiles: bool,
}

impl FirstStep {
    /// Of a launch; none where the first step is like the others.
    pub fn of(job: &Job) -> Option<FirstStep> {
        let engine = crate::engines::engine_of(job);
        let is_megatron = engine == Engine::Megatron && job.recipe.uses(Mixer::Mamba);
        let kernels = match &job.recipe.mamba {
            Some(Mamba::Two(_)) if is_megatron => MAMBA2,
            Some(Mamba::Three(_)) if is_megatron => MAMBA3,
            _ => 0,
        };
        let is_xla = matches!(engine, Engine::XlaSpmd | Engine::Maxtext);
        let compiles = is_xla || job.case.options.kernels.elementwise == Elementwise::Compiled;
        (kernels > 0 || compiles).then_some(FirstStep { kernels, seconds: kernels * SECONDS, compiles })
    }

    /// In words: `the first step tunes 13 kernels, about 2 minutes without a cache`.
    pub fn words(&self) -> String {
        let minutes = ((self.seconds + 30) / 60).max(1);
        let tunes = match self.kernels {
            0 => None,
            _ => Some(format!(
                "tunes {} kernels, about {minutes} minute{} without a cache",
                self.kernels,
                if minutes == 1 { "" } else { "s" }
            )),
        };
        let compiles = self.compiles.then(|| "compiles, which may take minutes".to_string());
        let both: Vec<String> = compiles.into_iter().chain(tunes).collect();
        format!("the first step {}", both.join(" and "))
    }
}

/// Has Triton print each kernel that it tuned, which is a sign of life and a count, and keep the result.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    let Some(first) = FirstStep::of(job).filter(|first| first.kernels > 0) else { return Vec::new() };
    let why = format!("says so of each kernel that the first step tunes, {} of them", first.kernels);
    let kept = EnvVar::new("TRITON_CACHE_AUTOTUNING", 1, "what was tuned is kept for the next start");
    vec![EnvVar::new("TRITON_PRINT_AUTOTUNING", 1, why), kept]
}
