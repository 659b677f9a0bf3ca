//! Per-rank parameter counts against ranks that Megatron-Core really built.

use fidelity::megatron::Run;
use layout::{Mesh, Order};
use recipe::Mixer;
use std::fmt::Write;

#[test]
fn every_measured_rank_holds_exactly_what_we_say() {
    let path = format!("{}/../../data/truth/megatron_h200.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (mut rows, mut differs) = (0, String::new());
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let run = Run::read(&row["case"]).unwrap_or_else(|why| panic!("{}: {why}", row["case"]["name"]));
        let case = &run.case;
        let mesh = Mesh::new(&case.layout, Order::Megatron, case.recipe.uses(Mixer::Moe)).unwrap();
        let held = case.table.rank_params(&case.layout, &mesh, run.rank);
        if Some(held) != row["params"].as_u64() {
            let _ = writeln!(differs, "{}: rank {} holds {held}, not {}", run.name, run.rank, row["params"]);
        }
        rows += 1;
    }
    assert_eq!(differs, "");
    assert_eq!(rows, 37);
}
