//! Whole blocks by kind are computed again by this project's own engine; others compute modules again.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::{Engine, Recompute, RecomputeModule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "recompute/module",
    blame: Blame::Engine,
    reads: Reads::RECOMPUTE,
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let Recompute::Selective(modules) = &case.layout.recompute else { return Vec::new() };
    let engine = case.layout.engine;
    let ours = modules.iter().filter(|m| m.is_ours() && engine != Some(Engine::Shardwright));
    let known = RecomputeModule::ALL.iter().filter(|(_, m)| !m.is_ours()).map(|(name, _)| *name);
    let hint = format!("modules may be {}; `full` computes everything again", known.collect::<Vec<_>>().join(", "));
    let refuse = |module: &RecomputeModule| {
        let message = match engine {
            Some(engine) => format!("`{engine}` has no recompute of whole `{module}` blocks"),
            None => format!("whole `{module}` blocks are computed again by `--engine shardwright` alone"),
        };
        RULE.error("recompute", message).hint(hint.clone())
    };
    ours.map(refuse).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "recompute=selective:mamba",
            "whole `mamba` blocks are computed again by `--engine shardwright` alone",
        ),
        found(
            "nam56r-mini",
            "recompute=selective:attention+mlp engine=megatron",
            "`megatron` has no recompute of whole `attention` blocks",
        ),
        found(
            "nam56r-mini",
            "recompute=selective:recurrent+mamba",
            "whole `mamba` blocks are computed again by `--engine shardwright` alone | whole `recurrent` blocks are computed again by `--engine shardwright` alone",
        ),
        silent("nam56r-mini", "recompute=selective:mamba engine=shardwright"),
        silent("nam56r-mini", "recompute=selective:core_attn+moe"),
        silent("nam56r-mini", "recompute=full"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
