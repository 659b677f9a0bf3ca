//! The command line: parse, call, render. The only part of the project that prints, reads files
//! and exits.

mod args;
mod commands;
mod files;
mod hub;
mod machine;
mod outcome;
mod output;
mod panics;
mod perfetto;
mod picture;
mod snapshot;
mod table;
mod usage;
mod width;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use outcome::{BUG, Outcome, Report};
use std::process::ExitCode;

/// Rehearsals say how much is really allocated; whoever does not ask pays eight bytes a block.
#[global_allocator]
static COUNTING: runtime::live::Counting = runtime::live::Counting;

fn main() -> ExitCode {
    panics::watch();
    let wants_json = std::env::args_os().any(|word| word == "--json");
    let code = std::panic::catch_unwind(|| answer(wants_json));
    match (panics::report(), code) {
        (None, Ok(code)) => code,
        (Some(bug), _) => finish(Ok(bug), wants_json),
        (None, Err(_)) => ExitCode::from(BUG),
    }
}

/// Prints what the command comes to, unless something panicked on the way: then nothing it says is believed.
fn answer(wants_json: bool) -> ExitCode {
    let (outcome, wants_json) = match Cli::try_parse() {
        Ok(cli) => (run(&cli), cli.json),
        Err(error) => (Ok(usage::refused(error, wants_json)), wants_json),
    };
    if panics::report().is_some() {
        return ExitCode::from(BUG);
    }
    finish(outcome, wants_json)
}

fn run(cli: &Cli) -> Outcome {
    #[cfg(debug_assertions)]
    cli.crash.iter().for_each(|crash| crash.now());
    match &cli.command {
        Command::Params(args) => commands::params::run(args),
        Command::Splits(args) => commands::splits::run(args, cli.json),
        Command::Check(args) => commands::check::run(args),
        Command::Mesh(args) => commands::mesh::run(args),
        Command::Stages(args) => commands::stages::run(args),
        Command::Axes(args) => commands::axes::run(args),
        Command::Diagnose(args) => commands::diagnose::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Recipes(args) => commands::recipes::run(args),
        Command::Hardware(args) => commands::hardware::run(args),
        Command::Rehearse(args) => commands::rehearse::run(args),
        Command::Checkpoint(args) => commands::checkpoint::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Fit(args) => commands::fit::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Fidelity(args) => commands::fidelity::run(args),
        Command::Preflight(args) => commands::preflight::run(args),
        Command::Launch(args) => commands::launch::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Receipt(args) => commands::receipt::run(args),
        Command::Glossary(args) => commands::glossary::run(args),
        Command::Lanes(args) => commands::lanes::run(args),
        Command::Options(args) => commands::options::run(args),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "shardwright", &mut script);
            Ok(Report::text(String::from_utf8_lossy(&script).into_owned()))
        }
    }
}

/// Prints an outcome, and exits as it came out or as printing it did.
fn finish(outcome: Outcome, wants_json: bool) -> ExitCode {
    let report = outcome.unwrap_or_else(|refusal| refusal.into_report());
    ExitCode::from(output::print(&report, wants_json))
}
