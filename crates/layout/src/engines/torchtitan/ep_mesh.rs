//! ep divides the ranks that shard a stage (`config/configs.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "torchtitan/ep-mesh",
    blame: Blame::Engine,
    reads: Reads::STAGE_RANKS.and(Reads::EP),
    quotes: &[(Engine::Torchtitan, "so dp_shard * cp * tp == efsdp * ep.")],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let layout = case.layout;
    let shards = layout.dp.get() * layout.cp.get() * layout.tp.get();
    case.moe().filter(|_| !shards.is_multiple_of(layout.ep.get()))?;
    let message = format!("dp·cp·tp = {shards} is not a multiple of ep={}", layout.ep);
    Some(RULE.error("ep", message).fix("ep", units::divisors(shards)))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("mixtral-8x7b", "engine=torchtitan world=8 pp=2 ep=8", "dp·cp·tp = 4 is not a multiple of ep=8"),
        silent("mixtral-8x7b", "engine=torchtitan world=16 pp=2 ep=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
