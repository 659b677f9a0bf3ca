//! What a launch is called: names, folders and ids that no two modes, feature bundles or engines share.
//!
//! A *checkpoint* belongs to a model as it runs: recipe, mode, features, engine, seams, and those
//! degrees that its format cannot reshard over. A *launch* belongs to everything that is launched:
//! its id is a hash of the job, the policy and the versions written for, so that the same words give
//! the same id. What happened when (a date, an attempt) enters it only where somebody says so.

use crate::engines::{engine_of, megatron};
use crate::job::{Frontend, Job};
use crate::record;
use layout::{Engine, ZeroStage};
use serde_json::{Map, Value, json};

/// The longest name of a job. Kubernetes' names take 63 characters, of which JobSet adds `-node-0-`, an
/// index of four digits and a random ending; KubeRay takes 47 of a RayJob.
const LONGEST: usize = 45;

/// Of the launch id, in names.
const SHORT: usize = 8;

/// The file that says whose checkpoints a folder holds.
pub const FILE: &str = "identity.json";

/// Who a launch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A hash of everything that is launched, in hexadecimal.
    pub launch_id: String,
    /// A name that schedulers take, ending in the first characters of the id.
    pub job_name: String,
    /// Recipe, mode, features and engine in a name, and degrees where checkpoints do not reshard.
    pub checkpoint_name: String,
    /// The features that are on.
    pub features: Vec<&'static str>,
    /// The degrees checkpoints are tied to, and why; or why they are not.
    pub tied: Tied,
    /// One line of JSON that the checkpoint folder holds, and every later launch is compared with.
    pub checkpoint: String,
}

/// Whether checkpoints are tied to a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tied {
    /// The degrees, as in the folder's name; none where any layout loads them.
    pub to: Option<String>,
    /// What of the engine's format decides that.
    pub why: &'static str,
}

impl Identity {
    /// Of a job.
    pub fn of(job: &Job) -> Identity {
        let engine = engine_of(job);
        let (mode, tied) = (job.layout.mode.map(|mode| mode.name()), tied(job, engine));
        let features = features(job);
        let launch_id = launch_id(job);
        let recipe = slug(job.source.name.raw());
        let mut parts = vec![recipe.clone()];
        parts.extend(mode.map(str::to_string));
        let title = match &job.policy.job.name {
            Some(name) => slug(name),
            None => slug(&parts.join("-")),
        };
        parts.extend(features.iter().map(|name| name.to_string()));
        parts.push(engine.name().to_string());
        parts.extend(tied.to.clone());
        let seams: Vec<&str> = job.seams.iter().map(|seam| seam.name).collect();
        let mut checkpoint = json!({
            "schema": "shardwright/identity/1", "recipe": job.source.name,
            "recipe_sha256": record::hash(job.source.to_toml()), "mode": mode, "features": features,
            "engine": engine.name(), "seams": seams, "layout": tied.to,
        });
        // Rows of the experts' first weights stand in another order then, which no shape shows.
        if engine == Engine::Megatron && megatron::fuses_experts(job) {
            parts.push(format!("glu{}", megatron::GLU_BLOCK));
            checkpoint["glu_interleave"] = json!(megatron::GLU_BLOCK);
        }
        Identity {
            job_name: job_name(&title, &launch_id),
            checkpoint_name: parts.join("-"),
            features,
            tied,
            checkpoint: checkpoint.to_string(),
            launch_id,
        }
    }
}

/// A title cut to what fits in front of the short id; it begins with a letter, as names of services do.
fn job_name(title: &str, id: &str) -> String {
    let title = if title.starts_with(|c: char| c.is_ascii_digit()) { format!("r-{title}") } else { title.to_string() };
    let cut: String = title.chars().take(LONGEST - SHORT - 1).collect();
    format!("{}-{}", cut.trim_end_matches('-'), &id[..SHORT])
}

/// A name with small letters, digits and dashes only, for places that take no others.
fn slug(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = name.chars().map(plain).take(50).collect();
    let trimmed = text.trim_matches('-');
    if trimmed.is_empty() { "run".to_string() } else { trimmed.to_string() }
}

/// The features of a recipe that are on; routed experts count as one.
fn features(job: &Job) -> Vec<&'static str> {
    job.source.bundle().into_iter().filter(|(_, on)| *on).map(|(feature, _)| feature.name()).collect()
}

