//! `fit --routing`: what one expert layer takes to send tokens to experts and back, by formula, beside
//! what the replay holds of it at the peak.

use crate::table::{Table, heading, wrap};
use case::Case;
use memory::fit::{Entry, Fit, LayerRouting};
use replay::Line;
use serde_json::{Value, json};
use units::{Bytes, exact};

pub fn text(case: &Case, fit: &Fit, layer: Option<&LayerRouting>) -> String {
    let title = heading("Routing scratch of one expert layer (one rank, one microbatch)");
    let Some(layer) = layer else {
        return title + "  the worst stage has no experts: nothing is routed there\n";
    };
    let (input, one, held) = (&layer.input, &layer.of_one_sender, &layer.held);
    let mut out = title;
    let routed = format!(
        "{} tokens on a rank, top_k {}, {} experts of which {} here, width {}, {} bytes an element",
        exact(input.tokens_per_rank),
        input.top_k,
        input.experts,
        input.local_experts,
        input.hidden,
        input.bytes_per_element
    );
    out += &wrap(&routed, "  ", 80);
    let (slots, columns) = match one.capacity_per_expert {
        Some(slots) => {
            let factor = case.recipe.moe.as_ref().and_then(|moe| moe.capacity_factor).unwrap_or(1.0);
            let all = format!("all {} held", layer.senders);
            (
                format!("capacity per expert: {slots} (tokens · top_k / experts · {factor}, rounded up)"),
                ["one sender".to_string(), all],
            )
        }
        None => {
            let words = "capacity per expert: none, nothing is dropped; buffers are sized by what arrives".to_string();
            (words, [format!("{} rows", exact(held.rows)), String::new()])
        }
    };
    out += &wrap(&slots, "  ", 80);
    let mut table = Table::new(&["part", &columns[0], &columns[1]]).right(&[1, 2]);
    let both = |bytes: Bytes| if one.capacity_per_expert.is_some() { bytes.to_string() } else { String::new() };
    for (part, at_once) in
        [(one.dispatch_counts, held.dispatch_counts), (one.receive, held.receive), (one.combine, held.combine)]
    {
        table.row([part.name.to_string(), part.bytes.to_string(), both(at_once.bytes)]);
    }
    table.row(["a layer".to_string(), one.total.to_string(), both(held.total)]);
    out += &table.render();
    let at_peak = |line: Line| Bytes(fit.worst().line(Entry::Ledger(line)));
    out + &wrap(
        &format!(
            "At the peak, over the stage's {} expert layers and microbatches in flight: routing-scratch {}; apart from \
             it expert-inputs {}, which experts keep for backward.",
            layer.layers,
            at_peak(Line::RoutingScratch),
            at_peak(Line::ExpertInputs)
        ),
        "  ",
        80,
    )
}

pub fn json(layer: Option<&LayerRouting>) -> Value {
    layer.map_or(Value::Null, |layer| json!(layer))
}
