//! How long a training step of the small flagship takes on one rank, and where it goes by block.

use layout::{Engine, LayoutRequest, check};
use recipe::{Pattern, Recipe};
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::time::Instant;

const STEPS: u64 = 3;

/// Seconds of forward and backward, and of a whole step.
fn time(recipe: &Recipe) -> (f64, f64) {
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    let checked = check(recipe, &request);
    let layout = checked.layout.as_ref().expect("one rank is legal");
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f32>::new(recipe, layout, &comm, 1, Settings::default()).expect("it runs");
    let batches: Vec<Batch> = (0..=STEPS).map(|s| Batch::synthetic(recipe, layout, 1, s)).collect();
    trainer.step(&batches[0]).expect("it runs");
    let begun = Instant::now();
    batches[1..].iter().for_each(|batch| drop(trainer.gradients(batch).expect("it runs")));
    let gradients = begun.elapsed().as_secs_f64() / STEPS as f64;
    let begun = Instant::now();
    for batch in &batches[1..] {
        trainer.step(batch).expect("it runs");
    }
    (gradients, begun.elapsed().as_secs_f64() / STEPS as f64)
}

fn main() {
    let recipe = recipe::builtin::find("nam56r-mini").expect("it is built in");
    let (gradients, step) = time(&recipe);
    let tokens = recipe.sequence;
    println!(
        "nam56r-mini, {tokens} tokens on one thread: {:.0} ms a step, {:.0} of them gradients",
        step * 1e3,
        gradients * 1e3
    );
    // The difference of two blocks and one leaves out embedding, head and loss.
    let of = |pattern: &str| Recipe { layers: Pattern::parse(pattern).expect("a pattern").period, ..recipe.clone() };
    for letter in ["A", "E", "M", "R"] {
        let (one, two) = (time(&of(letter)).0, time(&of(&letter.repeat(2))).0);
        println!("  {letter}: {:.1} ms a block, forward and backward", (two - one) * 1e3);
    }
}
