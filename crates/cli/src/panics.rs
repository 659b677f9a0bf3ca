//! A panic is our bug, on whatever thread it happens and whoever catches it: the command ends with exit 70
//! and one line to report, and nothing is written after it.

use crate::outcome::{BUG, Refusal, Report};
use diag::{Blame, Finding, quote};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once, PoisonError};

/// How many panics this process has seen, and those that were first of a call's; what follows from one is no news.
static SEEN: Mutex<(usize, BTreeMap<usize, Finding>)> = Mutex::new((0, BTreeMap::new()));

/// Panics that are remembered.
const KEPT: usize = 64;

/// Characters of a panic's message that are worth a line.
const SHOWN: usize = 300;

/// Remembers panics instead of printing them: ranks and workers panic many at a time. With `RUST_BACKTRACE`
/// the first one's backtrace is printed as well.
pub fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let usual = std::panic::take_hook();
        let wants_trace = std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0");
        std::panic::set_hook(Box::new(move |info| {
            if remember(finding(info)) == 0 && wants_trace {
                usual(info);
            }
        }));
    });
}

fn remember(finding: Finding) -> usize {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let number = seen.0;
    seen.0 += 1;
    seen.1.insert(number, finding);
    if seen.1.len() > KEPT {
        seen.1.pop_first();
    }
    number
}

/// How many panics there were so far.
pub fn seen() -> usize {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).0
}

/// The first panic since this call began, whoever caused it: of two calls at once both are refused.
fn first() -> Option<Finding> {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = crate::call::panics_before();
    seen.1.range(before..).next().map(|(_, finding)| finding.clone())
}

fn finding(info: &PanicHookInfo) -> Finding {
    let place = info.location().map_or("an unknown place".to_string(), |l| format!("{}:{}", l.file(), l.line()));
    let payload = info.payload();
    let said = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    let said = said.unwrap_or("a panic without a message");
    // One line, whatever the message holds.
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let said: String = quote::terminal(&said).chars().take(SHOWN).collect();
    let thread = std::thread::current();
    let thread = thread.name().filter(|name| *name != "main").map_or(String::new(), |name| format!(" on {name}"));
    let message = format!("{said}, at {place}{thread}, in shardwright {}", env!("CARGO_PKG_VERSION"));
    Finding::error("bug/panic", Blame::Bug, place, message)
}

/// Refuses to go on after a panic, also one that somebody caught: for whoever is about to write.
pub fn none_so_far() -> Result<(), Refusal> {
    first().map_or(Ok(()), |finding| Err(finding.into()))
}

/// The report of this call's first panic, if there was one.
pub fn report(words: &[OsString]) -> Option<Report> {
    let finding = first()?;
    let hint = format!("please report it with the command: {}", quote::typed_line(words));
    let line = format!("bug: {}; {hint}\n", finding.message);
    let finding = finding.hint(hint);
    Some(Report { verbatim_messages: line, ..Report::new(String::new(), json!({})) }.refused(BUG, [finding]))
}

/// Panics on purpose, so that tests see what becomes of one.
#[cfg(debug_assertions)]
pub mod crash {
    use clap::ValueEnum;
    use rayon::prelude::*;
    use std::time::Duration;

    /// Where to panic.
    #[derive(Clone, Copy, ValueEnum)]
    pub enum Crash {
        /// On the thread of the command.
        Main,
        /// On a thread whose end nobody looks at; the command goes on.
        Worker,
        /// In a parallel loop.
        Loop,
        /// On every rank at once, which `comm` catches; the command goes on.
        Ranks,
    }

    impl Crash {
        /// Panics there.
        pub fn now(self) {
            let boom = |what: &str| panic!("made to panic:\n{what}");
            match self {
                Crash::Main => boom("the command"),
                Crash::Worker => drop(std::thread::spawn(move || boom("a worker")).join()),
                Crash::Loop => (0..64).into_par_iter().for_each(|_| boom("a loop")),
                Crash::Ranks => {
                    let ends = comm::threads::run(4, Duration::from_secs(5), |_| -> comm::Result<()> {
                        boom("a rank");
                        Ok(())
                    });
                    assert!(ends.iter().all(|end| end.is_err()));
                }
            }
        }
    }
}
