//! Attention sinks on Megatron: `--softmax-type learnable`, which Transformer Engine's ring does not take
//! (`dot_product_attention/context_parallel.py`), and latent attention was not tried with.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/sinks",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[(
        Engine::Megatron,
        "Context parallelism only supports softmax_type='learnable' with cp_comm_type = 'a2a'!",
    )],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !case.attention().is_some_and(|a| a.sinks) {
        return findings;
    }
    if case.layout.cp.splits() {
        let message = format!("attention sinks do not go around a ring of cp={}", case.layout.cp);
        findings.push(RULE.error("attention.sinks", message).hint("cp may be 1"));
    }
    if case.recipe.is_latent() {
        let message = "sinks beside latent attention are not emitted for Megatron-Core";
        findings.push(RULE.error("attention.sinks", message).hint("--engine fsdp2 takes a model of your own"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron cp=2", "attention sinks do not go around a ring of cp=2")
            .with(|r| r.attention.as_mut().unwrap().sinks = true),
        silent("llama3-8b", "engine=megatron").with(|r| r.attention.as_mut().unwrap().sinks = true),
        silent("llama3-8b", "engine=megatron cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
