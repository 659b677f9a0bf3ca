//! Kubernetes' JobSet: one indexed job with a pod a node, or one a slice of TPUs with a pod a host.

use super::pod;
use super::trainjob::{command, environment};
use crate::emission::{Emission, File};
use crate::job::Job;
use crate::tree;
use diag::Finding;
use serde_json::{Value, json};

/// `jobset.yaml`.
pub fn file(job: &Job, emission: &Emission, files: &[File]) -> Result<File, Vec<Finding>> {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let name = super::name(job);
    let slice = pod::slice(job).map_err(|finding| vec![finding])?;
    let (role, replicas, pods) = match slice {
        Some(slice) => ("slice", cluster.nodes / slice.hosts, slice.hosts),
        None => ("node", 1, cluster.nodes),
    };
    let mut container = pod::container(job, role);
    let mut variables = environment(emission);
    if slice.is_none() {
        // The first pod's name in the JobSet's own domain.
        variables.push(json!({ "name": "RDZV_HOST", "value": format!("{name}-node-0-0.{name}") }));
    }
    container["env"] = Value::Array(variables);
    container["command"] = json!(command(job, files));
    let mut metadata = pod::metadata(job);
    if let Some(annotations) = pod::annotations(job) {
        metadata["annotations"] = annotations;
    }
    let value = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": { "maxRestarts": policy.restarts },
            "network": { "enableDNSHostnames": true, "subdomain": name },
            "replicatedJobs": [{
                "name": role,
                "replicas": replicas,
                "template": { "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "activeDeadlineSeconds": policy.hours * 3600,
                    "template": { "spec": pod::pod(job, container) },
                } },
            }],
        },
    });
    Ok(File::new("jobset.yaml", tree::yaml(&value)))
}
