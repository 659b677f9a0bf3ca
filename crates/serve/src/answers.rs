//! From a request to an answer: read, translated, remembered or asked.

use crate::cache::Given;
use crate::jobs::Running;
use crate::questions::{Effort, Question};
use crate::words::{Words, words};
use crate::{Asked, Server, query, refused};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use diag::{Blame, Finding, did_you_mean, quote};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a body.
pub const BODY_BYTES: usize = 1 << 20;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);

/// How long a stopped answer is waited for.
const STOPPING: Duration = Duration::from_secs(5);

/// Seconds after which somebody who was sent away may come back.
const COME_BACK: u64 = 2;

/// A refusal before anything was asked.
pub type Refused = Response;

/// `GET /api/v1/QUESTION?…`.
pub async fn get(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let body = query::body(&query.unwrap_or_default());
    match named(&name) {
        Ok(question) => answered(&server, question, &body, &headers).await,
        Err(refusal) => refusal,
    }
}

/// `POST /api/v1/QUESTION`.
pub async fn post(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let question = match named(&name) {
        Ok(question) => question,
        Err(refusal) => return refusal,
    };
    match read(&headers, body).await {
        Ok(body) => answered(&server, question, &body, &headers).await,
        Err(refusal) => refusal,
    }
}

/// `GET /api/v1/jobs/ID`.
pub async fn job(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Response {
    server.jobs.json(&name).map_or_else(|| no_job(&name), |job| document(StatusCode::OK, job.to_string()))
}

/// `DELETE /api/v1/jobs/ID`.
pub async fn stop(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Response {
    server.jobs.stop(&name).map_or_else(|| no_job(&name), |job| document(StatusCode::OK, job.to_string()))
}

/// `GET /api/v1/openapi.json`.
pub async fn openapi(State(server): State<Arc<Server>>) -> Response {
    document(StatusCode::OK, server.settings.openapi.clone())
}

/// Anything else below `/api`.
pub async fn nothing() -> Response {
    refused(StatusCode::NOT_FOUND, [wrong("address", "there is nothing at this address").hint(WHERE)])
}

const WHERE: &str = "POST /api/v1/QUESTION; /api/v1/openapi.json says what may be asked";

fn wrong(object: &str, message: impl Into<String>) -> Finding {
    Finding::error("serve/request", Blame::Usage, object, message)
}

fn no_job(name: &str) -> Response {
    let message = format!("no job `{}` is on its way", quote::terminal(name));
    refused(StatusCode::NOT_FOUND, [Finding::error("serve/job", Blame::Usage, "job", message)])
}

fn named(name: &str) -> Result<&'static Question, Refused> {
    Question::find(name).ok_or_else(|| {
        let names = crate::questions::QUESTIONS.iter().map(|question| question.name);
        let hint = did_you_mean(name, names).map_or(WHERE.to_string(), |close| format!("did you mean `{close}`?"));
        let message = format!("there is no question `{}`", quote::terminal(name));
        refused(StatusCode::NOT_FOUND, [wrong("question", message).hint(hint)])
    })
}

/// The body as an object.
pub async fn read(headers: &HeaderMap, body: Body) -> Result<Map<String, Value>, Refused> {
    let refuse = |status, message: &str| Err(refused(status, [wrong("body", message)]));
    // Pages of other sites may send plain text without asking; JSON they have to ask for, and nobody answers.
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body is sent as `Content-Type: application/json`");
    }
    let bytes = match timeout(ARRIVAL, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return refuse(StatusCode::PAYLOAD_TOO_LARGE, "a body has at most 1 MiB"),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive within ten seconds"),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(_) => refuse(StatusCode::BAD_REQUEST, "a body is one JSON object"),
        Err(error) => {
            let message = format!("the body is no JSON: {}", quote::terminal(&error.to_string()));
            refuse(StatusCode::BAD_REQUEST, &message)
        }
    }
}

async fn answered(
    server: &Server,
    question: &'static Question,
    body: &Map<String, Value>,
    headers: &HeaderMap,
) -> Response {
    match ask(server, question, body, headers).await {
        Ok(given) => document(status(given.exit), given.body),
        Err(refusal) => refusal,
    }
}

