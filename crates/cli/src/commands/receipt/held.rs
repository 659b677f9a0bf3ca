//! `receipt show ID --snapshot FILE`: torch's memory snapshot of a run beside the replay of its job.

use crate::call::touched;
use crate::commands::fit::allowed;
use crate::commands::typed;
use crate::outcome::Refusal;
use crate::snapshot::{MOST_EVENTS, pickle};
use crate::table::{Table, heading, wrap};
use ::receipt::Receipt;
use ::receipt::snapshot_diff::{Difference, Size, diff};
use case::{Case, Terms};
use diag::{Blame, Finding, quote};
use evidence::snapshot::Snapshot;
use memory::fit::record;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use units::{Bytes, exact};
use work::Limit;

/// Differences that are printed.
const LISTED: usize = 10;

/// Bytes of a snapshot that are read at most.
const LARGEST: u64 = 1 << 30;

/// The section of the text, and what machines get.
pub fn section(path: &Path, receipt: &Receipt, limit: &Limit) -> Result<(String, Value), Refusal> {
    let case = case_of(receipt)?;
    let measured = read(path)?;
    let Some(device) = measured.devices().into_iter().max_by_key(|device| measured.peak(*device).allocated) else {
        let message = format!("`{}` has nothing that was ever allocated", quote::shown(path));
        return Err(refused(message, "_record_memory_history() has to stand before what is recorded"));
    };
    let stage = stage_of(receipt).min(case.stages.by_stage.len().saturating_sub(1));
    allowed(&case, limit, 1)?;
    let recorded = record(&case, stage, MOST_EVENTS).map_err(|reason| {
        refused(format!("there is no replay of {} to hold it against: {}", reason.what, reason.why), "leave it out")
    })?;
    let replayed = pickle(&recorded.recorder.read(), &typed(&case));
    let predicted = Snapshot::read(&replayed, "the replay")?;
    let difference = diff(&measured, device, &predicted);
    let left_out = recorded.recorder.read().forgotten;
    let mut text = text(path, stage, &difference);
    if left_out > 0 {
        let words = format!("The replay's history is its last events, after {} that are left out.", exact(left_out));
        text += &wrap(&words, "  ", 80);
    }
    let json = json!({
        "file": path.display().to_string(), "device": device, "stage": stage, "events_left_out": left_out,
        "difference": difference,
    });
    Ok((text, json))
}

fn refused(message: String, hint: &str) -> Refusal {
    Finding::error("receipt/snapshot", Blame::Usage, "snapshot", message).hint(hint).into()
}

/// The job as it was launched.
fn case_of(receipt: &Receipt) -> Result<Case, Refusal> {
    let Some(case) = &receipt.case else {
        let message = "the receipt has no case, so nothing says what to replay".to_string();
        return Err(refused(message, "record the launch directory: `shardwright receipt record DIR`"));
    };
    Case::from_json(case, Terms::RUN).map_err(Refusal::from)
}

/// A probe says its stage; of a run it is that of the fullest ranks.
fn stage_of(receipt: &Receipt) -> usize {
    let probed = receipt.overlay["probe"]["stage"].as_u64();
    let ranks = receipt.prediction.iter().flat_map(|said| &said.ranks);
    let fullest = || ranks.max_by_key(|class| class.allocated_peak).map(|class| class.stage);
    probed.or_else(fullest).unwrap_or(0) as usize
}

fn read(path: &Path) -> Result<Snapshot, Refusal> {
    let shown = path.display().to_string();
    let cannot = |error: std::io::Error| {
        let message = format!("cannot read `{}`: {error}", quote::shown(path));
        Finding::error("file/read", Blame::Environment, shown.clone(), message)
    };
    let file = std::fs::File::open(path).map_err(cannot)?;
    touched(::store::Identity::at(path));
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > LARGEST {
        let message = format!("`{}` is larger than {}", quote::shown(path), Bytes(LARGEST));
        return Err(refused(message, "record a shorter history (`max_entries`)"));
    }
    Ok(Snapshot::read(&bytes, &shown)?)
}

fn text(path: &Path, stage: usize, difference: &Difference) -> String {
    let Difference { measured, predicted, both, sizes, lines } = difference;
    let said = format!(
        "At its peak `{}` has {} asked for in {} blocks; the replay of stage {stage} at its own {} in {}. {} is in blocks \
         of the same size.",
        quote::shown(path),
        Bytes(measured.bytes),
        exact(measured.blocks),
        Bytes(predicted.bytes),
        exact(predicted.blocks),
        Bytes(*both),
    );
    let mut out = heading("Snapshot beside the replay") + &wrap(&said, "  ", 80);
    if sizes.is_empty() {
        out += "  no block is there that was not predicted, and none is missing\n";
    } else {
        let mut table = Table::new(&["apart", "a block", "there", "predicted", "allocated in, or predicted as"])
            .right(&[0, 1, 2, 3]);
        for size in sizes.iter().take(LISTED) {
            let sign = if size.measured > size.predicted { '+' } else { '-' };
            table.row([
                format!("{sign}{}", Bytes(size.apart())),
                Bytes(size.bytes).to_string(),
                exact(size.measured),
                exact(size.predicted),
                places(size),
            ]);
        }
        out += &table.render();
        out += &rest(sizes);
    }
    let mut table = Table::new(&["line at the peak", "predicted", "of it not there, at most"]).right(&[1, 2]);
    for line in lines {
        let missing = if line.missing_at_most == 0 { String::new() } else { Bytes(line.missing_at_most).to_string() };
        table.row([line.line.clone(), Bytes(line.predicted).to_string(), missing]);
    }
    out + &table.render()
}

/// Differences that are not listed, as one sentence.
fn rest(sizes: &[Size]) -> String {
    let Some(rest) = sizes.get(LISTED..).filter(|rest| !rest.is_empty()) else { return String::new() };
    let sum = |is_there: bool| {
        let mine = rest.iter().filter(|size| (size.measured > size.predicted) == is_there);
        Bytes(mine.map(Size::apart).fold(0, u64::saturating_add))
    };
    let words = format!("and {} further sizes: +{} and -{} (--json)", exact(rest.len() as u64), sum(true), sum(false));
    wrap(&words, "  ", 80)
}

/// Where blocks of a size come from, on the side that has more of them; the other side behind it.
fn places(size: &Size) -> String {
    let named = |all: &[(String, u64)]| {
        let mut words: Vec<String> = all.iter().take(2).map(|(place, count)| format!("{place} x{count}")).collect();
        if all.len() > 2 {
            words.push(format!("{} more", all.len() - 2));
        }
        words.join(", ")
    };
    match (size.measured > size.predicted, size.predicted > 0 && size.measured > 0) {
        (true, false) => named(&size.allocated_in),
        (false, false) => named(&size.booked_as),
        (true, true) => format!("{}; predicted: {}", named(&size.allocated_in), named(&size.booked_as)),
        (false, true) => format!("{}; there: {}", named(&size.booked_as), named(&size.allocated_in)),
    }
}
