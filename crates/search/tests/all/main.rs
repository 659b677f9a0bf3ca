//! The search against everything it left out, and its legality against `layout::check`.

mod balance;
mod brute;
mod common;
mod legality;
mod limits;
mod metamorphic;
mod pools;
mod questions;
