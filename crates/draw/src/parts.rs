//! Lines of memory in the few groups that a bar shows.

use crate::palette::{BLUE, Colour, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION};

/// What a bar is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is called.
    pub name: &'static str,
    /// For terminals.
    pub letter: char,
    /// For pictures.
    pub colour: Colour,
    /// Lines of `fit` in it, by name.
    pub lines: &'static [&'static str],
}

/// Every part, from what stays to what comes and goes. The last has every line that no other has.
pub const PARTS: &[Part] = &[
    Part { name: "weights", letter: 'w', colour: BLUE, lines: &["replicated-params", "tp-params", "expert-params"] },
    Part { name: "gradients", letter: 'g', colour: SKY, lines: &["gradients"] },
    Part { name: "optimizer", letter: 'o', colour: PURPLE, lines: &["matrix-optimizer", "other-optimizer"] },
    Part {
        name: "activations",
        letter: 'a',
        colour: ORANGE,
        lines: &["activations", "activation-gradients", "feature-activations", "communication"],
    },
    Part { name: "routing", letter: 'r', colour: VERMILION, lines: &["expert-inputs", "routing-scratch"] },
    Part { name: "loss", letter: 'l', colour: GREEN, lines: &["loss"] },
    Part {
        name: "tail",
        letter: 't',
        colour: GREY,
        lines: &["workspaces", "allocator-overhead", "runtime-reserve", "communicators"],
    },
];

/// The part that has a line.
pub fn part_of(line: &str) -> &'static Part {
    PARTS.iter().find(|part| part.lines.contains(&line)).unwrap_or(&PARTS[PARTS.len() - 1])
}
