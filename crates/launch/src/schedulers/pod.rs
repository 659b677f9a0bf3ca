//! What every pod of a job is made of: devices, image, volumes, and what the cluster's operator asks for.

use crate::job::Job;
use diag::{Blame, Finding};
use hardware::{Kind, Slice};
use serde_json::{Map, Value, json};

/// Kueue's label of a job's queue.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Labels of nodes with TPUs (Google Cloud, "Deploy TPU workloads in GKE").
const TPU_ACCELERATOR: &str = "cloud.google.com/gke-tpu-accelerator";
const TPU_TOPOLOGY: &str = "cloud.google.com/gke-tpu-topology";

/// JobSet's annotation that gives each of its jobs a topology domain of its own, and the domain that is one
/// slice (Google Cloud, "Deploy TPU Multislices in GKE").
const EXCLUSIVE: (&str, &str) = ("alpha.jobset.sigs.k8s.io/exclusive-topology", "cloud.google.com/gke-nodepool");

/// Ports of a slice's hosts: libtpu's own, and JAX's coordinator (the same page).
const TPU_PORTS: [u16; 2] = [8471, 8080];

/// The slice of a job on TPUs; refused where its device file names none. None on other devices.
pub fn slice<'a>(job: &Job<'a>) -> Result<Option<&'a Slice>, Finding> {
    let cluster = job.cluster;
    match (&cluster.slice, cluster.device.kind) {
        (_, Kind::Gpu) => Ok(None),
        (Some(slice), Kind::Tpu) => Ok(Some(slice)),
        (None, Kind::Tpu) => {
            let message = format!("{} names no slices, and GKE hands TPUs out by topology", cluster.device.name);
            let finding = Finding::error("launch/slice", Blame::Environment, "on", message);
            Err(finding.hint("add [[slices]] to its file (docs/hardware.md)"))
        }
    }
}

/// Name and namespace, with the queue where one is named, and what keeps slices apart.
pub fn metadata(job: &Job) -> Value {
    let mut metadata = json!({ "name": super::name(job), "namespace": job.policy.job.namespace });
    if let Some(queue) = &job.policy.kubernetes.queue {
        metadata["labels"] = json!({ QUEUE: queue });
    }
    metadata
}

/// What keeps each slice's job on a slice of its own; none on other devices.
pub fn annotations(job: &Job) -> Option<Value> {
    job.cluster.slice.as_ref().map(|_| json!({ EXCLUSIVE.0: EXCLUSIVE.1 }))
}

/// What a container asks for: a node's devices, RDMA devices, cores.
pub fn resources(job: &Job) -> Value {
    let (policy, cluster) = (job.policy, job.cluster);
    let mut limits = Map::new();
    limits.insert(cluster.device.vendor.resource().to_string(), json!(cluster.devices_per_node.to_string()));
    if let Some(resource) = &policy.kubernetes.rdma_resource {
        limits.insert(resource.clone(), json!(policy.kubernetes.rdma_count.unwrap_or(1).to_string()));
    }
    json!({ "limits": limits, "requests": { "cpu": policy.job.cpus.to_string() } })
}

/// Claims with the names their volumes get and where they are mounted, the storage first.
fn claims<'a>(job: &Job<'a>) -> Vec<(String, &'a str, &'a str)> {
    let policy = job.policy;
    let more = policy.kubernetes.volumes.iter().enumerate();
    let more = more.map(|(i, volume)| (format!("volume-{}", i + 1), volume.claim.as_str(), volume.mount.as_str()));
    let first = ("storage".to_string(), policy.job.claim.as_str(), policy.job.mount.as_str());
    std::iter::once(first).chain(more).collect()
}

/// Every claim, and shared memory as large as the node allows.
pub fn volumes(job: &Job) -> Vec<Value> {
    let claim = |(name, claim, _)| json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } });
    let mut all: Vec<Value> = claims(job).into_iter().map(claim).collect();
    all.push(json!({ "name": "shared-memory", "emptyDir": { "medium": "Memory" } }));
    all
}

/// Where they are mounted.
pub fn mounts(job: &Job) -> Vec<Value> {
    let mut all = storage_mounts(job);
    all.push(json!({ "name": "shared-memory", "mountPath": "/dev/shm" }));
    all
}

/// Where the claims are mounted.
pub fn storage_mounts(job: &Job) -> Vec<Value> {
    claims(job).into_iter().map(|(name, _, mount)| json!({ "name": name, "mountPath": mount })).collect()
}

