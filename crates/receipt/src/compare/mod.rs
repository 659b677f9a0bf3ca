//! Whether two sets of runs may be compared, in which layer they differ, and what comes of it: throughput, memory and
//! loss. Like is compared with like: what may not be is refused by name, and no figure ranks two lanes.

mod layers;
mod loss;
mod memory;
mod speed;

pub use layers::{Change, Layer, changes, localised};
pub use loss::{Losses, Parted, Sameness, losses, parted, tolerance};
pub use memory::{LineChange, MemoryChange, memory};
pub use speed::{Basis, Speed, peak_of, speed};

use crate::{Kind, Receipt};
use case::{Case, Purpose, Seams, Terms};
use diag::{Blame, Finding};
use serde::Serialize;

/// A receipt with its job read back.
pub struct Subject<'a> {
    /// The receipt.
    pub receipt: &'a Receipt,
    /// Its job; none where it has none, or where this version does not read it.
    pub case: Option<Case>,
}

impl<'a> Subject<'a> {
    /// Reads the job.
    pub fn new(receipt: &'a Receipt) -> Subject<'a> {
        let read = |value: &serde_json::Value| {
            let terms = match value["cluster"].is_null() {
                true => Terms::SPLIT,
                false => Terms { purpose: Purpose::Run, seams: Seams::Allow },
            };
            Case::from_json(value, terms).ok()
        };
        Subject { receipt, case: receipt.case.as_ref().and_then(read) }
    }

    /// Tokens of a step, of all devices.
    pub fn tokens(&self) -> Option<u64> {
        let of_case = self.case.as_ref().map(|case| case.layout.global_batch * case.layout.sequence);
        of_case.or_else(|| Some(self.receipt.prediction.as_ref()?.step.as_ref()?.tokens))
    }

    /// The lane, or the engine where no lane was written down.
    pub fn lane(&self) -> Option<&str> {
        self.receipt.identity.lane.as_deref().or(self.receipt.identity.engine.as_deref())
    }
}

/// Why a figure may not be compared. Empty is: it may.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Refused {
    /// Why throughput may not.
    pub throughput: Vec<String>,
    /// Why memory may not.
    pub memory: Vec<String>,
    /// Why losses may not.
    pub loss: Vec<String>,
    /// What would have to be known of both runs for losses to say more.
    pub unknown: Vec<String>,
}

/// Two sides beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Everything that differs, causes first.
    pub changes: Vec<Change>,
    /// The layer it comes down to.
    #[serde(serialize_with = "layer_name")]
    pub layer: Option<Layer>,
    /// What may not be compared, and why.
    pub refused: Refused,
    /// Step times and tokens a second, where they may be compared and were recorded.
    pub speed: Option<Speed>,
    /// Peaks by rank class.
    pub memory: Vec<MemoryChange>,
    /// Predicted lines that differ, by rank class.
    pub lines: Vec<LineChange>,
    /// Losses.
    pub losses: Option<Losses>,
}

fn layer_name<S: serde::Serializer>(layer: &Option<Layer>, serializer: S) -> Result<S::Ok, S::Error> {
    match layer {
        Some(layer) => serializer.serialize_some(layer.name()),
        None => serializer.serialize_none(),
    }
}

/// Compares two sides, each one run or several of the same. A side whose own runs differ in more than machine and
/// seed is refused.
pub fn compare(old: &[Receipt], new: &[Receipt]) -> Result<Comparison, Vec<Finding>> {
    let (before, after): (Vec<Subject>, Vec<Subject>) =
        (old.iter().map(Subject::new).collect(), new.iter().map(Subject::new).collect());
    let mixed: Vec<Finding> =
        [("first", &before), ("second", &after)].iter().filter_map(|(n, s)| mixed(n, s)).collect();
    if !mixed.is_empty() {
        return Err(mixed);
    }
    let (Some(a), Some(b)) = (before.first(), after.first()) else {
        return Err(vec![Finding::error("receipt/sides", Blame::Usage, "sides", "a side has no receipt")]);
    };
    let changes = changes(a, b);
    let refused = refused(a, b, &changes);
    let may = |why: &[String]| why.is_empty();
    Ok(Comparison {
        layer: localised(&changes),
        speed: may(&refused.throughput).then(|| speed(&before, &after)).flatten(),
        memory: if may(&refused.memory) { memory(old, new) } else { Vec::new() },
        lines: if may(&refused.memory) { memory::lines(a.receipt, b.receipt) } else { Vec::new() },
        losses: may(&refused.loss).then(|| losses(&before, &after)).flatten(),
        changes,
        refused,
    })
}

