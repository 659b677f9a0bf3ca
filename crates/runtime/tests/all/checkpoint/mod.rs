//! Checkpoints: the same run under other layouts, damage named, kills survived.

mod common;
mod damage;
mod kill;
mod layouts;
