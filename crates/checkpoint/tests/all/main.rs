//! Checkpoints that torch and safetensors wrote (tools/engines/make_checkpoints.py), read, verified,
//! damaged, and written again.

mod damage;
mod fixtures;
mod fuzz;
mod reshards;
