//! Asks random questions twice, the second time with more to choose from, and names those that are then answered worse.
//! usage: questions COUNT SEED

#[path = "../tests/all/questions.rs"]
mod questions;

use questions::{Outcome, Random, ask, pair};
use rayon::prelude::*;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use work::{Asked, Limit};

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [count, seed] = numbers[..] else {
        eprintln!("usage: questions COUNT SEED");
        return ExitCode::from(2);
    };
    let recipes: Vec<&str> = recipe::builtin::RECIPES.iter().map(|(name, _)| *name).collect();
    let mut random = Random(seed);
    let pairs: Vec<_> = (0..count).map(|_| pair(&mut random, &recipes)).collect();
    let (compared, unproved, worse) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let limit = Limit::of_an_answer(Asked::default(), None);
    pairs.par_iter().for_each(|pair| {
        let outcome = ask(pair, &limit);
        let Outcome::Compared { less, more, unproved: open } = outcome else { return };
        compared.fetch_add(1, Ordering::Relaxed);
        unproved.fetch_add(u64::from(open > 0.0), Ordering::Relaxed);
        if !outcome.holds() || more > less * (1.0 + 1e-9) {
            let word = if outcome.holds() { "within what was not proved" } else { "WORSE" };
            worse.fetch_add(u64::from(!outcome.holds()), Ordering::Relaxed);
            println!("{word}: {:.2}% slower, {:.2}% open: {}", 100.0 * (more / less - 1.0), 100.0 * open, pair.what);
        }
    });
    let [compared, unproved, worse] = [compared, unproved, worse].map(AtomicU64::into_inner);
    println!("{count} questions, {compared} compared, {unproved} without a full proof, {worse} answered worse");
    ExitCode::from(u8::from(worse > 0))
}
