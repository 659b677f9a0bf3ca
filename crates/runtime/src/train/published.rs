//! Mamba-3 against numbers of the published module: loss and gradients of a small model
//! (`tools/engines/check_mamba3.py` made them, and checks them).

use super::*;
use layout::{LayoutRequest, check};

const PUBLISHED: &str = include_str!("../../../../data/engines/parity/mamba3_published.json");

/// The made-up weights of `check_mamba3.py`.
fn drawn(path: &str, count: usize, number: u64) -> Vec<f64> {
    let base = if path.contains("norm") || path.ends_with(".D") { 1.0 } else { 0.0 };
    let value = |at: u64| ((at * 40503 + (number + 1) * 30011) % 65521) as f64 / 65521.0 - 0.5 + base;
    (0..count as u64).map(value).collect()
}

#[test]
fn mamba3_is_the_published_one() {
    let said: serde_json::Value = serde_json::from_str(PUBLISHED).unwrap();
    let recipe = Recipe::parse(said["recipe"].as_str().unwrap()).unwrap_or_else(|f| panic!("{f:#?}"));
    let request = LayoutRequest { world: Some(1), micro_batch: Some(2), ..LayoutRequest::default() };
    let checked = check(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f64>::new(&recipe, layout, &comm, 3, Settings::default()).unwrap();
    let paths: Vec<String> = trainer.shelf.params.iter().map(|p| p.row.tensor.path.clone()).collect();
    let mut sorted = paths.clone();
    sorted.sort();
    for (id, path) in paths.iter().enumerate() {
        let number = sorted.iter().position(|other| other == path).unwrap() as u64;
        trainer.weights[id].data = drawn(path, trainer.weights[id].data.len(), number);
    }
    let sequences = serde_json::from_value(said["tokens"].clone()).unwrap();
    let (report, grads) = trainer.gradients(&Batch { sequences }).unwrap();
    let loss = said["loss"].as_f64().unwrap();
    assert!((report.loss / loss - 1.0).abs() < 1e-5, "loss {} where {loss} was published", report.loss);
    let published = said["gradients"].as_object().unwrap();
    assert_eq!(sorted, published.keys().cloned().collect::<Vec<_>>());
    for (path, grad) in paths.iter().zip(&grads) {
        let length = grad.data.iter().map(|g| g * g).sum::<f64>().sqrt();
        let along: f64 = grad.data.iter().zip(drawn("weighing", grad.data.len(), 102)).map(|(g, w)| g * w).sum();
        let wanted = [0, 1].map(|at| published[path][at].as_f64().unwrap());
        for (got, want) in [length, along].into_iter().zip(wanted) {
            assert!((got - want).abs() < 1e-4 * wanted[0], "{path}: {got} where {want} was published");
        }
    }
}
