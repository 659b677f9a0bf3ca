//! Intervals and regret: whether the residuals that are compiled in are today's, whether intervals hold what they say
//! for sources that had no part in them, and what our picks cost.

use cost::interval::{self, SHARE};
use fidelity::{Coverage, Judged, Part, Pricing, coverage, judge_parts, leave_one_out, regrets, residuals};
use serde_json::Value;
use std::sync::LazyLock;

static JUDGED: LazyLock<Vec<(Value, Judged)>> = LazyLock::new(|| {
    let path = format!("{}/../../data/truth/published.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (judge_parts(&row, &[Part::Time], Pricing::AsRun), row)).map(|(judged, row)| (row, judged)).collect()
});

fn judged() -> Vec<Judged> {
    JUDGED.iter().map(|(_, judged)| judged.clone()).collect()
}

const MAKE: &str =
    "shardwright fidelity data/truth/published.jsonl --only step_time --residuals > data/time/residuals.toml";

/// Every class of a published run has the edges that today's prices give it, to two points.
#[test]
fn the_residuals_compiled_in_are_todays() {
    let (rows, shipped) = (judged(), interval::shipped());
    let fresh = residuals(&rows);
    for class in rows.iter().filter_map(|row| row.class) {
        let [now, then] = [&fresh, shipped].map(|made| made.interval(&class, None, 1.0));
        let is_near = |a: f64, b: f64| (a.ln() - b.ln()).abs() <= 0.02;
        let is_fresh = now.rows == then.rows && is_near(now.low, then.low) && is_near(now.high, then.high);
        assert!(is_fresh, "stale, so run `{MAKE}`: {then:?} should be {now:?}");
        let [now, then] = [&fresh, shipped].map(|made| made.apart(&class));
        assert!((now.share - then.share).abs() <= 0.005, "stale, so run `{MAKE}`: {then:?} should be {now:?}");
    }
}

/// Over all sources, none counting for more than eight rows, intervals made of the others hold their share; and no
/// source is told that it lies inside for free: halves of width are bounded outside nanotron's pipelines.
#[test]
fn intervals_hold_what_they_say_of_sources_left_out() {
    let rows = judged();
    let made = residuals(&rows);
    let left_out = leave_one_out(&rows, &made);
    let weight = |rows: usize| rows.min(8) as f64;
    let total: f64 = left_out.iter().map(|one| weight(one.rows)).sum();
    let inside = left_out.iter().map(|one| weight(one.rows) * one.inside).sum::<f64>() / total;
    for one in &left_out {
        println!(
            "{:24} {:4} rows, median {:.3}, inside {:.2}, half a width {:.3}",
            one.source, one.rows, one.median, one.inside, one.width
        );
    }
    assert!((SHARE..0.95).contains(&inside), "{inside}");
    let undecided = rows.iter().filter(|row| row.undecided.is_some()).count();
    assert_eq!(left_out.iter().map(|one| one.rows).sum::<usize>() + undecided, coverage(&rows, Part::Time).modelled);
    let dense = ["dgxc-v25.03", "nemo-24.05", "nemo-24.07"];
    for one in left_out.iter().filter(|one| dense.contains(&one.source.as_str())) {
        assert!(one.width <= 0.3, "{one:?}");
    }
}

/// A source whose rows all lie far out is not inside the interval that the others make.
#[test]
fn a_source_that_is_wrong_throughout_is_seen_to_be() {
    let mut rows = judged();
    for row in rows.iter_mut().filter(|row| row.source == "dgxc-v25.03") {
        let figure = &mut row.figures[0];
        *figure = fidelity::Figure::step_time(3.0 * figure.measured.number(), figure.predicted.number());
    }
    let left_out = leave_one_out(&rows, interval::shipped());
    let found = left_out.iter().find(|one| one.source == "dgxc-v25.03").unwrap();
    assert!(found.inside == 0.0 && found.median > 0.6, "{found:?}");
}

/// At least 95% of rows that can be scored outside nanotron's pipelines are priced.
#[test]
fn rows_outside_nanotrons_pipelines_are_priced() {
    let outside = JUDGED
        .iter()
        .filter(|(row, _)| row["framework"]["name"] != "nanotron" || row["layout"]["pp"].as_u64().unwrap_or(1) == 1);
    let rows: Vec<Judged> = outside.map(|(_, judged)| judged.clone()).collect();
    let Coverage { ready, modelled } = coverage(&rows, Part::Time);
    println!("{modelled} of {ready}");
    assert!(ready >= 500 && modelled * 100 >= 95 * ready, "{modelled} of {ready}");
}

/// What the pick of every public sweep costs, over rows that say what decides their step.
#[test]
fn picks_are_near_the_fastest() {
    let found = regrets(&judged());
    found.iter().for_each(|one| println!("{one:?}"));
    let of =
        |source: &str, without| found.iter().find(|one| one.source == source && one.without_stages == without).unwrap();
    let (all, plain) = (of("nanotron", false), of("nanotron", true));
    assert_eq!((all.sweeps, plain.sweeps), (20, 8));
    assert!(all.near >= 0.85 && all.mean <= 0.02, "{all:?}");
    assert!(plain.near >= 0.85 && plain.mean <= 0.02, "{plain:?}");
    let bloom = of("bigscience-176b", false);
    assert!(bloom.mean <= 0.07, "{bloom:?}");
}

/// Only rows of nanotron leave open what decides their step; all of them are priced all the same, and a step that is
/// shorter than either kind of waiting is never among them.
#[test]
fn undecided_rows_are_priced_and_have_no_part_in_regret() {
    let open: Vec<&(Value, Judged)> = JUDGED.iter().filter(|(_, judged)| judged.undecided.is_some()).collect();
    assert!(open.len() > 400 && open.len() < 500, "{}", open.len());
    for (row, judged) in &open {
        assert!(row["framework"]["name"] == "nanotron" && judged.figure("step_time").is_some(), "{}", row["id"]);
    }
    let mut rows = judged();
    let decided = |rows: &[Judged]| -> Vec<fidelity::Regret> {
        regrets(rows).into_iter().filter(|regret| !regret.with_undecided).collect()
    };
    let before = decided(&rows);
    assert!(regrets(&rows).iter().any(|regret| regret.with_undecided), "they have a line of their own");
    // A time that no pick could miss does not move regret where the row is undecided.
    for row in rows.iter_mut().filter(|row| row.undecided.is_some()) {
        row.figures[0] = fidelity::Figure::step_time(1e6, 1e-6);
    }
    assert_eq!(decided(&rows), before);
}
