//! Readers of recipes: counts against transformers, and hostile input.

mod fuzz;
mod hf_counts;
