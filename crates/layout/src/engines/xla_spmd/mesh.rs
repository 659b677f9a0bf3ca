//! The mesh has no axis for stages or parts of the timeline.

use crate::legality::{Case, Check, Reads, Rule};
use diag::{Blame, Finding};
use units::Degree;

pub const RULE: Rule = Rule {
    id: "xla-spmd/mesh",
    blame: Blame::Engine,
    reads: Reads::PP_SPLITS.and(Reads::CP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    let axes = [("pp", case.layout.pp, "pipeline stages"), ("cp", case.layout.cp, "context parts")];
    let refuse = |(key, _, what): (&'static str, Degree, &str)| {
        let message = format!("the mesh is (data, expert, model), and has no axis for {what}");
        RULE.error(key, message).fix(key, vec![1])
    };
    axes.into_iter().filter(|(_, degree, _)| degree.splits()).map(refuse).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "llama3-8b",
            "engine=xla-spmd pp=2",
            "the mesh is (data, expert, model), and has no axis for pipeline stages",
        ),
        found(
            "llama3-8b",
            "engine=xla-spmd pp=2 cp=2",
            "the mesh is (data, expert, model), and has no axis for pipeline stages | the mesh is (data, expert, model), and has no axis for context parts",
        ),
        silent("llama3-8b", "engine=xla-spmd tp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
