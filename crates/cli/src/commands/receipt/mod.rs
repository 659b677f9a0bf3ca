//! `receipt`: runs that are over, beside what was promised of them.

mod calibrate;
mod compare;
mod drift;
mod five;
mod gate;
mod goodput;
mod held;
mod hook;
mod list;
mod localise;
mod probed;
mod record;
mod show;
mod sides;
mod supersede;
mod time;
mod verify;

pub use localise::nan_order;
pub use time::now;

use crate::call::touched;
use crate::files::read_text;
use crate::outcome::{Outcome, Refusal};
use ::receipt::{Receipt, Store, Unread};
use clap::{Args, Subcommand};
use diag::{Blame, Finding, quote};
use std::path::{Path, PathBuf};

/// Arguments of `receipt`.
#[derive(Args)]
pub struct ReceiptArgs {
    /// What to do with receipts
    #[command(subcommand)]
    pub what: ReceiptCommand,
}

/// What can be done with receipts.
#[derive(Subcommand)]
pub enum ReceiptCommand {
    /// Record a run: what was launched, what was promised, and what its logs say came of it
    Record(Box<record::RecordArgs>),
    /// Receipts in the store, the last one last
    List(list::ListArgs),
    /// One receipt: who ran, promised beside measured, and where each figure came from
    Show(show::ShowArgs),
    /// May two runs be compared, in which layer do they differ, and what came of it: time, memory, loss
    Compare(compare::CompareArgs),
    /// When a figure of a history left its noise, and in which layer something changed there
    Drift(drift::DriftArgs),
    /// May a run replace another? Exit 1 on a regression, 2 where they are unlike: for CI
    Gate(gate::GateArgs),
    /// Where two runs part: the first step, the first tensor, and the axis that could explain it
    Localise(localise::LocaliseArgs),
    /// Where a job's time went: useful steps, and what was lost, by kind
    Goodput(goodput::GoodputArgs),
    /// A device file of your own from runs and probes: how long each kind of work takes there
    Calibrate(calibrate::CalibrateArgs),
    /// The Python file that a training script imports to write down steps, memory, versions and norms by layer
    Hook(hook::HookArgs),
    /// Say that a receipt is no longer believed, which one is instead, and why
    Supersede(supersede::SupersedeArgs),
    /// Hold every file of the store to its name, and the index to the files
    Verify(verify::VerifyArgs),
    /// Make the index again from the files
    Rebuild(verify::RebuildArgs),
}

pub fn run(args: &ReceiptArgs) -> Outcome {
    match &args.what {
        ReceiptCommand::Record(args) => record::run(args),
        ReceiptCommand::List(args) => list::run(args),
        ReceiptCommand::Show(args) => show::run(args),
        ReceiptCommand::Compare(args) => compare::run(args),
        ReceiptCommand::Drift(args) => drift::run(args),
        ReceiptCommand::Gate(args) => gate::run(args),
        ReceiptCommand::Localise(args) => localise::run(args),
        ReceiptCommand::Goodput(args) => goodput::run(args),
        ReceiptCommand::Hook(args) => hook::run(args),
        ReceiptCommand::Supersede(args) => supersede::run(args),
        ReceiptCommand::Verify(args) => verify::run(args),
        ReceiptCommand::Calibrate(args) => calibrate::run(args),
        ReceiptCommand::Rebuild(args) => verify::rebuild(args),
    }
}

/// Which store.
#[derive(Args, Clone, Default)]
pub struct StoreArgs {
    /// Where receipts are kept (default: SHARDWRIGHT_STORE, or shardwright below XDG_DATA_HOME or ~/.local/share)
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
}

impl StoreArgs {
    /// The store that was named, here or in the environment.
    pub fn open(&self) -> Result<Store, Refusal> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let usual = || {
            let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
            data.or_else(|| Some(set("HOME")?.join(".local/share"))).map(|path| path.join("shardwright"))
        };
        let path = self.store.clone().or_else(|| set("SHARDWRIGHT_STORE")).or_else(usual).ok_or_else(|| {
            let message = "nobody says where receipts are kept: HOME is not set";
            Finding::error("receipt/nowhere", Blame::Environment, "store", message)
                .hint("--store DIR names the store, or SHARDWRIGHT_STORE in the environment")
        })?;
        Ok(Store::at(&path))
    }

    /// As it has to be typed again.
    fn typed(&self) -> String {
        self.store.as_ref().map_or(String::new(), |path| format!(" --store {}", quote::typed(path)))
    }
}

/// A receipt that somebody named: by its file, or by the beginning of its name in the store.
pub fn named(store: &Store, name: &str) -> Result<(String, Receipt), Refusal> {
    let path = Path::new(name);
    if !name.ends_with(".json") && !name.contains('/') {
        return Ok(store.find(name)?);
    }
    let text = read_text(path)?;
    let receipt = Receipt::read(&text).map_err(|unread| {
        let why = match unread {
            Unread::Damaged(why) => why,
            Unread::Later(schema) => format!("it is `{schema}`, which this version does not read"),
        };
        let message = format!("`{}` is no receipt: {why}", quote::shown(path));
        Finding::error("receipt/file", Blame::Usage, name, message).hint("`shardwright receipt list` lists receipts")
    })?;
    touched(::store::Identity::at(path));
    Ok((::receipt::sha256(&text), receipt))
}

/// The beginning of a name that people type.
fn short(id: &str) -> &str {
    &id[..id.len().min(12)]
}

/// A word of one of our enumerations, as JSON has it.
fn word<T: serde::Serialize>(value: T) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_string)).unwrap_or_default()
}

/// `+1.2%`.
fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p.abs() < 0.005 => "0.00%".to_string(),
        p if p.abs() < 9.995 => format!("{p:+.2}%"),
        p => format!("{p:+.1}%"),
    }
}
