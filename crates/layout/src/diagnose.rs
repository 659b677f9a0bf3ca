//! From a symptom to the axis to look at, or to the family of failures where no axis is at fault. Words of
//! the symptom are matched against what each diagnosis is known by; the best match wins, and ties are all
//! shown.

mod known;

pub use known::all;

use serde::{Serialize, Serializer};

/// What JSON says for the axis of a failure that no axis caused.
pub const NO_AXIS: &str = "none";

/// What a failure comes from, where that is no axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// What the model is.
    Recipe,
    /// Which implementation of its blocks runs.
    Mode,
    /// What is switched on besides.
    Features,
    /// Machines and what runs on them.
    Infrastructure,
    /// Compilation of the step.
    Compile,
    /// Number formats.
    Precision,
    /// The engine that hosts the run.
    Framework,
    /// What outlives a process: checkpoints, data positions.
    State,
    /// Figures beside each other.
    Comparison,
    /// Bytes on a device, whoever owns them.
    Memory,
    /// Collectives, whosever axis.
    Communication,
}

impl Family {
    /// Every family with its name and what it looks like.
    pub const ALL: &'static [(Family, &'static str, &'static str)] = &[
        (Family::Recipe, "recipe", "the shape changed under one name: pattern, depth, experts, heads"),
        (Family::Mode, "mode", "other implementations of the blocks ran: nemo_native against author_dp"),
        (Family::Features, "features", "a feature was on in one run and off in the other: MLA, MTP, DSA, MoE"),
        (
            Family::Infrastructure,
            "infrastructure",
            "machines differ: disks, caches, ports, stale processes, environment",
        ),
        (Family::Compile, "compile", "compilation hangs, repeats, or breaks its graph"),
        (Family::Precision, "precision", "numbers overflow, or fp8 covers another part than was meant"),
        (Family::Framework, "framework", "the engine does not own what the model needs"),
        (Family::State, "state", "a checkpoint or a data position does not survive a restart or another layout"),
        (Family::Comparison, "comparison", "figures of two lanes are compared as if they were one"),
        (Family::Memory, "memory", "the device fills up"),
        (Family::Communication, "communication", "a collective waits for a rank that does not come"),
    ];

    /// As printed.
    pub fn name(self) -> &'static str {
        Family::ALL.iter().find(|(family, ..)| *family == self).map_or("", |(_, name, _)| name)
    }
}

/// Where a failure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// An axis, as in `shardwright axes`.
    Axis(&'static str),
    /// None of them.
    Family(Family),
}

impl At {
    /// The axis, or [`NO_AXIS`].
    pub fn axis(self) -> &'static str {
        match self {
            At::Axis(axis) => axis,
            At::Family(_) => NO_AXIS,
        }
    }

    /// The family, where no axis is at fault.
    pub fn family(self) -> Option<&'static str> {
        match self {
            At::Axis(_) => None,
            At::Family(family) => Some(family.name()),
        }
    }
}

/// Two keys in JSON, `axis` and `family`.
impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Keys {
            axis: &'static str,
            family: Option<&'static str>,
        }
        Keys { axis: self.axis(), family: self.family() }.serialize(serializer)
    }
}

/// A known failure, what it points at, and what to inspect.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Diagnosis {
    /// Stable; scripts match on it.
    pub id: &'static str,
    /// Where it comes from.
    #[serde(flatten)]
    pub at: At,
    /// The part of that axis's work, or of that family.
    pub place: &'static str,
    /// Why the symptom points there.
    pub because: &'static str,
    /// What to look at, in order. Commands of ours stand in backticks and run as they stand, with `nam56r`
    /// for the reader's recipe.
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
    // A dash joins words that stand beside each other, whatever is between them.
    let joined = format!(" {} ", lower.replace(|c: char| !(c.is_alphanumeric() || c == '_'), " "));
    let spoken = |word: &&str| {
        words.contains(word) || (word.contains('-') && joined.contains(&format!(" {} ", word.replace('-', " "))))
    };
    let score = |d: &'static Diagnosis| {
        let touched = d.known_by.iter().filter(|group| group.iter().any(&spoken)).count();
        Match { diagnosis: d, score: touched }
    };
    let mut matches: Vec<Match> = all().map(score).filter(|m| m.score >= 2).collect();
    matches.sort_by_key(|m| std::cmp::Reverse(m.score));
    matches
}

#[cfg(test)]
mod tests;
