//! What moves once a step: gradients over those who share them, weights over those who hold
//! shards of them, and what the optimizer and the report need.

use super::{Collective, Exchange, Holds, Over, Site, is_ours};
use crate::axis::Axis;
use crate::layout::Layout;
use crate::mesh::{Mesh, Order};
use crate::order::{Block, Pass, Pipeline};
use crate::ownership::{OwnershipTable, Row};
use crate::request::ZeroStage;
use crate::shards::{Buffer, buffers};
use recipe::{Mixer, Optimizer, Recipe};

/// The list: of the first rank for this project's own engine, of the heaviest stage for others.
pub(super) fn once_a_step(recipe: &Recipe, layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    let has_experts = layout.ep.splits() || layout.etp.splits();
    match Mesh::new(layout, Order::Megatron, has_experts) {
        Ok(mesh) if is_ours(layout) => out.extend(of_rank(recipe, layout, table, &mesh, 0)),
        _ => {
            replicated_gradients(layout, table, out);
            data(layout, table, out);
        }
    }
}

/// How often a stage reduces gradients: from ZeRO 2 on after every backward pass over a chunk.
fn reductions(layout: &Layout, stage: u64) -> u64 {
    match Pipeline::of(layout) {
        Ok(order) if layout.zero >= ZeroStage::Two => {
            let actions = order.stage(stage as u32).flat_map(Block::actions);
            actions.filter(|a| matches!(a.pass, Pass::Backward | Pass::BackwardWeight)).count() as u64
        }
        _ => 1,
    }
}

fn exchange(axis: Over, place: &str, backward: Collective, elements: u64, count: u64) -> Exchange {
    Exchange {
        axis,
        place: place.to_string(),
        forward: Collective::None,
        backward,
        elements,
        count,
        agree: "shard boundaries",
        holds: Holds::Numbers,
        site: Site::Elsewhere,
    }
}

/// What one rank of this project's engine puts in once a step, exactly.
pub(super) fn of_rank(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    mesh: &Mesh,
    rank: u64,
) -> Vec<Exchange> {
    let buffers = buffers(table, layout, mesh, rank);
    let count = reductions(layout, mesh.coordinates(rank).on(Axis::Pp));
    let mut out = over_tensor_axis(layout, table, &buffers, count);
    over_replicas(layout, table, &buffers, count, &mut out);
    let copied = |b: &&Buffer| b.stages.len() > 1;
    let copies: u64 = buffers.iter().filter(copied).map(Buffer::held_len).sum();
    out.push(exchange(
        Over::Pp,
        "after backward: gradients of what several stages hold",
        Collective::AllReduce,
        copies,
        1,
    ));
    out.extend(muon(layout, table, &buffers));
    let experts = recipe.count_with_suffix(Mixer::Moe) * recipe.moe.as_ref().map_or(0, |moe| moe.experts);
    if layout.world > 1 {
        let wide = |place, elements| Exchange {
            agree: "order of experts",
            holds: Holds::Wide,
            site: Site::Elsewhere,
            ..exchange(Over::World, place, Collective::AllReduce, elements, 1)
        };
        out.push(wide("before the optimizer step: loss, balancing loss, squared norm", 3));
        out.push(wide("before the optimizer step: tokens of each expert, for the routing bias", experts));
    }
    out.retain(|e| e.elements > 0);
    out
}

fn rows<'a>(table: &'a OwnershipTable, buffers: &'a [Buffer]) -> impl Iterator<Item = &'a Row> {
    buffers.iter().flat_map(|b| &b.rows).map(|row| &table.rows[*row])
}

/// Gradients of what tensor-parallel neighbours hold too.
fn over_tensor_axis(layout: &Layout, table: &OwnershipTable, buffers: &[Buffer], count: u64) -> Vec<Exchange> {
    if !layout.tp.splits() {
        return Vec::new();
    }
    let is_partial = |row: &&Row| is_whole(row) && (layout.sp || row.serves_own_heads());
    let whole = rows(table, buffers).filter(is_partial).map(|row| row.part_elements(layout)).sum();
    let shared = rows(table, buffers).filter_map(|row| row.shared_elements(layout)).map(|(shared, _)| shared).sum();
    vec![
        exchange(Over::Tp, WHOLE, Collective::AllReduce, whole, count),
        exchange(
            Over::Tp,
            "after backward: gradients of heads that neighbours hold too",
            Collective::AllReduce,
            shared,
            count,
        ),
    ]
}

