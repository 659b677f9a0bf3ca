//! Query and key heads of M2RNN are shared by several heads, and may be shared by several ranks.

use crate::legality::{Case, Check, Reads, Rule};
use crate::ownership::divides;
use diag::{Blame, Finding};
use recipe::{Segment, Unit};

pub const RULE: Rule = Rule {
    id: "recurrent/qk-heads-over-tp",
    blame: Blame::Layout,
    reads: Reads::TP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let (recurrent, tp) = (case.recurrent()?, case.layout.tp.get());
    let (heads, qk_heads) = (recurrent.heads, recurrent.qk_heads);
    let shared = Segment { name: "q", unit: Unit::SharedHead, count: qk_heads, size: 1 };
    if !heads.is_multiple_of(tp) || divides(&shared, tp) {
        return None;
    }
    let message = format!(
        "cannot split `recurrent` over tp={tp}: {qk_heads} query/key heads are neither a multiple nor a divisor of {tp}"
    );
    let fits = units::divisors(heads).into_iter().filter(|t| divides(&shared, *t)).collect();
    Some(RULE.error("recurrent", message).fix("tp", fits))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "tp=4",
            "cannot split `recurrent` over tp=4: 6 query/key heads are neither a multiple nor a divisor of 4",
        )
        .with(|r| (r.recurrent.as_mut().unwrap().heads, r.recurrent.as_mut().unwrap().qk_heads) = (24, 6)),
        silent("nam56r-mini", "tp=4"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
