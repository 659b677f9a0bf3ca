//! The command line: parse, call, render. The only part of the project that prints, reads files
//! and exits.

mod args;
mod commands;
mod files;
mod hub;
mod machine;
mod outcome;
mod output;
mod picture;
mod table;
mod usage;
mod width;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use outcome::{Outcome, Report};
use std::io::Write;
use std::process::ExitCode;

/// Rehearsals say how much is really allocated; whoever does not ask pays eight bytes a block.
#[global_allocator]
static COUNTING: runtime::live::Counting = runtime::live::Counting;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let wants_json = std::env::args_os().any(|word| word == "--json");
            return finish(Ok(usage::refused(error, wants_json)), wants_json);
        }
    };
    let wants_json = cli.json;
    match std::panic::catch_unwind(|| run(&cli)) {
        Ok(outcome) => finish(outcome, wants_json),
        Err(_) => {
            // The panic hook has printed where; this says what to do with it.
            let _ = writeln!(anstream::stderr(), "this is a bug in shardwright: please report the command you typed");
            ExitCode::from(70)
        }
    }
}

fn run(cli: &Cli) -> Outcome {
    match &cli.command {
        Command::Params(args) => commands::params::run(args),
        Command::Splits(args) => commands::splits::run(args),
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
