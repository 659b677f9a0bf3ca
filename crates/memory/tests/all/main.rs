//! Ledgers against measured ranks, published figures and counts by hand.

mod adapters;
mod checklist;
mod compiled_loss;
mod deepspeed;
mod estimate;
mod extrapolated;
mod formats;
mod fsdp2_builtin;
mod fsdp2_launch;
mod fsdp2_rows;
mod least;
mod megatron_all;
mod megatron_builtin;
mod megatron_fp8;
mod megatron_published;
mod mission;
mod scaling;
mod sized;
mod sizes;
mod steady;
mod ways;
mod within;
