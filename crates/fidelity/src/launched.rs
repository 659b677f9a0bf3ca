//! Ranks of the program that `launch --engine fsdp2` writes, read on an H200 by `tools/measure_launch.py`: bytes after
//! the optimizer's state is there, allocated and reserved peaks. A row says how it trained (`ways`) and in which format its
//! weights were stepped. Other ranks were stood in for and losses mean nothing, so that of steps only those of one rank
//! are judged.

use crate::{Figure, Judged, Part, Why, check_work, kind, lay_out};
use case::words;
use case::{Case, Documents, Options};
use cost::Numbers;
use hardware::Cluster;
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use ledger::{Ledger, RankJob};
use recipe::Recipe;
use replay::PhaseKind;
use serde_json::Value;

const SOURCE: &str = "launched-h200";

/// Steps of a row before which its libraries are still compiling and tuning.
const FIRST: usize = 2;

/// Whether a row is of this kind.
pub(super) fn is_launched(row: &Value) -> bool {
    row["kind"] == "launch"
}

/// Words of the engine that a row's `ways` and formats are said by.
fn said(row: &Value) -> Vec<String> {
    let ways = row["ways"].as_object().into_iter().flatten();
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(word) => Some(format!("{name}={word}")),
        Value::Number(_) => Some(format!("{name}=true")),
        _ => None,
    };
    let main = row["precision"]["main"].as_str().map(|format| format!("main={format}"));
    let teacher = row["teacher"].as_str().map(|recipe| format!("teacher={recipe}"));
    ways.filter_map(word).chain(main).chain(teacher).collect()
}

/// The job of a row.
fn case(row: &Value) -> Result<Case, Why> {
    let recipe = Recipe::parse(row["recipe"].as_str().ok_or("the row lacks `recipe`")?).map_err(Why::refused)?;
    let layout = &row["layout"];
    let recompute = layout["recompute"].as_str().unwrap_or("none");
    let request = LayoutRequest {
        world: layout["world"].as_u64(),
        tp: layout["tp"].as_u64(),
        sp: layout["sp"].as_bool(),
        pp: layout["pp"].as_u64(),
        ep: layout["ep"].as_u64(),
        etp: layout["etp"].as_u64(),
        zero: Some(if layout["zero"] == "2" { ZeroStage::Two } else { ZeroStage::Three }),
        micro_batch: layout["mbs"].as_u64(),
        microbatches: layout["microbatches"].as_u64(),
        sequence: layout["seq"].as_u64(),
        recompute: Some(Recompute::parse(recompute).map_err(|why| Why::Row(why.to_string()))?),
        engine: Some(Engine::Fsdp2),
        ..LayoutRequest::default()
    };
    let mut options = Options::of(Some(Engine::Fsdp2), &recipe);
    options.prefetch.forward = layout["forward_prefetch"].as_u64().unwrap_or(0);
    words::read(Some(Engine::Fsdp2), &said(row), &mut options).map_err(Why::refused)?;
    options.documents = row["documents"].as_str().map(Documents::parse).transpose()?;
    let world = request.world.unwrap_or(1);
    let cluster = Cluster::parse(&format!("{world}xH200")).map_err(|finding| finding.message)?;
    Ok(lay_out(recipe, &request, Some(cluster))?.with_options(|own| *own = options))
}

/// Judges a row.
pub(super) fn judge(row: &Value, parts: &[Part], allowed: u64) -> Judged {
    let mut judged = Judged::of_our_own(&row["name"], SOURCE);
    for part in parts {
        let done = match part {
            Part::Memory => memory(row, allowed, &mut judged),
            Part::Time => time(row, &mut judged),
        };
        if let Err(why) = done {
            judged.refuse(*part, why);
        }
    }
    judged
}

fn memory(row: &Value, allowed: u64, judged: &mut Judged) -> Result<(), Why> {
    let case = case(row)?;
    judged.kind = kind(&case.source);
    let rank = row["rank"].as_u64().filter(|rank| *rank < case.layout.world).ok_or("the row lacks `rank`")?;
    let ledger = Ledger::of_case(&case)?;
    let job = RankJob { recipe: &case.recipe, layout: &case.layout, stages: &case.stages, rank };
    check_work(&ledger, &job, allowed)?;
    let replay = ledger.replay(&job)?;
    let phases = |key: &str| {
        let of = |step: usize| [format!("fwdbwd{step}"), format!("opt{step}")];
        let all = (0..3).flat_map(of).filter_map(|phase| row[phase.as_str()][key].as_u64()).collect::<Vec<_>>();
        all.into_iter().max()
    };
    let stepped = replay.phase(PhaseKind::Update(2)).map_or(0, |phase| phase.allocated);
    judged.add_bytes(&[
        ("static", row["opt2"]["alloc"].as_u64(), stepped),
        ("allocated", phases("peak"), replay.allocated_peak()),
        ("reserved", phases("reserved_peak"), replay.reserved_peak()),
    ])
}

/// The step of a rank by itself, the least of those that ran when everything was compiled.
fn time(row: &Value, judged: &mut Judged) -> Result<(), Why> {
    if row["layout"]["world"] != 1 {
        return Ok(());
    }
    let seconds = row["seconds"].as_array().into_iter().flatten().skip(FIRST).filter_map(Value::as_f64);
    let Some(measured) = seconds.min_by(f64::total_cmp) else { return Ok(()) };
    let case = case(row)?;
    judged.kind = kind(&case.source);
    let alone = cost::alone(&case, 0, Numbers::Drawn)?;
    judged.figures.push(Figure::step_time(measured, alone.step));
    if let Some(busy) = row["profile"]["busy_s"].as_f64() {
        judged.figures.push(Figure::kernel_time(busy, alone.kernels));
    }
    Ok(())
}
