//! Which lane suits a model, a cluster and a goal, and what would change that.

use super::{LANES, Lane, of_engine};
use case::machines::{Goal, Suited, custom_mixers, runs_on, shell_word, suited};
use diag::{Blame, Finding};
use hardware::{Cluster, Kind, Vendor};
use layout::Engine;
use recipe::{Mode, Recipe};
use serde::Serialize;

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

/// A question to recommend a lane for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The model.
    pub recipe: &'a Recipe,
    /// As a person names it.
    pub typed: &'a str,
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// To what end.
    pub goal: Goal,
}

/// The engines that suit it; refused where no lane does what is wanted.
pub fn engines(asked: &Asked) -> Result<Suited, Finding> {
    suited(asked.recipe, asked.cluster, asked.goal).map_err(|why| nothing(asked, why))
}

/// The lane of the engine that was found to be the one to take, with the facts that speak for it.
pub fn recommend(asked: &Asked, engine: Engine, mode: Option<Mode>, why: Vec<String>) -> Recommendation {
    let (lane, device) = (of_engine(engine).unwrap_or(&LANES[0]), &asked.cluster.device);
    let mut because =
        vec![format!("the goal is {}", asked.goal), format!("{} is {}", device.name, device.kind_words())];
    because.extend(why);
    because.push(lane.reason.to_string());
    Recommendation { lane, mode, because, would_change: would_change(asked, engine, mode) }
}

/// A goal that no lane serves on these devices, with the lanes that run there.
fn nothing(asked: &Asked, why: &str) -> Finding {
    let Asked { typed, cluster, goal, .. } = *asked;
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
fn would_change(asked: &Asked, engine: Engine, mode: Option<Mode>) -> Vec<String> {
    let Asked { recipe, typed, cluster, goal } = *asked;
    let custom: Vec<&str> = custom_mixers(recipe).iter().map(|mixer| mixer.table()).collect();
    let mut list = Vec::new();
    let is_tpu = cluster.device.kind == Kind::Tpu;
    if !is_tpu && goal == Goal::Throughput {
        match mode {
            Some(Mode::NemoNative) if recipe.modes.contains(&Mode::AuthorDp) => {
                list.push(
                    "keeping the custom mixers: mode author_dp at tp 1, or the lane nvidia-wide-moe-lora".to_string(),
                );
            }
            Some(Mode::AuthorDp) if engine == Engine::Megatron && recipe.modes.contains(&Mode::NemoNative) => {
                list.push("the engine's own mixers, with tp 2: mode nemo_native".to_string());
            }
            _ => {}
        }
        let other = match (engine, cluster.device.vendor) {
            (Engine::Megatron, _) => {
                "finer control than Megatron gives, or adapters added after sharding: nvidia-wide-moe-lora"
            }
            (_, Vendor::Nvidia) => "larger devices, or more of them: nvidia-pretraining",
            _ => "NVIDIA GPUs: nvidia-pretraining",
        };
        list.push(other.to_string());
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
    use case::machines::usual_goal;

    fn advice(name: &str, on: &str, goal: Option<Goal>) -> Result<&'static str, Finding> {
        let (cluster, recipe) = (Cluster::parse(on).unwrap(), recipe::builtin::find(name).unwrap());
        let goal = goal.unwrap_or(usual_goal(&cluster));
        let asked = Asked { recipe: &recipe, typed: name, cluster: &cluster, goal };
        let Suited { engines, why } = engines(&asked)?;
        let found = recommend(&asked, engines[0], None, vec![why]);
        assert!(found.because.len() >= 3 && found.would_change.len() >= 2);
        assert!(runs_on(found.lane.engine).contains(&cluster.device.vendor));
        if cluster.device.kind == Kind::Tpu {
            let said = serde_json::to_string(&found).unwrap().to_lowercase();
            assert!(!said.contains("nvidia"), "{said}");
        }
        Ok(found.lane.name)
    }

    #[test]
    fn goal_and_devices_lead_to_a_lane() {
        let is = |name: &str, on: &str, goal, lane: &str| {
            assert_eq!(advice(name, on, goal), Ok(lane), "{name} {on} {goal:?}");
        };
        is("nam56r", "8xH200", None, "nvidia-pretraining");
        is("nam56r", "8xH200", Some(Goal::Control), "nvidia-wide-moe-lora");
        is("llama3-8b", "8xH200", Some(Goal::Control), "torchtitan");
        is("deepseek-v3", "8xH200", Some(Goal::Offload), "offload");
        for goal in [None, Some(Goal::Tpu), Some(Goal::Throughput)] {
            is("nam56r", "16xTPUv6e", goal, "tpu-pretraining");
            is("llama3-8b", "256xTPU-v5e", goal, "maxtext");
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
