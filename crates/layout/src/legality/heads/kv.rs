//! KV heads are a multiple of tp, or a divisor: then ranks share one.

use super::Grouped;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::divisors;

pub const RULE: Rule = Rule {
    id: "tp/kv-heads",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[(Engine::Megatron, "must be a multiple or divisor of")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (heads, tp) = (Grouped::of(&case.attention()?)?, case.layout.tp.get());
    if heads.shares(tp) {
        return None;
    }
    let message = format!(
        "cannot split `attention` over tp={tp}: {} KV heads are neither a multiple nor a divisor of {tp}",
        heads.kv_heads
    );
    let fits = divisors(heads.heads).into_iter().filter(|t| heads.shares(*t)).collect();
    Some(RULE.error("attention", message).fix("tp", fits))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=3",
            "cannot split `attention` over tp=3: 8 KV heads are neither a multiple nor a divisor of 3",
        ),
        silent("llama3-8b", "tp=16"),
        silent("deepseek-v2-lite", "tp=3"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
