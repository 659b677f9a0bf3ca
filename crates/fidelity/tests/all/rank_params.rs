//! Per-rank parameter counts against ranks that Megatron-Core really built.

use fidelity::measured::Case;
use layout::{Mesh, Order, OwnershipTable, check};
use recipe::Mixer;
use std::fmt::Write;

#[test]
fn every_measured_rank_holds_exactly_what_we_say() {
    let path = format!("{}/../../data/truth/megatron_h200.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (mut rows, mut differs) = (0, String::new());
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let case = Case::read(&row["case"]).unwrap_or_else(|e| panic!("{}: {e}", row["case"]["name"]));
        let checked = check(&case.recipe, &case.request);
        let Some(layout) = checked.layout.filter(|_| !diag::refuses(&checked.findings)) else {
            let _ = writeln!(differs, "{}: refused: {}", case.name, checked.findings[0].message);
            continue;
        };
        let table = OwnershipTable::new(&case.recipe, &layout).unwrap();
        let mesh = Mesh::new(&layout, Order::Megatron, case.recipe.uses(Mixer::Moe)).unwrap();
        let held = table.rank_params(&layout, &mesh, case.rank);
        if Some(held) != row["params"].as_u64() {
            let _ = writeln!(differs, "{}: rank {} holds {held}, not {}", case.name, case.rank, row["params"]);
        }
        rows += 1;
    }
    assert_eq!(differs, "");
    assert_eq!(rows, 37);
}
