//! `plan`: what to run on a cluster. The planner proper (memory, time, search) is not built yet;
//! until it is, `plan` says so by name and shows what already stands for one layout.

use super::fit::on_cluster;
use super::{layout_json, layout_text, model_line, recipe_of, seams_text};
use crate::args::PlanArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use hardware::Cluster;
use layout::{Axis, Layout, Mesh, Order, OwnershipTable, check};
use recipe::Mixer;
use serde_json::json;
use units::{Bytes, count, exact};

/// What a plan will say and cannot yet.
const MISSING: &[(&str, &str)] = &[
    ("memory", "gradients, optimizer state, activations, routing scratch, reserve: whether it fits"),
    ("time", "compute, traffic and schedule: how long a step takes and what bounds it"),
    ("search", "every legal layout priced: the best one, and why the others lost"),
    ("launch", "the engine's own arguments"),
];

pub fn run(args: &PlanArgs) -> Outcome {
    let recipe = recipe_of(&args.recipe)?;
    let cluster = Cluster::parse(&args.on)?;
    let request = on_cluster(&args.layout, &recipe, &cluster, &args.on)?;
    let checked = check(&recipe, &request);
    let counts = recipe.counts().all;
    let mut text = model_line(&recipe) + "\n";
    text += &format!("  {} parameters, {} active on a token\n", exact(counts.total), count(counts.active));
    text += &format!(
        "\x1b[1m{}\x1b[0m  {} × {} {}, {} GB each by the datasheet (physical, not a budget)\n",
        args.on,
        cluster.nodes,
        cluster.devices_per_node,
        cluster.device.name,
        cluster.device.memory_bytes / 1_000_000_000
    );
    text += &heading("Not built yet, so this is one layout and not the best one");
    for (name, what) in MISSING {
        text += &wrap(&format!("{name}: {what}"), "  ", 110);
    }
    let Some(layout) = checked.layout.clone().filter(|_| checked.is_legal()) else {
        let json = json!({ "recipe": recipe.name, "legal": false, "findings": checked.findings });
        return Ok(Report::new(text, json).with_findings(&checked.findings).refused());
    };
    text += &heading("The layout shown");
    text += &layout_text(&layout, &checked);
    text += &seams_text(&checked.seams);
    let table = OwnershipTable::new(&checked.recipe, &layout)?;
    let mesh = Mesh::new(&layout, Order::Megatron, checked.recipe.uses(Mixer::Moe))?;
    let stages = stage_weights(&layout, &mesh, &table);
    text += &weights_text(&stages, &cluster);
    text += &next_steps(args, &layout);
    let json = json!({
        "recipe": recipe.name, "cluster": cluster, "total": counts.total, "active": counts.active, "legal": true,
        "layout": layout_json(&layout, &checked), "seams": checked.seams, "findings": checked.findings,
        "stages": stages.iter().map(|s| json!({ "stage": s.stage, "example_rank": s.rank, "rank_params": s.params, "weight_bytes": s.bytes })).collect::<Vec<_>>(),
        "missing": MISSING.iter().map(|(name, _)| name).collect::<Vec<_>>(),
    });
    Ok(Report::new(text, json).with_findings(&checked.findings))
}

struct StageWeights {
    stage: u64,
    rank: u64,
    params: u64,
    bytes: u64,
}

/// What one rank of each stage holds in weights.
fn stage_weights(layout: &Layout, mesh: &Mesh, table: &OwnershipTable) -> Vec<StageWeights> {
    mesh.group(Axis::Pp, 0)
        .ranks()
        .enumerate()
        .map(|(stage, rank)| {
            let bytes = |row: &layout::ownership::Row| {
                let held = row.part_elements(layout) * table.copies_on_stage(row, stage);
                held * row.tensor.dtype.bits() / 8 / row.shards.weights
            };
            StageWeights {
                stage: stage as u64,
                rank,
                params: table.rank_params(layout, mesh, rank),
                bytes: table.rows.iter().map(bytes).sum(),
            }
        })
        .collect()
}

fn weights_text(stages: &[StageWeights], cluster: &Cluster) -> String {
    let mut table = Table::new(&["stage", "rank", "parameters", "weights", "of the device"]).right(&[0, 1, 2, 3, 4]);
    for s in stages {
        let share = 100.0 * s.bytes as f64 / cluster.device.memory_bytes as f64;
        table.row([
            s.stage.to_string(),
            s.rank.to_string(),
            count(s.params),
            Bytes(s.bytes).to_string(),
            format!("{share:.1}%"),
        ]);
    }
    heading("Weights on one rank of each stage (counted; nothing else is priced yet)") + &table.render()
}

fn next_steps(args: &PlanArgs, layout: &Layout) -> String {
    let mut flags = format!("{} --world {}", layout.flags(), layout.world);
    if let Some(mode) = layout.mode {
        flags += &format!(" --mode {mode}");
    }
    for (flag, features) in [("with", &args.recipe.with), ("without", &args.recipe.without)] {
        if !features.is_empty() {
            let names: Vec<_> = features.iter().map(|f| f.name()).collect();
            flags += &format!(" --{flag} {}", names.join(","));
        }
    }
    let name = &args.recipe.recipe;
    heading("Look closer")
        + &format!("  shardwright splits {name} {flags}\n")
        + &format!("  shardwright check  {name} {flags} --engine megatron\n")
        + &format!("  shardwright stages {name} {flags}\n")
}
