//! The command line as a user types it, one group of commands a module. Ranks as MPI processes need a
//! feature, and are a test of their own (`tests/mpi.rs`).

mod agreement;
mod book;
mod bounds;
mod budget;
mod calibrated;
mod checkpoint;
mod choices;
mod commands;
mod common;
mod companions;
mod compared;
mod dependencies;
mod fidelity;
mod figures;
mod findings;
mod fleets;
mod fuzzed;
mod goldens;
mod help;
mod hostile;
mod identities;
mod launch;
mod library;
mod linear;
mod localised;
mod memory_rows;
mod messages;
mod mission;
mod models;
mod pictures;
mod plan_engines;
mod plans;
mod preflight;
mod probe;
mod receipt;
mod rehearse;
mod seen;
mod served;
mod sizes;
#[cfg(target_os = "linux")]
mod stores;
mod times;
mod trust;
mod widths;
mod writing;
