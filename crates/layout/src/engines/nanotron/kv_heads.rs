//! Every rank has a KV head of its own (`config/config.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "nanotron/kv-heads",
    blame: Blame::Engine,
    reads: Reads::TP,
    quotes: &[(Engine::Nanotron, "must be >= tp")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let tp = case.layout.tp.get();
    let kv = case.kv_heads().filter(|kv| *kv < tp)?;
    let message = format!("{kv} KV heads are fewer than tp={tp}");
    Some(RULE.error("attention", message).fix("tp", units::divisors(kv)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=nanotron tp=16", "8 KV heads are fewer than tp=16"),
        silent("llama3-8b", "engine=nanotron tp=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
