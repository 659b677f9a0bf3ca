//! Bytes a step puts into calls, by axis over all ranks: predicted from the layout's exchanges and
//! the ownership table, and what was counted while it ran.
//!
//! [`layout::activations::exchanges`] lists what moves with the activations of one microbatch; how
//! often state moves depends on stages, ZeRO and the schedule, and is counted here.

use crate::params::Sum;
use crate::real::Real;
use crate::train::Trainer;
use comm::{Call, Kind, Moved, Result};
use layout::activations::{Exchange, exchanges};
use layout::order::{Block, Pass, Pipeline};
use layout::ownership::Row;
use layout::request::RecomputeModule;
use layout::{Layout, OwnershipTable, Recompute, ZeroStage};
use recipe::{Optimizer, Place, Recipe};

/// Axes, in the order of the table.
pub(super) const AXES: &[&str] = &["tp", "sp", "cp", "ep", "etp", "pp", "dp", "edp"];

/// Calls this runtime makes that the layout's list does not have, with the reason.
pub(super) const BESIDES: &[(&str, &str)] = &[
    ("gradients of keys and values to their owner", "the ring's gradients travel home; the list has the ring only"),
    ("counts of the expert-tensor group", "rows of the group must be told apart by expert"),
    ("tokens of each expert", "the balancing loss and the capacity are a sequence's, whoever holds its parts"),
    ("tokens of each expert of the step", "what moves routing biases, and what the load table shows"),
    ("gradients of shared heads", "units that neighbours on the tensor axis hold too"),
    ("momentum made whole", "Muon orthogonalises whole matrices"),
    ("squares of the recurrent norm", "a norm over the heads of all ranks"),
    ("tails of the convolution", "handed on where a mixer carries its state"),
    ("recurrent state handed on", "handed on where a mixer carries its state"),
    ("loss and norm", "what a step reports, and clips by"),
];

/// What a rank counted, by [`AXES`] and by [`BESIDES`].
pub(super) fn counted(all: &[(Call, Kind, Moved)]) -> (Vec<u64>, Vec<u64>) {
    let (mut listed, mut besides) = (vec![0; AXES.len()], vec![0; BESIDES.len()]);
    for (call, _, moved) in all {
        let at = BESIDES.iter().position(|(name, _)| *name == call.name);
        let on = AXES.iter().position(|axis| *axis == call.axis);
        match (at, on) {
            (Some(at), _) => besides[at] += moved.bytes,
            (None, Some(on)) => listed[on] += moved.bytes,
            (None, None) => unreachable!("`{}` is on no axis that is listed", call.name),
        }
    }
    (listed, besides)
}

/// How often a stage's gradients are summed in a step: at its end, or behind every backward where
/// they are not kept whole.
fn sums(layout: &Layout, stage: u32) -> Result<u64> {
    if layout.zero < ZeroStage::Two {
        return Ok(1);
    }
    let actions = Pipeline::of(layout)?.stage(stage).flat_map(Block::actions);
    Ok(actions.filter(|a| matches!(a.pass, Pass::Backward | Pass::BackwardWeight)).count() as u64)
}

/// Bytes this rank brings to sums over the tensor axis: gradients of tensors it holds whole and saw
/// its own tokens or heads of.
pub(super) fn partial<R: Real>(layout: &Layout, stage: u32, trainer: &Trainer<R>) -> Result<u64> {
    if !layout.tp.splits() {
        return Ok(0);
    }
    let is_partial = |sum: Sum| sum == Sum::Heads || (sum == Sum::Tokens && layout.sp);
    let params = trainer.shelf().params.iter().filter(|p| is_partial(p.sum));
    Ok(params.map(|p| p.part.elements()).sum::<u64>() * R::BYTES * sums(layout, stage)?)
}

/// Bytes over all ranks by [`AXES`], but for what [`partial`] counts.
pub(super) fn predicted(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, bytes: u64) -> Result<Vec<u64>> {
    let mut out = vec![0; AXES.len()];
    let mut add = |axis: &str, amount: u64| {
        if let Some(at) = AXES.iter().position(|a| *a == axis) {
            out[at] += amount;
        }
    };
    let lanes = layout.world / layout.pp.get();
    for exchange in exchanges(recipe, layout, table) {
        let Some((forward, backward)) = halves(&exchange, layout) else { continue };
        let forward = forward * if runs_again(&exchange, layout) { 2 } else { 1 };
        let each = if exchange.forward == "all-gather of counts" { 8 } else { bytes };
        add(exchange.axis, (forward + backward) * exchange.count * layout.microbatches * lanes * each);
    }
    add("pp", seams(layout)? * layout.tokens_per_microbatch_per_rank() * recipe.hidden * lanes * bytes);
    for (axis, amount) in state(recipe, layout, table)? {
        add(axis, amount * bytes);
    }
    Ok(out)
}

