//! What the TPU compiler and runtime are told by environment, before the framework is imported. The flags
//! are data (`data/engines/tpu_flags.toml`), each with its meaning and the published configuration it was
//! read in; nothing here was measured by us.

use crate::emission::EnvVar;
use crate::job::Job;
use diag::{Blame, Finding, did_you_mean};
use hardware::Kind;
use layout::Engine;
use reading::{Dialect, Section, read_text};
use recipe::Mixer;
use std::sync::LazyLock;

/// One flag of the compiler.
#[derive(Clone, Debug, PartialEq)]
pub struct Flag {
    /// The group it is switched with.
    pub group: String,
    /// As libtpu spells it, without dashes.
    pub name: String,
    /// Its value.
    pub value: String,
    /// `dense` or `experts` where it is for such models only.
    pub model: Option<String>,
    /// Generations of TPUs it is for.
    pub generations: Vec<String>,
    /// What it does.
    pub means: String,
    /// Where it was read.
    pub source: String,
}

/// Flags that are switched together.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name in a policy.
    pub name: String,
    /// Generations it is on for when a policy names no groups.
    pub default: Vec<String>,
}

/// The table of flags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flags {
    /// Groups, in the order their flags are written.
    pub groups: Vec<Group>,
    /// Flags, in the order of their file.
    pub flags: Vec<Flag>,
}

const TABLE: &str = include_str!("../../../data/engines/tpu_flags.toml");

static DIALECT: Dialect = Dialect { whole: "the list of TPU flags", blame: Blame::Bug, ..crate::policy::DIALECT };

/// The built-in table; empty where it does not read, which a test holds it to.
pub fn table() -> &'static Flags {
    static FLAGS: LazyLock<Flags> =
        LazyLock::new(|| read_text(TABLE, &DIALECT, flags).map(|(flags, _)| flags).unwrap_or_default());
    &FLAGS
}

fn flags(mut root: Section) -> Option<Flags> {
    let groups: Vec<Option<Group>> = root.sections("group").into_iter().map(group).collect();
    let flags: Vec<Option<Flag>> = root.sections("flag").into_iter().map(flag).collect();
    root.finish();
    Some(Flags { groups: groups.into_iter().collect::<Option<_>>()?, flags: flags.into_iter().collect::<Option<_>>()? })
}

fn owned(words: Option<Vec<&str>>) -> Vec<String> {
    words.unwrap_or_default().into_iter().map(str::to_string).collect()
}

fn group(mut section: Section) -> Option<Group> {
    let name = section.required_text("name").map(str::to_string);
    let default = owned(section.words("default"));
    section.finish();
    Some(Group { name: name?, default })
}

fn flag(mut section: Section) -> Option<Flag> {
    let mut text = |key| section.required_text(key).map(str::to_string);
    let (group, name, value) = (text("group"), text("name"), text("value"));
    let (means, source) = (text("means"), text("source"));
    let model = section.text("model").map(str::to_string);
    let generations = owned(section.words("generations"));
    section.finish();
    Some(Flag { group: group?, name: name?, value: value?, model, generations, means: means?, source: source? })
}

/// The generation a device's name ends in: `v6e` of `TPU-v6e`.
fn generation<'a>(job: &Job<'a>) -> &'a str {
    let name = &job.cluster.device.name;
    name.rsplit('-').next().unwrap_or(name)
}

/// The flags of a job: those of its groups that its generation has, for its kind of model.
pub fn chosen<'a>(job: &Job) -> Vec<&'a Flag> {
    let (table, generation) = (table(), generation(job));
    let is_here = |list: &[String]| list.iter().any(|known| known == generation);
    let named = &job.policy.run.tpu_flags;
    let is_on = |group: &Group| if named.is_empty() { is_here(&group.default) } else { named.contains(&group.name) };
    let model = if job.recipe.uses(Mixer::Moe) { "experts" } else { "dense" };
    let of_group = |group: &'a Group| {
        let is_wanted = move |flag: &&Flag| {
            flag.group == group.name && is_here(&flag.generations) && flag.model.as_deref().is_none_or(|m| m == model)
        };
        table.flags.iter().filter(is_wanted)
    };
    table.groups.iter().filter(|group| is_on(group)).flat_map(of_group).collect()
}

/// Variables of a job on TPUs; none on other devices.
pub fn environment(job: &Job) -> Vec<EnvVar> {
    if job.cluster.device.kind != Kind::Tpu {
        return Vec::new();
    }
    let mut all = Vec::new();
    if job.case.engine() == Engine::XlaSpmd {
        all.push(EnvVar::new("PJRT_DEVICE", "TPU", "torch_xla computes on the TPU"));
    }
    let words: Vec<String> = chosen(job).iter().map(|flag| format!("--{}={}", flag.name, flag.value)).collect();
    if !words.is_empty() {
        let mut groups: Vec<&str> = chosen(job).iter().map(|flag| flag.group.as_str()).collect();
        groups.dedup();
        let why = format!("flags of the TPU compiler, read when libtpu is loaded: {}", groups.join(", "));
        all.push(EnvVar::new("LIBTPU_INIT_ARGS", words.join(" "), why));
    }
    all
}

