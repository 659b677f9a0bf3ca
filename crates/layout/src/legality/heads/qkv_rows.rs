//! Below one KV head a rank, Megatron cuts the packed rows evenly and gathers: they must divide.

use super::Grouped;
use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};
use units::divisors;

pub const RULE: Rule = Rule {
    id: "tp/qkv-rows",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (heads, tp) = (Grouped::of(&case.attention()?)?, case.layout.tp.get());
    let cuts_rows = |tp: u64| heads.kv_heads < tp && case.layout.engine != Some(Engine::Shardwright);
    if !cuts_rows(tp) || !heads.shares(tp) || !heads.heads.is_multiple_of(tp) || heads.rows_divide(tp) {
        return None;
    }
    let message = format!(
        "cannot split `attention` over tp={tp}: with {} KV heads the packed rows are cut evenly, and they do not divide",
        heads.kv_heads
    );
    let fits = |tp: &u64| heads.shares(*tp) && (!cuts_rows(*tp) || heads.rows_divide(*tp));
    Some(RULE.error("attention", message).fix("tp", divisors(heads.heads).into_iter().filter(fits).collect()))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};
    use recipe::kinds::attention::Attention;

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "tp=12", "cannot split `attention` over tp=12: with 3 KV heads the packed rows are cut evenly, and they do not divide").with(|r| r.attention = Some(Attention::gqa(12, 3, 5))),
        silent("llama3-8b", "tp=12 engine=shardwright").with(|r| r.attention = Some(Attention::gqa(12, 3, 5))),
        silent("llama3-8b", "tp=16"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
