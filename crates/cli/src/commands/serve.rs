//! `serve`: the same answers over HTTP.

use crate::args::ServeArgs;
use crate::call::{Call, Reads};
use crate::outcome::{BUG, Outcome, Refusal, Report};
use ::serve::{Answered, Asked, Limits, Settings};
use diag::{Blame, Finding, quote};
use serde_json::json;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn run(args: &ServeArgs) -> Outcome {
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
