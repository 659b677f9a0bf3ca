//! What a runtime mode promises about the tensor axis.

use super::{Case, refuse};
use diag::{Blame, Finding};
use recipe::Mode;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let tp = layout.tp.get();
    match layout.mode {
        Some(Mode::AuthorDp) if tp != 1 => {
            let message = format!("mode author_dp keeps the custom mixers, which know no tensor axis, and tp is {tp}");
            findings.push(refuse("mode/author-dp-tp", "tp", message).fix("tp", vec![1]));
        }
        Some(Mode::NemoNative) if tp > 1 && !layout.sp => {
            let message = "mode nemo_native is tensor parallel with sequence parallel, and sp is off".to_string();
            let finding = refuse("mode/nemo-native-sp", "sp", message).fix("sp", vec![1]);
            findings.push(Finding { hint: Some("leave --no-sp out".to_string()), ..finding });
        }
        Some(Mode::NemoNative) if tp != 2 => {
            let message = format!("mode nemo_native is pinned to tp 2, and a run at tp {tp} is not comparable with it");
            findings.push(Finding::warning("mode/nemo-native-tp", Blame::Layout, "tp", message).hint("tp may be 2"));
        }
        _ => {}
    }
}
