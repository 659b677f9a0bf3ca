//! Kubernetes' JobSet: one indexed job with a pod a node.

use super::trainjob::{command, environment};
use crate::emission::{Emission, File};
use crate::job::Job;
use crate::tree;
use serde_json::{Value, json};

/// `jobset.yaml`.
pub fn file(job: &Job, emission: &Emission, files: &[File]) -> File {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let name = super::name(job);
    let mut container = container(job, "node");
    let mut variables = environment(emission);
    // The first pod's name in the JobSet's own domain.
    variables.push(json!({ "name": "RDZV_HOST", "value": format!("{name}-node-0-0.{name}") }));
    container["env"] = Value::Array(variables);
    container["command"] = json!(command(job, files));
    let value = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": { "name": name, "namespace": policy.namespace },
        "spec": {
            "failurePolicy": { "maxRestarts": policy.restarts },
            "network": { "enableDNSHostnames": true, "subdomain": name },
            "replicatedJobs": [{
                "name": "node",
                "replicas": 1,
                "template": { "spec": {
                    "parallelism": cluster.nodes,
                    "completions": cluster.nodes,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": policy.hours * 3600,
                    "template": { "spec": pod(job, container) },
                } },
            }],
        },
    });
    File::new("jobset.yaml", tree::yaml(&value))
}

/// A container with a node's devices and the storage.
pub fn container(job: &Job, name: &str) -> Value {
    let policy = &job.policy.job;
    let devices = job.cluster.devices_per_node.to_string();
    json!({
        "name": name,
        "image": policy.image,
        "resources": {
            "limits": { "nvidia.com/gpu": devices },
            "requests": { "cpu": policy.cpus.to_string() },
        },
        "volumeMounts": [
            { "name": "storage", "mountPath": policy.mount },
            { "name": "shared-memory", "mountPath": "/dev/shm" },
        ],
    })
}

/// A pod with the storage claim, and shared memory as large as the node allows.
pub fn pod(job: &Job, container: Value) -> Value {
    json!({
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            { "name": "storage", "persistentVolumeClaim": { "claimName": job.policy.job.claim } },
            { "name": "shared-memory", "emptyDir": { "medium": "Memory" } },
        ],
    })
}