/// Gradients and weights over the ranks that share them out.
fn over_replicas(layout: &Layout, table: &OwnershipTable, buffers: &[Buffer], count: u64, out: &mut Vec<Exchange>) {
    let has_muon = |b: &Buffer| b.rows.iter().any(|row| is_muon(&table.rows[*row]));
    for axis in [Axis::Dp, Axis::Edp] {
        let mine: Vec<&Buffer> = buffers.iter().filter(|b| b.axis() == axis && b.members > 1).collect();
        let axis = Over::from(axis);
        let reduce = if layout.zero == ZeroStage::Zero { Collective::AllReduce } else { Collective::ReduceScatter };
        let gradients = mine.iter().map(|b| b.len).sum();
        out.push(exchange(axis, "after backward: gradients over replicas", reduce, gradients, count));
        let held: u64 = mine.iter().map(|b| b.held_len()).sum();
        let stepped: u64 = mine.iter().filter(|b| has_muon(b)).map(|b| b.held_len()).sum();
        match layout.zero {
            ZeroStage::Zero => {}
            ZeroStage::One | ZeroStage::Two => {
                out.push(exchange(axis, "after the optimizer step: weights", Collective::AllGather, held, 1));
            }
            // Muon makes matrices orthogonal whole, and steps from the old ones.
            ZeroStage::Three => {
                out.push(exchange(
                    axis,
                    "in the optimizer step: momentum and weights of Muon",
                    Collective::AllGather,
                    2 * stepped,
                    1,
                ));
            }
        }
    }
}

fn is_muon(row: &Row) -> bool {
    row.tensor.optimizer == Optimizer::Muon
}

/// Muon makes matrices orthogonal whole, so their parts are gathered.
fn muon(layout: &Layout, table: &OwnershipTable, buffers: &[Buffer]) -> Vec<Exchange> {
    let gathered = |axis: Axis, is_expert: bool| {
        let is_cut = |row: &&Row| is_muon(row) && row.cuts.iter().any(|c| c.axis == axis);
        let rows = rows(table, buffers).filter(|row| row.tensor.acting.is_some() == is_expert).filter(is_cut);
        let elements = rows.map(|row| row.part_elements(layout)).sum();
        exchange(axis.into(), "in the optimizer step: momentum made whole for Muon", Collective::AllGather, elements, 1)
    };
    vec![gathered(Axis::Tp, false), gathered(Axis::Etp, true)]
}

const WHOLE: &str = "after backward: gradients of tensors whole on every tensor-parallel rank";

fn is_whole(row: &Row) -> bool {
    !row.cuts.iter().any(|cut| cut.axis == Axis::Tp) && row.tensor.acting.is_none()
}

/// Under sequence parallelism a rank sees its own tokens only, so gradients of what it holds whole
/// are summed over the tensor axis, once a step; tied tables are summed over the two edge stages.
fn replicated_gradients(layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    let stages = layout.pp.get() as usize;
    let held = |stage| {
        let rows = table.rows.iter().filter(|row| is_whole(row));
        rows.map(|row| row.part_elements(layout) * table.copies_on_stage(row, stage)).sum::<u64>()
    };
    let most = (0..stages).map(held).max().unwrap_or(0);
    if layout.sp && most > 0 {
        out.push(Exchange {
            axis: Over::Tp,
            place: WHOLE.to_string(),
            forward: Collective::None,
            backward: Collective::AllReduce,
            elements: most,
            count: 1,
            agree: "which tensors are whole",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
    let copied = table.rows.iter().find(|row| row.chunks.len() > 1 && stages > 1);
    if let Some(row) = copied.filter(|row| row.chunks.iter().any(|chunk| *chunk != row.chunks[0])) {
        out.push(Exchange {
            axis: Over::Pp,
            place: "after backward: gradients of the token table's copies on first and last stage".to_string(),
            forward: Collective::None,
            backward: Collective::AllReduce,
            elements: row.part_elements(layout),
            count: 1,
            agree: "that the copies start equal",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
    }
}

/// Gradients and weights over replicas: what the heaviest stage holds of each mesh.
fn data(layout: &Layout, table: &OwnershipTable, out: &mut Vec<Exchange>) {
    let held = |is_expert: bool| {
        let on_stage = |stage| {
            let rows = table.rows.iter().filter(|row| row.tensor.acting.is_some() == is_expert);
            rows.map(|row| row.part_elements(layout) * table.copies_on_stage(row, stage)).sum::<u64>()
        };
        (0..layout.pp.get() as usize).map(on_stage).max().unwrap_or(0)
    };
    let groups =
        [(Over::Dp, "dense", held(false), layout.dense_shards()), (Over::Edp, "expert", held(true), layout.edp.get())];
    for (axis, what, elements, degree) in groups {
        if degree == 1 || elements == 0 {
            continue;
        }
        let sharded = layout.zero != ZeroStage::Zero;
        out.push(Exchange {
            axis,
            place: format!("after backward: {what} gradients over {degree} replicas (heaviest stage)"),
            forward: Collective::None,
            backward: if sharded { Collective::ReduceScatter } else { Collective::AllReduce },
            elements,
            count: 1,
            agree: "gradient dtype, bucket order and padding",
            holds: Holds::Numbers,
            site: Site::Elsewhere,
        });
        if sharded {
            let (place, backward) = match layout.zero {
                ZeroStage::Three => ("before every use", Collective::AllGather),
                _ => ("after the optimizer step", Collective::None),
            };
            out.push(Exchange {
                axis,
                place: format!("{place}: {what} weights (heaviest stage)"),
                forward: Collective::AllGather,
                backward,
                elements: elements / degree,
                count: 1,
                agree: "shard boundaries",
                holds: Holds::Numbers,
                site: Site::Elsewhere,
            });
        }
    }
}
