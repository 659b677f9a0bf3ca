//! `receipt`: runs that are over, beside what was promised of them.

mod compare;
mod drift;
mod gate;
mod goodput;
mod localise;
mod sides;

pub use localise::nan_order;
pub use sides::one as one_receipt;

use crate::outcome::Outcome;
use clap::{Args, Subcommand};

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
}

pub fn run(args: &ReceiptArgs) -> Outcome {
    match &args.what {
        ReceiptCommand::Compare(args) => compare::run(args),
        ReceiptCommand::Drift(args) => drift::run(args),
        ReceiptCommand::Gate(args) => gate::run(args),
        ReceiptCommand::Localise(args) => localise::run(args),
        ReceiptCommand::Goodput(args) => goodput::run(args),
    }
}

/// The time as receipts have it.
pub fn now() -> String {
    "1970-01-01T00:00:00Z".to_string()
}

/// The beginning of a name that people type.
fn short(id: &str) -> &str {
    &id[..id.len().min(12)]
}

/// `+1.2%`.
fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p.abs() < 0.005 => "0.00%".to_string(),
        p if p.abs() < 9.995 => format!("{p:+.2}%"),
        p => format!("{p:+.1}%"),
    }
}
