//! One rank of a recipe, driven by a neighbour that runs the same model elsewhere. Each line read is
//! a sequence of tokens.
//!
//! `steps time RECIPE.toml PATTERN THREADS` trains a step of each line in f32 and answers
//! milliseconds, CPU milliseconds of all threads, loss and length of the gradient.
//! `steps write RECIPE.toml PATTERN FOLDER` takes one line and writes the initial weights and the
//! gradients of that line, in f64, with loss and balancing loss.

use layout::{Engine, Layout, LayoutRequest, check};
use recipe::{Pattern, Recipe};
use runtime::mat::Mat;
use runtime::optimizer::Settings;
use runtime::real::Real;
use runtime::train::{Batch, Trainer};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::time::Instant;

const SEED: u64 = 1;

fn recipe(path: &str, pattern: &str) -> Recipe {
    let text = std::fs::read_to_string(path).expect("a recipe to read");
    let recipe = Recipe::parse(&text).unwrap_or_else(|findings| panic!("{findings:#?}"));
    Recipe { layers: Pattern::parse(pattern).expect("a pattern").period, ..recipe }
}

fn layout(recipe: &Recipe) -> Layout {
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    check(recipe, &request).layout.expect("one rank is legal")
}

/// The next line as a batch of one sequence.
fn batch() -> Option<Batch> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("lines to read");
    let tokens: Vec<u32> = line.split_whitespace().map(|word| word.parse().expect("a token")).collect();
    (!tokens.is_empty()).then(|| Batch { sequences: vec![tokens] })
}

/// Milliseconds that all threads of this process have computed.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 * 1e-6
}

fn time(recipe: &Recipe, layout: &Layout) {
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f32>::new(recipe, layout, &comm, SEED, Settings::default()).expect("it runs");
    while let Some(batch) = batch() {
        let (begun, before) = (Instant::now(), cpu());
        let report = trainer.step(&batch).expect("it runs");
        let (wall, busy) = (begun.elapsed().as_secs_f64() * 1e3, cpu() - before);
        println!("{wall:.3} {busy:.3} {:.9} {:.9}", report.loss, report.norm);
    }
}

/// Numbers one behind the other, as eight bytes each.
fn bytes(all: &[Mat<f64>]) -> Vec<u8> {
    all.iter().flat_map(|m| &m.data).flat_map(|x| x.f64().to_le_bytes()).collect()
}

fn write(recipe: &Recipe, layout: &Layout, folder: &Path) {
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f64>::new(recipe, layout, &comm, SEED, Settings::default()).expect("it runs");
    let batch = batch().expect("a line");
    let weights = trainer.weights().expect("they are here");
    let (report, gradients) = trainer.gradients(&batch).expect("it runs");
    let tensors = trainer.shelf().params.iter().map(|p| (p.row.tensor.path.clone(), p.part.shape()));
    let index = serde_json::json!({
        "loss": report.loss,
        "balance": report.auxiliary,
        "norm": report.norm,
        "tensors": tensors.collect::<Vec<_>>(),
    });
    std::fs::write(folder.join("weights"), bytes(&weights)).expect("a folder to write to");
    std::fs::write(folder.join("gradients"), bytes(&gradients)).expect("a folder to write to");
    std::fs::write(folder.join("index.json"), index.to_string()).expect("a folder to write to");
    println!("written");
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mode, path, pattern, rest] = words.as_slice() else { panic!("four words, as the source says") };
    let recipe = recipe(path, pattern);
    let layout = layout(&recipe);
    match mode.as_str() {
        "time" => runtime::team::on(rest.parse().expect("a number of threads"), || time(&recipe, &layout)),
        "write" => write(&recipe, &layout, Path::new(rest)),
        other => panic!("`{other}` is neither time nor write"),
    }
}
