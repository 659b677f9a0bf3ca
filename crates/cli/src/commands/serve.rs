//! `serve`: the same answers over HTTP.

use crate::args::ServeArgs;
use crate::call::{Call, Reads};
use crate::outcome::{BUG, Outcome, Refusal, Report};
use ::serve::{Answered, Asked, Limits, Settings};
use clap::builder::StyledStr;
use diag::{Blame, Finding, quote};
use serde_json::json;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn run(args: &ServeArgs) -> Outcome {
    if args.openapi {
        return Ok(Report::text(openapi()));
    }
    let settings = settings(args)?;
    let address = SocketAddr::new(args.bind, args.port);
    let connections = settings.limits.connections;
    let served = ::serve::listen(address, connections, ::serve::router(settings), |address| {
        let _ = writeln!(anstream::stdout(), "http://{address}/");
    });
    served.map_err(|error| {
        let message = format!("cannot serve at {address}: {error}");
        Finding::error("serve/listen", Blame::Environment, address.to_string(), message)
            .hint("`--port 0` takes a port that is free")
    })?;
    Ok(Report::new(String::new(), json!({})))
}

/// What may be asked, in the words of `--help`.
pub fn openapi() -> String {
    let mut whole = crate::args::command();
    whole.build();
    let describe = |command: &[&str], flag: Option<&str>| {
        let found = command.iter().try_fold(&whole, |command, word| command.find_subcommand(word));
        let Some(found) = found else { return String::new() };
        let Some(flag) = flag else { return words(found.get_about()) };
        let is_it = |arg: &&clap::Arg| arg.get_long().map_or(arg.get_id().as_str(), |long| long) == flag;
        found.get_arguments().find(is_it).map_or(String::new(), |arg| words(arg.get_help()))
    };
    format!("{:#}\n", ::serve::openapi(env!("CARGO_PKG_VERSION"), &describe))
}

fn words(text: Option<&StyledStr>) -> String {
    text.map_or(String::new(), |text| text.to_string().replace('\n', " "))
}

/// What a server is started with.
fn settings(args: &ServeArgs) -> Result<Settings, Refusal> {
    let folder = args.folder.as_deref().map(|path| whole("folder", path)).transpose()?;
    let receipts = args.receipts.as_deref().map(|path| whole("receipts", path)).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let settings = Settings {
        ask: Arc::new(move |asked| answered(asked, reads(folder.as_deref()))),
        bind: args.bind,
        token: args.token.clone(),
        receipts: receipts.map(|path| quote::path(path.as_os_str()).map(str::to_string)).transpose()?,
        openapi: openapi(),
        assets: args.assets.as_deref().map(|path| whole("assets", path)).transpose()?,
        limits: Limits::of(cores),
    };
    if let Some(refusal) = settings.refusal() {
        return Err(refusal.into());
    }
    // A name in a question is a path in the folder.
    if let Some(path) = &args.folder {
        std::env::set_current_dir(path).map_err(|error| unreadable("folder", path, &error))?;
    }
    Ok(settings)
}

fn reads(folder: Option<&Path>) -> Reads {
    folder.map_or(Reads::Nothing, |folder| Reads::Below(folder.to_path_buf()))
}

/// A folder that is there, whatever is the current one later.
fn whole(flag: &str, path: &Path) -> Result<PathBuf, Refusal> {
    path.canonicalize().map_err(|error| unreadable(flag, path, &error))
}

fn unreadable(flag: &str, path: &Path, error: &std::io::Error) -> Refusal {
    let message = format!("`--{flag} {}` cannot be read: {error}", quote::shown(path));
    Finding::error("serve/folder", Blame::Usage, flag, message).into()
}

/// The command line's answer.
fn answered(asked: Asked, reads: Reads) -> Answered {
    let call = Call { reads, texts: asked.texts, stop: asked.stop, progress: Some(asked.progress) };
    let answer = crate::answer(&asked.words, call);
    let (document, exit) = match answer.document() {
        Some(document) => (document, answer.exit),
        None => ("{}\n".to_string(), BUG),
    };
    Answered { document, exit, may_keep: !answer.has_read }
}

#[cfg(test)]
mod tests {
    use serve::questions::QUESTIONS;

    /// Flags that no request may say: they write, they name a file to read, or they lift a limit.
    const LEFT_OUT: &[&str] = &[
        "svg",
        "png",
        "trace",
        "memory-snapshot",
        "csv",
        "out",
        "output",
        "snapshot",
        "policy",
        "store",
        "work-limit",
        "offload-nvme",
        // One engine a request: a comparison searches once for each.
        "engines",
    ];

    /// A new flag of a command is either asked for over HTTP as well, or said here not to be.
    #[test]
    fn every_flag_is_in_the_table_or_left_out_by_name() {
        let mut whole = crate::args::command();
        whole.build();
        for question in QUESTIONS {
            let command = question.command.iter().fold(&whole, |command, word| command.find_subcommand(word).unwrap());
            for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
                let is_global = ["help", "version", "json", "crash"].contains(&flag);
                let is_asked = question.keys().any(|key| key.flag == flag);
                assert_eq!(is_asked, !LEFT_OUT.contains(&flag) && !is_global, "{} --{flag}", question.name);
            }
        }
    }
}