/// Exit codes as HTTP has them: a no is an answer where it was asked whether something fits.
pub fn status(exit: u8) -> StatusCode {
    match exit {
        0 | 3 => StatusCode::OK,
        1 | 2 => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The answer to a question: one that was given before, or a new one.
pub async fn ask(
    server: &Server,
    question: &'static Question,
    body: &Map<String, Value>,
    headers: &HeaderMap,
) -> Result<Given, Refused> {
    let store = match (question.asks_store, server.settings.receipts.as_deref()) {
        (true, None) => {
            let message = "this server was not told where receipts are kept";
            let hint = "start it with `shardwright serve --receipts DIR`";
            let finding = Finding::error("serve/receipts", Blame::Usage, "receipts", message).hint(hint);
            return Err(refused(StatusCode::UNPROCESSABLE_ENTITY, [finding]));
        }
        (true, store) => store,
        (false, _) => None,
    };
    let words = words(question, body, store).map_err(|findings| refused(StatusCode::UNPROCESSABLE_ENTITY, findings))?;
    let key = words.key();
    if let Some(given) = server.cache.get(&key) {
        return Ok(given);
    }
    let running = begin(server, question, headers)?;
    let (given, may_keep) = run(server, question, words, running).await?;
    if may_keep && !question.asks_store && matches!(given.exit, 0 | 3) {
        server.cache.put(key, given.clone());
    }
    Ok(given)
}

/// A job, by the name that its asker gave it.
fn begin(server: &Server, question: &'static Question, headers: &HeaderMap) -> Result<Running, Refused> {
    let name = match headers.get("x-job").map(|name| name.to_str().unwrap_or_default()) {
        None => None,
        Some(name) => {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
                let message = "`x-job` is 1 to 64 letters, digits, `-`, `_` and `.`";
                return Err(refused(
                    StatusCode::BAD_REQUEST,
                    [Finding::error("serve/job", Blame::Usage, "x-job", message)],
                ));
            }
            Some(name.to_string())
        }
    };
    server.jobs.begin(name, question.name).ok_or_else(|| {
        let message = "another question with this `x-job` is on its way";
        refused(StatusCode::CONFLICT, [Finding::error("serve/job", Blame::Usage, "x-job", message)])
    })
}

/// Asks when it is its turn, for as long as somebody waits and no longer than it may take.
async fn run(
    server: &Server,
    question: &'static Question,
    words: Words,
    running: Running,
) -> Result<(Given, bool), Refused> {
    let limits = &server.settings.limits;
    let (turns, patience) = match question.effort {
        Effort::Quick => (&server.quick, limits.answer),
        Effort::Search => (&server.searches, limits.search),
    };
    let Some(turn) = turns.take().await else { return Err(busy(question)) };
    let job = running.job.clone();
    job.begins();
    let (told, stop) = (job.clone(), job.stop.clone());
    let progress = Arc::new(move |done, all| told.is_at(done, all));
    let asked = Asked { words: words.words, texts: words.texts, stop: job.stop.clone(), progress };
    let ask = server.settings.ask.clone();
    let mut answer = tokio::task::spawn_blocking(move || {
        let answer = ask(asked);
        drop(turn);
        answer
    });
    let answer = match timeout(patience, &mut answer).await {
        Ok(answer) => answer,
        Err(_) => {
            stop.store(true, Ordering::Relaxed);
            let _ = timeout(STOPPING, answer).await;
            let message = format!("no answer within {} seconds", patience.as_secs());
            let hint = "pin more of the layout, or ask the command line, which waits";
            let finding = Finding::error("serve/time", Blame::Environment, question.name, message).hint(hint);
            return Err(refused(StatusCode::SERVICE_UNAVAILABLE, [finding]));
        }
    };
    match answer {
        Ok(answer) => Ok((Given { body: Bytes::from(answer.document), exit: answer.exit }, answer.may_keep)),
        Err(_) => {
            let finding = Finding::error("serve/panic", Blame::Bug, question.name, "answering this panicked");
            Err(refused(StatusCode::INTERNAL_SERVER_ERROR, [finding]))
        }
    }
}

fn busy(question: &Question) -> Response {
    let message = format!("too many are waiting for an answer to `{}`", question.name);
    let finding = Finding::error("serve/busy", Blame::Environment, question.name, message)
        .hint(format!("ask again in {COME_BACK} seconds"));
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, [finding]);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(COME_BACK));
    response
}

/// A JSON document.
pub fn document(status: StatusCode, body: impl Into<Body>) -> Response {
    let head = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, head, body.into()).into_response()
}
