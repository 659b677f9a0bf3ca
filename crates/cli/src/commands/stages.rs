//! `stages`: pipeline cuts, edges and seams, and the pattern an engine would be given.

use super::{asked, case_of, case_text, layout_json};
use crate::args::StagesArgs;
use crate::outcome::{Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use case::{Case, Terms};
use diag::{Blame, Finding};
use layout::{Balance, Layout, Schedule, StagePlan};
use recipe::{Recipe, megatron};
use serde_json::{Value, json};
use units::count;

pub fn run(args: &StagesArgs) -> Outcome {
    let case = case(args)?;
    let (recipe, layout) = (&case.recipe, &case.layout);
    if let Some(weights) = args.weights.as_ref().filter(|w| w.len() != recipe.depth()) {
        let message = format!("{} weights were given, and the model has {} layers", weights.len(), recipe.depth());
        let hint = "one weight a layer, in order of depth: --weights 3,1,4,…";
        return Err(Finding::error("stages/weights", Blame::Usage, "weights", message).hint(hint).into());
    }
    const HEAVIEST: u64 = 1 << 40;
    if let Some(weight) = args.weights.iter().flatten().find(|w| **w > HEAVIEST) {
        let message = format!("weight {weight} is more than {HEAVIEST}");
        return Err(Finding::error("stages/weights", Blame::Usage, "weights", message)
            .hint("scale the weights down")
            .into());
    }
    let plan = StagePlan::new(recipe, layout, args.weights.as_deref())?;
    let written = write_pattern(&case, &plan);
    let mut text = case_text(&case);
    text += &stages_text(recipe, &plan);
    text += &cuts_text(&plan);
    text += &pattern_text(&written);
    let json = json!({
        "recipe": recipe.name, "layout": layout_json(layout, &case.defaults),
        "stages": stages_json(recipe, &plan), "cuts": cuts_json(&plan),
        "megatron_pattern": written.as_ref().ok().map(|w| w.text.clone()),
        "megatron_refusals": written.as_ref().err(),
        "seams": case.seams,
    });
    Ok(Report::new(text, json).with_findings(&case.findings))
}

/// The job that was asked for; where layers are dealt out by prices, with the boundaries they give.
fn case(args: &StagesArgs) -> Result<Case, Refusal> {
    let asked = asked(&args.recipe, &args.layout, &args.state, args.on.as_deref());
    let terms = if args.on.is_some() { Terms::RUN } else { Terms::SPLIT };
    let is_priced = matches!(args.layout.balance, Some(Balance::Memory | Balance::Time));
    let Some(balance) = args.layout.balance.filter(|_| is_priced && args.layout.boundaries.is_none()) else {
        return case_of(asked, terms);
    };
    if args.on.is_none() || args.weights.is_some() {
        return case_of(asked, terms);
    }
    let mut plain = asked;
    plain.layout.balance = None;
    let case = case_of(plain, terms)?;
    let starts = search::balanced(&case, balance, &args.work.of_an_answer())?;
    Ok(case.with(|asked| asked.layout.boundaries = Some(starts))?)
}

/// The recipe as Megatron would be given it, cut as planned. The mode is applied by the writer.
fn write_pattern(case: &Case, plan: &StagePlan) -> Result<megatron::Written, Vec<Finding>> {
    let layout: &Layout = &case.layout;
    if layout.pp.splits() && !matches!(layout.schedule, Schedule::OneF1b | Schedule::Interleaved) {
        let message =
            format!("Megatron-Core places segments round the stages and has no schedule `{}`", layout.schedule);
        let hint = "--schedule 1f1b, or interleaved with --vpp, has a pattern";
        return Err(vec![Finding::error("pattern/schedule", Blame::Engine, "schedule", message).hint(hint)]);
    }
    megatron::write(&case.source, layout.mode, &plan.layer_counts())
}

fn segment(recipe: &Recipe, layers: std::ops::Range<usize>) -> String {
    recipe.layers[layers].iter().map(|l| l.to_string()).collect()
}

fn stages_text(recipe: &Recipe, plan: &StagePlan) -> String {
    let mut table = Table::new(&["stage", "chunk", "layers", "blocks", "parameters", "owns besides"]).right(&[0, 1, 4]);
    for (stage, chunks) in plan.by_stage.iter().enumerate() {
        for (i, &index) in chunks.iter().enumerate() {
            let chunk = &plan.chunks[index];
            let name = if i == 0 { stage.to_string() } else { String::new() };
            let extras: Vec<_> = chunk.extras.iter().map(|e| e.name()).collect();
            let layers = format!("{}-{}", chunk.layers.start, chunk.layers.end - 1);
            let blocks = super::shorten(&segment(recipe, chunk.layers.clone()), 44);
            table.row([name, index.to_string(), layers, blocks, count(chunk.params), extras.join(", ")]);
        }
    }
    let weigh = |chunks: &Vec<usize>| chunks.iter().map(|c| plan.chunks[*c].params).sum::<u64>();
    let held: Vec<u64> = plan.by_stage.iter().map(weigh).collect();
    let (least, most) = (held.iter().min().copied().unwrap_or(0), held.iter().max().copied().unwrap_or(0));
    let heaviest = held.iter().position(|h| *h == most).unwrap_or(0);
    let spread = 100.0 * (most - least) as f64 / most.max(1) as f64;
    heading("Stages (layers count from 0; parameters before tp, ep and dp)")
        + &table.render()
        + &format!("  heaviest is stage {heaviest} with {}; the lightest holds {spread:.1}% less\n", count(most))
}

fn cuts_text(plan: &StagePlan) -> String {
    if plan.seams.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["cut before layer", "runs through", "contract"]).right(&[0]);
    for seam in &plan.seams {
        let families: Vec<_> = seam.families.iter().map(|f| f.key()).collect();
        table.row([seam.before.to_string(), families.join(" "), seam.contract.clone()]);
    }
    heading("Cuts to look at") + &table.render()
}

fn pattern_text(written: &Result<megatron::Written, Vec<Finding>>) -> String {
    match written {
        Ok(written) => heading("Megatron pattern") + &format!("  {}\n", written.text),
        Err(findings) => {
            let reasons: String = findings
                .iter()
                .map(|f| {
                    let hint = f.hint.as_ref().map_or(String::new(), |h| format!(" ({h})"));
                    wrap(&format!("{}{hint}", f.message), "  ", 110)
                })
                .collect();
            heading("Megatron pattern: none") + &reasons
        }
    }
}

fn stages_json(recipe: &Recipe, plan: &StagePlan) -> Vec<Value> {
    let chunk = |index: &usize| {
        let chunk = &plan.chunks[*index];
        json!({ "chunk": index, "first_layer": chunk.layers.start, "layers": chunk.layers.len(),
            "blocks": segment(recipe, chunk.layers.clone()), "params": chunk.params, "owns": chunk.extras })
    };
    let stage = |(stage, chunks): (usize, &Vec<usize>)| json!({ "stage": stage, "chunks": chunks.iter().map(chunk).collect::<Vec<_>>() });
    plan.by_stage.iter().enumerate().map(stage).collect()
}

fn cuts_json(plan: &StagePlan) -> Vec<Value> {
    let cut = |s: &layout::stages::StageSeam| {
        json!({ "before_layer": s.before, "families": s.families.iter().map(|f| f.key()).collect::<Vec<_>>(),
            "contract": s.contract, "state_elements": s.state_elements })
    };
    plan.seams.iter().map(cut).collect()
}
