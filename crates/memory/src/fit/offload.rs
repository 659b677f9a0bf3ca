//! State on the host. Of optimizer state only AdamW's moves, since Muon orthogonalises on the
//! device: whole tensors, largest first, until the share asked for is reached. Of activations the
//! share asked for moves, but for one layer's that is always in use. Host memory, drives and the time on
//! the link are stated, not hidden.

use super::Pricing;
use crate::estimate::in_flight;
use case::Case;
use case::swap::Swapped;
use case::ways::LEAST_PAGED;
use layout::ownership::Row;
use ledger::Ledger;
use recipe::{Optimizer, Surface};
use replay::Replay;
use replay::line::Line;

/// Bytes of an element that is stepped on the host: main weight, both moments and the gradient, in
/// fp32 (Megatron-Core `optimizer/cpu_offloading/hybrid_optimizer.py`; DeepSpeed `runtime/zero`).
const STEPPED_BYTES: u64 = 16;

/// Bytes of a weight that waits on the host to be gathered, in bf16 (DeepSpeed's `offload_param`).
const WEIGHT_BYTES: u64 = 2;

/// What was moved to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offload {
    /// Bytes of AdamW's state the device no longer holds.
    pub optimizer_bytes: u64,
    /// Bytes of activations it no longer holds at the peak.
    pub activation_bytes: u64,
    /// Bytes the host holds for one rank: what moved, and gradients on their way to the step there.
    pub host_bytes: u64,
    /// Bytes the drives of its node hold for one rank.
    pub drive_bytes: u64,
    /// Seconds a step spends on the link if nothing hides it.
    pub link_seconds: f64,
}

impl Offload {
    /// Bytes the device does not hold.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.optimizer_bytes + self.activation_bytes
    }

    /// Moves what was asked for off one rank of a stage.
    pub(super) fn new(pricing: Pricing, stage: usize, replay: &Replay) -> Offload {
        let case = pricing.case;
        // DeepSpeed's ledger knows of the host itself, and has it in its figures already.
        if !matches!(pricing.ledger, Ledger::Megatron(_)) {
            if let Some(swapped) = Swapped::of(case) {
                let (host_bytes, drive_bytes) = (swapped.host_bytes(), swapped.drive_bytes());
                return Offload { host_bytes, drive_bytes, ..Offload::default() };
            }
            let stepped = if case.options.offload > 0.0 { STEPPED_BYTES } else { 0 };
            let weights = if case.options.offload_params { WEIGHT_BYTES } else { 0 };
            let host_bytes = replay.params * (stepped + weights) / case.layout.dense_shards() + paged(case);
            return Offload { host_bytes, ..Offload::default() };
        }
        let share = whole_tensor_share(case, stage);
        // A float of large figures may be rounded up.
        let stepped = replay.line(Line::OtherOptimizer);
        let optimizer_bytes = ((stepped as f64 * share).round() as u64).min(stepped);
        // Of the 12 bytes a parameter, each step sends a 4-byte gradient down and a 2-byte weight up.
        let optimizer_traffic = optimizer_bytes as f64 / 12.0 * 6.0;
        let layers = case.stages.layers_of_stage(stage).count().max(1) as u64;
        let saved = replay.line(Line::Activations);
        let movable = saved - saved / layers;
        let activation_bytes = ((movable as f64 * case.options.offload_activations) as u64).min(movable);
        let flights = in_flight(&case.layout, stage as u64).max(256) as f64 / 256.0;
        // Every microbatch's activations go down once and come back once.
        let activation_traffic = 2.0 * activation_bytes as f64 / flights * case.layout.microbatches as f64;
        let link = case.on().device.host_link.as_ref().map_or(f64::INFINITY, |link| link.bytes_per_second);
        let link_seconds = (optimizer_traffic + activation_traffic) / link;
        // Stepping there takes the gradient beside the state.
        let host_bytes = optimizer_bytes / 12 * STEPPED_BYTES + activation_bytes;
        Offload { optimizer_bytes, activation_bytes, host_bytes, drive_bytes: 0, link_seconds }
    }
}

/// Bytes of state in unified memory on a rank, of tensors large enough for it: the driver keeps it on the host wherever
/// passes need the device's room. Scales of 8 bits stay on the device.
fn paged(case: &Case) -> u64 {
    let each = case.options.ways.elements.paged_bytes();
    let shards = case.layout.dense_shards();
    let stepped = case.table.rows.iter().filter(|row| !row.tensor.is_frozen);
    let by_elements = stepped.filter(|row| row.tensor.optimizer == Optimizer::AdamW);
    let is_factor = |row: &Row| matches!(row.tensor.surface, Surface::AdapterDown | Surface::AdapterUp);
    let held = |row: &Row| row.part_elements(&case.layout).div_ceil(if is_factor(row) { 1 } else { shards });
    let large = by_elements.map(held).filter(|elements| *elements >= LEAST_PAGED);
    large.sum::<u64>() * each
}

/// The share of AdamW's state that whole tensors come to, largest first.
fn whole_tensor_share(case: &Case, stage: usize) -> f64 {
    let share = case.options.offload;
    if share == 0.0 || share == 1.0 {
        return share;
    }
    let table = &case.table;
    let stepped = table.rows.iter().filter(|row| row.tensor.optimizer == Optimizer::AdamW);
    let mut sizes: Vec<u64> =
        stepped.map(|row| row.part_elements(&case.layout) * table.copies_on_stage(row, stage)).collect();
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    let total: u64 = sizes.iter().sum();
    let wanted = share * total as f64;
    let mut taken = 0;
    for size in sizes {
        if taken as f64 >= wanted {
            break;
        }
        taken += size;
    }
    taken as f64 / total.max(1) as f64
}