/// A side that is not one thing.
fn mixed(which: &str, side: &[Subject]) -> Option<Finding> {
    let first = side.first()?;
    for other in &side[1..] {
        let loose = ["versions", "environment", "hardware", "arguments", "backend", "topology"];
        let differs = changes(first, other).into_iter().find(|change| !loose.contains(&change.part));
        let kinds = (first.receipt.kind != other.receipt.kind)
            .then(|| format!("one is a {}, another a {}", first.receipt.kind.name(), other.receipt.kind.name()));
        let what = kinds.or_else(|| {
            let Change { layer, key, old, new, .. } = differs?;
            Some(format!("its runs differ in the {layer}: `{key}` is `{old}` in one and `{new}` in another"))
        });
        if let Some(what) = what {
            let message = format!("the {which} side is not one job several times: {what}");
            let hint = "compare runs of one job a side; what differs between two is found with one a side";
            return Some(Finding::error("receipt/mixed-side", Blame::Usage, which, message).hint(hint));
        }
    }
    None
}

/// What may not be compared. A layout, a version or an environment may differ: that is what one compares.
fn refused(old: &Subject, new: &Subject, changes: &[Change]) -> Refused {
    let mut all = Vec::new();
    let (a, b) = (old.receipt, new.receipt);
    if a.kind != b.kind {
        all.push(format!("one is a {}, the other a {}", a.kind.name(), b.kind.name()));
    }
    for layer in [Layer::Recipe, Layer::Mode, Layer::Features] {
        let causes = changes.iter().filter(|change| change.layer == layer && !change.may_follow);
        let keys: Vec<String> = causes.map(|change| format!("`{}`", change.key)).take(3).collect();
        if !keys.is_empty() {
            all.push(format!("the {layer} differs in {}", keys.join(", ")));
        }
    }
    let (mut throughput, mut loss) = (all.clone(), all.clone());
    match (old.lane(), new.lane()) {
        (Some(one), Some(other)) if one != other => throughput.push(format!(
            "lanes `{one}` and `{other}` count and overlap work in their own ways: one figure never ranks two lanes"
        )),
        (None, _) | (_, None) => throughput.push("a run does not say which lane it was in".to_string()),
        _ => {}
    }
    match (old.tokens(), new.tokens()) {
        (Some(one), Some(other)) if one != other => {
            loss.push(format!("a step has {one} tokens in one and {other} in the other"));
        }
        _ => {}
    }
    let mut unknown = Vec::new();
    if old.tokens().is_none() || new.tokens().is_none() {
        unknown.push("tokens of a step".to_string());
    }
    for (what, keys) in [("seed", SEED), ("data", DATA)] {
        match (said(a, keys), said(b, keys)) {
            (Some(one), Some(other)) if one != other && what == "data" => {
                loss.push(format!("they learn other data: `{one}` and `{other}`"));
            }
            (Some(_), Some(_)) => {}
            _ => unknown.push(what.to_string()),
        }
    }
    Refused { throughput, memory: all, loss, unknown }
}

/// How engines call the seed: Megatron, nanotron and ours; torchtitan's; MaxText's.
const SEED: &[&str] = &["seed", "debug.seed", "training.seed", "general.seed", "init_weights_seed"];

/// How engines call what is learned: Megatron's, torchtitan's, MaxText's, ours.
const DATA: &[&str] =
    &["data-path", "data_path", "mock-data", "mock_data", "training.dataset", "dataset_path", "dataset_type", "data"];

/// What a run said of itself under one of these names: in its arguments, or as its engine printed them.
fn said(receipt: &Receipt, keys: &[&str]) -> Option<String> {
    let bare = |flag: &str| flag.trim_start_matches('-').to_string();
    let typed = receipt.arguments.iter().find(|argument| keys.contains(&bare(&argument.flag).as_str()));
    let printed = || receipt.evidence.arguments.iter().find(|(key, _)| keys.contains(&key.as_str()));
    let typed =
        typed.map(|argument| format!("{} {}", bare(&argument.flag), argument.values.join(" ")).trim().to_string());
    typed.or_else(|| printed().map(|(key, value)| format!("{key} {value}")))
}

/// Whether two runs say the same seed; none where one does not say it.
pub(crate) fn same_seed(a: &Receipt, b: &Receipt) -> Option<bool> {
    Some(said(a, SEED)? == said(b, SEED)?)
}

impl Kind {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Run => "run",
            Kind::Probe => "probe",
            Kind::Rehearsal => "rehearsal",
        }
    }
}
