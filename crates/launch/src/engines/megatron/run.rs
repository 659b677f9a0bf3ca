//! Data, steps, checkpoints and logs, from the policy.

use super::super::list::{List, number};
use super::is_fsdp;
use crate::emission::Kind;
use crate::identity::Identity;
use crate::job::{Frontend, Job};
use crate::policy::Decay;

const POLICY: Kind = Kind::Policy;

/// Adds what the policy says.
pub fn arguments(job: &Job, list: &mut List) {
    data(job, list);
    steps(job, list);
    storage(job, list);
    list.switch(
        POLICY,
        "--no-create-attention-mask-in-dataloader",
        "policy.data",
        "the attention kernels are causal by themselves",
    );
}

fn data(job: &Job, list: &mut List) {
    let data = &job.policy.data;
    match &data.tokenizer {
        Some(model) => {
            list.set(
                POLICY,
                "--tokenizer-type",
                "HuggingFaceTokenizer",
                "policy.data.tokenizer",
                "named in the policy",
            );
            list.set(POLICY, "--tokenizer-model", model, "policy.data.tokenizer", "named in the policy");
        }
        None => {
            let why = "no tokenizer is named in the policy: token numbers are taken as they are";
            list.set(POLICY, "--tokenizer-type", "NullTokenizer", "policy.data.tokenizer", why);
        }
    }
    if data.paths.is_empty() {
        let why = "no data is named in the policy: the engine makes some up, and throughput on it proves little";
        list.switch(POLICY, "--mock-data", "policy.data.paths", why);
    } else {
        list.many(POLICY, "--data-path", &data.paths, "policy.data.paths", "named in the policy");
        list.set(POLICY, "--data-cache-path", &job.policy.storage.data, "policy.storage.data", "indices are kept here");
    }
    if let Some(documents) = job.case.options.documents {
        let why = format!("documents see nothing of one another; priced for lengths of {documents}");
        list.switch(POLICY, "--dataloader-inter-document-masking", "state.documents", &why);
    }
    list.set(POLICY, "--split", "100,0,0", "policy.data", "all data trains; evaluation is a run of its own");
}

fn steps(job: &Job, list: &mut List) {
    let run = &job.policy.run;
    let from = "policy.run";
    list.set(POLICY, "--train-iters", run.steps, from, "steps");
    list.set(POLICY, "--lr", number(run.learning_rate), from, "peak learning rate");
    list.set(POLICY, "--min-lr", number(run.last_rate()), from, "learning rate at the end");
    let style = if run.decay == Decay::Wsd { "WSD" } else { run.decay.name() };
    list.set(POLICY, "--lr-decay-style", style, from, "the default is linear");
    if run.decay == Decay::Wsd {
        list.set(POLICY, "--lr-wsd-decay-style", "linear", from, "the default is exponential");
        list.set(POLICY, "--lr-wsd-decay-iters", run.decaying(), from, "the last steps");
    }
    list.set(POLICY, "--lr-decay-iters", run.steps, from, "over the whole run");
    list.set(POLICY, "--lr-warmup-iters", run.warmup(), from, "fewer than the steps that decay");
    // optimizer_param_scheduler.py stops where a checkpoint was made for another number of steps.
    list.switch(
        POLICY,
        "--override-opt-param-scheduler",
        from,
        "a run that goes on for longer follows the policy's rates",
    );
    list.set(POLICY, "--weight-decay", number(run.weight_decay), from, "the default is 0.01");
    list.set(POLICY, "--clip-grad", number(run.clip), from, "largest gradient norm");
    list.set(POLICY, "--seed", run.seed, from, "part of the record");
    list.set(POLICY, "--eval-iters", 0, from, "evaluation is a run of its own");
    // training.py divides the steps by it even where nothing is evaluated, and its default is None.
    list.set(POLICY, "--eval-interval", run.steps, from, "never before the end");
}

fn storage(job: &Job, list: &mut List) {
    let run = &job.policy.run;
    let why = "the policy's, or beside the launch";
    let checkpoints = job.checkpoints();
    list.set(POLICY, "--save", &checkpoints, "policy.storage.checkpoints", why);
    list.set(POLICY, "--load", &checkpoints, "policy.storage.checkpoints", "a restart goes on from there");
    list.set(POLICY, "--save-interval", run.save_every, "policy.run.save_every", "steps between checkpoints");
    if let (Some(_), Frontend::MegatronLm) = (job.policy.storage.keep_last, job.frontend) {
        // checkpointing.py removes the one before the newest, unless this divides its step.
        let never = (run.steps / run.save_every.max(1)).saturating_add(1).saturating_mul(run.save_every);
        let why = "beyond the last step: the newest alone is kept";
        list.set(POLICY, "--save-retain-interval", never, "policy.storage.keep_last", why);
    }
    let format = if is_fsdp(job) { "fsdp_dtensor" } else { "torch_dist" };
    list.set(POLICY, "--ckpt-format", format, "layout.zero", Identity::of(job).tied.why);
    list.set(POLICY, "--log-interval", run.log_every, "policy.run.log_every", "steps between log lines");
    let logs = format!("{}/tensorboard", job.logs());
    list.set(POLICY, "--tensorboard-dir", logs, "policy.storage.logs", why);
}
