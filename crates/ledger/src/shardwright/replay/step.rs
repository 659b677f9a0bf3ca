//! One step of one rank on the heap: state, passes, reductions, the optimizer's step.

use super::heap::{Buf, Heap};
use super::passes::passes;
use super::region::Cx;
use crate::shardwright::chunk::ByPath;
use crate::shardwright::saves::Sizes;
use diag::Finding;
use layout::activations::Routing;
use layout::order::Pipeline;
use layout::ownership::Row;
use layout::shards::{Buffer, buffers};
use layout::{Axis, Layout, Mesh, Order, OwnershipTable, ZeroStage};
use recipe::{Optimizer, Recipe};
use replay::line::{ByLine, Line};

/// The highest points of a step, by line.
#[derive(Clone, Copy, Debug)]
pub struct Highest {
    /// What stays between steps.
    pub state: ByLine,
    /// While microbatches run.
    pub passes: ByLine,
    /// While gradients are reduced behind them.
    pub reduce: ByLine,
    /// While the optimizer steps.
    pub step: ByLine,
    /// Buffers that were taken to find this out.
    pub operations: u64,
}

/// The highest points of a step of one rank, when a number has `bytes_each`.
pub fn highest(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
    routing: Routing,
) -> Result<Highest, Finding> {
    let mesh = Mesh::new(layout, Order::Megatron, layout.ep.splits() || layout.etp.splits())?;
    let buffers = buffers(table, layout, &mesh, rank);
    let stage = mesh.coordinates(rank).on(Axis::Pp) as u32;
    let heap = Heap::new(bytes_each);
    let rows = ByPath::new(recipe, layout, table, (0, 0), Routing::Balanced);
    let cx = Cx { recipe, layout, table, heap: heap.clone(), sizes: Sizes::of(layout), rows };
    let _state = state(&cx, &buffers);
    let highest_since = |mark: &Heap| {
        let peak = mark.peak();
        mark.mark();
        peak
    };
    let state = heap.now();
    let mut sums: Vec<Option<Buf>> = buffers.iter().map(|_| None).collect();
    passes(&cx, &buffers, stage, (Pipeline::of(layout)?, routing), &mut sums);
    let passes = highest_since(&heap);
    if layout.zero < ZeroStage::Two {
        reduce(&cx, &buffers, &mut sums);
    }
    sum_copies(&cx, &buffers);
    let reduce = highest_since(&heap);
    for (buffer, sum) in buffers.iter().zip(sums) {
        update(&cx, buffer);
        drop(sum);
    }
    Ok(Highest { state, passes, reduce, step: heap.peak(), operations: heap.operations() })
}

fn is_muon(row: &Row) -> bool {
    row.tensor.optimizer == Optimizer::Muon
}

fn is_cut(row: &Row, axis: Axis) -> bool {
    row.cuts.iter().any(|cut| cut.axis == axis)
}

/// Weights, gradients and moments.
fn state(cx: &Cx, buffers: &[Buffer]) -> Vec<Buf> {
    let mut all = Vec::new();
    for buffer in buffers {
        let is_sharded = cx.layout.zero == ZeroStage::Three;
        for &row in &buffer.rows {
            let row = &cx.table.rows[row];
            let line = match (row.tensor.acting.is_some(), is_cut(row, Axis::Tp)) {
                (true, _) => Line::ExpertParams,
                (false, true) => Line::TpParams,
                (false, false) => Line::ReplicatedParams,
            };
            let path = &row.tensor.path;
            let is_it = |r: &Row| r.tensor.path == *path;
            let (whole, held) = (row.part_elements(cx.layout), buffer.held_of(cx.table, is_it));
            all.push(cx.heap.reals(line, if is_sharded { held } else { whole } as usize));
            all.push(cx.heap.reals(Line::Gradients, whole as usize));
            let (line, moments) = if is_muon(row) { (Line::MatrixOptimizer, 1) } else { (Line::OtherOptimizer, 2) };
            all.push(cx.heap.reals(line, moments * held as usize));
        }
    }
    all
}

