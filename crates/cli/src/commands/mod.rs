//! One command a file: each turns typed arguments into a report.

pub mod axes;
pub mod check;
pub mod diagnose;
pub mod diff;
pub mod fidelity;
pub mod fit;
pub mod hardware;
pub mod import;
pub mod lanes;
pub mod launch;
pub mod mesh;
pub mod params;
pub mod plan;
pub mod preflight;
mod prepared;
pub mod recipes;
pub mod rehearse;
pub mod serve;
pub mod splits;
pub mod stages;

use crate::args::{LayoutArgs, RecipeArgs};
use crate::files::load_recipe;
use crate::outcome::Refusal;
use crate::table::{Table, heading};
use layout::{Checked, Layout, check as check_layout};
use recipe::{Family, Recipe, Seam};
use serde_json::{Value, json};

/// The recipe with its features switched.
fn recipe_of(args: &RecipeArgs) -> Result<Recipe, Refusal> {
    let recipe = load_recipe(&args.recipe)?;
    Ok(recipe.with_features(&args.with, &args.without)?)
}

/// A recipe and a layout that may not be legal.
fn checked(recipe: &RecipeArgs, layout: &LayoutArgs) -> Result<Checked, Refusal> {
    Ok(check_layout(&recipe_of(recipe)?, &layout.request()))
}

/// A recipe and a legal layout; refused with every finding otherwise.
fn legal(recipe: &RecipeArgs, layout: &LayoutArgs) -> Result<(Checked, Layout), Refusal> {
    let checked = checked(recipe, layout)?;
    match checked.layout.clone().filter(|_| checked.is_legal()) {
        Some(layout) => Ok((checked, layout)),
        None => Err(Refusal::from(checked.findings)),
    }
}

/// The model in one line.
fn model_line(recipe: &Recipe) -> String {
    let pattern: String = recipe.pattern.to_string();
    let shown = if pattern.chars().count() > 60 {
        format!("{}…", pattern.chars().take(59).collect::<String>())
    } else {
        pattern
    };
    let tied = if recipe.tied { "tied" } else { "untied" };
    format!(
        "\x1b[1m{}\x1b[0m  {shown} to depth {}, hidden {}, vocab {} {tied}, sequence {}",
        recipe.name,
        recipe.depth(),
        recipe.hidden,
        recipe.vocab,
        recipe.sequence
    )
}

/// `13 A, 22 E, 13 M, 4 R`.
fn family_counts(recipe: &Recipe) -> Vec<(Family, u64)> {
    let count = |family| recipe.layers.iter().flat_map(|l| l.mixers()).filter(|m| m.family() == family).count() as u64;
    Family::ALL.into_iter().map(|f| (f, count(f))).filter(|(_, n)| *n > 0).collect()
}

/// The layout in one line, and what was derived.
fn layout_text(layout: &Layout, checked: &Checked) -> String {
    let mut out = format!("  {} ranks: {}", layout.world, layout.flags());
    if layout.sp {
        out += " --sp";
    }
    out += &format!(
        " --zero {} --mbs {} --microbatches {} (gbs {}) --seq {}",
        layout.zero, layout.micro_batch, layout.microbatches, layout.global_batch, layout.sequence
    );
    if layout.pp.splits() {
        out += &format!(" --schedule {}", layout.schedule);
    }
    if let Some(mode) = layout.mode {
        out += &format!(" --mode {mode}");
    }
    out.push('\n');
    for derived in &checked.derived {
        out += &format!("\x1b[2m  {} = {}: {}\x1b[0m\n", derived.key, derived.value, derived.why);
    }
    out
}

/// Seams of a mode as a table.
fn seams_text(seams: &[Seam]) -> String {
    if seams.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["seam", "layers", "the recipe says", "what runs", ""]);
    for seam in seams {
        let layers = recipe::megatron::numbers(&seam.layers);
        let verdict = if seam.gives_up { "given up" } else { "kept, custom" };
        table.row([seam.name, &shorten(&layers, 24), &seam.wanted, &seam.runs, verdict]);
    }
    heading("Seams of the mode") + &table.render()
}

/// A long text cut in the middle of nowhere, said so.
fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        text.to_string()
    } else {
        format!("{}…", text.chars().take(most - 1).collect::<String>())
    }
}

/// `0`, `0-3`, `0,2`: ranks and chunks as people write them.
fn ranges(numbers: &[usize]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < numbers.len() {
        let run = (i..numbers.len()).take_while(|&j| numbers[j] == numbers[i] + (j - i)).count();
        out.push(if run > 1 { format!("{}-{}", numbers[i], numbers[i] + run - 1) } else { numbers[i].to_string() });
        i += run;
    }
    out.join(",")
}

/// The layout as JSON.
fn layout_json(layout: &Layout, checked: &Checked) -> Value {
    json!({
        "world": layout.world, "tp": layout.tp.get(), "sp": layout.sp, "cp": layout.cp.get(), "pp": layout.pp.get(),
        "vpp": layout.vpp.get(), "ep": layout.ep.get(), "etp": layout.etp.get(), "dp": layout.dp.get(),
        "edp": layout.edp.get(), "zero": layout.zero.name(), "mbs": layout.micro_batch,
        "microbatches": layout.microbatches, "gbs": layout.global_batch, "seq": layout.sequence,
        "schedule": layout.schedule.name(), "recompute": layout.recompute.to_string(),
        "mode": layout.mode.map(|m| m.name()), "engine": layout.engine.map(|e| e.name()),
        "derived": checked.derived,
    })
}
