//! Where a run keeps things, what it reads, and how long it goes on: what neither recipe nor
//! layout says. Written by people, so unknown keys are refused.

use diag::{Blame, Finding};
use serde::{Deserialize, Serialize};

/// A launch policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Locations.
    pub storage: Storage,
    /// What is trained on.
    pub data: Data,
    /// How long, how fast.
    pub run: Run,
    /// What the scheduler is told.
    pub job: JobPolicy,
    /// Implementations of seams by the seam's name, as `module:function`.
    pub seams: std::collections::BTreeMap<String, String>,
    /// Versions of packages the run is pinned to.
    pub pins: std::collections::BTreeMap<String, String>,
    /// Variables carried into the run as they are.
    pub environment: std::collections::BTreeMap<String, String>,
}

/// Locations; none of them may be on the root volume, which `preflight` checks on the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// Checkpoints.
    pub checkpoints: String,
    /// Data caches and indices.
    pub data: String,
    /// Logs.
    pub logs: String,
    /// Compiler, Triton and CUDA caches.
    pub caches: String,
    /// Temporary files.
    pub temporary: String,
    /// Whether a location may be on the root volume after all.
    pub allow_root: bool,
}

impl Default for Storage {
    /// A volume of its own, by a name a cluster can mount; a policy file names the real one.
    fn default() -> Storage {
        let below = |name: &str| format!("/mnt/shardwright/{name}");
        Storage {
            checkpoints: below("checkpoints"),
            data: below("data"),
            logs: below("logs"),
            caches: below("caches"),
            temporary: below("tmp"),
            allow_root: false,
        }
    }
}

/// What is trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// Data sets in the engine's own form; the engine's made-up data when there are none.
    pub paths: Vec<String>,
    /// Tokenizer: a name or path the engine's loader takes; a made-up one when there is none.
    pub tokenizer: Option<String>,
}

/// How long and how fast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Steps.
    pub steps: u64,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Learning rate at the end.
    pub least_learning_rate: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Largest gradient norm.
    pub clip: f64,
    /// Seed.
    pub seed: u64,
    /// Steps between checkpoints.
    pub save_every: u64,
    /// Steps between log lines.
    pub log_every: u64,
    /// Whether gradients and weights travel during compute.
    pub overlap: bool,
    /// The topology that bucket and padding constants were tuned for, if they were tuned.
    pub tuned_for: Option<String>,
    /// Whether adapters are added after sharding, so that their gradients need hooks of their own.
    pub adapters: bool,
}

impl Default for Run {
    /// A short run that shows whether a plan works; a real one has a policy.
    fn default() -> Run {
        Run {
            steps: 100,
            learning_rate: 3e-4,
            least_learning_rate: 3e-5,
            warmup_steps: 10,
            weight_decay: 0.1,
            clip: 1.0,
            seed: 1234,
            save_every: 50,
            log_every: 1,
            overlap: true,
            tuned_for: None,
            adapters: false,
        }
    }
}

/// What the scheduler is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobPolicy {
    /// Name; the recipe's when there is none.
    pub name: Option<String>,
    /// Container image.
    pub image: String,
    /// Where the engine's scripts are, on the machine or in the image.
    pub engine_root: String,
    /// The training script of engines that have none of their own.
    pub script: Option<String>,
    /// Restarts after a failure.
    pub restarts: u64,
    /// Port of the rendezvous.
    pub port: u16,
    /// Host of the rendezvous, where the scheduler does not name one.
    pub host: String,
    /// CPU cores of a node that the run gets.
    pub cpus: u64,
    /// Wall-clock limit in hours.
    pub hours: u64,
    /// Slurm partition.
    pub partition: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes training runtime a TrainJob refers to.
    pub runtime: String,
    /// Kubernetes volume claim that holds the storage.
    pub claim: String,
    /// Where the claim is mounted.
    pub mount: String,
}

impl Default for JobPolicy {
    fn default() -> JobPolicy {
        JobPolicy {
            name: None,
            image: "training:latest".to_string(),
            engine_root: "/opt/engine".to_string(),
            script: None,
            restarts: 3,
            port: 29500,
            host: "localhost".to_string(),
            cpus: 64,
            hours: 24,
            partition: None,
            account: None,
            namespace: "default".to_string(),
            runtime: "torch-distributed".to_string(),
            claim: "shardwright".to_string(),
            mount: "/mnt/shardwright".to_string(),
        }
    }
}

impl Policy {
    /// Reads a policy.
    pub fn parse(text: &str) -> Result<Policy, Vec<Finding>> {
        let policy: Policy = toml::from_str(text).map_err(|error| {
            let finding = Finding::error("policy/file", Blame::Environment, "policy", error.message().to_string());
            vec![finding.at(error.span().map(|span| diag::Span { start: span.start, end: span.end }))]
        })?;
        let findings = policy.findings();
        if findings.is_empty() { Ok(policy) } else { Err(findings) }
    }

    /// Locations by name.
    pub fn locations(&self) -> [(&'static str, &str); 5] {
        let storage = &self.storage;
        [
            ("checkpoints", &storage.checkpoints),
            ("data", &storage.data),
            ("logs", &storage.logs),
            ("caches", &storage.caches),
            ("temporary", &storage.temporary),
        ]
    }

    /// What is wrong with it: locations that are no absolute paths, names that are no variables.
    fn findings(&self) -> Vec<Finding> {
        let refuse =
            |object: String, message: String| Finding::error("policy/value", Blame::Environment, object, message);
        let mut findings = Vec::new();
        for (name, path) in self.locations() {
            if !path.starts_with('/') || path.chars().any(char::is_control) {
                findings.push(refuse(format!("storage.{name}"), format!("{path:?} is no absolute path on one line")));
            }
        }
        for name in self.environment.keys().filter(|name| !is_variable(name)) {
            findings.push(refuse(format!("environment.{name}"), format!("{name:?} is no name of a variable")));
        }
        let job = &self.job;
        for (key, name) in [("partition", &job.partition), ("account", &job.account)] {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            if name.as_ref().is_some_and(|n| n.is_empty() || n.starts_with('-') || !n.chars().all(is_plain)) {
                findings.push(refuse(format!("job.{key}"), "letters, digits, `_`, `.` and `-` only".to_string()));
            }
        }
        let rates = [self.run.learning_rate, self.run.least_learning_rate, self.run.weight_decay, self.run.clip];
        if rates.iter().any(|x| !x.is_finite() || *x < 0.0) || self.run.learning_rate == 0.0 || self.run.steps == 0 {
            findings.push(refuse("run".to_string(), "rates and steps are above zero and finite".to_string()));
        }
        findings
    }
}

/// Whether a shell and every process take it as a variable's name.
fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_unsafe_values_are_refused() {
        let refusal = |text: &str| Policy::parse(text).unwrap_err()[0].rule;
        assert_eq!(refusal("[storage]\nlogz = \"/x\""), "policy/file");
        assert_eq!(refusal("[storage]\nlogs = \"relative\""), "policy/value");
        assert_eq!(refusal("[storage]\nlogs = \"/a\\nb\""), "policy/value");
        assert_eq!(refusal("[environment]\n\"A B\" = \"x\""), "policy/value");
        assert_eq!(refusal("[job]\npartition = \"a; rm\""), "policy/value");
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
    }
}
