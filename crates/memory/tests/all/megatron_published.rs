//! NAM56R on eight H200 as its authors ran it (DatasunriseOU/cppmega, `docs/changelog.md`,
//! 2026-04-10): memory per GPU in whole GiB. The source does not say which figure of the device it
//! is; the allocated peak is the one that fits.
//!
//! What their launcher emitted differs from the recipe, and is followed here: Adam with the
//! distributed optimizer, no `--group-query-attention` (so 56 KV heads), no activation flag (so
//! GELU, two matrices), the built-in Mamba-2 on M and R, `--recompute-granularity selective`,
//! `--cross-entropy-loss-fusion`, GBS 32 or 64.

use layout::{LayoutRequest, Recompute, StagePlan, check};
use ledger::megatron::{CrossEntropy, Job, MegatronOptions, replay};
use recipe::kinds::Activation;
use recipe::kinds::attention::AttentionKind;
use recipe::precision::OptimizerPolicy;
use recipe::{Mode, Recipe};

/// The figures are rounded to a GiB and the reading above is ours.
const TOLERANCE: f64 = 0.03;

fn as_launched() -> Recipe {
    let (mut recipe, _) = recipe::builtin::find("nam56r").unwrap().in_mode(Mode::NemoNative).unwrap();
    recipe.optimizer = OptimizerPolicy::default();
    if let Some(attention) = &mut recipe.attention {
        attention.kind = AttentionKind::Gqa { kv_heads: attention.heads, head_dim: 64 };
    }
    if let Some(moe) = &mut recipe.moe {
        moe.activation = Activation::Gelu;
        moe.shared.iter_mut().for_each(|shared| shared.activation = Activation::Gelu);
    }
    recipe
}

#[test]
fn nam56r_holds_what_its_authors_report() {
    let recipe = as_launched();
    for (tp, micro_batch, reported) in [(2, 4, 52.0), (2, 8, 86.0), (1, 4, 88.0)] {
        let request = LayoutRequest {
            tp: Some(tp),
            sp: Some(tp > 1),
            world: Some(8),
            micro_batch: Some(micro_batch),
            recompute: Some(Recompute::parse("selective:core_attn").unwrap()),
            ..LayoutRequest::default()
        };
        let checked = check(&recipe, &request);
        let layout = checked.layout.unwrap_or_else(|| panic!("{:#?}", checked.findings));
        let stages = StagePlan::new(&recipe, &layout, None).unwrap();
        let options = MegatronOptions { cross_entropy: CrossEntropy::FusedNative, ..MegatronOptions::of(&recipe) };
        let job = Job { recipe: &recipe, layout: &layout, stages: &stages, rank: 0, options: &options };
        let held = replay(&job).unwrap().allocated_peak() as f64 / (1_u64 << 30) as f64;
        println!("tp {tp} mbs {micro_batch}: {held:.1} GiB replayed, {reported} reported");
        assert!((held / reported - 1.0).abs() < TOLERANCE, "tp {tp} mbs {micro_batch}: {held} GiB, not {reported}");
    }
}
