//! Replays that end once too much is held come to the verdict of whole ones.

use case::{Asked, Case, Terms};
use hardware::Cluster;
use memory::fit::{Fit, Verdict, most_headroom_of_stage};
use proptest::prelude::*;
use units::Bytes;

/// A job of typed words; none where they are not legal.
fn job(words: &str) -> Option<Case> {
    let asked = Asked::parse(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
    let cluster = Cluster::parse(asked.on.as_deref().unwrap()).unwrap();
    Case::new(asked, recipe, Some(cluster), Terms::RUN).ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_replay_that_ends_early_says_what_a_whole_one_says(
        recipe in prop::sample::select(&["llama3-8b", "deepseek-v2-lite", "mixtral-8x7b", "nam56r-mini", "gpt3-175b"][..]),
        [tp, pp, ep] in prop::sample::select(&[[1, 1, 1], [2, 2, 1], [1, 4, 2], [2, 4, 4], [4, 8, 1], [8, 4, 1]][..]),
        engine in prop::sample::select(&["megatron", "megatron", "fsdp2", "deepspeed"][..]),
        order in prop::sample::select(&["", "--schedule 1f1b", "--vpp 2", "--vpp 3", "--schedule zb-h1"][..]),
        zero in 0u64..2,
        recompute in prop::sample::select(&["none", "full", "selective:core_attn"][..]),
        offload in prop::sample::select(&["", "--offload-optimizer 1", "--offload-optimizer 0.5"][..]),
        micro_batch in 1u64..3,
        // Of the device, what is to be left: around what the job leaves.
        around in -1.0f64..1.0,
    ) {
        let zero = if engine == "megatron" { zero } else { zero + 2 };
        let [pp, ep] = if engine == "deepspeed" { [1, 1] } else { [pp, ep] };
        let order = if engine == "megatron" { order } else { "" };
        let recompute = if engine == "megatron" || recompute == "full" { recompute } else { "none" };
        let offload = if engine == "fsdp2" { "" } else { offload };
        let ep = if ["llama3-8b", "gpt3-175b"].contains(&recipe) { 1 } else { ep };
        let mode = if recipe == "nam56r-mini" { "--mode author_dp" } else { "" };
        let words = format!(
            "{recipe} --on 4x8xH200 --engine {engine} --tp {tp} --pp {pp} --ep {ep} --etp 1 --zero {zero} --mbs {micro_batch} \
             --gbs 64 --seq 2048 --recompute {recompute} {order} {offload} {mode}"
        );
        let Some(case) = job(&words) else { return Ok(()) };
        let Ok(whole) = Fit::price(&case, Bytes(0)) else { return Ok(()) };
        let wanted = Bytes((whole.worst().headroom + (around * f64::from(1 << 30)) as i64).max(0) as u64);
        let passes = whole.worst().headroom >= wanted.0 as i64;
        match Fit::price_within(&case, wanted.into()).unwrap() {
            Ok(fit) => {
                prop_assert_eq!(fit.worst().headroom, whole.worst().headroom);
                prop_assert!(passes || fit.verdict != Verdict::Fits);
            }
            Err(over) => {
                let left = whole.classes[over.stage].headroom;
                prop_assert!(!passes, "{words}");
                prop_assert!(left <= wanted.0 as i64 - over.missing as i64, "{words}: {left} left");
            }
        }
        for class in &whole.classes {
            let (most, _) = most_headroom_of_stage(&case, class.stage, wanted).unwrap();
            prop_assert!(class.headroom <= most, "{words}: {} left on stage {}, not {most}", class.headroom, class.stage);
        }
    }
}

/// Optimizers make their state at the end of the first step, so that a stage that is replayed by itself has to go beyond it.
#[test]
fn a_stage_by_itself_leaves_about_what_its_job_leaves() {
    for (engine, degrees) in [("fsdp2", "--zero 3"), ("fsdp2", "--zero 2 --pp 2"), ("megatron", "--zero 0 --pp 2")] {
        let words = format!("llama3-8b --on 8xH200 --engine {engine} {degrees} --mbs 1 --gbs 64 --seq 2048");
        let case = job(&words).unwrap();
        for class in &Fit::price(&case, Bytes(0)).unwrap().classes {
            let (most, _) = most_headroom_of_stage(&case, class.stage, Bytes(0)).unwrap();
            let overlooked = most - class.headroom;
            assert!((0..1 << 30).contains(&overlooked), "{words}: {overlooked} more on stage {}", class.stage);
        }
    }
}
