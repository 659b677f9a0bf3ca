//! The emitted module gives whole KV heads to ranks.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "fsdp2/kv-heads",
    blame: Blame::Engine,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let tp = case.layout.tp.get();
    let kv = case.kv_heads().filter(|kv| *kv < tp)?;
    let message = format!("the emitted module gives whole KV heads to ranks, and tp {tp} has more ranks than {kv}");
    Some(RULE.error("attention", message).fix("tp", units::divisors(kv)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=fsdp2 tp=16",
            "the emitted module gives whole KV heads to ranks, and tp 16 has more ranks than 8",
        ),
        silent("llama3-8b", "engine=fsdp2 tp=8"),
        silent("deepseek-v2-lite", "engine=fsdp2 tp=16"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
