//! Kubeflow Trainer v2: a TrainJob on a training runtime, which brings volumes and rendezvous.

use super::script::bundle;
use crate::emission::{Emission, File};
use crate::job::Job;
use crate::tree;
use serde_json::{Value, json};

/// `trainjob.yaml`.
pub fn file(job: &Job, emission: &Emission, files: &[File]) -> File {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let devices = cluster.devices_per_node.to_string();
    let value = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": { "name": super::name(job), "namespace": policy.namespace },
        "spec": {
            "runtimeRef": { "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": policy.runtime },
            "activeDeadlineSeconds": policy.hours * 3600,
            "trainer": {
                "image": policy.image,
                "command": command(job, files),
                "env": environment(emission),
                "numNodes": cluster.nodes,
                "numProcPerNode": cluster.devices_per_node,
                "resourcesPerNode": { "limits": { "nvidia.com/gpu": devices }, "requests": { "cpu": policy.cpus.to_string() } },
            },
        },
    });
    File::new("trainjob.yaml", tree::yaml(&value))
}

/// A container's command: the launch's files, then its script.
pub fn command(job: &Job, files: &[File]) -> Vec<String> {
    bundle(job, files, "exec bash ./launch.sh").iter().map(|word| unexpanded(word)).collect()
}

/// The emission's environment as a container's.
pub fn environment(emission: &Emission) -> Vec<Value> {
    emission.environment.iter().map(|v| json!({ "name": v.name, "value": unexpanded(&v.value) })).collect()
}

/// Text that Kubernetes leaves as it is: it expands `$(NAME)` in commands and values, and takes a
/// doubled dollar for a dollar.
fn unexpanded(text: &str) -> String {
    text.replace('$', "$$")
}
