//! `plan`: what a whole run comes to.

use clap::Args;
use fleet::words::{self, Prices};
use fleet::{Ramp, Typed};

/// What a whole run comes to.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Budget")]
pub struct BudgetArgs {
    /// Tokens of the whole run, as 15T or 300B: days, device-hours, energy, checkpoints and goodput, on one page
    #[arg(long, value_name = "TOKENS", value_parser = words::count)]
    pub tokens: Option<u64>,
    /// Days it may take; `--on ?xH100` then finds the smallest fleet that does it
    #[arg(long, value_name = "DAYS", value_parser = days, requires = "tokens")]
    pub days: Option<f64>,
    /// What a device-hour costs, as 2.5, or by device: H100=2.5,A100=1.2
    #[arg(long, alias = "price", value_name = "PRICE", value_parser = Prices::parse, requires = "tokens")]
    pub price_per_device_hour: Option<Prices>,
    /// Power of the hall over that of its machines
    #[arg(long, value_name = "FACTOR", value_parser = pue, default_value = "1", requires = "tokens")]
    pub pue: f64,
    /// A batch that grows, as 32:32:50B: from so many sequences, by so many, over so many tokens
    #[arg(long, value_name = "START:STEP:TOKENS", value_parser = Ramp::parse, requires = "tokens")]
    pub ramp: Option<Ramp>,
    #[command(flatten)]
    pub failing: FailureArgs,
    /// Checkpoints are written while steps go on, once they are copied to the host
    #[arg(long, requires = "tokens")]
    pub async_save: bool,
}

/// What interrupts a run, and what takes its checkpoints in.
#[derive(Args, Clone, Debug, Default)]
pub struct FailureArgs {
    /// Days of one node between interruptions (default: published ones of its kind)
    #[arg(long, value_name = "DAYS", value_parser = node_days, requires = "tokens")]
    pub node_mtbf: Option<f64>,
    /// Seconds from an interruption to the first new step (default: 600)
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "tokens")]
    pub restart: Option<f64>,
    /// What storage takes in from all nodes together, in GB/s (default: 0.65 a node)
    #[arg(long, value_name = "GB/S", value_parser = rate, requires = "tokens")]
    pub storage_rate: Option<f64>,
}

/// How long a launch runs, which decides how often it saves.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Budget")]
pub struct RunArgs {
    /// Tokens of the whole run, as 15T or 300B: its steps, and the checkpoint interval to set, are written for the engine
    #[arg(long, value_name = "TOKENS", value_parser = words::count)]
    pub tokens: Option<u64>,
    #[command(flatten)]
    pub failing: FailureArgs,
}

impl RunArgs {
    /// As `plan` is asked.
    pub fn budget(&self) -> BudgetArgs {
        BudgetArgs { tokens: self.tokens, failing: self.failing.clone(), pue: 1.0, ..BudgetArgs::default() }
    }
}

/// A run that a report's plan is asked about, as typed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Budget")]
pub struct AskedRun {
    /// Tokens of a whole run, as 15T: with --plan, its days, checkpoints and goodput
    #[arg(long, value_name = "TOKENS", value_parser = as_typed(words::count), requires = "plan")]
    pub tokens: Option<String>,
    /// Days it may take
    #[arg(long, value_name = "DAYS", value_parser = as_typed(days), requires = "tokens")]
    pub days: Option<String>,
    /// What a device-hour costs, as 2.5, or by device: H100=2.5,A100=1.2
    #[arg(long, alias = "price", value_name = "PRICE", value_parser = as_typed(Prices::parse), requires = "tokens")]
    pub price_per_device_hour: Option<String>,
}

impl AskedRun {
    /// As `plan` is told, the frontier kept.
    pub fn words(&self) -> Vec<String> {
        let Some(tokens) = &self.tokens else { return Vec::new() };
        let mut out = vec!["--top".to_string(), "1".to_string(), "--tokens".to_string(), tokens.clone()];
        for (flag, value) in [("--days", &self.days), ("--price-per-device-hour", &self.price_per_device_hour)] {
            out.extend(value.iter().flat_map(|value| [flag.to_string(), value.clone()]));
        }
        out
    }
}

/// A word that can be read, as it stands.
fn as_typed<T>(read: fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text| read(text).map(|_| text.to_string())
}

impl BudgetArgs {
    /// As typed.
    pub fn words(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map(|value| value.to_string());
        let failing = &self.failing;
        let flags = [
            ("--tokens", self.tokens.map(|tokens| tokens.to_string())),
            ("--days", number(self.days)),
            ("--price-per-device-hour", self.price_per_device_hour.as_ref().map(Prices::to_string)),
            ("--pue", number(Some(self.pue).filter(|factor| *factor > 1.0))),
            ("--ramp", self.ramp.as_ref().map(Ramp::to_string)),
            ("--node-mtbf", number(failing.node_mtbf)),
            ("--restart", number(failing.restart)),
            ("--storage-rate", number(failing.storage_rate)),
        ];
        let mut out: Vec<String> =
            flags.into_iter().filter_map(|(flag, value)| Some([flag.to_string(), value?])).flatten().collect();
        out.extend(self.async_save.then(|| "--async-save".to_string()));
        out
    }

    /// What was typed of failures and storage.
    pub fn failures(&self) -> Typed {
        Typed {
            node_days: self.failing.node_mtbf,
            restart_seconds: self.failing.restart,
            write_bytes_per_second: self.failing.storage_rate.map(|rate| 1e9 * rate),
        }
    }
}

fn days(text: &str) -> Result<f64, String> {
    words::positive(text, 1e5)
}

fn node_days(text: &str) -> Result<f64, String> {
    words::positive(text, 1e7)
}

fn seconds(text: &str) -> Result<f64, String> {
    words::positive(text, 1e6)
}

fn rate(text: &str) -> Result<f64, String> {
    words::positive(text, 1e6)
}

fn pue(text: &str) -> Result<f64, String> {
    words::positive(text, 10.0).ok().filter(|factor| *factor >= 1.0).ok_or("a factor from 1 to 10".to_string())
}
