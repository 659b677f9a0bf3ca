//! `params`: how many, by family and surface.

use super::{family_counts, model_line, recipe_of, seams_text};
use crate::args::ParamsArgs;
use crate::outcome::{Outcome, Report};
use crate::pictures;
use crate::table::{Table, heading};
use draw::Picture;
use recipe::count::Counts;
use recipe::{Family, Recipe, Seam};
use serde_json::{Map, Value, json};
use units::{count, exact};

pub fn run(args: &ParamsArgs) -> Outcome {
    let recipe = recipe_of(&args.recipe)?;
    let (recipe, seams) = match args.mode {
        Some(mode) => recipe.in_mode(mode)?,
        None => (recipe, Vec::new()),
    };
    let counts = recipe.counts();
    let text = render(&recipe, &counts, &seams);
    let json = json_of(&recipe, &counts, &seams, args.mode.map(|m| m.name()));
    pictures::write(&args.pictures, Picture::Pattern, &json)?;
    Ok(Report::new(text, json).with_findings(&recipe.notes))
}

fn render(recipe: &Recipe, counts: &Counts, seams: &[Seam]) -> String {
    let mut out = model_line(recipe) + "\n";
    out += &heading("By family");
    let blocks = family_counts(recipe);
    let mut table = Table::new(&["family", "blocks", "total", "active", "share"]).right(&[1, 2, 3, 4]);
    let share = |n: u64| format!("{:.1}%", 100.0 * n as f64 / counts.all.total as f64);
    for (family, held) in &counts.by_family {
        let number = blocks.iter().find(|(f, _)| f == family).map_or(String::new(), |(_, n)| n.to_string());
        let name = format!("{} {}", family.key(), if *family == Family::Edge { "" } else { family.name() });
        table.row([name, number, count(held.total), count(held.active), share(held.total)]);
    }
    table.row([
        "all".to_string(),
        recipe.depth().to_string(),
        count(counts.all.total),
        count(counts.all.active),
        String::new(),
    ]);
    out += &table.render();
    out += &heading("By surface");
    let mut table = Table::new(&["surface", "total", "active", "share"]).right(&[1, 2, 3]);
    for (surface, held) in &counts.by_surface {
        table.row([surface.name().to_string(), count(held.total), count(held.active), share(held.total)]);
    }
    out += &table.render();
    out += &seams_text(seams);
    let features = recipe.bundle();
    if !features.is_empty() {
        out += &heading("Features");
        let mut table = Table::new(&["feature", "", "placement"]);
        for (feature, on) in features {
            table.row([feature.name(), if on { "on" } else { "off" }, feature.placement()]);
        }
        out += &table.render();
    }
    out += &format!(
        "\n{} parameters, {} active on a token (routed experts count top-k; both embedding tables count)\n",
        exact(counts.all.total),
        exact(counts.all.active)
    );
    if counts.trained != counts.all.total {
        let frozen = counts.all.total - counts.trained;
        out += &format!("{} of them are trained, in adapters; {} are frozen\n", exact(counts.trained), exact(frozen));
    }
    if recipe.source != "" {
        out += &format!("\x1b[2msource: {}\x1b[0m\n", recipe.source.terminal());
    }
    out
}

fn json_of(recipe: &Recipe, counts: &Counts, seams: &[Seam], mode: Option<&str>) -> Value {
    let blocks = family_counts(recipe);
    let families: Map<String, Value> = counts
        .by_family
        .iter()
        .map(|(family, held)| {
            let number = blocks.iter().find(|(f, _)| f == family).map_or(0, |(_, n)| *n);
            (family.key().to_string(), json!({ "blocks": number, "total": held.total, "active": held.active }))
        })
        .collect();
    let surfaces: Map<String, Value> =
        counts.by_surface.iter().map(|(surface, held)| (surface.name().to_string(), json!(held))).collect();
    let features: Map<String, Value> =
        recipe.bundle().into_iter().map(|(f, on)| (f.name().to_string(), json!(on))).collect();
    json!({
        "recipe": recipe.name, "mode": mode, "pattern": recipe.pattern.to_string(), "depth": recipe.depth(),
        "layers": recipe.layers.iter().map(|layer| layer.to_string()).collect::<Vec<_>>(),
        "mtp": recipe.features.mtp().map(|mtp| json!({ "depth": mtp.depth, "layer": mtp.layer.to_string() })),
        "total": counts.all.total, "trained": counts.trained, "active": counts.all.active, "by_family": families, "by_surface": surfaces,
        "features": features, "seams": seams, "source": recipe.source,
    })
}
