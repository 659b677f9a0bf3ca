//! Why a row, or a part of it, has no figure.

use cost::Unpriced;
use diag::{Finding, Severity};
use replay::Unmodelled;
use std::fmt;
use units::Bytes;

/// Why a row, or a part of it, has no figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// The row is of a format that no reader knows.
    Format,
    /// The row's own `ready` says that it cannot be scored.
    NotReady,
    /// The row lacks something, contradicts itself, or says what its reader does not know.
    Row(String),
    /// A rule refuses the job it says it ran.
    Layout(String),
    /// No ledger replays it.
    Memory(Unmodelled),
    /// Its step has no price.
    Time(Unpriced),
    /// The run found no memory and measured nothing, and we say that it does not fit.
    DoesNotFit {
        /// What we say a device would hold.
        held: u64,
        /// What a process can have of it.
        visible: u64,
    },
}

impl Why {
    /// From the findings that refused a case: the first that is an error.
    pub(crate) fn refused(findings: Vec<Finding>) -> Why {
        let first = findings.into_iter().find(|finding| finding.severity == Severity::Error);
        Why::Layout(first.map_or_else(String::new, |finding| finding.message))
    }

    /// Whether we said what the run showed, although neither has a figure.
    pub fn is_agreement(&self) -> bool {
        matches!(self, Why::DoesNotFit { .. })
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Format => f.write_str("the row is of no format that is read here"),
            Why::NotReady => f.write_str("the row is not complete enough to score"),
            Why::Row(why) => f.write_str(why),
            Why::Layout(why) => write!(f, "the layout is refused: {why}"),
            Why::Memory(why) => why.fmt(f),
            Why::Time(why) => why.fmt(f),
            Why::DoesNotFit { held, visible } => {
                write!(f, "refused as the device did: {} of {} do not fit", Bytes(*held), Bytes(*visible))
            }
        }
    }
}

impl std::error::Error for Why {}

impl From<String> for Why {
    fn from(why: String) -> Why {
        Why::Row(why)
    }
}

impl From<&str> for Why {
    fn from(why: &str) -> Why {
        Why::Row(why.to_string())
    }
}

impl From<Unmodelled> for Why {
    fn from(why: Unmodelled) -> Why {
        Why::Memory(why)
    }
}

impl From<Unpriced> for Why {
    fn from(why: Unpriced) -> Why {
        Why::Time(why)
    }
}
