//! Receipts as files: kept, found, damaged, made again.

mod common;
mod damage;
mod kills;
mod launches;