/// Capabilities of a container; none where none are asked for.
pub fn security(job: &Job) -> Option<Value> {
    job.policy.kubernetes.ipc_lock.then(|| json!({ "capabilities": { "add": ["IPC_LOCK"] } }))
}

/// A container with a node's devices and the storage.
pub fn container(job: &Job, name: &str) -> Value {
    let mut container = json!({
        "name": name,
        "image": job.policy.job.pod_image(),
        "resources": resources(job),
        "volumeMounts": mounts(job),
    });
    if let Some(security) = security(job) {
        container["securityContext"] = security;
    }
    if job.cluster.device.kind == Kind::Tpu {
        container["ports"] = TPU_PORTS.iter().map(|port| json!({ "containerPort": port })).collect();
    }
    container
}

/// What of a pod a job's patch can say as well: account, secrets, tolerations, nodes, volumes.
pub fn placement(job: &Job) -> Map<String, Value> {
    let policy = &job.policy.kubernetes;
    let mut pod = Map::new();
    if !policy.pull_secrets.is_empty() {
        let names = policy.pull_secrets.iter().map(|name| json!({ "name": name }));
        pod.insert("imagePullSecrets".to_string(), names.collect());
    }
    if let Some(account) = &policy.service_account {
        pod.insert("serviceAccountName".to_string(), json!(account));
    }
    let mut nodes: Map<String, Value> =
        policy.node_selector.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    if let Some(slice) = &job.cluster.slice {
        nodes.insert(TPU_ACCELERATOR.to_string(), json!(slice.accelerator));
        nodes.insert(TPU_TOPOLOGY.to_string(), json!(slice.topology));
    }
    if !nodes.is_empty() {
        pod.insert("nodeSelector".to_string(), Value::Object(nodes));
    }
    if !policy.tolerations.is_empty() {
        pod.insert("tolerations".to_string(), policy.tolerations.iter().map(toleration).collect());
    }
    pod.insert("volumes".to_string(), Value::Array(volumes(job)));
    pod
}

fn toleration(toleration: &crate::policy::Toleration) -> Value {
    let mut value = json!({ "key": toleration.key, "operator": "Exists" });
    if let Some(text) = &toleration.value {
        value["operator"] = json!("Equal");
        value["value"] = json!(text);
    }
    if let Some(effect) = &toleration.effect {
        value["effect"] = json!(effect);
    }
    value
}

/// A pod around one container.
pub fn pod(job: &Job, container: Value) -> Value {
    let policy = &job.policy.kubernetes;
    let mut pod = json!({ "restartPolicy": "Never", "containers": [container] });
    for (key, value) in placement(job) {
        pod[key] = value;
    }
    if policy.host_network {
        pod["hostNetwork"] = json!(true);
        pod["dnsPolicy"] = json!("ClusterFirstWithHostNet");
    }
    if let Some(class) = &policy.priority_class {
        pod["priorityClassName"] = json!(class);
    }
    pod
}

/// The launch's own folder, among mounts: relative locations lie below it.
pub const LAUNCH: &str = ".";

/// Locations that lie on no mounted volume, where runs are kept off the root volume: the job would stop at
/// its first line.
pub fn unmounted(job: &Job, mounts: &[&str]) -> Vec<Finding> {
    if !job.policy.storage.forbid_root_volume {
        return Vec::new();
    }
    let is_below = |path: &str, mount: &str| {
        let mount = mount.trim_end_matches('/');
        path == mount || path.strip_prefix(mount).is_some_and(|rest| rest.starts_with('/'))
    };
    let places = job.policy.storage.places_on(job.cluster.device.kind).into_iter();
    let lost = places.filter(|place| !mounts.iter().any(|mount| is_below(&place.path, mount)));
    let words = mounts.iter().map(|mount| if *mount == LAUNCH { "the launch's folder" } else { mount });
    let words = words.collect::<Vec<_>>().join(", ");
    let refuse = |place: crate::policy::Place| {
        let message = format!("`{}` is at {:?}, and the containers mount only {words}", place.key, place.path);
        let finding = Finding::error("launch/unmounted", Blame::Environment, format!("storage.{}", place.key), message);
        finding.hint(
            "mount its volume too ([[kubernetes.volumes]], or slurm.container_mounts), or keep it on one of these",
        )
    };
    lost.map(refuse).collect()
}

/// Where pods mount claims.
pub fn mount_paths<'a>(job: &Job<'a>) -> Vec<&'a str> {
    claims(job).into_iter().map(|(_, _, mount)| mount).collect()
}
