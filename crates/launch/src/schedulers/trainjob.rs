//! Kubeflow Trainer v2: a TrainJob on a training runtime, which brings the rendezvous; volumes and placement
//! are patched into the runtime's job.

use super::pod;
use super::script::bundle;
use crate::emission::{Emission, File};
use crate::job::Job;
use crate::tree;
use diag::{Blame, Finding};
use serde_json::{Value, json};

/// The job and the container of Trainer's own runtimes that a patch is merged into.
const NODE: &str = "node";

/// Who owns our patch, as its list is keyed.
const MANAGER: &str = "shardwright";

/// `trainjob.yaml`.
pub fn file(job: &Job, emission: &Emission, files: &[File]) -> Result<File, Vec<Finding>> {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let refused = refusals(job);
    if !refused.is_empty() {
        return Err(refused);
    }
    let value = json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pod::metadata(job),
        "spec": {
            "runtimeRef": { "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": policy.runtime },
            "activeDeadlineSeconds": policy.hours * 3600,
            "trainer": {
                "image": policy.pod_image(),
                "command": command(job, files),
                "env": environment(emission),
                "numNodes": cluster.nodes,
                "numProcPerNode": cluster.devices_per_node,
                "resourcesPerNode": pod::resources(job),
            },
            "runtimePatches": [{ "manager": MANAGER, "trainingRuntimeSpec": { "template": patch(job) } }],
        },
    });
    Ok(File::new("trainjob.yaml", tree::yaml(&value)))
}

/// What is merged into the runtime's job: its volumes and placement, the container's mounts and rights.
fn patch(job: &Job) -> Value {
    let mut container = json!({ "name": NODE, "volumeMounts": pod::mounts(job) });
    if let Some(security) = pod::security(job) {
        container["securityContext"] = security;
    }
    let mut spec = pod::placement(job);
    spec.insert("containers".to_string(), json!([container]));
    let mut template = json!({ "spec": { "replicatedJobs": [
        { "name": NODE, "template": { "spec": { "template": { "spec": spec } } } },
    ] } });
    if let Some(annotations) = pod::annotations(job) {
        template["metadata"] = json!({ "annotations": annotations });
    }
    template
}

/// What a TrainJob has no word for.
fn refusals(job: &Job) -> Vec<Finding> {
    let refuse = |object: &str, message: String| {
        let finding = Finding::error("launch/trainjob", Blame::Environment, object, message);
        finding.hint("take --scheduler jobset, or put it into the training runtime's own pod template")
    };
    let policy = &job.policy.kubernetes;
    let mut findings = Vec::new();
    if policy.host_network {
        let message = "a TrainJob's patch of its runtime has no `hostNetwork`".to_string();
        findings.push(refuse("kubernetes.host_network", message));
    }
    if policy.priority_class.is_some() {
        let message = "a TrainJob's patch of its runtime has no `priorityClassName`".to_string();
        findings.push(refuse("kubernetes.priority_class", message));
    }
    match pod::slice(job) {
        Err(finding) => findings.push(finding),
        Ok(Some(slice)) if job.cluster.nodes > slice.hosts => {
            let slices = job.cluster.nodes / slice.hosts;
            findings.push(refuse("on", format!("a TrainJob is one job of nodes, and this one has {slices} slices")));
        }
        Ok(_) => {}
    }
    findings
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
