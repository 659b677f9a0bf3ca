//! Training steps of a recipe on one rank, one for each line read, for a neighbour that runs the
//! same model to be compared with: `steps RECIPE.toml [PATTERN]`. Answers milliseconds and loss.

use layout::{Engine, LayoutRequest, check};
use recipe::{Pattern, Recipe};
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text = std::fs::read_to_string(&words[0]).expect("a recipe to read");
    let mut recipe = Recipe::parse(&text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    if let Some(pattern) = words.get(1) {
        recipe.layers = Pattern::parse(pattern).expect("a pattern").period;
    }
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    let checked = check(&recipe, &request);
    let layout = checked.layout.as_ref().expect("one rank is legal");
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f32>::new(&recipe, layout, &comm, 1, Settings::default()).expect("it runs");
    for (number, line) in std::io::stdin().lines().enumerate() {
        line.expect("a line");
        let batch = Batch::synthetic(&recipe, layout, 1, number as u64);
        let begun = Instant::now();
        let report = trainer.step(&batch).expect("it runs");
        println!("{:.3} {:.4}", begun.elapsed().as_secs_f64() * 1e3, report.loss);
    }
}
