//! `fit --serve`: weights, key/value cache, recurrent-state pool, and the largest batch that fits.

use super::fit::Case;
use super::{layout_text, model_line};
use crate::args::FitArgs;
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading};
use layout::OwnershipTable;
use memory::fit::communicators;
use memory::serving::{LargestBatch, ServeRequest, Serving, ServingPrice, Substrate};
use recipe::Mixer;
use serde_json::{Value, json};
use units::{Bytes, exact};

/// One stage priced.
struct Stage {
    price: ServingPrice,
    largest: LargestBatch,
    map: (usize, usize),
}

pub fn run(args: &FitArgs, case: &Case) -> Outcome {
    let recipe = &case.checked.recipe;
    let request = ServeRequest {
        substrate: if args.serve.contiguous { Substrate::Contiguous } else { Substrate::Paged },
        block: args.serve.block,
        cache: args.serve.cache_dtype,
        ..ServeRequest::usual(args.serve.batch, args.serve.context.unwrap_or(recipe.sequence))
    };
    let table = OwnershipTable::new(recipe, &case.layout)?;
    let visible = case.cluster.device.visible_bytes();
    let outside = reserve(case);
    let budget = Bytes(visible.saturating_sub(outside));
    let stages = (0..case.layout.pp.get() as usize)
        .map(|stage| {
            let serving = Serving::new(recipe, &case.layout, &table, stage)?;
            let price = serving.price(&request)?;
            let largest = serving.largest_batch(&request, budget)?;
            Ok(Stage { price, largest, map: (serving.map().owning_layers(), serving.map().depth()) })
        })
        .collect::<Result<Vec<Stage>, Refusal>>()?;
    let worst = (0..stages.len()).max_by_key(|&i| stages[i].price.total).unwrap_or(0);
    let batch = stages.iter().map(|s| s.largest.batch).min().unwrap_or(0);
    let fits = stages[worst].price.total.0 <= budget.0;
    let mut text = model_line(recipe) + "\n" + &layout_text(&case.layout, &case.checked);
    text += &stage_text(&stages[worst], worst, &request);
    text += &format!(
        "\n{} of {} after {} of reserve: {}; the largest batch that fits is {} sequences of {} tokens\n",
        stages[worst].price.total,
        Bytes(visible),
        Bytes(outside),
        if fits { "\x1b[1;32mfits\x1b[0m" } else { "\x1b[1;31mdoes not fit\x1b[0m" },
        exact(batch),
        exact(request.context),
    );
    let json = json!({
        "recipe": recipe.name, "batch": request.batch, "context": request.context, "verdict": if fits { "fits" } else { "does-not-fit" },
        "largest_batch": batch, "budget_bytes": budget.0, "outside_bytes": outside, "worst": worst,
        "stages": stages.iter().enumerate().map(stage_json).collect::<Vec<_>>(),
    });
    let mut report = Report::new(text, json).with_findings(&case.checked.findings);
    if !fits {
        report.exit = DOES_NOT_FIT;
    }
    Ok(report)
}

/// Context, libraries and communicators, where the device has been measured.
fn reserve(case: &Case) -> u64 {
    let Some(reserve) = &case.cluster.device.reserve else { return 0 };
    let count = communicators(&case.layout, case.checked.recipe.uses(Mixer::Moe)).len() as u64;
    let talking =
        if count == 0 { 0 } else { reserve.first_communicator_bytes + (count - 1) * reserve.communicator_bytes };
    reserve.context_bytes + reserve.libraries_bytes + talking
}

fn stage_text(stage: &Stage, index: usize, request: &ServeRequest) -> String {
    let mut table = Table::new(&["line", "bytes", "scales with", "does not care about"]).right(&[1]);
    for line in &stage.price.lines {
        table.row([line.item.name(), &line.bytes.to_string(), line.item.scales_with(), line.item.ignores()]);
    }
    let (owning, depth) = stage.map;
    let mut out = heading(&format!(
        "Serving on one rank of stage {index}: {} sequences of {} tokens",
        request.batch, request.context
    ));
    out += &table.render();
    out += &format!(
        "  the attention-layer map gives slots to {owning} of {depth} layers: {} layers' slots are not allocated\n",
        depth - owning
    );
    let cache = &stage.price.cache;
    out += &format!(
        "  contiguous {}, paged in blocks of {} {} (of it {} waste)\n",
        cache.contiguous, request.block, cache.paged, cache.waste
    );
    out
}

fn stage_json((index, stage): (usize, &Stage)) -> Value {
    json!({
        "stage": index, "total_bytes": stage.price.total.0, "lines": stage.price.lines, "cache": stage.price.cache,
        "attention_layers": stage.map.0, "layers": stage.map.1, "saved_layers": stage.map.1 - stage.map.0,
        "largest_batch": stage.largest, "unmodelled": stage.price.unmodelled,
    })
}
