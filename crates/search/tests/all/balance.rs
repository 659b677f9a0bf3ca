//! D2: a cut even in time is even in stages: no cut of a small model makes a faster step.

use case::{Case, Terms};
use hardware::Cluster;
use layout::{Balance, Engine, LayoutRequest, Schedule};
use recipe::Recipe;
use search::balanced;
use work::Limit;

/// A dense model and a hybrid, each so deep, with heads of a layer or less and of several layers.
fn recipe(pattern: &str, depth: usize, vocab: u64) -> Recipe {
    let text = format!(
        "name = \"small\"\npattern = \"{pattern}\"\ndepth = {depth}\nhidden = 1024\nvocab = {vocab}\nsequence = 2048\n\
         [attention]\nheads = 16\nkv_heads = 8\nhead_dim = 64\n[mlp]\nffn = 4096\n"
    );
    Recipe::parse(&text).unwrap_or_else(|e| panic!("{e:?}"))
}

fn case(recipe: &Recipe, pp: u64, vpp: u64, schedule: Schedule) -> Case {
    let engine = if schedule == Schedule::Interleaved { Engine::Megatron } else { Engine::Shardwright };
    let request = LayoutRequest {
        pp: Some(pp),
        vpp: Some(vpp),
        schedule: Some(schedule),
        microbatches: Some(4 * pp),
        engine: Some(engine),
        ..LayoutRequest::default()
    };
    let cluster = Cluster::parse(&format!("{pp}xH200")).unwrap();
    Case::laid_out(recipe.clone(), &request, Some(cluster), Terms::RUN).unwrap_or_else(|e| panic!("{e:?}"))
}

fn seconds(case: &Case, boundaries: &[u64]) -> f64 {
    let cut = case.with(|asked| asked.layout.boundaries = Some(boundaries.to_vec())).unwrap();
    cost::step(&cut).unwrap_or_else(|e| panic!("{e}")).seconds
}

/// Every cut of so many layers, without the zero they all start with.
fn every(depth: u64, chunks: u64) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> = vec![Vec::new()];
    for chunk in 1..chunks {
        let next = |cut: &Vec<u64>| {
            let from = cut.last().copied().unwrap_or(0) + 1;
            (from..=depth - (chunks - chunk)).map(|start| [cut.clone(), vec![start]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(next).collect();
    }
    all
}

#[test]
fn no_cut_of_a_small_model_is_faster() {
    let mut slower = Vec::new();
    for (pp, vpp, schedule) in
        [(2, 2, Schedule::Interleaved), (2, 3, Schedule::Interleaved), (2, 2, Schedule::DualPipeV)]
    {
        for (pattern, depth, vocab) in [("(AF)", 8, 1024), ("(AF)", 8, 65536), ("(AF)", 9, 131072), ("AFFF", 9, 32768)]
        {
            let recipe = recipe(pattern, depth, vocab);
            let case = case(&recipe, pp, vpp, schedule);
            let ours = seconds(&case, &balanced(&case, Balance::Time, &Limit::none()).unwrap());
            let cuts = every(recipe.depth() as u64, pp * vpp);
            let best = cuts.iter().map(|cut| seconds(&case, cut)).fold(f64::INFINITY, f64::min);
            if ours > best * (1.0 + 1e-9) {
                slower.push(format!(
                    "{pattern}·{depth} vocab {vocab} pp {pp} vpp {vpp} {schedule}: {ours} against {best}"
                ));
            }
        }
    }
    assert!(slower.is_empty(), "{}", slower.join("\n"));
}

/// The cut that was found by hand for this job, and beaten since.
#[test]
fn llama_over_virtual_stages_is_no_slower_than_by_hand() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    let request =
        LayoutRequest { pp: Some(4), vpp: Some(2), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let case = Case::laid_out(recipe, &request, Some(Cluster::parse("16xH200").unwrap()), Terms::RUN).unwrap();
    let ours = seconds(&case, &balanced(&case, Balance::Time, &Limit::none()).unwrap());
    let by_hand = seconds(&case, &[4, 8, 12, 16, 21, 26, 31]);
    assert!(ours <= by_hand, "{ours} {by_hand}");
}
