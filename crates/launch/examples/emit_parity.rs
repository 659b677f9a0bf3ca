//! Writes plans of tiny recipes for the FSDP2 module and tables for XLA SPMD into a directory, each
//! beside the same run on one rank: `emit_parity DIRECTORY`. A case is `ENGINE/RECIPE/NAME/`.

#[path = "../tests/all/common.rs"]
mod common;

use case::Seams;
use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::Recipe;
use std::path::Path;

/// Sequences of a step, whatever the layout: eight ranks of data parallelism get one each.
const GLOBAL_BATCH: u64 = 8;

const RECIPES: [&str; 2] = [
    include_str!("../../../data/engines/parity/tiny-mamba2.toml"),
    include_str!("../../../data/engines/parity/tiny-mamba3.toml"),
];

const LORA: &str = include_str!("../../../data/engines/parity/tiny-lora.toml");

const MOE: &str = include_str!("../../../data/engines/parity/tiny-moe.toml");

const FIELDS: &str = include_str!("../../../data/engines/parity/tiny-fields.toml");

const DENSE: &str = include_str!("../../../data/engines/parity/tiny-dense.toml");

const MHC: &str = include_str!("../../../data/engines/parity/tiny-mhc.toml");

const DEPTHS: &str = include_str!("../../../data/engines/parity/tiny-mod.toml");

const ENGRAM: &str = include_str!("../../../data/engines/parity/tiny-engram.toml");

const SHARED: &str = include_str!("../../../data/engines/parity/tiny-shared.toml");

/// What `check_ways.py` trains in other ways.
const WAYS: [&str; 2] = [
    include_str!("../../../data/engines/parity/tiny-ways.toml"),
    include_str!("../../../data/engines/parity/tiny-ways-lora.toml"),
];

/// Degrees tp, pp, vpp, ep, etp over a world.
fn request(world: u64, [tp, pp, vpp, ep, etp]: [u64; 5]) -> LayoutRequest {
    LayoutRequest {
        world: Some(world),
        tp: Some(tp),
        pp: Some(pp),
        vpp: (vpp > 1).then_some(vpp),
        schedule: (vpp > 1).then_some(Schedule::Interleaved),
        ep: Some(ep),
        etp: Some(etp),
        zero: Some(ZeroStage::Three),
        // As few microbatches as the pipeline needs: each costs eight processes a pass.
        micro_batch: Some(GLOBAL_BATCH / (world / tp / pp) / if pp > 1 { 2 } else { 1 }),
        global_batch: Some(GLOBAL_BATCH),
        ..LayoutRequest::default()
    }
}

fn fsdp2() -> Vec<(&'static str, LayoutRequest)> {
    let full = Some(Recompute::Full);
    let some = Recompute::parse("selective:core_attn+shared_experts").ok();
    vec![
        ("one", request(1, [1, 1, 1, 1, 1])),
        ("fsdp4", LayoutRequest { micro_batch: Some(1), ..request(4, [1, 1, 1, 1, 1]) }),
        ("fsdp8", request(8, [1, 1, 1, 1, 1])),
        (
            "fsdp8-zero2-recompute",
            LayoutRequest { zero: Some(ZeroStage::Two), recompute: full, ..request(8, [1, 1, 1, 1, 1]) },
        ),
        ("fsdp2-tp2-sp", request(4, [2, 1, 1, 1, 2])),
        ("fsdp4-tp2-sp", LayoutRequest { recompute: some, ..request(8, [2, 1, 1, 1, 2]) }),
        ("fsdp2-tp4-sp", request(8, [4, 1, 1, 1, 4])),
        ("fsdp4-ep2", request(4, [1, 1, 1, 2, 1])),
        ("fsdp8-ep4", request(8, [1, 1, 1, 4, 1])),
        ("fsdp4-tp2-sp-ep4", request(8, [2, 1, 1, 4, 1])),
        ("fsdp2-pp2", request(4, [1, 2, 1, 1, 1])),
        ("fsdp2-pp2-interleaved", request(4, [1, 2, 2, 1, 1])),
        ("fsdp2-pp2-tp2-sp-ep2", request(8, [2, 2, 1, 2, 1])),
    ]
}

/// Layouts of the recipe without experts.
fn dense() -> Vec<(&'static str, LayoutRequest)> {
    vec![
        ("one", request(1, [1, 1, 1, 1, 1])),
        ("fsdp4", request(4, [1, 1, 1, 1, 1])),
        ("fsdp2-tp2-sp", request(4, [2, 1, 1, 1, 1])),
        ("fsdp2-tp2-no-sp", LayoutRequest { sp: Some(false), ..request(4, [2, 1, 1, 1, 1]) }),
        ("fsdp2-tp4-no-sp", LayoutRequest { sp: Some(false), ..request(8, [4, 1, 1, 1, 1]) }),
    ]
}

/// Layouts of the recipe that balances over a microbatch: two sequences in each.
fn balanced() -> Vec<(&'static str, LayoutRequest)> {
    let two = |request| LayoutRequest { micro_batch: Some(2), ..request };
    vec![
        ("one", two(request(1, [1, 1, 1, 1, 1]))),
        ("fsdp4", two(request(4, [1, 1, 1, 1, 1]))),
        ("fsdp2-tp4-sp", two(request(8, [4, 1, 1, 1, 4]))),
        ("fsdp4-tp2-sp-ep4", two(request(8, [2, 1, 1, 4, 1]))),
        ("fsdp2-pp2-tp2-sp-ep2", two(request(8, [2, 2, 1, 2, 1]))),
    ]
}

