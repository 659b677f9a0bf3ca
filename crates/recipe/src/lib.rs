//! What a model is: blocks, features, and every tensor with its shape, dtype and role.
//!
//! A recipe knows no mesh. It does not know how many ranks there are, which axis cuts what, or
//! how much memory anything takes; those are the layout's and the memory model's to say. Nothing
//! here reads files or prints.

mod adapters;
pub mod builtin;
pub mod count;
pub mod features;
pub mod import;
pub mod kinds;
pub mod limits;
pub mod megatron;
mod mode;
mod multipliers;
pub mod pattern;
pub mod precision;
#[allow(clippy::module_inception)]
mod recipe;
mod resolve;
mod rope;
mod tensor;
mod write;

pub use adapters::{Adapters, module as adapted_module};
pub use features::Feature;
pub use mode::{CUSTOM_MIXERS, Mode, Seam};
pub use multipliers::Multipliers;
pub use pattern::{Family, Layer, Mixer, Pattern};
pub use recipe::{NORM_EPS, Recipe};
pub use rope::{Positions, Rope, Scaling, ScalingKind, Yarn};
pub use tensor::{Dim, Dtype, Optimizer, Place, Role, Segment, Surface, Tensor, Unit};
pub use write::Field;
