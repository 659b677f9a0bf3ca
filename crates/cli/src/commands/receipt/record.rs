//! `receipt record`: from a launch directory and its logs, or from logs and the job they are of, to a receipt.

use super::{StoreArgs, five, probed, short, time};
use crate::args::WorkArgs;
use crate::commands::fit::allowed;
use crate::commands::{asked, case_of};
use crate::outcome::{Outcome, Refusal, Report};
use crate::panics;
use ::receipt::store::{RETRACTION, Retraction};
use ::receipt::{
    About, Gathered, Kind, Launched, Outcome as Came, Prediction, Receipt, Superseded, of_launch, of_logs,
};
use case::asked::{LayoutArgs, RecipeArgs, StateArgs, feature};
use case::{Purpose, Seams, Terms};
use clap::Args;
use diag::{Blame, Finding};
use evidence::{Evidence, Format};
use recipe::Feature;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Arguments of `receipt record`.
#[derive(Args)]
pub struct RecordArgs {
    /// The directory that `launch --out` wrote; its logs are read from its own log folder
    #[arg(value_name = "LAUNCH_DIR", required_unless_present = "recipe")]
    pub launch: Option<PathBuf>,
    /// Read this log instead; as often as there are files
    #[arg(long, value_name = "FILE")]
    pub log: Vec<PathBuf>,
    /// What it was: run, probe or rehearsal (default: what its logs are)
    #[arg(long, value_parser = kind)]
    pub kind: Option<Kind>,
    /// A receipt that is no longer believed, by the beginning of its name
    #[arg(long, value_name = "ID", requires = "because")]
    pub supersedes: Option<String>,
    /// Why not
    #[arg(long, value_name = "TEXT", requires = "supersedes")]
    pub because: Option<String>,
    /// The model that ran, where it was not launched from a directory of ours
    #[arg(long, value_name = "RECIPE", conflicts_with = "launch", requires = "log")]
    pub recipe: Option<String>,
    /// Switch features on: mla, dsa, mtp, mhc, mod, engram, ngram_hash, structure, adapters
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature, requires = "recipe")]
    pub with: Vec<Feature>,
    /// Switch features off; `moe` turns E blocks into MLPs where the recipe has them (`moe=attention`: attention)
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature, requires = "recipe")]
    pub without: Vec<Feature>,
    /// What it ran on: 8xH200, 64x8xH200, 64xH100@roce400; without it nothing is promised
    #[arg(long, value_name = "CLUSTER", requires = "recipe")]
    pub on: Option<String>,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub state: StateArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

pub fn run(args: &RecordArgs) -> Outcome {
    let store = args.store.open()?;
    let said = said(args)?;
    if let Some(launched) = &said.launched
        && let Some(planned) = &launched.probe
    {
        return probed::run(args, &store, launched, planned);
    }
    let Gathered { evidence, notes } = gathered(args, &said)?;
    let kind = kind_of(args.kind, &evidence)?;
    let mut receipt = Receipt::new(kind, time::now(), said.about, evidence);
    if kind == Kind::Rehearsal {
        // Nothing was promised of the model made small.
        receipt.prediction = None;
    }
    receipt.supersedes = match (&args.supersedes, &args.because) {
        (Some(old), Some(because)) => {
            let (id, _) = store.find(old)?;
            Some(Superseded { id, reason: because.clone() })
        }
        _ => store.earlier(&receipt),
    };
    panics::none_so_far()?;
    let kept = store.put(&receipt)?;
    let outcome = Came::of(&receipt);
    let mut findings = notes;
    findings.extend(kept.notes);
    let id = short(&kept.id);
    let again = if kept.is_new { "" } else { ", recorded before" };
    if let (false, Some(old), Some(because)) = (kept.is_new, receipt.supersedes.as_ref(), &args.because) {
        // It stands as it is; that it is believed instead of another is said apart.
        let retraction = Retraction {
            schema: RETRACTION.to_string(),
            id: old.id.clone(),
            with: Some(kept.id.clone()),
            because: because.clone(),
            recorded: receipt.recorded.clone(),
        };
        findings.extend(store.retract(&retraction)?.notes);
    }
    let command = format!("shardwright receipt show {id}{}", args.store.typed());
    let instead = receipt.supersedes.as_ref().map_or(String::new(), |old| format!(", supersedes {}", short(&old.id)));
    let text = format!(
        "{}receipt: `{command}`{again}{instead}\n",
        five::lines(receipt.kind, &outcome, receipt.prediction.as_ref())
    );
    let json = json!({
        "id": kept.id, "is_new": kept.is_new, "store": store.root().display().to_string(), "kind": receipt.kind,
        "recorded": receipt.recorded, "supersedes": receipt.supersedes, "identity": receipt.identity,
        "outcome": outcome, "sources": receipt.evidence.sources, "findings": findings,
    });
    Ok(Report::new(text, json).with_findings(&findings))
}

