//! What is emitted, engine by engine, and made-up machines judged.

mod common;
mod every_engine;
mod goldens;
mod hostile;
mod megatron;
mod preflight;
mod programs;
