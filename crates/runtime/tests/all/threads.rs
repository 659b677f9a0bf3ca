//! A rank's results have the same bits on any number of threads of its own.

use layout::{Engine, LayoutRequest, check};
use recipe::{Pattern, Recipe};
use runtime::optimizer::Settings;
use runtime::team;
use runtime::train::{Batch, Trainer};

/// Loss, length of the gradient and every weight after two steps, as bits.
fn trained(recipe: &Recipe) -> (Vec<u64>, Vec<u32>) {
    let request = LayoutRequest { world: Some(1), engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    let checked = check(recipe, &request);
    let layout = checked.layout.as_ref().expect("one rank is legal");
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f32>::new(recipe, layout, &comm, 1, Settings::default()).expect("it runs");
    let mut reports = Vec::new();
    for step in 0..2 {
        let report = trainer.step(&Batch::synthetic(recipe, layout, 1, step)).expect("it runs");
        reports.extend([report.loss.to_bits(), report.norm.to_bits()]);
    }
    let weights = trainer.weights().expect("they are here");
    (reports, weights.iter().flat_map(|m| &m.data).map(|x| x.to_bits()).collect())
}

#[track_caller]
fn same_on_any_number(recipe: Recipe, pattern: &str) {
    let recipe = Recipe { layers: Pattern::parse(pattern).expect("a pattern").period, ..recipe };
    let alone = trained(&recipe);
    for threads in [2, 3] {
        assert!(team::on(threads, || trained(&recipe)) == alone, "{} on {threads} threads", recipe.name.raw());
    }
}

#[test]
fn mamba_2_and_adamw_do_not_depend_on_threads() {
    let text = include_str!("../../../../bench/nam56r-small.toml");
    same_on_any_number(Recipe::parse(text).unwrap_or_else(|f| panic!("{f:#?}")), "AEMR");
}

#[test]
fn mamba_3_and_muon_do_not_depend_on_threads() {
    same_on_any_number(recipe::builtin::find("nam56r-mini").expect("it is built in"), "EMRA");
}
