//! What can be typed. Help texts teach: each says what the thing is, not only how to spell it.

mod keeping;
mod looking;
mod pictures;
mod pricing;
mod running;
mod searching;
mod seen;
mod serving;
mod work;

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

/// Before you launch a hybrid model on a cluster: who owns what, and may it be split so?
#[derive(Parser)]
#[command(name = "shardwright", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "A RECIPE is a built-in name (`shardwright recipes`), a recipe .toml, a Hugging Face config.json or its\n\
folder, or org/name in the local Hugging Face cache; nothing is downloaded.\n\
Words such as mode, lane and seam: shardwright glossary WORD\n\
Start with: shardwright plan nam56r --on 8xH200\n\
Exit codes: 0 yes, 1 the answer is no or the input is wrong, 2 usage, 3 does not fit, 70 our bug."
)]
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
    /// How many parameters, by family and surface; how many act on one token
    Params(ParamsArgs),
    /// Who owns what: every tensor, its rule, its per-rank shape, and what no axis can fix
    Splits(SplitsArgs),
    /// Is this layout legal? Every finding with its rule, the reason, and values that would do
    Check(CheckArgs),
    /// What else each axis could be in this job's place, and which rule refuses what it could not
    Choices(ChoicesArgs),
    /// Ranks, coordinates and the groups of every axis
    Mesh(MeshArgs),
    /// Pipeline cuts: what each stage owns besides layers, and seams to look at
    Stages(StagesArgs),
    /// What an axis partitions, what it communicates, what it cannot fix
    Axes(AxesArgs),
    /// From a symptom to the axis to look at, or to what else drifted, and what to inspect in order
    Diagnose(DiagnoseArgs),
    /// A recipe from a Hugging Face config.json or a Megatron argument list
    Import(ImportArgs),
    /// The built-in recipes; with a name, its text to start your own from
    Recipes(RecipesArgs),
    /// The devices and networks we know, every fact with its source; or what is in a file of yours
    Hardware(HardwareArgs),
    /// Will it fit? Memory of every rank class, line by line and phase by phase
    Fit(FitArgs),
    /// The simulated step: what each stage does when, and where it waits
    Schedule(ScheduleArgs),
    /// A case as one file that opens anywhere: pictures, tables, what to run
    Report(ReportArgs),
    /// Which lines grow between two recipes or layouts
    Diff(DiffArgs),
    /// Our predictions against measured rows
    Fidelity(FidelityArgs),
    /// What to run on this cluster
    Plan(PlanArgs),
    /// Is the split right? Trains the model made small on every rank and on one, and compares
    Rehearse(RehearseArgs),
    /// Inspect, verify or reshard a checkpoint: our own, torch DCP or safetensors
    Checkpoint(CheckpointArgs),
    /// Is this machine fit to run on? Storage, environment, ports, processes, devices, limits, clock
    Preflight(PreflightArgs),
    /// What to hand to the cluster: the engine's own arguments, job files and a record
    Launch(LaunchArgs),
    /// One rank of the job on one GPU: a directory that runs the engine's own trainer, and what we predict of it
    Probe(ProbeArgs),
    /// Keep what became of a run: record it from its logs, list, show, supersede; files and an index
    Receipt(ReceiptArgs),
    /// Ways to run a model: engine, wrapper, optimizer and compile policy, and which one suits
    Lanes(LanesArgs),
    /// What a word of this project means: mode, lane, seam, rank class
    Glossary(GlossaryArgs),
    /// What an engine may be told in its own words (--engine-args), and what each word changes
    Options(OptionsArgs),
    /// The same answers as a page and a JSON API, on this machine
    Serve(ServeArgs),
    /// A completion script for your shell
    Completions(CompletionsArgs),
}
