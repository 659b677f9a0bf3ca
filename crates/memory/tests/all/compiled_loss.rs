//! The loss compiled as torchtitan compiles it, against the eager one.

use layout::{LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use ledger::fsdp2::{Fsdp2Options, Job, explain};

/// Eager, logits are copied to fp32 and their logarithms kept; compiled, neither is made.
#[test]
fn no_wide_logits_are_made() {
    let request = LayoutRequest {
        tp: Some(1),
        world: Some(8),
        zero: Some(ZeroStage::Three),
        recompute: Some(Recompute::Full),
        ..LayoutRequest::default()
    };
    let checked = check(&recipe::builtin::find("llama3-8b").unwrap(), &request);
    let layout = checked.layout.unwrap();
    let stages = StagePlan::new(&checked.recipe, &layout, None).unwrap();
    let peak = |compile_loss| {
        let options = Fsdp2Options { compile_loss, ..Fsdp2Options::of(&layout) };
        let job = Job { recipe: &checked.recipe, layout: &layout, stages: &stages, rank: 0, options: &options };
        explain(&job).unwrap().allocated_peak()
    };
    let logits = layout.micro_batch * layout.sequence * checked.recipe.vocab;
    let (eager, compiled) = (peak(false), peak(true));
    // At least one buffer as wide as fp32: the peak then is another, or the gradient in bf16.
    assert!(compiled + 4 * logits <= eager, "{compiled} {eager} {logits}");
}
