//! A plan over pools for machines.

use super::{Found, Way, chosen};
use crate::args::PlanArgs;
use case::Pooled;
use hardware::Cluster;
use serde_json::{Value, json};

pub fn of(args: &PlanArgs, on: &str, pools: &[Cluster], ways: &[Way], is_batch_typed: bool) -> Value {
    let pool = |cluster: &Cluster| {
        json!({ "on": cluster.typed(), "device": cluster.device.name, "devices": cluster.devices(),
            "network": cluster.network, "visible_bytes": cluster.device.visible_bytes() })
    };
    let best = chosen(ways);
    let left: Vec<usize> =
        (0..pools.len()).filter(|pool| best.as_ref().is_some_and(|(way, _)| !way.pools.contains(pool))).collect();
    json!({
        "on": on, "gbs": args.layout.gbs, "gbs_assumed": !is_batch_typed,
        "pools": pools.iter().map(pool).collect::<Vec<_>>(),
        "ways": ways.iter().map(way_json).collect::<Vec<_>>(),
        "left_out": left,
        "best": best.map(|(way, found)| best_json(way, found)),
    })
}

fn way_json(way: &Way) -> Value {
    match &way.found {
        Ok(found) => json!({ "on": way.on, "pools": way.pools, "devices": way.devices, "seconds": found.seconds,
            "tokens_per_second": found.tokens_per_second, "mfu": found.mfu, "headroom_bytes": found.headroom, "unproved": found.unproved,
            "flags": found.flags, "job": found.job }),
        Err(why) => json!({ "on": way.on, "pools": way.pools, "devices": way.devices, "why": why }),
    }
}

fn best_json(way: &Way, found: &Found) -> Value {
    let mut value = json!({ "on": way.on, "pools": way.pools, "flags": found.flags, "job": found.job });
    if let Some(choice) = &found.pooled {
        value["step"] = json!(choice.step);
        value["between_seconds"] = json!(choice.between);
        value["layout"] = case::layout_json(&choice.job.first().layout);
        value["stages"] = stages_json(&choice.job, &choice.fit.classes, Some(&choice.step));
    }
    value
}

/// A stage each: where it lies, what it holds and how busy it is.
pub fn stages_json(job: &Pooled, classes: &[memory::fit::RankClass], step: Option<&cost::Step>) -> Value {
    let layers = job.first().stages.layer_counts();
    let stage = |class: &memory::fit::RankClass| {
        let pool = &job.pools[job.pool_of[class.stage]];
        json!({ "stage": class.stage, "pool": job.pool_of[class.stage], "device": pool.device.name,
            "ranks": { "first": class.first_rank, "count": class.num_ranks }, "layers": layers[class.stage],
            "total_bytes": class.total(), "visible_bytes": pool.device.visible_bytes(),
            "headroom_bytes": class.headroom, "busy_seconds": step.map(|step| step.stages[class.stage].busy) })
    };
    json!(classes.iter().map(stage).collect::<Vec<_>>())
}