/// Elements a rank puts in forward and backward, of exchanges that move with a microbatch.
fn halves(exchange: &Exchange, layout: &Layout) -> Option<(u64, u64)> {
    let e = exchange.elements;
    let degree = if exchange.axis == "etp" { layout.etp.get() } else { layout.tp.get() };
    match (exchange.forward, exchange.backward) {
        ("all-gather", "reduce-scatter") => Some((e, e * degree)),
        ("reduce-scatter", "all-gather") => Some((e, e / degree)),
        ("all-reduce", "identity") | ("all-gather of counts", "none") => Some((e, 0)),
        ("identity", "all-reduce") => Some((0, e)),
        ("all-to-all", "all-to-all") | ("send/receive × (cp-1)", _) => Some((e, e)),
        _ => None,
    }
}

/// Whether the block an exchange belongs to runs forward a second time, in backward.
fn runs_again(exchange: &Exchange, layout: &Layout) -> bool {
    let block = match exchange.axis {
        "ep" | "etp" => "moe",
        _ => {
            let words = ["into ", "out of ", "under "].iter().find_map(|w| exchange.place.strip_prefix(w));
            words.and_then(|w| w.split([':', '.']).next()).unwrap_or("")
        }
    };
    let is_block = ["attention", "mlp", "mamba", "recurrent", "gated_delta", "moe"].contains(&block);
    match &layout.recompute {
        Recompute::None => false,
        Recompute::Full => is_block,
        Recompute::Selective(modules) => match block {
            "mlp" => modules.contains(&RecomputeModule::Mlp),
            "moe" => modules.contains(&RecomputeModule::Moe),
            _ => false,
        },
    }
}

/// Seams that a step's microbatches cross between ranks, there and back.
fn seams(layout: &Layout) -> Result<u64> {
    let order = Pipeline::of(layout)?;
    let crosses = |microbatch: u32, chunk: u32| {
        let direction = order.direction(microbatch);
        order.stage_of(direction, chunk) != order.stage_of(direction, chunk - 1)
    };
    let crossed = |m: u32| (1..order.chunks()).filter(|c| crosses(m, *c)).count() as u64;
    Ok(2 * (0..order.microbatches()).map(crossed).sum::<u64>())
}

/// Elements of gradients and weights over replicas and copies.
fn state(recipe: &Recipe, layout: &Layout, table: &OwnershipTable) -> Result<Vec<(&'static str, u64)>> {
    let lanes = layout.world / layout.pp.get();
    let mut out = Vec::new();
    for row in &table.rows {
        let holders: Vec<u32> =
            (0..layout.pp.get() as u32).filter(|s| table.copies_on_stage(row, *s as usize) > 0).collect();
        let (axis, members) = match row.tensor.acting {
            Some(_) => ("edp", layout.edp.get()),
            None => ("dp", layout.dense_shards()),
        };
        let elements = row.part_elements(layout);
        let shared = layout.zero != ZeroStage::Zero;
        // Held runs of the members add up to the whole, once for each group.
        let gathered = elements * lanes / members;
        if members > 1 {
            for stage in &holders {
                out.push((axis, elements * lanes * sums(layout, *stage)?));
            }
            out.push((axis, gathered * gathers(recipe, layout, table, row, holders.len() as u64)));
        }
        if holders.len() > 1 {
            let each = if shared { gathered } else { elements * lanes };
            out.push(("pp", each * holders.len() as u64));
        }
    }
    Ok(out)
}

/// How often the weights of a row are gathered in a step, over all stages that hold it.
fn gathers(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, row: &Row, holders: u64) -> u64 {
    match layout.zero {
        ZeroStage::Zero => 0,
        ZeroStage::One | ZeroStage::Two => holders,
        ZeroStage::Three => {
            // Muon needs directions and old weights whole, of all that are shared out together.
            let is_together = |r: &&Row| {
                r.tensor.place == row.tensor.place
                    && r.tensor.acting.is_some() == row.tensor.acting.is_some()
                    && r.chunks == row.chunks
            };
            let has_muon = table.rows.iter().filter(is_together).any(|r| r.tensor.optimizer == Optimizer::Muon);
            layout.microbatches * uses(recipe, row.tensor.place) + if has_muon { 2 * holders } else { 0 }
        }
    }
}

/// How often a microbatch opens the weights of a place, forward and backward.
fn uses(recipe: &Recipe, place: Place) -> u64 {
    let depths = recipe.features.mtp().map_or(0, |mtp| mtp.depth);
    match place {
        Place::Layer(index) => 2 * recipe.layers[index].blocks.len() as u64,
        // Backward of an embedding adds rows and reads none.
        Place::Embedding => 1 + 2 * depths + if recipe.tied { 2 } else { 0 },
        Place::Head => 2 + 2 * depths,
        Place::Mtp(_) => 2 * if recipe.tied { 2 } else { 1 },
        _ => 2,
    }
}
