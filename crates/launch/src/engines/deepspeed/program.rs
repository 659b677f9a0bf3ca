//! The emitted `train.py`: the FSDP2 program's model, data and learning rate, wrapped by DeepSpeed. It splits over
//! replicas alone; for tp, cp, pp and ep DeepSpeed wraps a model that a script of one's own builds.

use super::FILE;
use crate::emission::{Emission, File, Starter};
use crate::engines::fsdp2;
use crate::engines::reference::Program;
use crate::job::Job;
use crate::tree;
use case::options::CrossEntropy;
use diag::{Blame, Finding};
use layout::{Engine, OwnershipTable};
use recipe::{Dtype, Optimizer};

/// Files of the FSDP2 program that this one loads too.
const SHARED: [&str; 19] = [
    "basics.py",
    "collectives.py",
    "data.py",
    "depths.py",
    "documents.py",
    "engram.py",
    "folder.py",
    "loop.py",
    "mhc.py",
    "model.py",
    "moe.py",
    "parallelize.py",
    "plan.py",
    "quantised.py",
    "recurrence.py",
    "lines.py",
    "scans.py",
    "schedule.py",
    "walk.py",
];

const OWN: [(&str, &str); 2] = [
    ("zero.py", include_str!("../../../assets/deepspeed/zero.py")),
    ("train.py", include_str!("../../../assets/deepspeed/train.py")),
];

/// Whether the emitted program runs the job, and not a script that the policy names.
pub fn is_own(job: &Job) -> bool {
    job.policy.job.script.is_none()
}

/// Packages that the program and the modules it shares load.
const LOADED: [&str; 3] = ["torch", "numpy", "deepspeed"];

/// Each with the least version that is known to do: `parallelize.py` is the FSDP2 program's.
pub fn libraries() -> Vec<(&'static str, &'static str)> {
    fsdp2::versions(&LOADED)
}

/// What the program does not do, each by name.
pub fn refusals(job: &Job) -> Vec<Finding> {
    let layout = job.layout;
    let refuse = |object: &str, message: String| Finding::error("deepspeed/program", Blame::Engine, object, message);
    let mut found = Vec::new();
    let axes = [("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("ep", layout.ep)];
    for (axis, degree) in axes.into_iter().filter(|(_, degree)| degree.splits()) {
        let message = format!("the emitted train.py splits over replicas alone, and {axis} is {degree}");
        let finding = refuse(axis, message).fix(axis, vec![1]);
        found.push(finding.hint("or name a script of your own in the policy's [job] script"));
    }
    if job.recipe.tensors().iter().any(|tensor| tensor.optimizer == Optimizer::Muon) {
        let message = "DeepSpeed gives Muon every matrix outside the embedding, and the recipe says which".to_string();
        found.push(refuse("optimizer", message).hint("--optimizer adamw, or a script of your own in [job] script"));
    }
    let state = &job.case.options.state;
    if [state.main, state.exp_avg, state.exp_avg_sq].iter().any(|format| *format != Dtype::Fp32) {
        found.push(refuse("precision", "main weights and moments are fp32 here".to_string()));
    }
    if job.recipe.adapters().is_some() {
        let message = "adapters are in the FSDP2 program, not in this one".to_string();
        found.push(refuse("adapters", message).hint("--engine fsdp2"));
    }
    if job.case.options.kernels.cross_entropy != CrossEntropy::Eager {
        found.push(refuse("loss", "the loss is torch's own here".to_string()).hint("leave the loss's fusion out"));
    }
    found
}

/// The plan, the program and what starts it, beside DeepSpeed's configuration.
pub fn emission(job: &Job, configuration: File) -> Result<Emission, Vec<Finding>> {
    let table = OwnershipTable::new(job.recipe, job.layout)?;
    let shared = fsdp2::ASSETS.iter().filter(|(path, _)| SHARED.contains(path));
    let program = Program {
        engine: Engine::Deepspeed,
        starter: Starter::Torchrun,
        rule: "deepspeed/reference-model",
        data: File::new("sharding.json", tree::json_rows(&fsdp2::plan(job, &table))),
        assets: shared.chain(&OWN).copied().collect(),
        arguments: Vec::new(),
    };
    let mut emission = program.emission(job)?;
    let steps = job.policy.run.steps.to_string();
    let words = ["train.py", "--plan", "sharding.json", "--deepspeed_config", FILE, "--steps", &steps];
    emission.entry = words.map(str::to_string).to_vec();
    emission.files.push(configuration);
    emission.files.push(fsdp2::listed(job, &LOADED));
    Ok(emission)
}
