//! `fit --serve`: weights, key/value cache, recurrent-state pool, and the largest batch that fits.

use super::case_text;
use super::fit::does_not_fit;
use crate::args::FitArgs;
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use case::Case;
use diag::{Blame, Finding};
use memory::fit::{Verdict, outside};
use memory::serving::{AttentionLayerMap, AttentionSlot, LargestBatch, ServeRequest, Serving, ServingPrice, Substrate};
use recipe::Mixer;
use serde_json::{Value, json};
use units::{Bytes, exact};

/// One stage priced.
struct Stage {
    price: ServingPrice,
    largest: LargestBatch,
    map: AttentionLayerMap,
}

pub fn run(args: &FitArgs, case: &Case) -> Outcome {
    let (recipe, device) = (&case.recipe, &case.on().device);
    let request = ServeRequest {
        substrate: if args.serving.contiguous { Substrate::Contiguous } else { Substrate::Paged },
        block: args.serving.block,
        cache: args.serving.cache_dtype,
        ..ServeRequest::usual(args.serving.batch, args.serving.context.unwrap_or(recipe.sequence))
    };
    let visible = device.visible_bytes();
    refuse_training_flags(args)?;
    let outside: u64 = outside(device, &case.layout, recipe.uses(Mixer::Moe), 0).iter().map(|a| a.bytes).sum();
    let budget = Bytes(visible.saturating_sub(outside));
    let stages = (0..case.layout.pp.get() as usize)
        .map(|stage| {
            let serving = Serving::new(recipe, &case.layout, &case.table, stage)?;
            let price = serving.price(&request)?;
            let largest = serving.largest_batch(&request, budget)?;
            Ok(Stage { price, largest, map: serving.map().clone() })
        })
        .collect::<Result<Vec<Stage>, Refusal>>()?;
    let worst = (0..stages.len()).max_by_key(|&i| stages[i].price.total).unwrap_or(0);
    let batch = stages.iter().map(|s| s.largest.batch).min().unwrap_or(0);
    let total = stages[worst].price.total.0;
    let wanted = args.headroom.bytes(visible).0;
    let verdict = match budget.0.checked_sub(total) {
        None => Verdict::DoesNotFit,
        Some(left) if left < wanted => Verdict::Tight,
        Some(_) => Verdict::Fits,
    };
    let mut text = format!(
        "{}: {} of {} after {} of reserve; the largest batch that fits is {} sequences of {} tokens\n\n",
        verdict.name(),
        stages[worst].price.total,
        Bytes(visible),
        Bytes(outside),
        exact(batch),
        exact(request.context),
    );
    text += &case_text(case);
    text += &stage_text(&stages[worst], worst, &request);
    text += &heading("Not in any number above");
    text += &stages[worst].price.unmodelled.iter().map(|line| format!("  {line}\n")).collect::<String>();
    let json = json!({
        "recipe": recipe.name, "batch": request.batch, "context": request.context, "verdict": verdict,
        "largest_batch": batch, "budget_bytes": budget.0, "outside_bytes": outside, "worst": worst,
        "stages": stages.iter().enumerate().map(stage_json).collect::<Vec<_>>(),
    });
    let report = Report::new(text, json).with_findings(&case.findings);
    Ok(match verdict {
        Verdict::DoesNotFit => report.refused(DOES_NOT_FIT, [does_not_fit(case, total + outside)]),
        Verdict::Fits | Verdict::Tight => report,
    })
}

/// Flags of training that serving would ignore are refused by name.
fn refuse_training_flags(args: &FitArgs) -> Result<(), Refusal> {
    let mut given = Vec::new();
    let state = args.state.words();
    if !state.is_empty() {
        given.push(state.join(" "));
    }
    for (name, is_given) in [
        ("--overload", !args.overload.is_empty()),
        ("--checklist", args.checklist),
        ("--routing", args.routing),
        ("--svg", args.pictures.svg.is_some()),
        ("--png", args.pictures.png.is_some()),
    ] {
        if is_given {
            given.push(name.to_string());
        }
    }
    if given.is_empty() {
        return Ok(());
    }
    let message = format!("serving has no use for `{}`", given.join("`, `"));
    Err(Finding::error("serve/flags", Blame::Usage, "serve", message).hint("leave it out with --serve").into())
}

fn stage_text(stage: &Stage, index: usize, request: &ServeRequest) -> String {
    let mut table = Table::new(&["line", "bytes", "scales with", "does not care about"]).right(&[1]).spare(&[&[3]]);
    for line in &stage.price.lines {
        table.row([line.item.name(), &line.bytes.to_string(), line.item.scales_with(), line.item.ignores()]);
    }
    let (owning, depth) = (stage.map.owning_layers(), stage.map.depth());
    let mut out = heading(&format!(
        "Serving on one rank of stage {index}: {} sequences of {} tokens",
        request.batch, request.context
    ));
    out += &table.render();
    out += &format!(
        "  the attention-layer map gives slots to {owning} of {depth} layers: {} layers' slots are not allocated\n",
        depth - owning
    );
    out += &map_text(&stage.map);
    let cache = &stage.price.cache;
    out += &format!(
        "  contiguous {}, paged in blocks of {} {} (of it {} waste)\n",
        cache.contiguous, request.block, cache.paged, cache.waste
    );
    out
}

/// Every layer that owns a slot, and which.
fn map_text(map: &AttentionLayerMap) -> String {
    let word = |(slot, of): (usize, &AttentionSlot)| {
        let window = of.window.map_or(String::new(), |tokens| format!(" (window {})", exact(tokens)));
        let indexed = if of.indexed { " (indexed)" } else { "" };
        format!("{}→{slot}{window}{indexed}", of.layer)
    };
    let words: Vec<String> = map.slots().iter().enumerate().map(word).collect();
    match words.is_empty() {
        true => "  no layer of the stage owns a slot\n".to_string(),
        false => wrap(&format!("layer→slot: {}", words.join(", ")), "  ", 80),
    }
}

fn slot_json((slot, of): (usize, &AttentionSlot)) -> Value {
    json!({ "slot": slot, "layer": of.layer, "window": of.window, "indexed": of.indexed })
}

fn stage_json((index, stage): (usize, &Stage)) -> Value {
    json!({
        "stage": index, "total_bytes": stage.price.total.0, "lines": stage.price.lines, "cache": stage.price.cache,
        "attention_layers": stage.map.owning_layers(), "layers": stage.map.depth(),
        "saved_layers": stage.map.saved_layers(),
        "attention_map": stage.map.slots().iter().enumerate().map(slot_json).collect::<Vec<_>>(),
        "largest_batch": stage.largest, "unmodelled": stage.price.unmodelled,
    })
}
