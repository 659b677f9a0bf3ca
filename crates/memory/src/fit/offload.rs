//! Optimizer state on the host: AdamW's only, since Muon orthogonalises on the device. The share
//! asked for moves; host memory and the time on the link are stated, not hidden.

use super::FitRequest;

/// Bytes a host link moves in a second: PCIe 5.0 ×16, one direction, as the H200's datasheet gives
/// it (128 GB/s both ways); older links take longer.
const LINK_BYTES_PER_SECOND: f64 = 64e9;

/// What was moved to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offload {
    /// Bytes the device no longer holds.
    pub device_bytes: u64,
    /// Bytes the host holds for one rank.
    pub host_bytes: u64,
    /// Seconds a step spends on the link if nothing hides it: gradients down, weights up.
    pub link_seconds: f64,
}

impl Offload {
    /// Moves the share of AdamW's state that was asked for. Of the 12 bytes a parameter (main
    /// weight and two moments in fp32), each step sends a 4-byte gradient down and a 2-byte weight
    /// up.
    pub(super) fn new(request: &FitRequest, adam_bytes: u64) -> Offload {
        let share = request.offload.clamp(0.0, 1.0);
        let moved = if share >= 1.0 { adam_bytes } else { (adam_bytes as f64 * share) as u64 };
        let parameters = (moved / 12) as f64;
        Offload { device_bytes: moved, host_bytes: moved, link_seconds: parameters * 6.0 / LINK_BYTES_PER_SECOND }
    }
}