/// What is known of a run before its logs are read.
struct Said {
    about: About,
    launched: Option<Launched>,
}

fn said(args: &RecordArgs) -> Result<Said, Refusal> {
    if let Some(folder) = &args.launch {
        let typed = args.layout != LayoutArgs::default() || args.state != StateArgs::default();
        if typed {
            let message = "a launch directory says its own layout, and another one is typed";
            let finding = Finding::error("receipt/layout", Blame::Usage, "layout", message);
            return Err(finding
                .hint("leave the flags out, or give --recipe and --log instead of the directory")
                .into());
        }
        let launched = Launched::read(folder)?;
        return Ok(Said { about: launched.about.clone(), launched: Some(launched) });
    }
    let recipe = RecipeArgs {
        recipe: args.recipe.clone().unwrap_or_default(),
        with: args.with.clone(),
        without: args.without.clone(),
    };
    let purpose = if args.on.is_some() { Purpose::Run } else { Purpose::Split };
    let case =
        case_of(asked(&recipe, &args.layout, &args.state, args.on.as_deref()), Terms { purpose, seams: Seams::Allow })?;
    let by = env!("CARGO_PKG_VERSION");
    let prediction = match args.on.is_some() {
        true => {
            allowed(&case, &args.work.of_an_answer(), 1)?;
            Some(Prediction::of_case(by, &case))
        }
        false => None,
    };
    Ok(Said { about: About::of_case(&case, by, prediction), launched: None })
}

fn gathered(args: &RecordArgs, said: &Said) -> Result<Gathered, Refusal> {
    let mut bar = Bar::default();
    let mut progress = |path: &Path, bytes: u64, of: u64| bar.at(path, bytes, of);
    let gathered = match &said.launched {
        Some(launched) if args.log.is_empty() => of_launch(launched, &mut progress),
        _ => of_logs(&args.log, &mut progress),
    };
    bar.end();
    Ok(gathered?)
}

/// What a run was, by its logs; another word for it is refused.
pub(super) fn kind_of(typed: Option<Kind>, evidence: &Evidence) -> Result<Kind, Refusal> {
    let has = |format: Format| evidence.sources.iter().any(|source| source.format == format);
    let found = match () {
        () if has(Format::Probe) => Kind::Probe,
        () if has(Format::Rehearsal) => Kind::Rehearsal,
        () => typed.unwrap_or(Kind::Run),
    };
    match typed {
        Some(typed) if typed != found => {
            let (typed, found) = (super::word(typed), super::word(found));
            let message =
                format!("`--kind {typed}`, and what was read is of a {found}: its figures mean something else");
            Err(Finding::error("receipt/kind", Blame::Usage, "kind", message).hint(format!("--kind {found}")).into())
        }
        _ => Ok(found),
    }
}

fn kind(text: &str) -> Result<Kind, String> {
    serde_json::from_value(json!(text)).map_err(|_| "run, probe or rehearsal".to_string())
}

/// How far a long log is read, for who waits at a terminal.
#[derive(Default)]
struct Bar {
    shown: u64,
}

impl Bar {
    /// Bytes between two lines, and below which there is none.
    const EVERY: u64 = 64 << 20;

    fn at(&mut self, path: &Path, bytes: u64, of: u64) {
        if of < Bar::EVERY || bytes < self.shown + Bar::EVERY && bytes >= self.shown || !std::io::stderr().is_terminal()
        {
            return;
        }
        self.shown = bytes;
        let name = path.file_name().map_or(String::new(), |name| diag::quote::terminal(&name.to_string_lossy()));
        let share = 20.0 * bytes as f64 / of as f64;
        let bar: String = (0..20).map(|at| if f64::from(at) < share { '█' } else { '░' }).collect();
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let _ = write!(std::io::stderr(), "\r{bar} {:.1} of {:.1} GiB of {name}\x1b[K", gib(bytes), gib(of));
    }

    fn end(&self) {
        if self.shown > 0 {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
