//! Readers of recipes: counts against transformers, and hostile input.

mod fields;
mod fuzz;
mod hf_counts;
mod hf_keys;
mod hf_types;
