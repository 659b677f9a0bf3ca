//! Predictions against rows that others measured, and readers under hostile rows.

mod emitted;
mod fuzz;
mod intervals;
mod launched;
mod megatron_rows;
mod published_memory;
mod published_time;
mod rank_params;
mod spelling;
mod steps;
mod types;
