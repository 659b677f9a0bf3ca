//! How nanotron moves state over replicas (huggingface/nanotron 0e0a27e of February 2025, as its ledger): not as others
//! do that share out an optimizer's state.

use crate::data::widths;
use crate::held::Held;
use crate::prices::Prices;
use crate::traffic::Ring;
use layout::ZeroStage;

/// Bytes of weights whose gradients `DistributedDataParallel` reduces together (`ddp_bucket_cap_mb`).
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

/// Operations of the host for a part of a tensor: it is cut out, and copied back (`distributed.py`
/// all_gather_coalesced).
const PER_PART: f64 = 2.0;

/// Times a weight is read and written around a gather: packed, taken out of the gathered buffer, copied back.
const COPIES: f64 = 3.0;

/// Whether gradients travel under the last backward: without ZeRO they are `DistributedDataParallel`'s, with it
/// they wait for the end (`trainer.py` make_ddp; by April 2026 it wraps both).
pub(crate) fn hides_gradients(zero: ZeroStage) -> bool {
    zero == ZeroStage::Zero
}

/// Seconds of gradients and of weights. Gradients are summed whole on every replica even where each steps a part
/// (`trainer.py`: reduce_scatter=False); stepped weights are then gathered in one piece, but are packed and copied
/// back tensor by tensor and replica by replica.
pub(crate) fn moved(prices: &Prices, zero: ZeroStage, replicas: &Ring, held: &Held) -> (f64, f64) {
    let (gradient, weight) = widths(prices);
    let trained: f64 = held.trained.iter().sum();
    if zero == ZeroStage::Zero {
        let buckets = (trained * weight / BUCKET).ceil().clamp(1.0, held.tensors.max(1.0));
        return (replicas.all_reduce_in(buckets, trained * gradient), 0.0);
    }
    let meter = &prices.setting.meter;
    let bytes = trained * weight;
    let parts = if replicas.members > 1.0 { replicas.members * held.tensors } else { 0.0 };
    let host = parts * PER_PART * meter.host_of_one();
    let device = parts * meter.profile().memory.fixed_seconds + COPIES * 2.0 * bytes / meter.rate();
    let copies = if replicas.members > 1.0 { host.max(device) } else { 0.0 };
    (replicas.all_reduce(trained * gradient).0, replicas.gather(bytes) + copies)
}
