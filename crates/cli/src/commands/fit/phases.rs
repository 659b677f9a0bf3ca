//! The phases of a run, from the device's context to the last step: what the allocator holds in each,
//! and what lies outside it.

use crate::table::{Table, heading};
use memory::fit::{Compile, PhasePeak, RankClass};
use serde_json::{Value, json};
use units::Bytes;

/// One row: a phase, or the compiler's turn before the first pass.
enum Row<'a> {
    Phase(&'a PhasePeak),
    Compile,
}

fn rows(class: &RankClass) -> Vec<Row<'_>> {
    let first_step = class.phases.iter().position(|phase| phase.kind.is_of_a_step()).unwrap_or(class.phases.len());
    let mut rows: Vec<Row> = class.phases.iter().map(Row::Phase).collect();
    rows.insert(first_step, Row::Compile);
    rows
}

pub fn text(class: &RankClass) -> String {
    let head = ["phase", "allocated peak", "forward", "loss", "backward", "reserved", "outside", "all", "what happens"];
    let mut table = Table::new(&head).right(&[1, 2, 3, 4, 5, 6, 7]).spare(&[&[2, 3, 4]]);
    for row in rows(class) {
        let Row::Phase(phase) = row else {
            let known = if class.compile == Compile::Nothing { "0 B" } else { "not known" };
            table.row(["compile", known, "", "", "", "", "", "", &class.compile.what()]);
            continue;
        };
        let part = |i: usize| match phase.parts.map(|parts| parts[i]) {
            None | Some(0) => String::new(),
            Some(bytes) => Bytes(bytes).to_string(),
        };
        table.row([
            &phase.kind.to_string(),
            &Bytes(phase.allocated_peak).to_string(),
            &part(0),
            &part(1),
            &part(2),
            &Bytes(phase.reserved_peak).to_string(),
            &Bytes(class.outside).to_string(),
            &Bytes(phase.reserved_peak + class.outside).to_string(),
            phase.kind.what(),
        ]);
    }
    let note = "  outside: context, libraries and communicators, all from the first phase on, though a communicator is\n  \
                made at its first use\n";
    let note = if class.outside > 0 { note } else { "" };
    heading(&format!("Phases of stage {}", class.stage)) + &table.render() + note
}

pub fn json(class: &RankClass) -> Vec<Value> {
    let row = |row: Row| match row {
        Row::Phase(p) => json!({
            "phase": p.kind.to_string(), "allocated_peak_bytes": p.allocated_peak,
            "forward_loss_backward_bytes": p.parts, "reserved_peak_bytes": p.reserved_peak,
            "outside_bytes": class.outside, "device_bytes": p.reserved_peak + class.outside, "what": p.kind.what(),
        }),
        Row::Compile => {
            let known = (class.compile == Compile::Nothing).then_some(0);
            json!({ "phase": "compile", "allocated_peak_bytes": known, "what": class.compile.what() })
        }
    };
    rows(class).into_iter().map(row).collect()
}
