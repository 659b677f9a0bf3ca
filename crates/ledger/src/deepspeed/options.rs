//! What DeepSpeed is told besides recipe and layout. Defaults are DeepSpeed's own
//! (`runtime/zero/config.py`, `runtime/zero/offload_config.py`, `runtime/constants.py`).

use recipe::Dtype;
use replay::tape::Microbatches;

/// State that is kept on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Whether its buffers are page-locked.
    pub pin_memory: bool,
}

impl Offload {
    /// DeepSpeed's own: pinned.
    pub const DEFAULT: Offload = Offload { pin_memory: true };
}

/// What DeepSpeed is told besides recipe and layout; the ZeRO stage is the layout's. Sizes are in
/// elements.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepspeedOptions {
    /// Elements of the buffer that gradients are reduced in.
    pub reduce_bucket_size: u64,
    /// Elements gathered at once behind a step of ZeRO 1 and 2; gathered in place.
    pub allgather_bucket_size: u64,
    /// Whether reduction overlaps backward, with two buffers under ZeRO 1 and 2; by default it
    /// does under ZeRO 3 only.
    pub overlap_comm: Option<bool>,
    /// Elements of weights gathered ahead under ZeRO 3.
    pub prefetch_bucket_size: u64,
    /// Weights of at most so many elements are never partitioned away under ZeRO 3.
    pub param_persistence_threshold: u64,
    /// Gathered elements beyond which nothing is gathered ahead.
    pub max_live_parameters: u64,
    /// Gathered weights that are used again within so many elements are kept.
    pub max_reuse_distance: u64,
    /// Elements of a rank's part that the optimizer of ZeRO 3 steps at once.
    pub sub_group_size: u64,
    /// What gradients are accumulated in (`data_types.grad_accum_dtype`): bf16, or fp32 under ZeRO.
    pub gradients: Dtype,
    /// Keeps optimizer state on the host.
    pub offload_optimizer: Option<Offload>,
    /// Keeps partitioned weights on the host, under ZeRO 3.
    pub offload_param: Option<Offload>,
    /// Keeps what is offloaded on a drive: gradients are then cast on the device before they are swapped out.
    pub on_nvme: bool,
    /// Which of a step's microbatches are walked; the figures are the same.
    pub microbatches: Microbatches,
    /// Whether a script of one's own brings the model.
    pub has_script: bool,
    /// Steps to replay; the second sees ZeRO 3's trace and the moments of ZeRO 1 and 2.
    pub steps: u32,
}

impl DeepspeedOptions {
    /// Bytes of an accumulated gradient.
    pub fn gradient_bytes(&self) -> u64 {
        self.gradients.bits() / 8
    }

    /// Whether gradients are accumulated wider than they are computed.
    pub fn accumulates_wide(&self) -> bool {
        self.gradients == Dtype::Fp32
    }

    /// DeepSpeed's own defaults.
    pub fn defaults() -> DeepspeedOptions {
        DeepspeedOptions {
            reduce_bucket_size: 500_000_000,
            allgather_bucket_size: 500_000_000,
            overlap_comm: None,
            prefetch_bucket_size: 50_000_000,
            param_persistence_threshold: 100_000,
            max_live_parameters: 1_000_000_000,
            max_reuse_distance: 1_000_000_000,
            sub_group_size: 1_000_000_000,
            gradients: Dtype::Bf16,
            offload_optimizer: None,
            offload_param: None,
            on_nvme: false,
            microbatches: Microbatches::Steady,
            has_script: false,
            steps: 3,
        }
    }
}
