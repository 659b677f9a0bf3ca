//! Which lane suits a model, a cluster and a goal, and what would change that.

use super::{LANES, Lane};
use case::machines::{custom_mixers, runs_on, shell_word};
use diag::{Blame, Finding};
use hardware::{Cluster, Kind, Vendor};
use recipe::{Mixer, Mode, Recipe};
use serde::Serialize;
use units::named;

named! {
    /// What a run is for.
    pub enum Goal {
        /// The most tokens a second.
        Throughput = "throughput",
        /// PyTorch-native control: debugging, adapters, blocks of one's own.
        Control = "control",
        /// A model that does not fit the devices.
        Offload = "offload",
        /// TPUs.
        Tpu = "tpu",
    }
}

/// What a cluster's devices are for when nobody says.
pub fn usual_goal(cluster: &Cluster) -> Goal {
    if cluster.device.kind == Kind::Tpu { Goal::Tpu } else { Goal::Throughput }
}

/// A lane for a model, a cluster and a goal.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recommendation {
    /// The lane.
    pub lane: &'static Lane,
    /// The mode to run in, where the recipe has any.
    #[serde(serialize_with = "mode_by_name")]
    pub mode: Option<Mode>,
    /// Why, fact by fact.
    pub because: Vec<String>,
    /// What would lead to another lane.
    pub would_change: Vec<String>,
}

fn mode_by_name<S: serde::Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        Some(mode) => serializer.serialize_str(mode.name()),
        None => serializer.serialize_none(),
    }
}

/// Recommends a lane that runs on the cluster's devices, or says that none does what is wanted. `typed` is
/// the recipe as a person names it.
pub fn recommend(recipe: &Recipe, typed: &str, cluster: &Cluster, goal: Goal) -> Result<Recommendation, Finding> {
    let names: Vec<&str> = custom_mixers(recipe).iter().map(|m| m.table()).collect();
    let is_plain = names.is_empty() && recipe.modes.is_empty();
    let device = &cluster.device;
    let mut because = vec![format!("the goal is {goal}"), format!("{} is {}", device.name, device.kind_words())];
    let name = match (device.kind, goal) {
        (Kind::Tpu, Goal::Offload) => return Err(nothing(typed, cluster, goal, "no lane keeps state on a TPU's host")),
        (Kind::Gpu, Goal::Tpu) => return Err(nothing(typed, cluster, goal, "the goal is TPUs")),
        (Kind::Tpu, Goal::Control) => {
            because.push("annotated PyTorch is a program of one's own on TPUs".to_string());
            "tpu-pretraining"
        }
        (Kind::Tpu, _) if is_plain => {
            because.push("the model is one that MaxText has blocks for".to_string());
            "maxtext"
        }
        (Kind::Tpu, _) => {
            let blocks = if names.is_empty() { "the recipe's modes".to_string() } else { names.join(", ") };
            because.push(format!("MaxText has no block for {blocks}; annotated PyTorch keeps the model one source"));
            "tpu-pretraining"
        }
        (Kind::Gpu, Goal::Throughput) if device.vendor == Vendor::Nvidia => {
            because.push("fused kernels and overlap decide throughput there".to_string());
            if recipe.uses(Mixer::Moe) {
                because.push("experts want the framework's own dispatcher and overlap".to_string());
            }
            "nvidia-pretraining"
        }
        (Kind::Gpu, Goal::Throughput | Goal::Control) if is_plain => {
            because.push("the model is plain attention and feed-forward blocks, which torchtitan has".to_string());
            "torchtitan"
        }
        (Kind::Gpu, Goal::Throughput | Goal::Control) => {
            because.push(format!("the blocks {} run as written in PyTorch", names.join(", ")));
            "nvidia-wide-moe-lora"
        }
        (Kind::Gpu, Goal::Offload) => {
            because.push("state that does not fit moves to the host, and ZeRO does that best".to_string());
            "offload"
        }
    };
    let lane = LANES.iter().find(|lane| lane.name == name).unwrap_or(&LANES[0]);
    let mode = lane.modes.iter().copied().find(|mode| recipe.modes.contains(mode));
    because.push(lane.reason.to_string());
    Ok(Recommendation { lane, mode, because, would_change: would_change(recipe, typed, cluster, goal, &names) })
}

