//! Where a number comes from.

use serde::{Serialize, Serializer};

/// The basis of a figure. Unknown is none of these: a figure without a basis is not given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// From shapes and formats.
    Counted,
    /// By a named mechanism or source.
    Modelled(&'static str),
    /// Read off a device, and which.
    Measured(String),
}

impl Basis {
    /// In one word.
    pub fn word(&self) -> &'static str {
        match self {
            Basis::Counted => "counted",
            Basis::Modelled(_) => "modelled",
            Basis::Measured(_) => "measured",
        }
    }

    /// In a few words.
    pub fn words(&self) -> String {
        match self {
            Basis::Counted => "counted".to_string(),
            Basis::Modelled(source) => format!("modelled: {source}"),
            Basis::Measured(source) => format!("measured: {source}"),
        }
    }

    /// Writes the one word, where the source is said elsewhere.
    pub fn write_word<S: Serializer>(basis: &Basis, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(basis.word())
    }
}
