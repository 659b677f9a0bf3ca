//! Every chunk of a stage has a layer.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "vpp/depth",
    blame: Blame::Layout,
    reads: Reads::PP.and(Reads::VPP),
    quotes: &[],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let depth = case.recipe.depth() as u64;
    let (pp, vpp) = (case.layout.pp.get(), case.layout.vpp.get());
    let most = depth / pp;
    if pp > depth || vpp <= most {
        return None;
    }
    let message = format!("{depth} layers do not fill pp {pp} × vpp {vpp} chunks");
    let finding = RULE.error("vpp", message).fix("vpp", (1..=most).collect());
    Some(Finding { hint: Some(format!("vpp may be 1 to {most}")), ..finding })
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "pp=8 vpp=5", "32 layers do not fill pp 8 × vpp 5 chunks"),
        silent("llama3-8b", "pp=8 vpp=4"),
        silent("llama3-8b", "pp=33 vpp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
