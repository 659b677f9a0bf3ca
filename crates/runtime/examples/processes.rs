//! The same steps between MPI processes and between threads: every rank compares its weights with
//! those of the thread that is the same rank, bit by bit.
//!
//! `mpirun -n 4 target/release/examples/processes` (built with `--features mpi`).

use comm::{Comm, processes, threads};
use layout::{Engine, Layout, LayoutRequest, check};
use recipe::Recipe;
use runtime::optimizer::Settings;
use runtime::train::{Batch, Report, Trainer};
use std::time::Duration;

const RECIPE: &str = r#"
name = "t"
source = "example"
pattern = "AEMR"
hidden = 16
vocab = 32
sequence = 16
rope_theta = 100.0
[attention]
heads = 4
kv_heads = 2
head_dim = 4
[moe]
experts = 8
top_k = 2
ffn = 8
[mamba]
kind = "mamba2"
heads = 8
head_dim = 2
state = 4
groups = 4
[recurrent]
heads = 4
key_dim = 3
value_dim = 2
state_carry = true
[optimizer]
matrix = "muon"
"#;

type Outcome = (Vec<Report>, Vec<Vec<u64>>);

fn train(recipe: &Recipe, layout: &Layout, comm: &Comm) -> comm::Result<Outcome> {
    let mut trainer = Trainer::<f64>::new(recipe, layout, comm, 5, Settings::default())?;
    let mut reports = Vec::new();
    for step in 0..2 {
        reports.push(trainer.step(&Batch::synthetic(recipe, layout, 1, step))?);
    }
    let weights = trainer.weights()?.iter().map(|w| w.data.iter().map(|x| x.to_bits()).collect()).collect();
    Ok((reports, weights))
}

fn main() {
    let recipe = Recipe::parse(RECIPE).expect("the recipe is valid");
    let deadline = Duration::from_secs(60);
    let result = processes::run(deadline, |comm| {
        let world = comm.world() as u64;
        for (tp, cp, pp) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2)] {
            let (ep, engine) = (if pp == 1 { 2 } else { 1 }, Some(Engine::Shardwright));
            let mut request =
                LayoutRequest { world: Some(world), tp: Some(tp), cp: Some(cp), engine, ..LayoutRequest::default() };
            (request.pp, request.ep, request.etp, request.global_batch) = (Some(pp), Some(ep), Some(1), Some(8));
            let checked = check(&recipe, &request);
            let Some(layout) = checked.layout.as_ref().filter(|_| checked.is_legal()) else { continue };
            let mine = train(&recipe, layout, comm)?;
            let all = threads::run(comm.world(), deadline, |comm| train(&recipe, layout, comm));
            let thread = all.into_iter().nth(comm.rank()).expect("one outcome a rank")?;
            assert!(mine == thread, "rank {} differs under {}", comm.rank(), layout.all_flags());
            if comm.rank() == 0 {
                println!("processes and threads agree bit by bit: {}", layout.all_flags());
            }
        }
        Ok(())
    });
    if let Err(finding) = result {
        eprintln!("{}: {}", finding.rule, finding.message);
        std::process::exit(1);
    }
}
