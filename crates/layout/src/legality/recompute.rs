//! Recompute: whole blocks by kind are this project's own engine's; others compute modules again.

use super::Case;
use crate::request::{Engine, Recompute, RecomputeModule};
use diag::{Blame, Finding};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let Recompute::Selective(modules) = &case.layout.recompute else { return };
    if case.layout.engine == Some(Engine::Shardwright) {
        return;
    }
    let who = case.layout.engine.map_or("no engine but `shardwright`".to_string(), |e| format!("`{e}`"));
    for module in modules.iter().filter(|m| m.is_ours()) {
        let has = if case.layout.engine.is_some() { "has no recompute of" } else { "computes again by itself" };
        let message = format!("{who} {has} whole `{module}` blocks");
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
