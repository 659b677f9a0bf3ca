//! What can be typed. Help texts teach: each says what the thing is, not only how to spell it.

mod budget;
mod help;
mod keeping;
mod looking;
mod pictures;
mod pricing;
mod running;
mod searching;
mod seen;
mod serving;
mod work;

pub use budget::{BudgetArgs, RunArgs};
pub use help::{command, parse};
pub use keeping::*;
pub use looking::*;
pub use pictures::*;
pub use pricing::*;
pub use running::*;
pub use searching::*;
pub use seen::*;
pub use serving::*;
pub use work::WorkArgs;

pub use crate::commands::receipt::ReceiptArgs;

use clap::{Parser, Subcommand};

/// The version, and the commit it was built from where that is known.
const VERSION: &str = env!("SHARDWRIGHT_VERSION");

/// Before you launch a model on a cluster: who owns what, will it fit, how fast will it go, what do you run?
#[derive(Parser)]
#[command(name = "shardwright", version = VERSION, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Answer in JSON with stable, versioned keys
    #[arg(long, global = true)]
    pub json: bool,
    /// Panic on purpose
    #[cfg(debug_assertions)]
    #[arg(long, global = true, hide = true)]
    pub crash: Option<crate::panics::crash::Crash>,
    /// What to ask
    #[command(subcommand)]
    pub command: Command,
}

/// The questions.
#[derive(Subcommand)]
pub enum Command {
    /// What to run on this cluster
    Plan(PlanArgs),
    /// Will it fit? Memory of every rank class, line by line and phase by phase
    Fit(FitArgs),
    /// What to hand to the cluster: the engine's own arguments, job files and a record
    Launch(LaunchArgs),
    /// The same answers as a page and a JSON API, on this machine
    Serve(ServeArgs),
    /// How many parameters, by family and surface; how many act on one token
    Params(ParamsArgs),
    /// Who owns what: every tensor, its rule, its per-rank shape, and what no axis can fix
    Splits(SplitsArgs),
    /// Is this layout legal? Every finding with its rule, the reason, and values that would do
    Check(CheckArgs),
    /// What else each axis could be in this job's place, and which rule refuses what it could not
    Choices(ChoicesArgs),
    /// Pipeline cuts: what each stage owns besides layers, and seams to look at
    Stages(StagesArgs),
    /// Ranks, coordinates and the groups of every axis
    Mesh(MeshArgs),
    /// The simulated step: what each stage does when, and where it waits
    Schedule(ScheduleArgs),
    /// A case as one file that opens anywhere: pictures, tables, what to run
    Report(ReportArgs),
    /// Which lines grow between two recipes or layouts
    Diff(DiffArgs),
    /// What an axis partitions, what it communicates, what it cannot fix
    Axes(AxesArgs),
    /// The built-in recipes; with a name, its text to start your own from
    Recipes(RecipesArgs),
    /// A recipe from a Hugging Face config.json or a Megatron argument list
    Import(ImportArgs),
    /// The devices and networks we know, every fact with its source; or what is in a file of yours
    Hardware(HardwareArgs),
    /// Ways to run a model: engine, wrapper, optimizer and compile policy, and which one suits
    Lanes(LanesArgs),
    /// What an engine may be told in its own words (--engine-args), and what each word changes
    Options(OptionsArgs),
    /// Is this machine fit to run on? Storage, environment, ports, processes, devices, limits, clock
    Preflight(PreflightArgs),
    /// Is the split right? Trains the model made small on every rank and on one, and compares
    Rehearse(RehearseArgs),
    /// One rank of the job on one GPU: a directory that runs the engine's own trainer, and what we predict of it
    Probe(ProbeArgs),
    /// Keep what became of a run: record it from its logs, list, show, supersede; files and an index
    Receipt(ReceiptArgs),
    /// Inspect, verify or reshard a checkpoint: our own, torch DCP or safetensors
    Checkpoint(CheckpointArgs),
    /// From a symptom to the axis to look at, or to what else drifted, and what to inspect in order
    Diagnose(DiagnoseArgs),
    /// Our predictions against measured rows
    Fidelity(FidelityArgs),
    /// What a word of this project means: mode, lane, seam, rank class
    Glossary(GlossaryArgs),
    /// The manual pages: the first, or all of them as files
    Man(ManArgs),
    /// A completion script for your shell
    Completions(CompletionsArgs),
}
