//! Borders at which state runs up the depth are where one rank would have them.

use super::Parts;
use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "cp/depth-carry",
    blame: Blame::Layout,
    reads: Reads::CP,
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let Parts { tokens, every, fits, .. } = Parts::of(case)?;
    let every = every.filter(|every| !tokens.is_multiple_of(*every))?;
    let message = format!(
        "state runs up the depth every {every} tokens (`recurrent.depth_carry`), and parts of {tokens} tokens end between"
    );
    Some(RULE.error("recurrent", message).fix("seq", fits))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r-mini",
            "cp=2 seq=20 engine=shardwright",
            "state runs up the depth every 2 tokens (`recurrent.depth_carry`), and parts of 5 tokens end between",
        )
        .with(|r| r.recurrent.as_mut().unwrap().depth_carry = Some(2)),
        silent("nam56r-mini", "cp=2 seq=16 engine=shardwright")
            .with(|r| r.recurrent.as_mut().unwrap().depth_carry = Some(2)),
        silent("nam56r-mini", "cp=2 seq=20 engine=shardwright"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
