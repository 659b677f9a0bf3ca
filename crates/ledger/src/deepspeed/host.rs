//! What offloading keeps on the host, for one rank.

use super::options::DeepspeedOptions;
use super::stage3::part;
use super::stage12::partition;
use crate::fsdp2::plain::Param;
use layout::ZeroStage;
use replay::tape::{BF16, FP32};
use std::rc::Rc;
use units::Bytes;

/// Host memory of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBytes {
    /// Page-locked.
    pub pinned: Bytes,
    /// The rest.
    pub pageable: Bytes,
}

pub(super) fn count(params: &[Rc<Param>], shards: u64, zero: ZeroStage, told: &DeepspeedOptions) -> HostBytes {
    let (mut pinned, mut pageable) = (0, 0);
    let mut book = |bytes, is_pinned| if is_pinned { pinned += bytes } else { pageable += bytes };
    let parts: u64 = params.iter().map(|param| part(param, shards)).sum();
    if let Some(offload) = told.offload_optimizer {
        if zero == ZeroStage::Three {
            // fp32 weights and moments; fp32 gradients by sub-group; gradient partitions as they are accumulated.
            book(parts * 3 * FP32, false);
            book(parts * (FP32 + told.gradient_bytes()), offload.pin_memory);
        } else {
            // fp32 moments; fp32 weights and gradients, bf16 weights on their way back, one
            // gradient of the largest parameter.
            let (elements, largest) = (partition(params, shards), params.iter().map(|p| p.elements()).max());
            book(elements * 2 * FP32, false);
            book(elements * (2 * FP32 + BF16) + largest.unwrap_or(0) * BF16, offload.pin_memory);
        }
    }
    if let Some(offload) = told.offload_param.filter(|_| zero == ZeroStage::Three) {
        book(parts * BF16, offload.pin_memory);
    }
    HostBytes { pinned: Bytes(pinned), pageable: Bytes(pageable) }
}
