//! One command a file: each turns typed arguments into a report.

pub mod axes;
pub mod check;
pub mod checkpoint;
pub mod choices;
pub mod diagnose;
pub mod diff;
pub mod fidelity;
pub mod fit;
pub mod glossary;
pub mod hardware;
pub mod import;
pub mod lanes;
pub mod launch;
pub mod man;
pub mod mesh;
pub mod options;
pub mod params;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod receipt;
pub mod recipes;
pub mod rehearse;
pub mod report;
pub mod schedule;
mod seen;
pub mod serve;
mod serving;
pub mod splits;
pub mod stages;
mod widths;

use crate::args::ran_out;
use crate::files::{load_cluster, load_recipe};
use crate::outcome::Refusal;
use crate::table::{Table, heading, wrap};
use ::hardware::Device;
use case::asked::{LayoutArgs, RecipeArgs, StateArgs};
use case::{Asked, Case, Terms};
use layout::{Derived, Layout};
use recipe::{Family, Mixer, Recipe, Seam};
use serde_json::{Value, json};
use units::Bytes;

/// The recipe with its features switched.
fn recipe_of(args: &RecipeArgs) -> Result<Recipe, Refusal> {
    let recipe = load_recipe(&args.recipe)?;
    Ok(recipe.with_features(&args.with, &args.without)?)
}

/// What was typed, put together.
fn asked(recipe: &RecipeArgs, layout: &LayoutArgs, state: &StateArgs, on: Option<&str>) -> Asked {
    Asked { recipe: recipe.clone(), layout: layout.clone(), state: state.clone(), on: on.map(str::to_string) }
}

/// The job that was asked for, its recipe and cluster loaded.
fn case_of(asked: Asked, terms: Terms) -> Result<Case, Refusal> {
    let recipe = load_recipe(&asked.recipe.recipe)?;
    let cluster = asked.on.as_deref().map(load_cluster).transpose()?;
    Ok(Case::new(asked, recipe, cluster, terms)?)
}

/// Which calibration a job is priced with, and what it asks to be left free.
fn calibrated_text(device: &Device, recipe: &Recipe, indent: &str) -> String {
    let Some(calibration) = &device.calibration else { return String::new() };
    let share = |error: f64| format!("{:.1}%", 100.0 * error);
    let text = format!(
        "calibrated by {} receipts: steps {} off before, {} after, each by the others ({})",
        calibration.receipts,
        share(calibration.error_before),
        share(calibration.error_after),
        calibration.source
    );
    let ran_out = ran_out(device, recipe).map_or(String::new(), |known| {
        let receipt: String = known.receipt.chars().take(12).collect();
        let left = Bytes(known.bytes);
        let text =
            format!("it ran out of memory here with {left} said to be left: that is asked for besides ({receipt})");
        wrap(&text, indent, 80)
    });
    wrap(&text, indent, 80) + &ran_out
}

/// A job that is only looked at.
fn split_case(recipe: &RecipeArgs, layout: &LayoutArgs) -> Result<Case, Refusal> {
    case_of(asked(recipe, layout, &StateArgs::default(), None), Terms::SPLIT)
}

/// A job as a person types it, quoted for a shell.
fn typed(case: &Case) -> String {
    diag::quote::typed_line(case.words())
}

/// The model in one line.
fn model_line(recipe: &Recipe) -> String {
    model_line_at(recipe, None)
}

/// The model in one line, with the length of its sequences where another is typed than the recipe's.
fn model_line_at(recipe: &Recipe, sequence: Option<u64>) -> String {
    let pattern: String = recipe.pattern.to_string();
    let shown = if pattern.chars().count() > 60 {
        format!("{}…", pattern.chars().take(59).collect::<String>())
    } else {
        pattern
    };
    let tied = if recipe.tied { "tied" } else { "untied" };
    let sequence = match sequence.filter(|typed| *typed != recipe.sequence) {
        Some(typed) => format!("{typed} (the recipe's is {})", recipe.sequence),
        None => recipe.sequence.to_string(),
    };
    format!(
        "\x1b[1m{}\x1b[0m  {shown} to depth {}, hidden {}, vocab {} {tied}, sequence {sequence}",
        recipe.name.terminal(),
        recipe.depth(),
        recipe.hidden,
        recipe.vocab
    )
}

/// `13 A, 22 E, 13 M, 4 R`.
fn family_counts(recipe: &Recipe) -> Vec<(Family, u64)> {
    let count = |family| recipe.layers.iter().flat_map(|l| l.mixers()).filter(|m| m.family() == family).count() as u64;
    Family::ALL.into_iter().map(|f| (f, count(f))).filter(|(_, n)| *n > 0).collect()
}

/// The layout in one line, and what was derived.
fn layout_text(recipe: &Recipe, layout: &Layout, defaults: &[Derived]) -> String {
    let flags = layout.words(recipe.uses(Mixer::Moe)).join(" ");
    let sharded = if layout.sp { " --sp" } else { "" };
    let mut out = format!("  {} ranks: {flags}{sharded} (gbs {})\n", layout.world, layout.global_batch);
    for derived in defaults {
        out += &format!("\x1b[2m  {} = {}: {}\x1b[0m\n", derived.key, derived.value, derived.why);
    }
    out
}

/// The head of an answer about a job: the model, the layout, the seams.
fn case_text(case: &Case) -> String {
    model_line_at(&case.recipe, Some(case.layout.sequence))
        + "\n"
        + &layout_text(&case.recipe, &case.layout, &case.defaults)
        + &seams_text(&case.seams)
}

/// Seams of a mode as a table.
fn seams_text(seams: &[Seam]) -> String {
    if seams.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["seam", "layers", "the recipe says", "what runs", ""]).spare(&[&[1]]);
    for seam in seams {
        let layers = recipe::megatron::numbers(&seam.layers);
        table.row([seam.name, &shorten(&layers, 24), &seam.wanted, &seam.runs, &seam.verdict()]);
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
fn layout_json(layout: &Layout, defaults: &[Derived]) -> Value {
    let mut value = case::layout_json(layout);
    value["derived"] = json!(defaults);
    value
}
