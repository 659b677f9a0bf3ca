//! A case says itself in flags and in JSON, and both read back as the same job, whatever was typed.

mod differences;
mod drawn;
mod round_trips;