/// A hash of the job as it reads back, the policy, and what both were written for. How the job was
/// typed does not enter: a typed value and the same one derived are one launch.
fn launch_id(job: &Job) -> String {
    let mut case = job.case.to_json();
    if let Some(case) = case.as_object_mut() {
        case.remove("defaults");
    }
    if let Some(recipe) = case["recipe"].as_object_mut() {
        recipe.retain(|key, _| key == "toml");
    }
    let whole = json!({
        "case": case, "policy": job.policy, "frontend": job.frontend.name(),
        "versions": [env!("CARGO_PKG_VERSION"), record::version(job)], "attempt": job.attempt,
    });
    record::hash(whole.to_string())
}

/// What of a layout a checkpoint is tied to, by the format each engine writes.
fn tied(job: &Job, engine: Engine) -> Tied {
    let free = |why| Tied { to: None, why };
    let to = |degrees: &[(&str, u64)], why| {
        let words: Vec<String> = degrees.iter().map(|(axis, degree)| format!("{axis}{degree}")).collect();
        Tied { to: Some(words.join("-")), why }
    };
    let layout = job.layout;
    let [tp, cp, pp, vpp] = [layout.tp, layout.cp, layout.pp, layout.vpp].map(|degree| degree.get());
    let [ep, etp, dp] = [layout.ep, layout.etp, layout.dp].map(|degree| degree.get());
    match engine {
        // checkpointing.py: `dp_reshardable` "allows checkpoint resharding only in DP dimension".
        Engine::Megatron if layout.zero == ZeroStage::Zero => {
            free("torch_dist holds whole tensors by name: any layout loads them")
        }
        Engine::Megatron if layout.zero == ZeroStage::One && reshards_fully(job) => {
            free("--dist-ckpt-optim-fully-reshardable writes optimizer state tensor by tensor")
        }
        Engine::Megatron if layout.zero == ZeroStage::One => to(
            &[("tp", tp), ("pp", pp), ("vpp", vpp), ("ep", ep), ("etp", etp)],
            "the distributed optimizer's state reshards over dp only; --engine-args --dist-ckpt-optim-fully-reshardable \
             lifts that",
        ),
        Engine::Megatron => to(
            &[("tp", tp), ("pp", pp), ("ep", ep), ("etp", etp)],
            "fsdp_dtensor's tensors reshard over the mesh of replicas; other degrees are not promised",
        ),
        Engine::Torchtitan | Engine::Fsdp2 => free("torch's distributed checkpoints hold whole tensors by name"),
        Engine::XlaSpmd | Engine::Maxtext => free("arrays are saved whole by name and placed again at load"),
        Engine::Deepspeed => to(
            &[("tp", tp), ("cp", cp), ("pp", pp), ("ep", ep), ("dp", dp), ("zero", layout.zero as u64)],
            "DeepSpeed writes a file a rank; another layout needs its universal checkpoint first",
        ),
        Engine::Nanotron => to(
            &[("tp", tp), ("pp", pp), ("dp", dp), ("zero", layout.zero as u64)],
            "nanotron writes a file a rank, and state by data-parallel rank under ZeRO 1",
        ),
        Engine::Shardwright => free("pieces by logical coordinates"),
    }
}

fn reshards_fully(job: &Job) -> bool {
    job.case.passed.iter().any(|words| words[0] == "--dist-ckpt-optim-fully-reshardable")
        && job.frontend == Frontend::MegatronLm
}

impl Identity {
    /// For the record.
    pub fn to_json(&self, job: &Job) -> Value {
        let mut value = Map::new();
        value.insert("launch_id".into(), json!(self.launch_id));
        value.insert("job_name".into(), json!(self.job_name));
        value.insert("attempt".into(), json!(job.attempt));
        value.insert("checkpoint".into(), serde_json::from_str(&self.checkpoint).unwrap_or_default());
        value.insert("checkpoints_tied_to".into(), json!({ "layout": self.tied.to, "why": self.tied.why }));
        value.insert("folders".into(), json!({ "checkpoints": job.checkpoints(), "logs": job.logs() }));
        Value::Object(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_every_scheduler() {
        let id = "0123456789abcdef";
        for title in [
            "x",
            "7b",
            "a-name-that-goes-on-and-on-and-on-and-on-and-on-for-ever",
            "trailing-dash-at-the-cut-of-36-----",
        ] {
            let name = job_name(&slug(title), id);
            assert!(name.len() <= LONGEST && name.ends_with("-01234567"), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.contains("--"), "{name}");
        }
        assert_eq!(slug("  Ünder_score "), "nder-score");
        assert_eq!(slug("///"), "run");
    }
}
