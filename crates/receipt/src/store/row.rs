//! A receipt as the index has it: a function of its file alone, so that an index made again is the same.

use crate::outcome::Outcome;
use crate::record::{Kind, Receipt};
use evidence::MemoryKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One receipt in the index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "fields of the receipt and of its outcome, under their names")]
pub struct Row {
    pub id: String,
    pub kind: Kind,
    pub recorded: String,
    /// Of what it says of its run, whenever it was recorded and whatever it supersedes.
    pub content_sha256: String,
    pub recipe: String,
    pub recipe_sha256: String,
    pub shape_sha256: String,
    pub features_sha256: String,
    pub mode: Option<String>,
    pub lane: Option<String>,
    pub engine: Option<String>,
    pub topology: Option<String>,
    pub launch_id: Option<String>,
    pub state: Option<String>,
    pub attempts: u64,
    pub steps: u64,
    pub step_seconds: Option<f64>,
    pub promised_seconds: Option<f64>,
    pub allocated_peak: Option<u64>,
    pub promised_allocated: Option<u64>,
    pub reserved_peak: Option<u64>,
    pub promised_reserved: Option<u64>,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub supersedes: Option<String>,
    pub because: Option<String>,
}

impl Row {
    /// Of a receipt under its name.
    pub fn of(id: &str, receipt: &Receipt) -> Row {
        let (who, outcome) = (&receipt.identity, Outcome::of(receipt));
        let peak = |kind: MemoryKind| outcome.memory.iter().find(|beside| beside.kind == kind);
        let (allocated, reserved) = (peak(MemoryKind::AllocatedPeak), peak(MemoryKind::ReservedPeak));
        // What is no number has no place in an index.
        let finite = |loss: Option<(u64, f64)>| loss.map(|(_, loss)| loss).filter(|loss| loss.is_finite());
        Row {
            id: id.to_string(),
            kind: receipt.kind,
            recorded: receipt.recorded.clone(),
            content_sha256: receipt.content_sha256(),
            recipe: who.recipe.clone(),
            recipe_sha256: who.recipe_sha256.clone(),
            shape_sha256: who.shape_sha256.clone(),
            features_sha256: who.features_sha256.clone(),
            mode: who.mode.clone(),
            lane: who.lane.clone(),
            engine: who.engine.clone(),
            topology: who.topology.clone(),
            launch_id: who.launch_id.clone(),
            state: outcome.state.clone(),
            attempts: outcome.attempts,
            steps: outcome.steps,
            step_seconds: outcome.step_seconds,
            promised_seconds: outcome.promised_seconds,
            allocated_peak: allocated.map(|beside| beside.measured),
            promised_allocated: allocated.and_then(|beside| beside.promised),
            reserved_peak: reserved.map(|beside| beside.measured),
            promised_reserved: reserved.and_then(|beside| beside.promised),
            first_loss: finite(outcome.first_loss),
            last_loss: finite(outcome.last_loss),
            supersedes: receipt.supersedes.as_ref().map(|old| old.id.clone()),
            because: receipt.supersedes.as_ref().map(|old| old.reason.clone()),
        }
    }
}

/// A receipt that was superseded after both were recorded, or taken back without another in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retraction {
    /// [`RETRACTION`].
    pub schema: String,
    /// The receipt that is no longer believed.
    pub id: String,
    /// The one that is believed instead.
    pub with: Option<String>,
    /// Why.
    pub because: String,
    /// When: RFC 3339, UTC, seconds.
    pub recorded: String,
}

/// Written into every retraction.
pub const RETRACTION: &str = "shardwright/retraction/1";

impl Retraction {
    /// The file's text.
    pub fn text(&self) -> String {
        let value: Value = serde_json::to_value(self).unwrap_or_default();
        crate::canonical::canonical(&value) + "\n"
    }

    /// Reads one, or says why it is none.
    pub fn read(text: &str) -> Result<Retraction, String> {
        let read: Retraction = serde_json::from_str(text).map_err(|error| format!("it does not read: {error}"))?;
        if read.schema == RETRACTION { Ok(read) } else { Err(format!("its schema is not `{RETRACTION}`")) }
    }
}
