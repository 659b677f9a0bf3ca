//! The numbers of side embeddings, kept for programs in other languages: `tools/engines/check_side_embeddings.py`
//! holds Megatron's module to them.

use super::*;
use crate::blocks::side::Sides;
use layout::{LayoutRequest, check};
use recipe::kinds::side::{Lookup, OwnerStage};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

const RECIPE: &str = r#"
name = "t"
source = "test"
pattern = "F"
hidden = 8
vocab = 211
sequence = 8
[mlp]
ffn = 12
[features.ngram_hash]
rows = 37
dim = 3
tables = 4
[features.structure]
rows = 25
dim = 5
scales = 2
sizes = [9, 16]
"#;

fn of<R: Real>(all: &[Mat<R>], shelf: &Shelf) -> Value {
    let named = shelf.params.iter().zip(all).map(|(param, mat)| (param.row.tensor.path.clone(), json!(data(mat))));
    Value::Object(named.filter(|(path, _)| path.starts_with("side.")).collect::<Map<_, _>>())
}

fn data<R: Real>(mat: &Mat<R>) -> Vec<f64> {
    mat.data.iter().map(|value| value.f64()).collect()
}

/// What a launch writes of a side embedding.
fn said(recipe: &Recipe) -> Vec<Value> {
    let lookup = |one: Lookup| json!({ "start": one.rows.start, "rows": one.rows.end - one.rows.start, "factors": one.factors, "bias": one.bias });
    let side = |(name, side): (&str, &recipe::kinds::side::SideEmbedding)| {
        json!({
            "name": name, "rows": side.rows, "dim": side.dim, "tables": side.tables, "components": side.components(),
            "scaled": side.scales > 0, "from_data": false,
            "lookups": Lookup::all(name, side).into_iter().map(lookup).collect::<Vec<_>>(),
        })
    };
    recipe.features.sides().map(side).collect()
}

/// Forward and backward of the block alone, on tokens and an output gradient.
fn block() -> Value {
    let recipe = Recipe::parse(RECIPE).unwrap_or_else(|f| panic!("{f:#?}"));
    let request = LayoutRequest { world: Some(1), micro_batch: Some(2), ..LayoutRequest::default() };
    let checked = check(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f64>::new(&recipe, layout, &comm, 3, Settings::default()).unwrap();
    let batch = Batch::synthetic(&recipe, layout, 1, 0);
    let tokens = batch.tokens(&trainer.rank, 0, 0);
    let sides = Sides::new(&recipe, &trainer.shelf, OwnerStage::First);
    let mut cx = Cx {
        rank: &trainer.rank,
        sizes: Sizes::of(layout),
        weights: &mut trainer.weights,
        vault: None,
        grads: &mut trainer.grads,
        auxiliary: 0.0,
        balances: &mut trainer.balances,
        carried: None,
        routed: Vec::new(),
        deferred: None,
        stats: None,
    };
    let hidden = recipe.hidden as usize;
    let mut out = Mat::zeros(cx.sizes.shard, hidden);
    sides.forward(&mut cx, &tokens, &mut out).unwrap();
    let given = (0..out.data.len()).map(|i| ((7 * i % 13) as f64 - 6.0) / 8.0).collect();
    let dout = Mat::of(hidden, given);
    sides.backward(&mut cx, &tokens, &dout).unwrap();
    json!({
        "sides": said(&recipe), "hidden": hidden, "tokens": tokens.sequences, "out": data(&out), "dout": data(&dout),
        "weights": of(&trainer.weights, &trainer.shelf), "gradients": of(&trainer.grads, &trainer.shelf),
    })
}

/// Whether two answers are the same, numbers to nine digits: a platform's logarithm is its own.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, one)| b.get(key).is_some_and(|other| same(one, other)))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a.as_f64().zip(b.as_f64()).map_or(a == b, |(a, b)| (a - b).abs() < 1e-9),
    }
}

#[test]
fn side_embeddings_keep_their_numbers() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/engines/side_embeddings.json");
    let found = block();
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(same(&kept, &found), "{} holds other numbers than\n{found}", path.display());
}
