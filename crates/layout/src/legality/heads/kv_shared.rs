//! Fewer KV heads than ranks: what becomes of them.

use super::Grouped;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

/// `tp/kv-shared`: ranks that share a KV head.
pub const RULE: Rule = Rule {
    id: "tp/kv-shared",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (heads, tp) = (Grouped::of(&case.attention()?)?, case.layout.tp.get());
    if heads.kv_heads >= tp || !heads.shares(tp) {
        return None;
    }
    let how = match case.layout.engine {
        Some(Engine::Shardwright) => "each rank keeps a copy of its group's",
        _ => "packed rows are cut evenly and the projected activations gathered over tp, as Megatron-Core does",
    };
    Some(RULE.note("attention", format!("{} KV heads are fewer than tp={tp}: {how}", heads.kv_heads)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "tp=16",
            "8 KV heads are fewer than tp=16: packed rows are cut evenly and the projected activations gathered over tp, as Megatron-Core does",
        ),
        found(
            "llama3-8b",
            "tp=16 engine=shardwright",
            "8 KV heads are fewer than tp=16: each rank keeps a copy of its group's",
        ),
        silent("llama3-8b", "tp=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
