//! The command line's answers over HTTP, for the page and for programs: a body becomes the words that a person would
//! type, and the answer is what the command prints. Decides nothing about models; reads and writes no file but the
//! page's own, and knows no command: who starts it hands over how words are answered.

mod answers;
mod assets;
mod cache;
mod guard;
mod jobs;
mod listen;
mod openapi;
mod pictures;
mod query;
pub mod questions;
mod words;

pub use assets::ASSETS;
pub use listen::listen;
pub use openapi::{Describe, openapi};
pub use words::{Words, words};

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use cache::Cache;
use diag::{Blame, Finding};
use guard::Guard;
use jobs::{Jobs, Turns};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The version of the keys of every document that is not a command's own.
const SCHEMA: &str = "shardwright/1";

/// One question as the command line gets it.
pub struct Asked {
    /// The words, the program's name first.
    pub words: Vec<OsString>,
    /// Recipes that came as texts, by the names that words call them.
    pub texts: BTreeMap<String, String>,
    /// Set when nobody waits any more.
    pub stop: Arc<AtomicBool>,
    /// Told how far a search is.
    pub progress: Arc<dyn Fn(u64, u64) + Send + Sync>,
}

/// What the command line said.
pub struct Answered {
    /// As `--json` prints it.
    pub document: String,
    /// Its exit code.
    pub exit: u8,
    /// Whether the same question has the same answer later: no file was read for it.
    pub may_keep: bool,
}

/// How words are answered.
pub type Ask = Arc<dyn Fn(Asked) -> Answered + Send + Sync>;

/// What answers may take of this machine.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Seconds of an answer.
    pub answer: Duration,
    /// Seconds of a search.
    pub search: Duration,
    /// Answers at once, and how many more wait.
    pub answers: (usize, usize),
    /// Searches at once, and how many more wait.
    pub searches: (usize, usize),
    /// Bytes of answers that are remembered.
    pub cache_bytes: usize,
    /// Connections at once.
    pub connections: usize,
}

impl Limits {
    /// What suits so many cores.
    pub fn of(cores: usize) -> Limits {
        Limits {
            answer: Duration::from_secs(30),
            search: Duration::from_secs(300),
            answers: (cores.max(2), 1024),
            searches: ((cores / 2).max(1), 16),
            cache_bytes: 64 << 20,
            connections: 512,
        }
    }
}

/// How a server is started.
#[derive(Clone)]
pub struct Settings {
    /// How words are answered.
    pub ask: Ask,
    /// The address it listens at.
    pub bind: IpAddr,
    /// What has to be shown to be answered.
    pub token: Option<String>,
    /// The store of receipts that is asked about.
    pub receipts: Option<String>,
    /// What may be asked, as OpenAPI.
    pub openapi: String,
    /// Where the page's files are read from, by whoever edits them.
    pub assets: Option<PathBuf>,
    /// What answers may take.
    pub limits: Limits,
}

impl Settings {
    /// Why such a server is not started.
    pub fn refusal(&self) -> Option<Finding> {
        let refuse = |message: &str| Finding::error("serve/token", Blame::Usage, "token", message);
        match &self.token {
            None if !self.bind.is_loopback() => {
                let message =
                    format!("`--bind {}` is reached from other machines, and nothing keeps strangers out", self.bind);
                Some(refuse(&message).hint("`--token` with a word of your own that is hard to guess"))
            }
            Some(token)
                if token.len() < 16 || !token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~".contains(&b)) =>
            {
                let message = "a token is 16 or more letters, digits, `-`, `_`, `.` and `~`";
                Some(refuse(message).hint("`openssl rand -hex 16` makes one"))
            }
            _ => None,
        }
    }
}

/// A server at work.
struct Server {
    settings: Settings,
    cache: Cache,
    jobs: Jobs,
    quick: Turns,
    searches: Turns,
}

/// Everything that is answered, and by whom.
pub fn router(settings: Settings) -> Router {
    let Limits { answer, search, answers, searches, cache_bytes, .. } = settings.limits.clone();
    let guard = Guard { is_loopback: settings.bind.is_loopback(), token: settings.token.clone() };
    let assets = settings.assets.clone();
    let server = Arc::new(Server {
        settings,
        cache: Cache::new(cache_bytes),
        jobs: Jobs::default(),
        quick: Turns::new(answers.0, answers.1, answer),
        searches: Turns::new(searches.0, searches.1, search),
    });
    let api = Router::new()
        .route("/api/v1/openapi.json", get(answers::openapi))
        .route("/api/v1/jobs/{id}", get(answers::job).delete(answers::stop))
        .route("/api/v1/draw/{picture}", post(pictures::post))
        .route("/api/v1/{question}", get(answers::get).post(answers::post))
        .route("/api/{*rest}", axum::routing::any(answers::nothing))
        .with_state(server);
    let page = axum::routing::get(move |uri: axum::http::Uri| async move {
        assets::asset(uri.path().trim_start_matches('/'), assets.as_deref())
    });
    api.fallback_service(page).layer(from_fn_with_state(Arc::new(guard), guard::guard))
}

/// Findings as the command line writes them.
fn refused(status: StatusCode, findings: impl IntoIterator<Item = Finding>) -> Response {
    let findings: Vec<Finding> = findings.into_iter().collect();
    let document = json!({ "schema": SCHEMA, "findings": findings, "error": true });
    answers::document(status, diag::quote::json_document(&format!("{document:#}\n")))
}