/// Layouts of the recipe that has every constant.
fn fields() -> Vec<(&'static str, LayoutRequest)> {
    vec![
        ("one", request(1, [1, 1, 1, 1, 1])),
        ("fsdp8", request(8, [1, 1, 1, 1, 1])),
        ("fsdp2-tp4-sp", request(8, [4, 1, 1, 1, 4])),
        ("fsdp2-pp2-tp2-sp-ep2", request(8, [2, 2, 1, 2, 1])),
    ]
}

/// Layouts of the recipe with several residual streams.
fn streamed() -> Vec<(&'static str, LayoutRequest)> {
    let few = ["one", "fsdp4", "fsdp8-zero2-recompute", "fsdp4-tp2-sp-ep4", "fsdp2-pp2", "fsdp2-pp2-tp2-sp-ep2"];
    fsdp2().into_iter().filter(|(name, _)| few.contains(name)).collect()
}

/// Layouts of the recipe with adapters.
fn adapted() -> Vec<(&'static str, LayoutRequest)> {
    let full = Some(Recompute::Full);
    vec![
        ("one", request(1, [1, 1, 1, 1, 1])),
        ("fsdp4", request(4, [1, 1, 1, 1, 1])),
        ("fsdp4-zero2-recompute", LayoutRequest { zero: Some(ZeroStage::Two), recompute: full, ..request(4, [1; 5]) }),
        ("fsdp2-tp2-sp", request(4, [2, 1, 1, 1, 2])),
        ("fsdp2-tp4-sp", request(8, [4, 1, 1, 1, 4])),
        ("fsdp4-ep2", request(4, [1, 1, 1, 2, 1])),
        ("fsdp4-tp2-sp-ep4", request(8, [2, 1, 1, 4, 1])),
        ("fsdp2-pp2-tp2-sp-ep2", request(8, [2, 2, 1, 2, 1])),
    ]
}

/// Layouts of the recipe whose layers share blocks.
fn shared() -> Vec<(&'static str, LayoutRequest)> {
    let again = LayoutRequest { recompute: Some(Recompute::Full), ..request(4, [1; 5]) };
    vec![
        ("one", request(1, [1; 5])),
        ("fsdp4", request(4, [1; 5])),
        ("fsdp4-recompute", again.clone()),
        ("fsdp4-zero2-recompute", LayoutRequest { zero: Some(ZeroStage::Two), ..again }),
        ("fsdp8", request(8, [1; 5])),
    ]
}

fn xla() -> Vec<(&'static str, LayoutRequest)> {
    vec![
        ("data", request(8, [1, 1, 1, 1, 1])),
        ("data-model", request(8, [2, 1, 1, 1, 2])),
        ("data-model4", request(8, [4, 1, 1, 1, 4])),
        ("data-expert", request(8, [1, 1, 1, 4, 1])),
        ("data-expert-model", request(8, [2, 1, 1, 2, 1])),
    ]
}

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("emit_parity DIRECTORY");
        std::process::exit(2);
    };
    let folder = Path::new(&folder);
    for text in RECIPES {
        let cases = fsdp2().into_iter();
        // The first recipe is tried under every layout, the second where its own blocks and Muon matter.
        let few = ["one", "fsdp8", "fsdp2-tp4-sp", "fsdp4-tp2-sp-ep4", "fsdp2-pp2-tp2-sp-ep2"];
        let cases = cases.filter(|(name, _)| text == RECIPES[0] || few.contains(name)).collect();
        write(folder, text, Engine::Fsdp2, cases);
        write(folder, text, Engine::XlaSpmd, xla());
    }
    write(folder, DENSE, Engine::Fsdp2, dense());
    write(folder, MOE, Engine::Fsdp2, balanced());
    write(folder, FIELDS, Engine::Fsdp2, fields());
    write(folder, MHC, Engine::Fsdp2, streamed());
    // Whole sequences stay on a rank; where tokens are looked up inside the depth, on one stage.
    let few = |names: &[&str]| fsdp2().into_iter().filter(|(name, _)| names.contains(name)).collect();
    write(folder, DEPTHS, Engine::Fsdp2, few(&["one", "fsdp4", "fsdp8-zero2-recompute", "fsdp2-pp2"]));
    write(folder, ENGRAM, Engine::Fsdp2, few(&["one", "fsdp4", "fsdp8-zero2-recompute", "fsdp8-ep4"]));
    write(folder, LORA, Engine::Fsdp2, adapted());
    write(folder, SHARED, Engine::Fsdp2, shared());
    for text in WAYS {
        write(folder, text, Engine::Fsdp2, dense().into_iter().take(2).collect());
    }
    for text in [MOE, FIELDS] {
        write(folder, text, Engine::XlaSpmd, xla());
    }
}

fn write(folder: &Path, text: &str, engine: Engine, cases: Vec<(&'static str, LayoutRequest)>) {
    let recipe = Recipe::parse(text).expect("a tiny recipe reads");
    for (name, request) in cases {
        let request = LayoutRequest { engine: Some(engine), ..request };
        let case = common::Case::new(&recipe, &request, Seams::Refuse).expect("a parity layout is legal");
        let emission = case.emit().expect("a parity layout is emitted");
        let at = folder.join(engine.name()).join(recipe.name.raw()).join(name);
        std::fs::create_dir_all(&at).expect("the folder can be written");
        for file in &emission.files {
            std::fs::write(at.join(&file.path), &file.contents).expect("the folder can be written");
        }
    }
}
