//! `plan`: what to run on a cluster. The planner proper (time, search, launch) is not built yet;
//! until it is, `plan` says so by name and shows what stands for one layout: whether it is legal,
//! who holds what, and whether it fits.

use super::fit::{Case, fit_lines, verdict_text};
use super::{layout_json, layout_text, model_line, seams_text};
use crate::args::PlanArgs;
use crate::outcome::{DOES_NOT_FIT, Outcome, Report};
use crate::picture;
use crate::table::{heading, wrap};
use hardware::{Cluster, Link};
use layout::Layout;
use memory::fit::{Fit, HEADROOM, Verdict};
use serde_json::json;
use units::{Bytes, count, exact};

/// What a plan will say and cannot yet.
const MISSING: &[(&str, &str)] = &[
    ("time", "compute, traffic and schedule: how long a step takes and what bounds it"),
    ("search", "every legal layout priced: the best one, and why the others lost"),
    ("launch", "the engine's own arguments"),
];

pub fn run(args: &PlanArgs) -> Outcome {
    let case = Case::new(&args.recipe, &args.layout, &args.state, &args.on)?;
    let (counts, device) = (case.recipe.counts().all, &case.cluster.device);
    let mut text = model_line(&case.recipe) + "\n";
    text += &format!("  {} parameters, {} active on a token\n", exact(counts.total), count(counts.active));
    text += &format!(
        "\x1b[1m{}\x1b[0m  {} × {} {}, {} visible on each (physical, not a budget)\n",
        args.on,
        case.cluster.nodes,
        case.cluster.devices_per_node,
        device.name,
        Bytes(device.visible_bytes())
    );
    text += &neighbours(&case.cluster);
    text += &heading("One layout, not yet the best one");
    text += &layout_text(&case.layout, &case.checked);
    text += &seams_text(&case.checked.seams);
    let request = case.fit_request(HEADROOM);
    let fit = Fit::price(&request);
    text += &match &fit {
        Ok(fit) => {
            verdict_text(fit, &request) + &picture::bars(&fit.classes, device.visible_bytes(), 60) + &fit_lines(fit)
        }
        Err(reason) => format!("\nmemory: {reason}\n"),
    };
    text += &next_steps(args, &case.layout);
    text += &heading("Not built yet");
    for (name, what) in MISSING {
        text += &wrap(&format!("{name}: {what}"), "  ", 110);
    }
    let stage = |class: &memory::fit::RankClass| {
        json!({ "stage": class.stage, "example_rank": class.first_rank, "rank_params": class.params,
            "total_bytes": class.total(), "headroom_bytes": class.headroom })
    };
    let json = json!({
        "recipe": case.recipe.name, "cluster": case.cluster, "total": counts.total, "active": counts.active, "legal": true,
        "layout": layout_json(&case.layout, &case.checked), "seams": case.checked.seams, "findings": case.checked.findings,
        "verdict": fit.as_ref().ok().map(|f| f.verdict), "unmodelled": fit.as_ref().err(),
        "stages": fit.as_ref().ok().map(|f| f.classes.iter().map(stage).collect::<Vec<_>>()),
        "missing": MISSING.iter().map(|(name, _)| name).collect::<Vec<_>>(),
    });
    let mut report = Report::new(text, json).with_findings(&case.checked.findings);
    if fit.is_ok_and(|f| f.verdict == Verdict::DoesNotFit) {
        report.exit = DOES_NOT_FIT;
    }
    Ok(report)
}

/// Who is near whom: the islands of a cluster and what joins them.
fn neighbours(cluster: &Cluster) -> String {
    let link = |link: &Option<Link>| link.as_ref().map_or("an unstated link".to_string(), |link| link.name.clone());
    let (islands, size) = (cluster.islands(), cluster.island_devices());
    let inside = match cluster.nodes_per_island() {
        _ if size == 1 => "each device alone".to_string(),
        1 => format!("{size} over {}", link(&cluster.device.island_link)),
        nodes => format!("{size} over {} ({nodes} nodes)", link(&cluster.device.island_link)),
    };
    match islands {
        1 => format!("  one island: {inside}\n"),
        _ => format!("  {islands} islands: {inside}, between them {}\n", link(&cluster.device.network)),
    }
}

/// The same question asked of the other commands, with everything that was typed.
fn next_steps(args: &PlanArgs, layout: &Layout) -> String {
    let mut flags = layout.all_flags();
    for (flag, features) in [("with", &args.recipe.with), ("without", &args.recipe.without)] {
        if !features.is_empty() {
            let names: Vec<_> = features.iter().map(|f| f.name()).collect();
            flags += &format!(" --{flag} {}", names.join(","));
        }
    }
    let (name, world) = (&args.recipe.recipe, layout.world);
    heading("Look closer")
        + &format!("  shardwright fit    {name} {flags} --on {}{}\n", args.on, args.state.flags())
        + &format!("  shardwright splits {name} {flags} --world {world}\n")
        + &format!("  shardwright stages {name} {flags} --world {world}\n")
}
