//! `check`: legal or not, with every finding.

use super::{asked, layout_json, layout_text, model_line_at, recipe_of, seams_text};
use crate::args::CheckArgs;
use crate::files::load_cluster;
use crate::outcome::{NO, Outcome, Refusal, Report};
use case::asked::StateArgs;
use case::{Asked, machines, settle_mode, wrong_world};
use diag::Severity;
use hardware::Cluster;
use layout::{LayoutRequest, joint_fixes};
use serde_json::json;

pub fn run(args: &CheckArgs) -> Outcome {
    let mut request = args.layout.request();
    if let Some(on) = &args.on {
        let asked = asked(&args.recipe, &args.layout, &StateArgs::default(), Some(on));
        request = request_on(&load_cluster(on)?, on, request, &asked)?;
    }
    let (recipe, mut defaults) = (recipe_of(&args.recipe)?, Vec::new());
    // Without an engine only the rules of all engines are asked, of the blocks as the recipe has them.
    if request.engine.is_some() {
        defaults.extend(settle_mode(&recipe, &mut request));
    }
    let checked = layout::check(&recipe, &request);
    defaults.extend(checked.derived.iter().cloned());
    let number = |severity| checked.findings.iter().filter(|f| f.severity == severity).count();
    let verdict = if checked.is_legal() { "\x1b[1;32mlegal\x1b[0m" } else { "\x1b[1;31mnot legal\x1b[0m" };
    let mut text = format!(
        "{verdict}: {}, {}, {}\n",
        plural(number(Severity::Error), "error"),
        plural(number(Severity::Warning), "warning"),
        plural(number(Severity::Note), "note")
    );
    for (key, values) in joint_fixes(&recipe, &request, &checked.findings) {
        text += &match values.as_slice() {
            [] => format!("no single {key} satisfies every rule below\n"),
            values => format!("every rule about {key} below holds when {key} is {}\n", diag::list(values)),
        };
    }
    text += &format!("\n{}\n", model_line_at(&checked.recipe, request.sequence));
    if let Some(layout) = &checked.layout {
        text += &layout_text(&checked.recipe, layout, &defaults);
    }
    text += &seams_text(&checked.seams);
    if !checked.findings.is_empty() {
        text.push('\n');
    }
    let layout = checked.layout.as_ref().map(|layout| layout_json(layout, &defaults));
    let json = json!({
        "recipe": checked.recipe.name, "legal": checked.is_legal(), "layout": layout,
        "seams": checked.seams, "findings": checked.findings,
    });
    let report = Report::new(text, json).with_findings(&checked.findings);
    Ok(if checked.is_legal() { report } else { report.refused(NO, []) })
}

/// What was asked, with the cluster's devices as the world.
fn request_on(cluster: &Cluster, on: &str, request: LayoutRequest, asked: &Asked) -> Result<LayoutRequest, Refusal> {
    if let Some(finding) = request.engine.and_then(|engine| machines::refusal(engine, cluster, asked)) {
        return Err(finding.into());
    }
    let devices = cluster.devices();
    if let Some(world) = request.world.filter(|world| *world != devices) {
        return Err(wrong_world(world, devices, on).into());
    }
    Ok(LayoutRequest { world: Some(devices), ..request })
}

/// `1 note`, `2 notes`.
fn plural(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}
