//! One layout of the space, by its choices.

use layout::{Schedule, ZeroStage};

/// The choices of one layout. Its order is the last tie-break: smaller degrees first, in the order
/// of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// Which of the space's modes, one a mode.
    pub mode: usize,
    /// Degrees inside a layer, and the microbatch.
    pub key: Key,
    /// Pipeline stages.
    pub pp: u64,
    /// The order of the pipeline.
    pub order: Order,
    /// Which of the shapes there are for that many stages: an order over a cut of the depth.
    pub shape: usize,
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Which of the mode's recompute policies.
    pub recompute: usize,
    /// Where AdamW's state lives.
    pub offload: Offload,
}

/// What the figures of one layer depend on, recompute apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Tensor-parallel degree.
    pub tp: u64,
    /// Context-parallel degree.
    pub cp: u64,
    /// Expert-parallel degree.
    pub ep: u64,
    /// Tensor-parallel degree inside experts.
    pub etp: u64,
    /// Sequences of a microbatch.
    pub micro_batch: u64,
}

/// A schedule and the chunks a stage holds under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// The schedule.
    pub schedule: Schedule,
    /// Chunks a stage holds.
    pub vpp: u64,
}

/// Where AdamW's state lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// On the device.
    Device,
    /// On the host, all of it.
    Host,
}

impl Offload {
    /// The share on the host.
    pub fn share(self) -> f64 {
        match self {
            Offload::Device => 0.0,
            Offload::Host => 1.0,
        }
    }
}
