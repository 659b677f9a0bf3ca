//! `serve` as a program asks it: the same answers as the command line's, and nothing that it may not read.

mod answers;
mod bounds;
mod client;
mod openapi;
mod samples;
mod shape;
