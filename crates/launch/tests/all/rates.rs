//! Learning rates that come down in other ways, and batches that grow, in every engine's words.

use crate::common;
use case::Seams;
use launch::policy::{BatchRamp, Decay, Run};
use launch::{Emission, Frontend};
use layout::{Engine, LayoutRequest};

fn emit(engine: Engine, change: impl FnOnce(&mut common::Case)) -> Result<Emission, Vec<diag::Finding>> {
    let request =
        LayoutRequest { world: Some(8), global_batch: Some(64), engine: Some(engine), ..LayoutRequest::default() };
    let mut job = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Allow).unwrap();
    job.policy.run = Run { steps: 1000, warmup_steps: 100, ..Run::default() };
    change(&mut job);
    job.emit()
}

/// The values of an emission's words that say how the rate comes down.
fn said(engine: Engine, decay: Decay) -> Vec<String> {
    let steps = (decay == Decay::Wsd).then_some(200);
    let emission = emit(engine, |job| (job.policy.run.decay, job.policy.run.decay_steps) = (decay, steps)).unwrap();
    let about = |flag: &str| {
        ["decay-style", "wsd", "decay_", "schedule_type", "scheduler.type"].iter().any(|w| flag.contains(w))
    };
    let words = emission.arguments.iter().filter(|argument| about(&argument.flag));
    let words = words.filter(|argument| !argument.flag.contains("weight"));
    words.map(|argument| format!("{} {}", argument.flag, argument.values.join(" "))).collect()
}

#[test]
fn every_engine_is_told_in_its_own_words() {
    assert_eq!(
        said(Engine::Megatron, Decay::Wsd),
        ["--lr-decay-style WSD", "--lr-wsd-decay-style linear", "--lr-wsd-decay-iters 200"]
    );
    assert_eq!(said(Engine::Megatron, Decay::Linear), ["--lr-decay-style linear"]);
    assert_eq!(
        said(Engine::Torchtitan, Decay::Wsd),
        ["lr_scheduler.decay_type \"linear\"", "lr_scheduler.decay_ratio 0.2"]
    );
    assert_eq!(
        said(Engine::Torchtitan, Decay::Constant),
        ["lr_scheduler.decay_type \"linear\"", "lr_scheduler.decay_ratio 0.0"]
    );
    assert_eq!(said(Engine::Deepspeed, Decay::Constant), ["scheduler.type WarmupLR"]);
    let scheduler = "optimizer.learning_rate_scheduler";
    let wsd = ["lr_decay_style \"linear\"", "lr_decay_steps 200", "lr_decay_starting_step 800"];
    let nanotron = said(Engine::Nanotron, Decay::Wsd);
    for word in wsd.map(|word| format!("{scheduler}.{word}")) {
        assert!(nanotron.contains(&word), "{nanotron:?} without {word}");
    }
    assert_eq!(said(Engine::Maxtext, Decay::Wsd), ["lr_schedule_type wsd", "wsd_decay_steps_fraction 0.2"]);
}

#[test]
fn our_programs_follow_it() {
    for engine in [Engine::Fsdp2, Engine::Deepspeed] {
        let change = |job: &mut common::Case| (job.policy.run.decay, job.policy.job.script) = (Decay::Wsd, None);
        let emission = emit(engine, change).unwrap();
        let plan = &emission.files.iter().find(|file| file.path == "sharding.json").unwrap().contents;
        let plan: serde_json::Value = serde_json::from_str(plan).unwrap();
        assert_eq!((&plan["run"]["decay"], &plan["run"]["decay_steps"]), (&"wsd".into(), &100.into()));
        assert!(emission.arguments.iter().all(|argument| !argument.flag.starts_with("scheduler.")));
    }
}

#[test]
fn what_an_engine_has_no_word_for_is_refused() {
    let rules = |engine, change: fn(&mut common::Case)| -> Vec<(&'static str, String)> {
        emit(engine, change).unwrap_err().into_iter().map(|finding| (finding.rule, finding.object)).collect()
    };
    let wsd: fn(&mut common::Case) = |job| job.policy.run.decay = Decay::Wsd;
    let linear: fn(&mut common::Case) = |job| job.policy.run.decay = Decay::Linear;
    let one = |object: &str| vec![("launch/decay", object.to_string())];
    assert_eq!(rules(Engine::Deepspeed, wsd), one("policy.run.decay"));
    assert_eq!(rules(Engine::Deepspeed, linear), one("policy.run.least_learning_rate"));
    assert_eq!(rules(Engine::Maxtext, linear), one("policy.run.decay"));
    let bridge: fn(&mut common::Case) = |job| (job.frontend, job.policy.run.decay) = (Frontend::Bridge, Decay::Wsd);
    assert_eq!(rules(Engine::Megatron, bridge), one("policy.run.decay"));
    assert_eq!(rules(Engine::Fsdp2, |job| job.policy.run.decay_steps = Some(5)), one("policy.run.decay_steps"));
}

#[test]
fn a_batch_grows_where_an_engine_lets_it() {
    let ramp = |start, step| Some(BatchRamp { start, step, tokens: 4_000_000 });
    let words = emit(Engine::Megatron, |job| job.policy.run.batch_ramp = ramp(32, 16)).unwrap().arguments;
    let of = |flag: &str| words.iter().find(|argument| argument.flag == flag).map(|argument| argument.values.join(" "));
    assert_eq!(of("--step-batch-size-schedule").unwrap(), "0:32 2000000:48 4000000:64");
    // Megatron refuses both: `Cannot specify both --step-batch-size-schedule and --global-batch-size`.
    assert_eq!(of("--global-batch-size"), None);
    for (engine, ramp) in
        [(Engine::Fsdp2, ramp(32, 16)), (Engine::Torchtitan, ramp(32, 16)), (Engine::Megatron, ramp(60, 3))]
    {
        let refused = emit(engine, |job| job.policy.run.batch_ramp = ramp).unwrap_err();
        assert_eq!(refused[0].rule, "launch/batch-ramp", "{engine}");
    }
}
