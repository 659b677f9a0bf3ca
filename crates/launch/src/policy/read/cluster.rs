//! The tables `[kubernetes]` and `[slurm]` of a policy. What ends up in a directive or a label is held to
//! plain characters here; what ends up in a script is quoted there.

use super::super::{Container, GpuRequest, JobPolicy, Kubernetes, Slurm, Toleration, Volume};
use super::names::{optional_path, optional_word};
use super::{MOST, owned, words};
use diag::{Blame, Finding};
use reading::Section;

pub fn kubernetes(section: &mut Section) -> Kubernetes {
    let read = Kubernetes {
        rdma_resource: spelled(section, "rdma_resource", "/_.-"),
        rdma_count: section.optional_count("rdma_count", MOST),
        host_network: section.flag_or("host_network", false),
        ipc_lock: section.flag_or("ipc_lock", false),
        pull_secrets: spelled_list(section, "pull_secrets", ".-"),
        service_account: optional_word(section, "service_account"),
        priority_class: optional_word(section, "priority_class"),
        queue: optional_word(section, "queue"),
        node_selector: owned(section.texts("node_selector")),
        tolerations: section.sections("tolerations").into_iter().filter_map(toleration).collect(),
        volumes: section.sections("volumes").into_iter().filter_map(volume).collect(),
    };
    if read.rdma_count.is_some() && read.rdma_resource.is_none() {
        let message = "`rdma_count` says how many, and no `rdma_resource` says of what";
        section.report("rdma_count", Finding::error("policy/consistency", Blame::Environment, "rdma_count", message));
    }
    for (key, value) in &read.node_selector {
        let is_plain = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
        if key.is_empty() || !is_plain(key, "/_.-") || !is_plain(value, "_.-") {
            let message = format!("`{}` is no label of a node", crate::preflight::show::text(key));
            section
                .report("node_selector", Finding::error("policy/name", Blame::Environment, "node_selector", message));
        }
    }
    read
}

fn toleration(mut section: Section) -> Option<Toleration> {
    let key = spelled(&mut section, "key", "/_.-");
    if key.is_none() && !section.has("key") {
        section.required_text("key");
    }
    let value = spelled(&mut section, "value", "_.-");
    let effects = [
        ("NoSchedule", Some("NoSchedule")),
        ("PreferNoSchedule", Some("PreferNoSchedule")),
        ("NoExecute", Some("NoExecute")),
    ];
    let effect = section.choice("effect", &effects, None).map(str::to_string);
    section.finish();
    Some(Toleration { key: key?, value, effect })
}

fn volume(mut section: Section) -> Option<Volume> {
    if !section.has("claim") {
        section.required_text("claim");
    }
    let claim = optional_word(&mut section, "claim");
    if !section.has("mount") {
        section.required_text("mount");
    }
    let mount = optional_path(&mut section, "mount");
    section.finish();
    Some(Volume { claim: claim?, mount: mount? })
}

pub fn slurm(section: &mut Section) -> Slurm {
    let usual = Slurm::default();
    let mounts = words(section, "container_mounts").unwrap_or_default();
    for mount in mounts.iter().filter(|mount| !is_mount(mount)) {
        let message = format!("`{}` is no `/from:/to` or `/from:/to:ro`", crate::preflight::show::text(mount));
        section
            .report("container_mounts", Finding::error("policy/path", Blame::Environment, "container_mounts", message));
    }
    Slurm {
        container: section.choice("container", Container::ALL, usual.container),
        container_mounts: mounts,
        qos: optional_word(section, "qos"),
        reservation: optional_word(section, "reservation"),
        // `sbatch(1)`: features joined by &, |, and counts in brackets.
        constraint: spelled(section, "constraint", "_.-&|*()[],:"),
        exclude: spelled(section, "exclude", "_.-,[]"),
        modules: spelled_list(section, "modules", "_./+-"),
        venv: optional_path(section, "venv"),
        gpus: section.choice("gpus", GpuRequest::ALL, usual.gpus),
    }
}

/// What contradicts itself over tables.
pub fn together(root: &Section, job: &JobPolicy, slurm: &Slurm) {
    if job.image.is_some() && slurm.container == Container::Pyxis && !slurm.modules.is_empty() {
        let message = "modules are loaded on the host, and the run is inside `job.image`";
        let finding = Finding::error("policy/consistency", Blame::Environment, "slurm.modules", message);
        root.report("slurm", finding.hint("bring them in the image, or say container = \"none\""));
    }
}

/// Whether pyxis reads it as one mount.
fn is_mount(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    let is_path = |path: &&str| path.starts_with('/') && !path.contains(',');
    match parts.as_slice() {
        [from, to] => is_path(from) && is_path(to),
        [from, to, how] => is_path(from) && is_path(to) && ["ro", "rw"].contains(how),
        _ => false,
    }
}

/// A word of letters, digits and these characters, for places that are not quoted.
fn spelled(section: &mut Section, key: &'static str, more: &'static str) -> Option<String> {
    let word = section.text(key)?;
    if is_spelled(word, more) {
        return Some(word.to_string());
    }
    misspelled(section, key, word, more);
    None
}

fn spelled_list(section: &mut Section, key: &'static str, more: &'static str) -> Vec<String> {
    let all = words(section, key).unwrap_or_default();
    all.iter().filter(|word| !is_spelled(word, more)).for_each(|word| misspelled(section, key, word, more));
    all
}

fn is_spelled(word: &str, more: &str) -> bool {
    !word.is_empty() && !word.starts_with('-') && word.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

fn misspelled(section: &Section, key: &'static str, word: &str, more: &str) {
    let message = format!("`{key}` has `{}`, which no directive or label takes", crate::preflight::show::text(word));
    let finding = Finding::error("policy/name", Blame::Environment, key, message);
    section.report(key, finding.hint(format!("letters, digits and {more} only")));
}
