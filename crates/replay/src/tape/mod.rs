//! A tape that holds no numbers: storages with real lifetimes, an autograd graph and torch's
//! engine order. Code written on it like an engine's code holds memory as long as the engine's
//! code does, because a storage returns its bytes when its last owner is dropped.

mod checkpoint;
mod deferred;
mod engine;
mod graph;
mod pace;
mod quick;
mod rounds;
mod script;
mod storage;
mod tensor;

pub use checkpoint::{WithoutOutput, checkpoint, checkpoint_stopping_early, checkpoint_within};
pub use deferred::Deferred;
pub use engine::{backward, backward_all};
pub use graph::{Edge, Grads, Node};
pub use pace::Pace;
pub use rounds::Microbatches;
pub use storage::{Holder, Peak, Storage, Tape, Watch};
pub use tensor::Tensor;

/// Bytes of a bf16 element.
pub const BF16: u64 = 2;
/// Bytes of an fp32 element.
pub const FP32: u64 = 4;
/// Bytes of an index.
pub const INT64: u64 = 8;
/// Bytes of a 32-bit integer.
pub const INT32: u64 = 4;
/// Bytes of a mask's or an fp8 tensor's element.
pub const BYTE: u64 = 1;
