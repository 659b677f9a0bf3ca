//! Rows of published runs: what others measured and wrote down (`data/truth/published.jsonl`).
//!
//! A row becomes a [`Case`] with options of the engine that ran it, or a reason why it cannot. What a row leaves unsaid takes the engine's own default, and the default is named where
//! it is taken. What it says and no ledger replays is a reason, never an approximation.
//!
//! Which figure a row holds is read from `memory_kind`: `allocated…` is the allocator's allocated
//! peak, `nvidia-smi` is reserved bytes with what the process holds outside the allocator (only
//! where that has been measured on the device: `data/hardware`), and all else is reserved.
//!
//! Known weak: rows of Megatron-LM's own tests do not say whether dropout was on (its default is,
//! and the masks are not replayed, so those come out low); [`nanotron`](ledger::nanotron)
//! says where its replay is.

mod deepspeed;
mod device;
mod megatron;
mod model;
mod nanotron;
mod precision;
mod recompute;
mod time;
mod torchtitan;
mod words;

pub use time::Priced;

use crate::{Figure, Judged, Part, Pricing, Refusal, Why, check_work, lay_out};
use case::Case;
use hardware::Device;
use ledger::{Ledger, RankJob};
use memory::fit::communicators;
use recipe::Mixer;
use replay::Replay;
use serde_json::Value;

const GIB: f64 = (1u64 << 30) as f64;

/// The highest figures over the ranks a row speaks of.
struct Peaks {
    allocated: u64,
    reserved: u64,
    case: Case,
}

impl Peaks {
    fn replayed(case: Case, ledger: &Ledger, ranks: &[u64], allowed: u64) -> Result<Peaks, Why> {
        let Case { recipe, layout, stages, .. } = &case;
        let (mut allocated, mut reserved) = (0, 0);
        for &rank in ranks {
            let job = RankJob { recipe, layout, stages, rank };
            check_work(ledger, &job, allowed)?;
            let replay: Replay = ledger.replay(&job)?;
            allocated = allocated.max(replay.allocated_peak());
            reserved = reserved.max(replay.reserved_peak());
        }
        Ok(Peaks { allocated, reserved, case })
    }
}

/// Judges what a row is complete enough to score.
pub(super) fn judge(row: &Value, parts: &[Part], pricing: Pricing, allowed: u64) -> Judged {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_string();
    let mut judged = Judged {
        name: row["id"].as_str().unwrap_or("unnamed").to_string(),
        kind: model::kind(&row["model"]),
        source: text(&row["source_id"]),
        device: device::name(row).map_or_else(|_| text(&row["hardware"]["gpu"]), |name| name.replace("-40G", "")),
        is_pretraining: row["kind"].as_str().is_some_and(|kind| words::plain(kind).starts_with("pretrain")),
        sweep: sweep(row),
        tokens_per_device: time::tokens_per_device(row).unwrap_or(0.0),
        devices: row["hardware"]["count"].as_u64().unwrap_or(0),
        sequences: row["batch"]["global"].as_u64().unwrap_or(0),
        layout: [&row["layout"], &row["batch"]["micro"], &row["recompute"], &row["features"]]
            .map(Value::to_string)
            .join(" "),
        class: None,
        undecided: None,
        figures: Vec::new(),
        refusals: Vec::new(),
        params_differ: None,
    };
    for part in parts {
        let ready = row["ready"][if *part == Part::Time { "throughput" } else { "memory" }].as_bool();
        let predicted = match (ready, part) {
            (Some(true), Part::Memory) => predict(row, allowed).and_then(|peaks| figures(row, &peaks)),
            (Some(true), Part::Time) => time::judge(row, pricing).map(|timed| {
                (judged.class, judged.undecided) = (Some(timed.class), timed.undecided);
                vec![timed.figure]
            }),
            _ => continue,
        };
        match predicted {
            Ok(figures) => judged.figures.extend(figures),
            Err(why) => judged.refuse(*part, why),
        }
    }
    if judged.figures.is_empty() && judged.refusals.is_empty() {
        let why = if row["ready"].is_object() { Why::NotReady } else { Why::Format };
        judged.refusals.push(Refusal { part: None, why });
    }
    judged
}

/// The step of a published row, with where its seconds go.
pub(super) fn priced(row: &Value, pricing: Pricing) -> Result<Priced, Why> {
    if row["ready"]["throughput"].as_bool() != Some(true) {
        return Err(Why::NotReady);
    }
    time::priced(row, pricing)
}

/// What the rows of a sweep share.
fn sweep(row: &Value) -> String {
    let (model, hardware) = (&row["model"], &row["hardware"]);
    let said = [
        &row["source_id"],
        &row["framework"]["name"],
        &model["name"],
        &model["layers"],
        &model["hidden"],
        &model["heads"],
        &hardware["gpu"],
        &hardware["mem_gb"],
        &row["precision"],
        &row["batch"]["seq"],
    ];
    let words = said.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_string));
    words.filter(|word| word != "null").collect::<Vec<_>>().join(" ")
}

/// One arm an engine.
fn predict(row: &Value, allowed: u64) -> Result<Peaks, Why> {
    let name = row["framework"]["name"].as_str().unwrap_or_default();
    match words::plain(name).as_str() {
        "nanotron" => nanotron::predict(row, allowed),
        "megatronlm" | "megatrondeepspeed" => megatron::predict(row, allowed),
        plain if plain.starts_with("torchtitan") => torchtitan::predict(row, allowed),
        plain if plain.starts_with("deepspeed") => deepspeed::predict(row, allowed),
        _ => Err(format!("engine `{name}` has no ledger").into()),
    }
}

/// The row's peak, and its reserved peak where it gives both.
fn figures(row: &Value, peaks: &Peaks) -> Result<Vec<Figure>, Why> {
    let measured = &row["measured"];
    let bytes = |key: &str| measured[key].as_f64().map(|gib| (gib * GIB).round() as u64);
    let peak = bytes("peak_memory_gib").filter(|peak| *peak > 0).ok_or("the row holds no figure we predict")?;
    let (name, predicted) = match measured["memory_kind"].as_str().unwrap_or_default() {
        kind if kind.starts_with("allocated") => ("allocated", peaks.allocated),
        "nvidia-smi" => ("reserved", peaks.reserved + outside(row, peaks)?),
        _ => ("reserved", peaks.reserved),
    };
    let mut figures = vec![Figure::bytes(name, peak, predicted)];
    if let Some(measured) = bytes("peak_reserved_gib").filter(|_| name == "allocated") {
        figures.push(Figure::bytes("reserved", measured, peaks.reserved));
    }
    Ok(figures)
}

/// What the process holds outside its allocator, as measured on the row's device.
fn outside(row: &Value, peaks: &Peaks) -> Result<u64, String> {
    let reserve = Device::find(&device::name(row)?).ok().and_then(|device| device.reserve);
    let reserve = reserve.ok_or("what lies outside the allocator has not been measured on the row's device")?;
    let talking = match communicators(&peaks.case.layout, peaks.case.recipe.uses(Mixer::Moe)).len() as u64 {
        0 => 0,
        n => reserve.first_communicator_bytes + (n - 1) * reserve.communicator_bytes,
    };
    Ok(reserve.context_bytes + reserve.libraries_bytes + talking)
}

/// A whole number a row must give.
fn need(object: &Value, key: &str) -> Result<u64, String> {
    object[key].as_u64().ok_or_else(|| format!("the row lacks `{key}`"))
}
