//! How nanotron moves state over replicas (huggingface/nanotron 0e0a27e of February 2025, as its ledger): not as others
//! do that share out an optimizer's state.

use crate::data::widths;
use crate::held::Held;
use crate::ops::{Shape, Work};
use crate::prices::Prices;
use crate::roofline::{Meter, Pass};
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

/// Kernels that turn masks into lengths before every attention: two cleared, two summed, two summed up
/// (`models/llama.py` CoreAttention).
const LENGTHS: f64 = 6.0;

/// Seconds of the host for an operation of a layer beyond torch's own. Linears and attention are functions in Python
/// that take buffers and views and start collectives themselves, as modules of Transformer Engine are. Of a pair of
/// linears the one that gathers its input gathers it once more in backward, which no list of a layer's collectives
/// has (`parallel/tensor_parallel/functional.py`).
pub(crate) fn also_starts(meter: &Meter, shape: Shape, work: &Work, pass: Pass) -> f64 {
    let host = &meter.profile().host;
    let function = (host.module.0 - host.linear.0, host.module.1 - host.linear.1);
    let again = if shape.tp > 1.0 { host.collective / 2.0 } else { 0.0 };
    let seconds = match (work, pass) {
        (Work::Gemm { .. }, Pass::Forward) => function.0,
        (Work::Gemm { .. }, Pass::Input) => function.1 / 2.0 + again,
        (Work::Gemm { .. }, Pass::Weight) => function.1 / 2.0,
        (Work::Attention { .. }, Pass::Forward) => function.0 - host.linear.0 + LENGTHS * host.eager.0,
        (Work::Attention { .. }, Pass::Input) => function.1 - host.linear.1,
        _ => 0.0,
    };
    let around = if pass == Pass::Forward { host.around.0 } else { host.around.1 };
    seconds * around * host.speed.0
}
