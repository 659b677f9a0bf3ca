//! What moves is what the layout says moves: elements put into calls, by axis, over all ranks.

use layout::activations::{Exchange, exchanges};
use layout::{Engine, Layout, LayoutRequest, OwnershipTable, ZeroStage, check};
use recipe::Recipe;
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::collections::BTreeMap;
use std::time::Duration;

/// Calls this runtime makes that the layout's list does not have, with the reason.
const UNLISTED: &[(&str, &str)] = &[
    ("gradients of keys and values to their owner", "the list has the ring's keys and values only"),
    ("counts of the expert-tensor group", "rows of the group must be told apart by expert"),
    ("tokens of each expert", "the balancing loss is a sequence's, whoever holds its parts"),
    ("tokens of each expert of the step", "the routing bias moves by them"),
    ("gradients of shared heads", "units that neighbours hold too"),
    ("momentum made whole", "Muon orthogonalises whole matrices"),
    ("squares of the recurrent norm", "a norm over the heads of all ranks"),
    ("tails of the convolution", "handed on under state_carry"),
    ("recurrent state handed on", "handed on under state_carry"),
    ("loss and norm", "what a step reports"),
];

const RECIPE: &str = r#"
name = "t"
source = "test"
hidden = 16
vocab = 32
sequence = 16
rope_theta = 100.0
[attention]
heads = 4
kv_heads = 4
head_dim = 4
[moe]
experts = 8
top_k = 2
ffn = 8
[moe.shared]
ffn = 8
[mamba]
kind = "mamba2"
heads = 8
head_dim = 2
state = 4
groups = 4
[mlp]
ffn = 16
"#;

/// Elements a rank puts in over a step.
fn predicted(exchange: &Exchange, layout: &Layout) -> u64 {
    let e = exchange.elements;
    let degree = match exchange.axis {
        "etp" => layout.etp.get(),
        _ => layout.tp.get(),
    };
    let (each, is_of_step) = match (exchange.forward, exchange.backward) {
        ("all-gather", "reduce-scatter") => (e + e * degree, false),
        ("reduce-scatter", "all-gather") => (e + e / degree, false),
        ("all-reduce", "identity") | ("identity", "all-reduce") | ("all-gather of counts", "none") => (e, false),
        ("all-to-all", "all-to-all") | ("send/receive × (cp-1)", _) => (2 * e, false),
        ("none", _) | ("all-gather", "none") => (e, true),
        other => panic!("{other:?} is no pair this test knows"),
    };
    each * exchange.count * if is_of_step { 1 } else { layout.microbatches }
}

fn compare(pattern: &str, request: LayoutRequest) {
    let recipe = Recipe::parse(&format!("pattern = \"{pattern}\"\n{RECIPE}")).unwrap();
    let zero = Some(ZeroStage::One);
    let request = LayoutRequest { engine: Some(Engine::Shardwright), microbatches: Some(2), zero, ..request };
    let checked = check(&recipe, &request);
    assert!(checked.is_legal(), "{:#?}", checked.findings);
    let layout = checked.layout.as_ref().unwrap();
    let moved = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f32>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 0))?;
        Ok(comm.traffic().all())
    });
    let mut by_axis: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (call, _, moved) in moved.into_iter().flat_map(|m| m.unwrap()) {
        if !UNLISTED.iter().any(|(name, _)| *name == call.name) {
            by_axis.entry(call.axis).or_default().0 += moved.elements;
        }
    }
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    for exchange in exchanges(&recipe, layout, &table) {
        by_axis.entry(exchange.axis).or_default().1 += predicted(&exchange, layout) * layout.world;
    }
    for (axis, (moved, predicted)) in by_axis {
        assert_eq!(moved, predicted, "{pattern} on {axis} under {}", layout.all_flags());
    }
}

#[test]
fn elements_by_axis_are_the_layouts() {
    let some = LayoutRequest::default;
    compare("AFME", LayoutRequest { tp: Some(2), etp: Some(1), ..some() });
    compare("AE", LayoutRequest { tp: Some(2), ep: Some(2), etp: Some(1), dp: Some(2), ..some() });
    compare("AE", LayoutRequest { tp: Some(2), ep: Some(2), etp: Some(2), dp: Some(2), ..some() });
    compare("AME", LayoutRequest { cp: Some(2), ep: Some(2), ..some() });
    compare("AF", LayoutRequest { dp: Some(4), ..some() });
}