/// The word that switches every group off, alone in the list.
const NONE: &str = "none";

/// Prefixes of variables that only NVIDIA's libraries read.
const NVIDIA: [&str; 4] = ["CUDA_", "NCCL_", "NVTE_", "NVIDIA_"];

/// Variables and flags of a policy that belong to other devices than the job's.
pub fn check(job: &Job, findings: &mut Vec<Finding>) {
    let device = &job.cluster.device;
    let is_tpu = device.kind == Kind::Tpu;
    let refuse = |object: &str, message: String| {
        let finding = Finding::error("lane/device-variable", Blame::Environment, object, message);
        finding.hint("take it out of the policy, or keep a policy for each kind of device")
    };
    for (name, value) in &job.policy.environment.set {
        let is_nvidia = NVIDIA.iter().any(|prefix| name.starts_with(prefix));
        let is_libtpu = name == "LIBTPU_INIT_ARGS" || name.starts_with("TPU_") || value.contains("xla_tpu_");
        if is_tpu && is_nvidia {
            let message = format!("`{name}` is read by NVIDIA's libraries, and {} is a TPU", device.name);
            findings.push(refuse("environment.set", message));
        } else if !is_tpu && is_libtpu {
            let message =
                format!("`{name}` is read by the TPU runtime, and {} is {}", device.name, device.kind_words());
            findings.push(refuse("environment.set", message));
        } else if is_tpu && name == "LIBTPU_INIT_ARGS" {
            let message = "`LIBTPU_INIT_ARGS` is set by the launch, and the policy sets it too".to_string();
            findings.push(
                refuse("environment.set", message).hint("name groups of flags in run.tpu_flags (docs/policy.md)"),
            );
        }
    }
    let names = &job.policy.run.tpu_flags;
    if !is_tpu && !names.is_empty() {
        let message = format!("`tpu_flags` are for TPUs, and {} is {}", device.name, device.kind_words());
        findings.push(refuse("run.tpu_flags", message));
        return;
    }
    for name in names.iter().filter(|name| *name != NONE || names.len() > 1) {
        if let Some(finding) = group_refusal(name, generation(job)) {
            findings.push(finding);
        }
    }
}

/// A group that is not there, or has nothing for this generation.
fn group_refusal(name: &str, generation: &str) -> Option<Finding> {
    let table = table();
    let has = |group: &str| {
        table.flags.iter().any(|flag| flag.group == group && flag.generations.iter().any(|g| g == generation))
    };
    if has(name) {
        return None;
    }
    let known: Vec<&str> = table.groups.iter().map(|group| group.name.as_str()).filter(|group| has(group)).collect();
    let message = match table.groups.iter().any(|group| group.name == name) {
        true => format!("group `{name}` has no flag that was published for {generation}"),
        false => format!("there is no group `{}` of TPU flags", crate::preflight::show::text(name)),
    };
    let close =
        did_you_mean(name, known.iter().copied()).map_or(String::new(), |word| format!("did you mean `{word}`? "));
    let hint = format!("{close}{generation} has {}", if known.is_empty() { "none".into() } else { known.join(", ") });
    Some(Finding::error("lane/tpu-flags", Blame::Environment, "run.tpu_flags", message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_group_a_meaning_and_a_source() {
        let table = read_text(TABLE, &DIALECT, flags).map(|(flags, _)| flags).unwrap();
        assert!(table.flags.len() >= 15);
        for flag in &table.flags {
            assert!(table.groups.iter().any(|group| group.name == flag.group), "{}", flag.name);
            assert!(!flag.means.is_empty() && flag.source.contains("MaxText"), "{}", flag.name);
            assert!(flag.generations.iter().all(|g| ["v5e", "v5p", "v6e"].contains(&g.as_str())), "{}", flag.name);
            assert!(flag.name.starts_with("xla_") && !flag.value.contains(' '), "{}", flag.name);
        }
        for group in ["vmem", "continuation-fusion", "sparse-core", "async-collectives"] {
            assert!(table.flags.iter().any(|flag| flag.group == group), "{group}");
        }
    }

    #[test]
    fn groups_are_refused_by_name() {
        assert_eq!(group_refusal("vmem", "v6e"), None);
        let missing = group_refusal("vmem", "v5e").unwrap();
        assert_eq!(missing.rule, "lane/tpu-flags");
        assert!(missing.message.contains("no flag that was published for v5e"));
        assert!(group_refusal("sparse-cor", "v6e").unwrap().hint.unwrap().starts_with("did you mean `sparse-core`?"));
    }
}
