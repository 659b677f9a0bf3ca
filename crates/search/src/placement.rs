//! Where axes lie on the fast island, stated when a rule of placement is broken: tensor and expert
//! parallelism stay inside it, pipelines and replicas cross it. Breaking one is priced, not refused.

use diag::{Blame, Finding};
use hardware::Cluster;
use layout::Layout;

/// What lies across the island and should not.
pub fn placement(layout: &Layout, cluster: &Cluster) -> Vec<Finding> {
    let island = cluster.island_devices();
    let groups = [
        ("tp", layout.tp.get(), "its collectives stand in every layer, twice each way"),
        ("ep", layout.ep.get() * layout.etp.get(), "every token is sent to its experts and back in every expert layer"),
        ("cp", layout.cp.get() * layout.tp.get(), "keys and values go round in every attention layer"),
    ];
    let crosses = |(axis, ranks, why): (&'static str, u64, &str)| {
        let used = layout_degree(layout, axis) > 1;
        (used && ranks > island).then(|| {
            let group = group(layout, axis);
            let message = format!(
                "{group} reaches over {ranks} ranks, and the fast island has {island}: {why}, over the slower network"
            );
            let rule = match axis {
                "tp" => "placement/tp",
                "ep" => "placement/ep",
                _ => "placement/cp",
            };
            Finding::note(rule, Blame::Layout, axis, message)
        })
    };
    groups.into_iter().filter_map(crosses).collect()
}

/// An axis with its degree, and the axis inside it over whose ranks its groups reach as well.
fn group(layout: &Layout, axis: &str) -> String {
    let inside = match axis {
        "ep" => ("etp", layout.etp),
        "cp" => ("tp", layout.tp),
        _ => return format!("{axis} {}", layout_degree(layout, axis)),
    };
    let degree = layout_degree(layout, axis);
    match inside.1.splits() {
        true => format!("{axis} {degree} over {} {}", inside.0, inside.1),
        false => format!("{axis} {degree}"),
    }
}

fn layout_degree(layout: &Layout, axis: &str) -> u64 {
    match axis {
        "tp" => layout.tp.get(),
        "ep" => layout.ep.get(),
        _ => layout.cp.get(),
    }
}
