//! Ray on Kubernetes: a cluster of one worker a node, and a driver that starts each node's script.

use super::pod::{container, metadata, pod, storage_mounts};
use super::script::bundle;
use super::trainjob::environment;
use crate::emission::{Emission, File};
use crate::job::Job;
use crate::tree;
use diag::quote;
use serde_json::{Value, json};

/// The driver.
pub fn driver() -> File {
    File::new("ray_launch.py", include_str!("../../assets/ray/driver.py"))
}

/// `rayjob.yaml`.
pub fn file(job: &Job, emission: &Emission, files: &[File]) -> File {
    let (policy, cluster) = (&job.policy.job, job.cluster);
    let (nodes, devices) = (cluster.nodes.to_string(), cluster.devices_per_node.to_string());
    let words = ["exec", "python3", "./ray_launch.py", &nodes, &devices, &job.policy.storage.temporary];
    let words = bundle(job, files, &quote::shell_line(words));
    let mut worker = container(job, "worker");
    worker["env"] = Value::Array(environment(emission));
    let head = json!({
        "name": "head",
        "image": policy.pod_image(),
        "volumeMounts": storage_mounts(job),
    });
    let template = |container: Value| {
        let mut pod = pod(job, container);
        // Ray's operator restarts its own pods.
        pod["restartPolicy"] = json!("Always");
        json!({ "spec": pod })
    };
    let value = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata(job),
        "spec": {
            "entrypoint": quote::shell_line(words),
            "backoffLimit": policy.restarts,
            "activeDeadlineSeconds": policy.hours * 3600,
            "shutdownAfterJobFinishes": true,
            "rayClusterSpec": {
                "headGroupSpec": { "rayStartParams": { "num-gpus": "0" }, "template": template(head) },
                "workerGroupSpecs": [{
                    "groupName": "nodes",
                    "replicas": cluster.nodes,
                    "minReplicas": cluster.nodes,
                    "maxReplicas": cluster.nodes,
                    "rayStartParams": {},
                    "template": template(worker),
                }],
            },
        },
    });
    File::new("rayjob.yaml", tree::yaml(&value))
}
