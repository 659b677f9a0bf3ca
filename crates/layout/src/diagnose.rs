//! From a symptom to the split to look at. Words of the symptom are matched against what each
//! diagnosis is known by; the best match wins, and ties are all shown.

mod known;

pub use known::DIAGNOSES;

/// What a diagnosis names when no axis caused the failure: all of them wait for the same rank, or
/// the same device fills up.
pub const NO_AXIS: &str = "none";

/// A known failure, the axis it points at, and what to inspect.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Diagnosis {
    /// Stable; scripts match on it.
    pub id: &'static str,
    /// The axis to look at, as in `shardwright axes`, or [`NO_AXIS`].
    pub axis: &'static str,
    /// The part of that axis's work.
    pub place: &'static str,
    /// Why the symptom points there.
    pub because: &'static str,
    /// What to look at, in order.
    pub inspect: &'static [&'static str],
    /// Words that speak for it; those of one entry are synonyms.
    #[serde(skip)]
    known_by: &'static [&'static [&'static str]],
}

/// A diagnosis with how many of its word groups the symptom touched.
#[derive(Clone, Copy, Debug)]
pub struct Match {
    /// The failure that the symptom looks like.
    pub diagnosis: &'static Diagnosis,
    /// Groups of synonyms of which the symptom has a word.
    pub score: usize,
}

/// The diagnoses a symptom points at, best first; empty when no word is known.
pub fn diagnose(symptom: &str) -> Vec<Match> {
    let lower: String = symptom.chars().take(4096).collect::<String>().to_lowercase();
    let split = |c: char| !(c.is_alphanumeric() || c == '-' || c == '_');
    let words: Vec<&str> = lower.split(split).filter(|w| !w.is_empty()).collect();
    let spoken = |word: &&str| words.contains(word) || (word.contains('-') && lower.contains(&word.replace('-', " ")));
    let score = |d: &'static Diagnosis| {
        let touched = d.known_by.iter().filter(|group| group.iter().any(&spoken)).count();
        Match { diagnosis: d, score: touched }
    };
    let mut matches: Vec<Match> = DIAGNOSES.iter().map(score).filter(|m| m.score >= 2).collect();
    matches.sort_by_key(|m| std::cmp::Reverse(m.score));
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(symptom: &str) -> &'static str {
        diagnose(symptom).first().map_or("none", |m| m.diagnosis.id)
    }

    #[test]
    fn symptoms_of_the_texts_point_where_the_texts_point() {
        assert_eq!(first("reduce-scatter dtype mismatch with fp8 activations"), "sp-dtype");
        assert_eq!(first("all-to-all hang in the MoE layer"), "ep-hang");
        assert_eq!(first("routed-token imbalance"), "ep-imbalance");
        assert_eq!(first("long-context attention reconstruction bug"), "cp-reconstruction");
        assert_eq!(
            first("num_attention_heads must be divisible by tensor_model_parallel_size: heads"),
            "tp-divisibility"
        );
        assert_eq!(first("Mamba loss differs with context parallel"), "cp-recurrence");
        assert_eq!(first("LoRA gradients diverge after fully_shard"), "fsdp-lora");
        assert_eq!(first("OOM on the last pipeline stage with a big vocab"), "pp-edge");
        assert_eq!(first("zero-token expert has no gradient"), "ep-zero-token");
        assert_eq!(first("out of memory hundreds of steps later when routing drifts"), "ep-imbalance");
        assert_eq!(first("auxiliary loss missing on the first stage"), "pp-aux-loss");
        assert_eq!(first("OOM in the first backward"), "startup-peak");
        assert_eq!(first("it is broken"), "none");
    }

    #[test]
    fn symptoms_as_people_type_them_get_an_answer() {
        for (symptom, id) in [
            ("NCCL timeout", "collective-timeout"),
            ("NCCL watchdog timed out", "collective-timeout"),
            ("NCCL timeout in the MoE all-to-all", "ep-hang"),
            ("CUDA out of memory", "device-memory"),
            ("OOM", "device-memory"),
            ("CUDA OOM in the first step", "startup-peak"),
            ("tokens dropped by the router", "ep-capacity"),
            ("stage 0 is slower than the others", "pp-edge"),
            ("router scratch grows with experts", "ep-scratch"),
            ("loss is nan after the first step", "not-a-number"),
            ("expert gradients wrong with expert tensor parallelism", "etp-reduction"),
        ] {
            assert_eq!(first(symptom), id, "{symptom}");
        }
    }

    #[test]
    fn what_no_axis_causes_is_not_put_on_one() {
        let axis = |id| DIAGNOSES.iter().find(|d| d.id == id).unwrap().axis;
        for id in ["startup-peak", "collective-timeout", "not-a-number", "device-memory"] {
            assert_eq!(axis(id), NO_AXIS);
        }
        assert_eq!((axis("ep-scratch"), axis("etp-reduction")), ("ep", "etp"));
    }

    #[test]
    fn every_diagnosis_names_a_known_axis() {
        for d in DIAGNOSES {
            let is_known = d.axis == NO_AXIS || crate::axes::find(d.axis).is_some();
            assert!(is_known, "{} names axis {}", d.id, d.axis);
            assert!(!d.inspect.is_empty());
        }
    }
}
