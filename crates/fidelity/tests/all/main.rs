//! Predictions against rows that others measured, and readers under hostile rows.

mod fuzz;
mod published_memory;
mod published_time;
mod steps;
