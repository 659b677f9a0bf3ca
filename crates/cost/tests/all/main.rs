//! Times of steps: what every simulation must hold, published figures, built-in recipes.

mod exchanges;
mod properties;
mod published;
mod steps;
mod stragglers;
mod trace;
mod transfer;
mod ways;
