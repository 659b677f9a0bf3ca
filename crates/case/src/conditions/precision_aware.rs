//! `--use-precision-aware-optimizer`, which `launch` writes for moments and main weights in formats of their own and for
//! state on the host (Megatron-Core 0.19.2, `core/optimizer/optimizer_config.py` `__post_init__`; `training/arguments.py`
//! asserts that `--optimizer-cpu-offload` comes with it).

use super::refuse;
use crate::options::{Options, Scaling};
use diag::Finding;
use layout::{Layout, ZeroStage};
use recipe::{Dtype, Optimizer, Recipe};

const RULE: &str = "megatron/precision-aware";

/// Whether Megatron steps this state with its precision-aware optimizer.
pub fn is_used(options: &Options) -> bool {
    let state = &options.state;
    options.offload > 0.0 || [state.exp_avg, state.exp_avg_sq, state.main] != [Dtype::Fp32; 3]
}

pub(super) fn unmet(recipe: &Recipe, layout: &Layout, options: &Options) -> Vec<Finding> {
    if !is_used(options) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let is_offloaded = options.offload > 0.0;
    let (what, leave_out) = if is_offloaded {
        ("AdamW's state on the host", "leave --offload-optimizer out")
    } else {
        ("moments or main weights in other formats than fp32", "keep them in fp32")
    };
    if layout.zero == ZeroStage::Zero {
        let message = format!("{what} is the distributed optimizer's (ZeRO 1, on one replica too), and zero is 0");
        let finding = refuse(RULE, "zero", &message)
            .quote("--use-precision-aware-optimizer only supported with distributed optimizer");
        found.push(finding.fix("zero", vec![1]).hint(format!("--zero 1, or {leave_out}")));
    }
    if recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon && !tensor.is_frozen) {
        let message = format!("{what} is AdamW's alone, and Muon steps matrices");
        let finding =
            refuse(RULE, "optimizer", &message).quote("--use-precision-aware-optimizer only supported with adam");
        found.push(finding.hint(format!("--optimizer adamw, or {leave_out}")));
    }
    if is_offloaded && options.fp8_param_gather && options.scaling != Some(Scaling::Delayed) {
        let message = "AdamW's state on the host steps weights in fp8 with delayed scales alone";
        let quote = "When `--fp8-param-gather` is enabled, the optimizer cpu offload must be used in conjunction with \
                     `--fp8-recipe delayed`.";
        found.push(refuse(RULE, "offload-optimizer", message).quote(quote).hint(leave_out));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused_on;

    #[track_caller]
    fn one(words: &str, object: &str) {
        assert_eq!(refused_on(words, "1xH200"), [(super::RULE, object.to_string())], "{words}");
    }

    #[test]
    fn state_on_the_host_is_the_distributed_optimizers_and_adams() {
        assert_eq!(refused_on("llama3-8b --zero 1 --offload-optimizer 1", "1xH200"), []);
        assert_eq!(refused_on("llama3-8b --zero 0", "1xH200"), []);
        one("llama3-8b --zero 0 --offload-optimizer 1", "zero");
        one("llama3-8b --zero 0 --offload-optimizer 0.5", "zero");
        one("llama3-8b --optimizer muon+adamw --zero 1 --offload-optimizer 1", "optimizer");
        one("nam56r --mode author_dp --zero 1 --offload-optimizer 1", "optimizer");
    }
}
