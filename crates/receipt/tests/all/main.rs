//! Receipts as files: kept, found, damaged, made again; and over data that ships.

mod calibrate;
mod common;
mod damage;
mod kills;
mod launches;
