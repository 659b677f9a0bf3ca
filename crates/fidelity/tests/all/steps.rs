//! Steps timed on our own card, which no curve was made from.

use fidelity::judge;

#[test]
fn whole_steps_on_one_device_come_out_as_timed() {
    let text = include_str!("../../../../data/truth/steps_h200.jsonl");
    let rows: Vec<_> = text.lines().map(|line| judge(&serde_json::from_str(line).unwrap())).collect();
    assert_eq!(rows.len(), 24);
    let errors = |kind: &str| -> Vec<f64> {
        let rows = rows.iter().filter(|row| kind.is_empty() || row.kind == kind);
        let mut errors: Vec<f64> = rows.map(|row| row.figure("step_time").unwrap().error().abs()).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    // The stacks' convolution and scattered sums are plain torch, slower than the kernels priced.
    for (kind, rows, worst) in [("dense", 12, 0.10), ("hybrid", 9, 0.24), ("moe", 3, 0.36)] {
        let errors = errors(kind);
        assert_eq!(errors.len(), rows, "{kind}");
        assert!(errors[rows - 1] <= worst, "{kind}: {errors:?}");
    }
    let errors = errors("");
    assert!(f64::midpoint(errors[11], errors[12]) <= 0.07, "{errors:?}");
}
