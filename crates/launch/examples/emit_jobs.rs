//! Writes job files of every scheduler for many layouts into a directory, for the schedulers' own
//! readers: `emit_jobs DIRECTORY COUNT`. Each case is a folder.

#[path = "../tests/all/common.rs"]
mod common;

use case::Seams;
use hardware::Cluster;
use launch::Policy;
use launch::schedulers::{Scheduler, files};
use layout::{Engine, LayoutRequest};
use std::path::Path;

/// Everything an operator of Kubernetes or Slurm can ask for, but what a TrainJob has no word for.
const SITE: &str = include_str!("../../../docs/example_policy.toml");

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, count] = words.as_slice() else {
        eprintln!("emit_jobs DIRECTORY COUNT");
        std::process::exit(2);
    };
    let count: usize = count.parse().expect("a count");
    let cases = [Engine::Megatron, Engine::Deepspeed].into_iter().flat_map(|e| common::cases(e, Seams::Refuse));
    let legal: Vec<_> = cases.filter_map(|(name, case)| Some((name, case.ok()?))).collect();
    let step = (legal.len() / count).max(1);
    let picked = legal.into_iter().step_by(step);
    for (name, mut case) in picked.chain(tpus()) {
        if name.ends_with('0') {
            case.policy = site();
        }
        let Ok(emission) = case.emit() else { continue };
        let at = Path::new(folder).join(format!("{}.{name}", emission.engine));
        std::fs::create_dir_all(&at).expect("the folder can be written");
        for &(_, scheduler) in Scheduler::ALL {
            let all = files(scheduler, &case.job(), &emission);
            let is_asked_of_gpus = |f: &diag::Finding| f.rule == "launch/tpu-scheduler";
            if all.as_ref().is_err_and(|findings| findings.iter().all(is_asked_of_gpus)) {
                continue;
            }
            for file in all.expect("job files are written") {
                std::fs::write(at.join(&file.path), &file.contents).expect("the folder can be written");
            }
        }
    }
}

/// The example policy, without what a TrainJob has no word for, and with job names as schedulers test them.
fn site() -> Policy {
    let mut policy = Policy::parse(SITE).expect("the example reads");
    policy.kubernetes.priority_class = None;
    policy.slurm.reservation = None;
    policy.job.script = None;
    (policy.job.partition, policy.job.account, policy.slurm.qos) = (None, None, None);
    (policy.slurm.constraint, policy.slurm.exclude) = (None, None);
    policy
}

/// MaxText on slices of every generation.
fn tpus() -> impl Iterator<Item = (String, common::Case)> {
    ["16xTPU-v5e", "8xTPU-v6e", "64xTPU-v5p"].into_iter().map(|on| {
        let cluster = Cluster::parse(on).expect("a slice");
        let world = Some(cluster.devices());
        let request = LayoutRequest { world, engine: Some(Engine::Maxtext), ..LayoutRequest::default() };
        let case = common::Case::on(&common::recipe("llama3-8b"), &request, Seams::Refuse, cluster);
        (format!("llama3-8b.{on}"), case.expect("it is legal"))
    })
}
