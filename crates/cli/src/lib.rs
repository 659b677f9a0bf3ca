//! The command line as a library: parse, call, render. The only part of the project that prints, reads files
//! and exits; the page and the Python package ask it with the same words and get the same JSON.

mod args;
mod bars;
mod call;
mod commands;
mod files;
mod hub;
mod machine;
mod outcome;
mod output;
mod panics;
mod perfetto;
mod pictures;
mod snapshot;
mod table;
mod usage;
mod width;

pub use call::{Call, Progress, Reads};
pub use outcome::SCHEMA;

use args::{Cli, Command};
use outcome::{Outcome, Report};
use serde_json::Value;
use std::ffi::OsString;

/// Rehearsals say how much is really allocated; whoever does not ask pays eight bytes a block.
#[global_allocator]
static COUNTING: runtime::live::Counting = runtime::live::Counting;

/// What a question comes to.
#[derive(Debug)]
pub struct Answer {
    /// For people, with styles, as wide as it came.
    pub text: String,
    /// For machines; none where a command answers with a file alone.
    pub json: Option<Value>,
    /// Findings as they are shown on standard error.
    pub messages: String,
    /// Exit code of the command: 0 yes, 1 no or wrong input, 2 usage, 3 does not fit, 70 our bug.
    pub exit: u8,
    /// Whether a file was read: then the same words may have another answer later.
    pub has_read: bool,
}

impl Answer {
    /// The JSON exactly as `--json` prints it.
    pub fn document(&self) -> Option<String> {
        self.json.as_ref().map(output::document)
    }
}

/// Answers a command line, the program's name first, on standard output and error; gives the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> u8 {
    panics::watch();
    let words: Vec<OsString> = words.into_iter().collect();
    let wants_json = words.iter().any(|word| word == "--json");
    let (report, _) = call::scope(Call::default(), || report(&words));
    output::print(&report, wants_json)
}

/// Answers the words of a command line, the program's name first, and prints nothing.
pub fn answer(words: &[OsString], call: Call) -> Answer {
    panics::watch();
    let (report, has_read) = call::scope(call, || report(words));
    Answer {
        json: report.json(),
        text: report.text + &report.verbatim,
        messages: report.messages.concat() + &report.verbatim_messages,
        exit: report.exit,
        has_read,
    }
}

/// What the words come to, unless something panicked on the way: then nothing they say is believed.
fn report(words: &[OsString]) -> Report {
    let wants_json = words.iter().any(|word| word == "--json");
    let outcome = std::panic::catch_unwind(|| match args::parse(words.iter().cloned()) {
        Ok(cli) => run(&cli),
        Err(error) => Ok(usage::refused(error, words, wants_json)),
    });
    match (panics::report(words), outcome) {
        (Some(bug), _) => bug,
        (None, Ok(outcome)) => outcome.unwrap_or_else(|refusal| refusal.into_report()),
        (None, Err(_)) => Report { exit: outcome::BUG, ..Report::default() },
    }
}

/// An answer as a fragment of HTML, for notebooks; nothing where there is none of that question.
pub fn html(question: &str, answer: &Value) -> String {
    draw::html::of(question, answer)
}

fn run(cli: &Cli) -> Outcome {
    #[cfg(debug_assertions)]
    cli.crash.iter().for_each(|crash| crash.now());
    match &cli.command {
        Command::Params(args) => commands::params::run(args),
        Command::Splits(args) => commands::splits::run(args, cli.json),
        Command::Check(args) => commands::check::run(args),
        Command::Choices(args) => commands::choices::run(args),
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
        Command::Schedule(args) => commands::schedule::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Fidelity(args) => commands::fidelity::run(args),
        Command::Preflight(args) => commands::preflight::run(args),
        Command::Launch(args) => commands::launch::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Receipt(args) => commands::receipt::run(args),
        Command::Glossary(args) => commands::glossary::run(args),
        Command::Lanes(args) => commands::lanes::run(args),
        Command::Options(args) => commands::options::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Man(args) => commands::man::run(args),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut args::command(), "shardwright", &mut script);
            Ok(Report::text(String::from_utf8_lossy(&script).into_owned()))
        }
    }
}
