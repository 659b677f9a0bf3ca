//! The projections into and out of a latent expert space act before and after dispatch, on every token.

use super::{Cut, Quality, Rule};
use crate::layout::Layout;
use recipe::{Surface, Tensor};

pub const RULE: Rule = Rule {
    id: "moe/latent-replicated",
    surfaces: &[Surface::ExpertLatent],
    quality: Quality::Replicated,
    why: "every rank projects its own tokens",
    cannot_fix: "expert parallelism cannot shrink them",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(_: &Tensor, _: &Layout) -> Vec<Cut> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] =
        &[held("mixtral-8x7b", "tp=2 ep=4", "layers.0.moe.latent_in.weight", "replicated: 1024×4096")
            .with(|r| r.moe.as_mut().unwrap().latent = Some(1024))];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