/// Gradients of whole tensors made whole over the tensor axis; then buffer by buffer gradients end
/// to end, and their sum over replicas, which the first reduction of a step keeps.
pub(super) fn reduce(cx: &Cx, buffers: &[Buffer], sums: &mut [Option<Buf>]) {
    let moved = |len: u64| cx.heap.reals(Line::Communication, len as usize);
    if cx.layout.sp {
        let rows = buffers.iter().flat_map(|b| &b.rows).map(|row| &cx.table.rows[*row]);
        let is_whole = |row: &&Row| row.tensor.acting.is_none() && !is_cut(row, Axis::Tp);
        let len: u64 = rows.filter(is_whole).map(|row| row.part_elements(cx.layout)).sum();
        drop((moved(len), moved(len / cx.layout.tp.get())));
    }
    for (buffer, sum) in buffers.iter().zip(sums) {
        let packed = moved(buffer.len);
        let held = match (cx.layout.zero, buffer.members) {
            (_, 1) => packed,
            (ZeroStage::Zero, members) => {
                drop(moved(buffer.len / members));
                packed
            }
            _ => {
                let share = moved(buffer.held_len());
                drop(packed);
                share
            }
        };
        sum.get_or_insert(held.onto(Line::Gradients));
    }
}

/// Sums of what several stages hold: a share of each beside the whole.
fn sum_copies(cx: &Cx, buffers: &[Buffer]) {
    for buffer in buffers.iter().filter(|b| b.stages.len() > 1) {
        drop(cx.heap.reals(Line::Communication, buffer.held_len() as usize / buffer.stages.len()));
    }
}

/// The optimizer's step over one buffer: the new run, gathered where others hold the rest. Under
/// ZeRO 3 the old run stands beside it; where Muon steps, both are gathered.
fn update(cx: &Cx, buffer: &Buffer) {
    let take = |len: u64| cx.heap.reals(Line::Workspaces, len as usize);
    let is_sharded = cx.layout.zero == ZeroStage::Three;
    let has_muon = buffer.rows.iter().any(|row| is_muon(&cx.table.rows[*row]));
    let gathers = cx.layout.zero != ZeroStage::Zero && buffer.members > 1;
    let new = take(buffer.held_len());
    let old = is_sharded.then(|| take(buffer.held_len()));
    if is_sharded && !has_muon {
        return;
    }
    let gathered = |run: Buf| {
        if gathers { take(buffer.len) } else { run }
    };
    let whole = gathered(new);
    let before = old.map(gathered);
    for &row in buffer.rows.iter().filter(|row| is_muon(&cx.table.rows[**row])) {
        muon(cx, &cx.table.rows[row]);
    }
    let run = is_sharded.then(|| take(buffer.held_len()));
    drop((whole, before, run));
}

/// Muon's step of one tensor: the whole matrices, gathered where they are cut and put in place by
/// their indices; each made orthogonal with an iterate, the next one and two products.
fn muon(cx: &Cx, row: &Row) {
    let take = |len: u64| cx.heap.reals(Line::Workspaces, len as usize);
    let (part, shape) = (row.part_elements(cx.layout), row.tensor.shape());
    let (rows, cols) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let is_expert = row.tensor.acting.is_some();
    let matrices = if is_expert { row.part_shape(cx.layout)[0] } else { 1 };
    let axis = if is_expert { Axis::Etp } else { Axis::Tp };
    let places = || is_cut(row, axis).then(|| cx.heap.bytes(Line::Workspaces, 8 * part));
    let matrix = take(matrices * rows * cols);
    if is_cut(row, axis) {
        let mine = take(part);
        let all = take(part * cx.layout.degree(axis).get());
        drop(mine);
        drop((places(), all));
    }
    drop(take(2 * rows * cols + 2 * rows.min(cols).pow(2)));
    drop(places());
    drop(matrix);
}
