//! A model written in plain torch 2.11, without any engine: what each operation allocates and
//! saves. Engines of the native lane wrap its units ([`Engine`]) and share everything else.
//!
//! The reference is `tools/measure_fsdp2.py` for attention and dense blocks, torchtitan 0.3.0
//! (`models/common/{moe,token_dispatcher}.py`) for experts, and `mamba_ssm` for Mamba; or, in
//! `emitted`, the program this project writes. It does not
//! know how parameters are held, when they are gathered, or what an optimizer keeps.

mod attention;
mod config;
mod emitted;
mod gated_delta;
mod kda;
mod linear;
mod loss;
mod mamba;
mod mamba1;
mod mamba_bare;
mod mla;
mod mlp;
mod model;
mod moe;
mod ops;
mod params;
mod peft;
mod quantised;
mod rank;
mod rwkv7;
mod shared;

pub use config::Blocks;
pub(crate) use config::{Config, Place};
pub(crate) use model::Model;
pub(crate) use params::{Param, Step, Unit};
pub(crate) use quantised::quantised;
pub(crate) use rank::Rank;

/// What wraps the units of a model: called where a module's forward and backward hooks run.
/// Units are numbered as in [`Unit`]'s list; the first is the root, which holds the
/// edges unless they are units of their own.
pub(crate) trait Engine {
    /// Before a unit's forward.
    fn pre_forward(&self, unit: usize);
    /// Behind it.
    fn post_forward(&self, unit: usize);
    /// Once the gradient of a unit's output is there.
    fn pre_backward(&self, unit: usize);
    /// Once the gradient of a unit's input is there.
    fn post_backward(&self, unit: usize);
}
