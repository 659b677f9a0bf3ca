//! Ranks that were measured on an H200, as the receipts that ship: calibrating on some lowers the error on the others.

use receipt::Receipt;
use receipt::calibrate::{fit, judge, means, samples};

/// Receipts by file, those apart that were kept unseen until prices stood.
fn shipped() -> [Vec<(String, Receipt)>; 2] {
    let folder = format!("{}/../../data/receipts/h200", env!("CARGO_MANIFEST_DIR"));
    let read = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.display().to_string(), Receipt::read(&text).unwrap_or_else(|why| panic!("{}: {why:?}", path.display())))
    };
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // Whoever lists the folder leaves an index in it.
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let mut all: Vec<(String, Receipt)> = files.map(read).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let is_from = |receipt: &Receipt, file: &str| receipt.evidence.sources[0].path.contains(file);
    let of = |file: &str| all.iter().filter(|(_, receipt)| is_from(receipt, file)).cloned().collect();
    [of("emitted_kernels_h200"), of("emitted_kept_h200")]
}

#[test]
fn what_was_measured_first_lowers_the_error_on_what_was_kept_aside() {
    let [seen, kept] = shipped();
    assert!(seen.len() >= 20 && kept.len() == 12);
    let of = |receipts: &[(String, Receipt)]| samples(receipts.iter().map(|(name, one)| (name.as_str(), one))).0;
    let fitted = fit(&of(&seen));
    let (before, left_out) = means(&fitted.judged);
    assert!(left_out < before, "leaving one out: {before:.4} to {left_out:.4}");
    let (before, after) = means(&judge(&of(&kept), &fitted.factors));
    assert!(after < before, "kept aside: {before:.4} to {after:.4}");
}
