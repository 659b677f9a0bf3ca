//! KV heads are not replicated (`models/common/decoder.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/kv-heads",
    blame: Blame::Engine,
    reads: Reads::TP,
    quotes: &[(Engine::Torchtitan, "n_kv_heads ({n_kv_heads}).")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let tp = case.layout.tp.get();
    let kv = case.kv_heads().filter(|kv| !kv.is_multiple_of(tp))?;
    let message = format!("{kv} KV heads are not a multiple of tp={tp}, and torchtitan does not replicate them");
    Some(RULE.error("attention", message).fix("tp", units::divisors(kv)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=torchtitan tp=16",
            "8 KV heads are not a multiple of tp=16, and torchtitan does not replicate them",
        ),
        silent("llama3-8b", "engine=torchtitan tp=8"),
        silent("deepseek-v2-lite", "engine=torchtitan tp=16"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
