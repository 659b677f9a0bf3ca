//! One step of one rank on the heap: state, passes, reductions, the optimizer's step.

use super::heap::{Buf, Heap};
use super::region::Cx;
use super::{Chunk, Flight};
use crate::ledger::shardwright::saves::Sizes;
use crate::line::{ByLine, Line};
use diag::Finding;
use layout::order::{Action, Block, Pass, Pipeline};
use layout::ownership::Row;
use layout::shards::{Buffer, buffers};
use layout::{Axis, Layout, Mesh, Order, OwnershipTable, ZeroStage};
use recipe::{Optimizer, Place, Recipe};
use std::collections::HashMap;

/// The highest points of a step, by line.
#[derive(Clone, Copy, Debug)]
pub struct Highest {
    /// While microbatches run.
    pub passes: ByLine,
    /// While the optimizer steps.
    pub optimizer: ByLine,
    /// What stays between steps.
    pub state: ByLine,
}

impl Highest {
    /// The most bytes of the step.
    pub fn bytes(&self) -> u64 {
        self.passes.iter().sum::<u64>().max(self.optimizer.iter().sum())
    }
}

/// The highest points of a step of one rank, when a number has `bytes_each`.
pub fn highest(
    recipe: &Recipe,
    layout: &Layout,
    table: &OwnershipTable,
    rank: u64,
    bytes_each: u64,
) -> Result<Highest, Finding> {
    let mesh = Mesh::new(layout, Order::Megatron, layout.ep.splits() || layout.etp.splits())?;
    let buffers = buffers(table, layout, &mesh, rank);
    let stage = mesh.coordinates(rank).on(Axis::Pp) as u32;
    let heap = Heap::new(bytes_each);
    let cx = Cx { recipe, layout, table, heap: heap.clone(), sizes: Sizes::of(layout) };
    let _state = state(&cx, &buffers);
    let stays = heap.now();
    let mut sums: Vec<Option<Buf>> = buffers.iter().map(|_| None).collect();
    passes(&cx, &buffers, stage, Pipeline::of(layout)?, &mut sums);
    if layout.zero < ZeroStage::Two {
        reduce(&cx, &buffers, &mut sums);
    }
    let during = heap.peak();
    heap.mark();
    for (buffer, sum) in buffers.iter().zip(sums) {
        update(&cx, buffer);
        drop(sum);
    }
    Ok(Highest { passes: during, optimizer: heap.peak(), state: stays })
}

fn is_muon(row: &Row) -> bool {
    row.tensor.optimizer == Optimizer::Muon
}

/// Weights, gradients and moments.
fn state(cx: &Cx, buffers: &[Buffer]) -> Vec<Buf> {
    let mut all = Vec::new();
    for buffer in buffers {
        let is_sharded = cx.layout.zero == ZeroStage::Three;
        for &row in &buffer.rows {
            let row = &cx.table.rows[row];
            let is_cut = row.cuts.iter().any(|cut| cut.axis == Axis::Tp);
            let line = match (row.tensor.acting.is_some(), is_cut) {
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

fn passes(cx: &Cx, buffers: &[Buffer], stage: u32, order: Pipeline, sums: &mut [Option<Buf>]) {
    let open = |place: Place| {
        let mine = buffers.iter().filter(|b| b.place == place);
        mine.fold((0, 0), |(len, held), b| (len + b.len as usize, held + b.held_len() as usize))
    };
    let mut flights: HashMap<(u32, u32), Flight> = HashMap::new();
    let mut waiting: HashMap<(u32, u32), Vec<Buf>> = HashMap::new();
    for action in order.stage(stage).flat_map(Block::actions) {
        let Action { pass, microbatch, chunk } = action;
        let is_opened = cx.layout.zero == ZeroStage::Three;
        let part = Chunk { cx, index: chunk as usize, open: if is_opened { Some(&open) } else { None } };
        match pass {
            Pass::Forward => {
                flights.insert((microbatch, chunk), part.forward());
            }
            Pass::Backward | Pass::BackwardInput => {
                let flight = flights.remove(&(microbatch, chunk)).unwrap_or_default();
                waiting.insert((microbatch, chunk), part.backward(pass, flight));
            }
            Pass::BackwardWeight => {
                waiting.remove(&(microbatch, chunk));
            }
        }
        if cx.layout.zero >= ZeroStage::Two && matches!(pass, Pass::Backward | Pass::BackwardWeight) {
            reduce(cx, buffers, sums);
        }
    }
}

/// Gradients end to end, and the share of their sum, which the first reduction of a step keeps.
fn reduce(cx: &Cx, buffers: &[Buffer], sums: &mut [Option<Buf>]) {
    for (buffer, sum) in buffers.iter().zip(sums) {
        let packed = cx.heap.reals(Line::Communication, buffer.len as usize);
        let share = cx.heap.reals(Line::Communication, (buffer.len / buffer.members) as usize);
        drop((packed, share));
        sum.get_or_insert_with(|| cx.heap.reals(Line::Gradients, buffer.held_len() as usize));
    }
}

/// The optimizer's step over one buffer: new and gathered weights, under ZeRO 3 the old ones too;
/// for Muon the whole matrix beside the iterate, the next one and two products.
fn update(cx: &Cx, buffer: &Buffer) {
    let take = |len: u64| cx.heap.reals(Line::Workspaces, len as usize);
    let is_sharded = cx.layout.zero == ZeroStage::Three;
    let runs = take(if is_sharded { 2 } else { 1 } * buffer.held_len());
    let whole = take(if buffer.members > 1 { buffer.len } else { 0 });
    let before = take(if is_sharded { buffer.len } else { 0 });
    for &row in buffer.rows.iter().filter(|row| is_muon(&cx.table.rows[**row])) {
        let row = &cx.table.rows[row];
        let (part, shape) = (row.part_elements(cx.layout), row.tensor.shape());
        let (rows, cols) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let matrices = if row.tensor.acting.is_some() { row.part_shape(cx.layout)[0] } else { 1 };
        let places = cx.heap.bytes(Line::Workspaces, 8 * part);
        let matrix = take(matrices * rows * cols);
        let iterates = take(2 * rows * cols + 2 * rows.min(cols).pow(2));
        drop((places, matrix, iterates));
    }
    drop((runs, whole, before));
}
