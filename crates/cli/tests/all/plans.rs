//! `docs/plans.md` run as printed: every layout it argues for and every one it argues against, and the figures it
//! gives of them.

use crate::mission::{check, rows_of};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/plans.md");

#[test]
fn ten_plans_are_argued_each_against_the_layout_of_others() {
    let rows = rows_of(PAGE);
    assert_eq!(
        rows.iter().map(|row| row.label.as_str()).collect::<Vec<_>>(),
        ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
    );
    for row in &rows {
        let lines: Vec<&str> = row.shown.iter().map(|shown| shown.line.as_str()).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("shardwright fit ")) && lines[0] != lines[1], "{lines:?}");
        // Every figure of a step has its interval.
        let intervals = |text: &String| text.contains("in 8 of 10 such runs");
        assert!(row.shown.iter().all(|shown| shown.see.iter().any(intervals)), "{lines:?}");
    }
}

fn holds(labels: [&str; 5]) {
    let rows = rows_of(PAGE);
    check(rows.iter().filter(|row| labels.contains(&row.label.as_str())), Path::new(env!("CARGO_TARGET_TMPDIR")));
}

#[test]
fn the_first_five_plans_are_as_printed() {
    holds(["1", "2", "3", "4", "5"]);
}

#[test]
fn the_other_five_plans_are_as_printed() {
    holds(["6", "7", "8", "9", "10"]);
}
