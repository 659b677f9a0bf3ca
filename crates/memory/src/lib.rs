//! What a rank holds in bytes: every line with its basis, what it scales with and what it ignores.
//!
//! This crate is pure: it opens no file and no device, and it knows no time.

pub mod routing;
pub mod serving;
