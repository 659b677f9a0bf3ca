//! One engine a file: a job in, an emission out. What the engine's own rules refuse was refused
//! before (`layout::engines`); here is only what it cannot be told.

use crate::emission::Emission;
use crate::job::Job;
use diag::{Blame, Finding};
use layout::Engine;

/// Writes a job down for the engine of its layout (Megatron when none is named).
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let engine = job.layout.engine.unwrap_or(Engine::Megatron);
    Err(vec![refuse(engine, "nothing is emitted for it")])
}

/// An engine that cannot be started.
fn refuse(engine: Engine, why: &str) -> Finding {
    Finding::error("launch/engine", Blame::Engine, engine.name(), format!("`{engine}` cannot be launched: {why}"))
}
