//! What is emitted, engine by engine, and made-up machines judged.

mod common;
mod deepspeed;
mod every_engine;
mod fields;
mod fsdp2;
mod goldens;
mod hostile;
mod megatron;
mod packages;
mod preflight;
mod programs;
mod rates;
mod round_trip;
mod script;
mod sites;
mod torchtitan;
mod tpu;
mod words;
