//! How long a step takes, and why.
//!
//! Nothing here says what a rank holds (that is `memory`) or whether a layout is legal (`layout`).

pub mod simulate;
