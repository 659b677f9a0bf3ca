//! `receipt calibrate`: a device file of one's own, from runs and probes.

use super::{StoreArgs, named, short};
use crate::commands::plan::text::seconds;
use crate::files::{load_cluster, write_file};
use crate::outcome::{NO, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use ::receipt::calibrate::{Fitted, Judged, Outside, Sample, fit, headrooms, judge, means, outside, samples};
use ::receipt::{Kind, Receipt};
use clap::Args;
use diag::{Blame, Finding};
use hardware::{Calibration, Device};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use units::Bytes;

/// Arguments of `receipt calibrate`.
#[derive(Args)]
pub struct CalibrateArgs {
    /// Receipts: the beginnings of their names, their files, or folders of them (default: all of the store)
    #[arg(value_name = "RECEIPT")]
    pub receipts: Vec<String>,
    /// The device they ran on: H200, or a device file
    #[arg(long, value_name = "DEVICE")]
    pub device: String,
    /// Write the device file here; `--on 8x./FILE` prices with it
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Calibrate without every N-th receipt, and judge those by what the others say
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub hold_out: Option<u64>,
    #[command(flatten)]
    pub store: StoreArgs,
}

pub fn run(args: &CalibrateArgs) -> Outcome {
    let device = load_cluster(&format!("1x{}", args.device))?.device;
    let (receipts, elsewhere) = receipts_of(args, &device)?;
    let (all, unusable) = samples(receipts.iter().map(|(id, receipt)| (id.as_str(), receipt)));
    let is_held = |i: usize| args.hold_out.is_some_and(|n| (i as u64 + 1).is_multiple_of(n));
    let ids: Vec<&String> = receipts.iter().map(|(id, _)| id).collect();
    let of_held = |sample: &Sample| ids.iter().position(|id| **id == sample.receipt).is_some_and(is_held);
    let (held, used): (Vec<Sample>, Vec<Sample>) = all.into_iter().partition(of_held);
    if used.len() < 2 {
        let why = unusable.first().map_or(String::new(), |one| format!(": {} ({})", one.why, short(&one.receipt)));
        let message = format!("{} figures of {} receipts say something of time{why}", used.len(), receipts.len());
        let hint = "`shardwright probe RECIPE LAYOUT --out DIR` takes them on one device";
        return Err(Finding::error("receipt/too-few", Blame::Usage, "receipts", message).hint(hint).into());
    }
    let fitted = fit(&used);
    let held = judge(&held, &fitted.factors);
    let outside = outside(receipts.iter().map(|(_, receipt)| receipt), &device);
    let headrooms = headrooms(receipts.iter().map(|(id, receipt)| (id.as_str(), receipt)), &device);
    let (before, after) = means(&fitted.judged);
    let count = receipts.len() as u64 - unusable.len() as u64;
    let calibration = Calibration {
        receipts: count,
        error_before: before,
        error_after: after,
        source: format!("receipt calibrate, shardwright {}", env!("CARGO_PKG_VERSION")),
        terms: fitted.factors.clone(),
        headrooms,
    };
    let mut text = terms_text(&fitted, count, &device);
    text += &errors_text("Steps and kernels, each by what the others say", &fitted.judged);
    if !held.is_empty() {
        text += &errors_text("Held out of it", &held);
    }
    text += &memory_text(outside.as_ref(), &calibration);
    for one in &unusable {
        text += &wrap(&format!("left out: {}, since {}", short(&one.receipt), one.why), "", 80);
    }
    if elsewhere > 0 {
        text += &format!("left out: {elsewhere} of other devices\n");
    }
    let json = json!({
        "device": device.name, "calibration": calibration, "outside": outside.as_ref().map(outside_json),
        "kept": fitted.kept.iter().map(|(term, figures)| json!({ "term": term, "figures": figures })).collect::<Vec<_>>(),
        "judged": judged_json(&fitted.judged), "held_out": judged_json(&held),
        "unusable": unusable.iter().map(|u| json!({ "receipt": u.receipt, "why": u.why })).collect::<Vec<_>>(),
    });
    let report = Report::new(text, json);
    if after >= before {
        let message = format!(
            "receipts judged by each other are {:.1}% off as shipped, and {:.1}% calibrated",
            100.0 * before,
            100.0 * after
        );
        let finding = Finding::error("receipt/no-better", Blame::Environment, "calibration", message)
            .hint("nothing is written: more receipts, or ones that agree, are wanted");
        return Ok(report.with_findings(std::slice::from_ref(&finding)).refused(NO, [finding]));
    }
    if let Some(path) = &args.output {
        write_file(path, &file(&args.device, &device, outside.as_ref(), &calibration)?)?;
        let on = diag::quote::typed(path);
        let on = if path.components().count() == 1 { format!("./{on}") } else { on };
        let mut report = report;
        report.text += &format!("\nwrote {on}: price with it by --on {}x{on}\n", device.devices_per_node);
        return Ok(report);
    }
    Ok(report)
}

/// The receipts that are asked for and of this device, by name; and how many are of another.
fn receipts_of(args: &CalibrateArgs, device: &Device) -> Result<(Vec<(String, Receipt)>, usize), Refusal> {
    let store = args.store.open()?;
    let mut names: Vec<String> = Vec::new();
    for name in &args.receipts {
        let path = Path::new(name);
        if path.is_dir() {
            names.extend(crate::files::names_in(path, ".json")?);
        } else {
            names.push(name.clone());
        }
    }
    if args.receipts.is_empty() {
        let listed = store.list()?;
        names.extend(listed.rows.into_iter().map(|row| row.id).filter(|id| !listed.superseded.contains_key(id)));
    }
    let mut found: Vec<(String, Receipt)> = Vec::new();
    for name in names {
        found.push(named(&store, &name)?);
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found.dedup_by(|a, b| a.0 == b.0);
    let all = found.len();
    found.retain(|(_, receipt)| receipt.kind != Kind::Rehearsal && is_of(receipt, device));
    let elsewhere = all - found.len();
    Ok((found, elsewhere))
}

/// Whether a receipt's job is of this device.
fn is_of(receipt: &Receipt, device: &Device) -> bool {
    let Some(cluster) = receipt.case.as_ref().map(|case| &case["cluster"]) else { return true };
    match &cluster["device"]["name"] {
        Value::String(name) => *name == device.name,
        _ => {
            let typed = cluster["typed"].as_str().and_then(|text| hardware::ClusterText::parse(text).ok());
            typed.and_then(|typed| Device::find(typed.device).ok()).is_some_and(|known| known.name == device.name)
        }
    }
}

fn terms_text(fitted: &Fitted, receipts: u64, device: &Device) -> String {
    let mut text = heading(&format!("{} by {receipts} receipts", device.name));
    let mut table = Table::new(&["kind of work", "takes", "figures that say so"]).right(&[1, 2]);
    for factor in &fitted.factors {
        let change = 100.0 * (factor.seconds - 1.0);
        table.row([factor.term.to_string(), format!("{change:+.1}%"), factor.receipts.to_string()]);
    }
    for (term, figures) in &fitted.kept {
        table.row([term.to_string(), "as shipped".to_string(), figures.to_string()]);
    }
    text += &table.render();
    text
}

fn errors_text(title: &str, judged: &[Judged]) -> String {
    let (before, after) = means(judged);
    let mut text = heading(title);
    let mut table = Table::new(&["receipt", "figure", "measured", "as shipped", "calibrated"]).right(&[2, 3, 4]);
    for one in judged {
        let off = |priced: f64| format!("{:+.1}%", 100.0 * (priced / one.measured - 1.0));
        let figure = one.figure.to_string();
        table.row([short(&one.receipt).to_string(), figure, seconds(one.measured), off(one.before), off(one.after)]);
    }
    text += &table.render();
    text + &format!("mean error {:.1}% as shipped, {:.1}% calibrated\n", 100.0 * before, 100.0 * after)
}

fn memory_text(outside: Option<&Outside>, calibration: &Calibration) -> String {
    let mut text = heading("Memory");
    text += &match outside {
        Some(found) => wrap(
            &format!(
                "outside the allocator {} in the median of {} probes, where {} is said; what is inside it is counted, not fitted",
                Bytes(found.bytes),
                found.receipts,
                Bytes(found.said)
            ),
            "",
            80,
        ),
        None => "no probe read what lies outside the allocator: it stays as it was\n".to_string(),
    };
    for one in &calibration.headrooms {
        let words = format!(
            "{} ran out of memory with {} said to be left: that is asked for besides ({})",
            one.model,
            Bytes(one.bytes),
            short(&one.receipt)
        );
        text += &wrap(&words, "", 80);
    }
    text
}

fn outside_json(outside: &Outside) -> Value {
    json!({ "bytes": outside.bytes, "said_bytes": outside.said, "receipts": outside.receipts })
}

fn judged_json(judged: &[Judged]) -> Value {
    let (before, after) = means(judged);
    let rows: Vec<Value> = judged
        .iter()
        .map(|one| {
            json!({
                "receipt": one.receipt, "figure": one.figure.name(), "measured_seconds": one.measured,
                "shipped_seconds": one.before, "calibrated_seconds": one.after,
            })
        })
        .collect();
    json!({ "error_before": before, "error_after": after, "figures": rows })
}

/// The device's file with the calibration in it, in place of an earlier one, and with what was read of its memory.
fn file(typed: &str, device: &Device, outside: Option<&Outside>, calibration: &Calibration) -> Result<String, Refusal> {
    let base = match device.toml() {
        Some(text) if !hardware::is_path(typed) => text.to_string(),
        _ => crate::files::read_text(Path::new(typed))?,
    };
    let mut text = without_calibration(&base);
    if let (Some(found), Some(reserve)) = (outside, &device.reserve)
        && let Some(libraries) = found.bytes.checked_sub(reserve.context_bytes)
    {
        let old = format!("libraries_bytes = {}", reserve.libraries_bytes);
        text = text.replace(
            &old,
            &format!("# {} probes of `receipt calibrate`\nlibraries_bytes = {libraries}", found.receipts),
        );
    }
    Ok(format!("{}\n\n{}", text.trim_end(), calibration.to_toml()))
}

/// A device file up to its calibration, which stands last in the files we write.
fn without_calibration(text: &str) -> String {
    let is_calibration = |line: &str| line.starts_with("[calibration]") || line.starts_with("[[calibration.");
    let mut out = String::new();
    let mut skips = false;
    for line in text.lines() {
        if line.starts_with('[') {
            skips = is_calibration(line);
        }
        if !skips {
            out += line;
            out.push('\n');
        }
    }
    out
}
