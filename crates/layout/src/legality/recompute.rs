//! Recompute: whole blocks by kind are this project's own engine's; others compute modules again.

use super::Case;
use crate::request::{Engine, Recompute, RecomputeModule};
use diag::{Blame, Finding};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let Recompute::Selective(modules) = &case.layout.recompute else { return };
    if case.layout.engine == Some(Engine::Shardwright) {
        return;
    }
    for module in modules.iter().filter(|m| m.is_ours()) {
        let message = match case.layout.engine {
            Some(engine) => format!("`{engine}` has no recompute of whole `{module}` blocks"),
            None => format!("whole `{module}` blocks are computed again by `--engine shardwright` alone"),
        };
        let known = RecomputeModule::ALL.iter().filter(|(_, m)| !m.is_ours()).map(|(name, _)| *name);
        findings.push(Finding::error("recompute/module", Blame::Engine, "recompute", message).hint(format!(
            "modules may be {}; `full` computes everything again",
            known.collect::<Vec<_>>().join(", ")
        )));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, LayoutRequest, Recompute, check};

    #[test]
    fn whole_blocks_are_for_our_engine_alone() {
        let recipe = recipe::builtin::find("nam56r-mini").unwrap();
        let legal = |engine, policy: &str| {
            let recompute = Recompute::parse(policy).ok();
            check(&recipe, &LayoutRequest { engine, recompute, ..LayoutRequest::default() }).is_legal()
        };
        for policy in ["selective:mamba", "selective:attention+mlp", "selective:recurrent"] {
            assert!(legal(Some(Engine::Shardwright), policy));
            assert!(!legal(None, policy) && !legal(Some(Engine::Megatron), policy));
        }
        assert!(legal(None, "selective:core_attn+moe"));
    }
}
