//! Fused AdamW over the shards (`torch/optim/adamw.py`): moments and a step count a parameter,
//! made at the first step; the step itself needs nothing more.

use super::engine::Fsdp;
use crate::line::Line;
use crate::tape::{FP32, Storage};
use std::rc::Rc;

/// The optimizer of one rank.
#[derive(Default)]
pub(super) struct AdamW {
    state: Vec<Rc<Storage>>,
}

impl AdamW {
    pub fn step(&mut self, engine: &Fsdp) {
        let make = |elements: u64, name| engine.tape.storage(Line::OtherOptimizer, elements * FP32, name);
        if self.state.is_empty() {
            for elements in engine.groups.iter().flat_map(|group| group.shard_elements()) {
                self.state.extend([make(1, "step count"), make(elements, "moment"), make(elements, "moment")]);
            }
        }
        engine.groups.iter().for_each(|group| group.zero_grad());
    }
}
