//! What it costs to price a device by another's curves: devices whose own are known, each left out in turn and priced by
//! the nearest of another generation.

use case::{Asked, Case, Terms};
use hardware::{Cluster, Device};

/// A device, and whose curves stand in.
const HELD_OUT: &[(&str, &str)] = &[
    ("A100", "H200"),
    ("H100", "A100"),
    ("H200", "A100"),
    ("H100", "B200"),
    ("H200", "B200"),
    ("B200", "H200"),
    ("B300", "H200"),
    ("GB200", "H200"),
    ("GB300", "H200"),
];

/// Jobs that every one of them holds.
const JOBS: &[&str] = &[
    "llama3-8b --tp 2 --microbatches 8 --engine megatron --on 8x",
    "llama3-70b --tp 8 --pp 4 --microbatches 16 --engine megatron --on 64x",
    "mixtral-8x7b --tp 1 --ep 8 --pp 4 --microbatches 16 --engine megatron --on 64x",
    "llama3-8b --engine fsdp2 --on 8x",
];

/// A job on a device's own rates, with the shares of them that `curves` reaches.
fn seconds(job: &str, name: &str, curves: &str) -> f64 {
    let (flags, count) = job.rsplit_once(" --on ").unwrap();
    let asked = Asked::parse(&flags.split(' ').collect::<Vec<_>>()).unwrap();
    let mut cluster = Cluster::parse(&format!("{count}{name}")).unwrap();
    // Curves are found by name.
    cluster.device = Device { name: curves.to_string(), ..cluster.device };
    let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
    let case = Case::build(asked, recipe, Some(cluster), Terms::RUN).unwrap();
    cost::step(&case).unwrap().seconds
}

fn measured() -> Vec<(String, f64)> {
    let pairs = HELD_OUT.iter().flat_map(|pair| JOBS.iter().map(move |job| (pair, job)));
    pairs
        .map(|((name, from), job)| {
            (format!("{name} by {from}: {job}{name}"), (seconds(job, name, from) / seconds(job, name, name)).ln())
        })
        .collect()
}

#[test]
fn what_borrowed_curves_cost_is_what_intervals_are_widened_by() {
    let rows = measured();
    let mut away: Vec<f64> = rows.iter().map(|(_, log)| log.abs()).collect();
    away.sort_by(f64::total_cmp);
    let at = away[(0.8 * away.len() as f64).ceil() as usize - 1];
    for (what, log) in &rows {
        println!("{log:+.3}  {what}");
    }
    println!("eight of ten lie within {at:.4}");
    assert!((at - cost::interval::transfer()).abs() < 5e-3, "data/time/transfer.toml says otherwise: {at:.4}");
}
