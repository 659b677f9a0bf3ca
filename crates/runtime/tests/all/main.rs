//! Splits that are run: every layout against one rank, bytes moved and held, checkpoints, rehearsals. Ranks
//! as MPI processes need a feature, and are a test of their own (`tests/processes.rs`).
//!
//! Some modules take minutes: `cargo test -p shardwright-runtime --test all parity::` runs one.

mod checkpoint;
mod dims;
mod held;
mod matrix;
mod parity;
mod peak;
mod rehearse;
mod splits;
mod threads;
mod traffic;

/// A process has one allocator: `peak` needs the one that counts, and the other modules run under it
/// as they do in the command line, which installs it too.
#[global_allocator]
static COUNTING: runtime::live::Counting = runtime::live::Counting;
