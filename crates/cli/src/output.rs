//! Printing an outcome so that an answer nobody received is no success.

use crate::outcome::Report;
use crate::width;
use diag::{Blame, Finding, quote};
use serde_json::Value;
use std::io::{self, ErrorKind, Write};

/// Exit code where the reader went away (`| head`): what a shell shows of a program that SIGPIPE ended.
const CLOSED: u8 = 128 + 13;

/// Exit code of an answer that could not be written: EX_IOERR of sysexits.h.
const UNWRITTEN: u8 = 74;

/// Prints the answer on standard output and findings on standard error; gives the exit code. Whatever a
/// name in them holds, what a terminal gets is visible characters, line ends and styles.
pub fn print(report: &Report, wants_json: bool) -> u8 {
    let columns = width::columns();
    let answered = answer(report, wants_json, columns);
    let mut stderr = anstream::stderr();
    let said =
        report.messages.iter().try_for_each(|text| write!(stderr, "{}", quote::lines(&width::fold(text, columns))));
    let said = said.and_then(|()| write!(stderr, "{}", quote::lines(&report.verbatim_messages)));
    match (answered, said) {
        (Err(error), _) => unwritten(&error, "standard output", columns),
        (Ok(()), Err(error)) => unwritten(&error, "standard error", columns),
        (Ok(()), Ok(())) => report.exit,
    }
}

fn answer(report: &Report, wants_json: bool, columns: usize) -> io::Result<()> {
    let mut stdout = anstream::stdout();
    match (report.json(), wants_json) {
        (Some(json), true) => write!(stdout, "{}", document(&json)),
        _ => write!(stdout, "{}", quote::lines(&(width::fold(&report.text, columns) + &report.verbatim))),
    }?;
    stdout.flush()
}

/// An answer in JSON as it is printed.
pub fn document(json: &Value) -> String {
    quote::json_document(&format!("{json:#}")) + "\n"
}

fn unwritten(error: &io::Error, stream: &str, columns: usize) -> u8 {
    if error.kind() == ErrorKind::BrokenPipe {
        return CLOSED;
    }
    let message = format!("the answer could not be written to {stream}: {error}");
    let finding = Finding::error("file/stdout", Blame::Environment, stream, message);
    let hint = "what was written of it is not whole: make room, or send it elsewhere";
    let _ = write!(anstream::stderr(), "{}", width::fold(&diag::render(&finding.hint(hint), None), columns));
    UNWRITTEN
}
