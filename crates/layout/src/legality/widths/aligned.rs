//! Widths on a rank that leave the fast kernels: rows of bf16 that are no multiple of 16 bytes.

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use crate::widths::{BF16, Unaligned, unaligned};
use diag::{Blame, Finding};

/// Rows of a rank's factors that are no multiple of 16 bytes.
pub const RULE: Rule = Rule {
    id: "tp/aligned",
    blame: Blame::Layout,
    reads: Reads::TP.and(Reads::ETP),
    quotes: &[],
    check: Check::Each(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Vec<Finding> {
    // TPUs and CPUs load other runs.
    if matches!(case.layout.engine, Some(Engine::Maxtext | Engine::XlaSpmd | Engine::Shardwright)) {
        return Vec::new();
    }
    let found = unaligned(case.recipe, case.layout, BF16);
    found.iter().map(|one| one.ways_out(RULE.note(&one.path, message(one)), BF16)).collect()
}

fn message(one: &Unaligned) -> String {
    let layers = match one.layers.len() {
        0 | 1 => String::new(),
        many => format!(" (in {many} layers)"),
    };
    let what = if one.side == 0 { "makes" } else { "reads" };
    format!(
        "`{}`{layers} {what} {} columns on a rank, no multiple of {BF16}: its products leave the fastest \
         kernels of NVIDIA devices, which load 16 bytes at a time",
        one.name(),
        one.width()
    )
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};

    pub const EXAMPLES: &[Example] = &[
        found(
            "nam56r",
            "tp=2 mode=nemo_native",
            "`mamba.in_proj.weight` (in 17 layers) makes 4124 columns on a rank, no multiple of 8: its products leave \
             the fastest kernels of NVIDIA devices, which load 16 bytes at a time",
        ),
        found(
            "nam56r",
            "tp=1",
            "`recurrent.in_proj.weight` (in 4 layers) makes 1580 columns on a rank, no multiple of 8: its products leave \
             the fastest kernels of NVIDIA devices, which load 16 bytes at a time",
        ),
        silent("nam56r", "tp=1 mode=nemo_native"),
        silent("nam56r", "tp=2 engine=shardwright"),
        silent("llama3-8b", "tp=8"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
