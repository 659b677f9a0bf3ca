//! What widths that leave the fastest kernels cost a job, beside its step.

use crate::table::wrap;
use case::Case;
use cost::Slower;
use serde_json::{Value, json};

/// One sentence for each; nothing where the device's curves do not tell widths apart.
pub fn text(case: &Case, step_seconds: f64) -> String {
    let sentence = |slower: &Slower| {
        let share =
            slower.seconds.map_or(String::new(), |s| format!(", about {:.0}% of the step", 100.0 * s / step_seconds));
        let words = format!(
            "`{}` is {} wide on a rank: its products take {:.1} times as long as at {}{share}",
            slower.of.name(),
            slower.of.width(),
            slower.times,
            slower.next
        );
        wrap(&words, "", 80)
    };
    all(case).iter().map(sentence).collect()
}

/// The same for machines.
pub fn json(case: &Case) -> Value {
    let one = |slower: &Slower| {
        json!({
            "tensor": slower.of.path, "layers": slower.of.layers, "width": slower.of.width(), "next": slower.next,
            "times": slower.times, "seconds": slower.seconds,
        })
    };
    json!(all(case).iter().map(one).collect::<Vec<_>>())
}

/// A job without a price has none that is slower.
fn all(case: &Case) -> Vec<Slower> {
    cost::slower(case).unwrap_or_default()
}