/// A goal that no lane serves on these devices, with the lanes that run there.
fn nothing(typed: &str, cluster: &Cluster, goal: Goal, why: &str) -> Finding {
    let device = &cluster.device;
    let message =
        format!("no lane serves `--goal {goal}` on {}: it is {}, and {why}", device.name, device.kind_words());
    let here: Vec<&str> =
        LANES.iter().filter(|lane| runs_on(lane.engine).contains(&device.vendor)).map(|lane| lane.name).collect();
    let hint = format!(
        "lanes there are {}; leave --goal out, or name other devices: `shardwright lanes --for {} --on {}`",
        here.join(", "),
        shell_word(typed),
        other_devices(cluster),
    );
    Finding::error("lane/goal", Blame::Usage, "goal", message).hint(hint)
}

/// A cluster of the other kind of device.
fn other_devices(cluster: &Cluster) -> &'static str {
    if cluster.device.kind == Kind::Tpu { "8xH200" } else { "8xTPU-v6e" }
}

/// What would lead elsewhere, each with where to.
fn would_change(recipe: &Recipe, typed: &str, cluster: &Cluster, goal: Goal, custom: &[&str]) -> Vec<String> {
    let mut list = Vec::new();
    let is_tpu = cluster.device.kind == Kind::Tpu;
    if !is_tpu && goal == Goal::Throughput {
        if recipe.modes.contains(&Mode::AuthorDp) {
            list.push(
                "keeping the custom mixers: mode author_dp at tp 1, or the lane nvidia-wide-moe-lora".to_string(),
            );
        }
        list.push(
            "finer control than Megatron gives, or adapters added after sharding: nvidia-wide-moe-lora".to_string(),
        );
    } else if !is_tpu && cluster.device.vendor == Vendor::Nvidia {
        list.push("peak throughput with Transformer Engine: nvidia-pretraining".to_string());
    }
    if is_tpu {
        let again = format!("shardwright lanes --for {} --on {}", shell_word(typed), other_devices(cluster));
        list.push(format!("GPUs instead, or state on the host: `{again}`"));
        if !custom.is_empty() {
            list.push(format!("a model without {}: maxtext", custom.join(", ")));
        }
    } else {
        if goal != Goal::Offload {
            list.push("a model that does not fit the devices however it is split: offload".to_string());
        }
        list.push("TPUs: tpu-pretraining, or maxtext for a model it has".to_string());
    }
    list.push("never one MFU number: it does not rank lanes with different hardware, batch or precision".to_string());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(name: &str, on: &str, goal: Option<Goal>) -> Result<(&'static str, Option<Mode>), Finding> {
        let cluster = Cluster::parse(on).unwrap();
        let recipe = recipe::builtin::find(name).unwrap();
        let found = recommend(&recipe, name, &cluster, goal.unwrap_or(usual_goal(&cluster)))?;
        assert!(found.because.len() >= 2 && found.would_change.len() >= 2);
        assert!(runs_on(found.lane.engine).contains(&cluster.device.vendor));
        if cluster.device.kind == Kind::Tpu {
            let said = serde_json::to_string(&found).unwrap().to_lowercase();
            assert!(!said.contains("nvidia"), "{said}");
        }
        Ok((found.lane.name, found.mode))
    }

    #[test]
    fn goal_and_devices_lead_to_a_lane() {
        let is = |name: &str, on: &str, goal, lane: &str, mode| {
            assert_eq!(advice(name, on, goal), Ok((lane, mode)), "{name} {on} {goal:?}");
        };
        is("nam56r", "8xH200", None, "nvidia-pretraining", Some(Mode::NemoNative));
        is("nam56r", "8xH200", Some(Goal::Control), "nvidia-wide-moe-lora", Some(Mode::AuthorDp));
        is("llama3-8b", "8xH200", Some(Goal::Control), "torchtitan", None);
        is("deepseek-v3", "8xH200", Some(Goal::Offload), "offload", None);
        for goal in [None, Some(Goal::Tpu), Some(Goal::Throughput)] {
            is("nam56r", "16xTPUv6e", goal, "tpu-pretraining", Some(Mode::AuthorDp));
            is("llama3-8b", "256xTPU-v5e", goal, "maxtext", None);
        }
    }

    #[test]
    fn a_goal_the_devices_cannot_serve_is_refused_by_name() {
        for (on, goal) in [("8xTPU-v6e", Goal::Offload), ("8xH200", Goal::Tpu)] {
            let finding = advice("llama3-8b", on, Some(goal)).unwrap_err();
            assert_eq!(finding.rule, "lane/goal");
            assert!(finding.hint.unwrap().contains("lanes there are"), "{on}");
        }
    }
}
