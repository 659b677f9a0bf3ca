//! **gpipe** (Huang et al., arXiv 1811.06965): all forwards, then all backwards, oldest first.
//! Everything is in flight at once.

use super::program::{Program, Verb};

pub(super) fn program(microbatches: u32) -> Program {
    Program::new()
        // 1: forwards.
        .then(microbatches, &[Verb::Forward(0)])
        // 2: backwards.
        .then(microbatches, &[Verb::Backward(0)])
}
