//! `recipes`: what is built in.

use super::family_counts;
use crate::args::RecipesArgs;
use crate::outcome::{Outcome, Report};
use crate::table::Table;
use recipe::builtin::{RECIPES, find};
use serde_json::json;
use units::count;

pub fn run(args: &RecipesArgs) -> Outcome {
    if let Some(name) = &args.name {
        let recipe = find(name)?;
        let text = RECIPES.iter().find(|(known, _)| known == name).map_or("", |(_, text)| text);
        return Ok(Report::file(
            text.to_string(),
            json!({ "name": recipe.name, "toml": text, "source": recipe.source }),
        ));
    }
    let mut table = Table::new(&["name", "blocks", "total", "active", "modes", "features"]).right(&[2, 3]);
    let mut list = Vec::new();
    for (name, _) in RECIPES {
        let recipe = find(name)?;
        let counts = recipe.counts().all;
        let blocks: Vec<String> = family_counts(&recipe).iter().map(|(f, n)| format!("{n} {}", f.key())).collect();
        let modes: Vec<_> = recipe.modes.iter().map(|m| m.name()).collect();
        let features: Vec<_> = recipe.features.listed().iter().map(|(f, _)| f.name()).collect();
        table.row([
            name.to_string(),
            blocks.join(", "),
            count(counts.total),
            count(counts.active),
            modes.join(", "),
            features.join(", "),
        ]);
        list.push(json!({ "name": name, "total": counts.total, "active": counts.active, "depth": recipe.depth(),
            "modes": modes, "features": features, "source": recipe.source }));
    }
    let text = table.render() + "\n`shardwright recipes NAME` prints one, to start your own from\n";
    Ok(Report::new(text, json!({ "recipes": list })))
}
