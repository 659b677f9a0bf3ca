//! What a pipeline schedule needs of stages, chunks and microbatches.
//!
//! DualPipe and DualPipeV: deepseek-ai/DualPipe, the assertions at the top of `step`.

mod chunks;
mod dual_microbatches;
mod dualpipe_even;
mod interleaved_microbatches;
mod no_pipeline;
mod one_chunk;
mod v_chunks;

use super::{Case, Rule};
use crate::layout::Layout;

/// The layout where there is a pipeline to order; without one, `schedule/no-pipeline` has said all.
fn ordered<'a>(case: &Case<'a>) -> Option<&'a Layout> {
    no_pipeline::check(case).is_none().then_some(case.layout)
}

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[
    &no_pipeline::RULE,
    &one_chunk::RULE,
    &chunks::RULE,
    &v_chunks::RULE,
    &interleaved_microbatches::RULE,
    &dualpipe_even::RULE,
    &dual_microbatches::RULE,
];
