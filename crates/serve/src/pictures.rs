//! `POST /api/v1/draw/PICTURE`: an answer, drawn.

use crate::answers::{ask, read, status};
use crate::cache::Given;
use crate::questions::{AGAINST, DRAWN, Question};
use crate::words::object_of;
use crate::{Server, refused};
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use diag::{Blame, Finding, did_you_mean, quote};
use draw::{Options, Picture, Undrawn};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Draws an answer to the body's question.
pub async fn post(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Some(&(_, picture)) = Picture::ALL.iter().find(|(known, _)| *known == name) else { return unknown(&name) };
    let drawn = async {
        let mut body = read(&headers, body).await?;
        let how = taken(&mut body, DRAWN.iter().map(|key| key.flag));
        let against = taken(&mut body, AGAINST.iter().map(|key| key.flag)).remove("against");
        let options = options(&how)?;
        let answer = answered(&server, picture, &body, &headers).await?;
        let before = match against.filter(|job| !job.is_null()) {
            None => None,
            Some(_) if picture != Picture::Memory => return Err(wrong("against", "`against` is for `memory`")),
            Some(job) => {
                Some(answered(&server, picture, object_of(&job).map_err(|f| refusal(vec![f]))?, &headers).await?)
            }
        };
        tokio::task::spawn_blocking(move || match before {
            Some(before) => draw::difference(&before, &answer, &options),
            None => draw::picture(picture, &answer, &options),
        })
        .await
        .unwrap_or_else(|_| Err(Undrawn("drawing this panicked".to_string())))
        .map_err(|Undrawn(why)| wrong("answer", &quote::sentence(&why)))
    };
    match drawn.await {
        Ok(svg) => {
            ([(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "no-store")], svg).into_response()
        }
        Err(refusal) => refusal,
    }
}

fn refusal(findings: Vec<Finding>) -> Response {
    refused(StatusCode::UNPROCESSABLE_ENTITY, findings)
}

fn wrong(object: &str, message: &str) -> Response {
    refusal(vec![Finding::error("serve/picture", Blame::Usage, object, message)])
}

fn unknown(name: &str) -> Response {
    let message = format!("there is no picture `{}`", quote::terminal(name));
    let finding = Finding::error("serve/picture", Blame::Usage, "picture", message);
    let names: Vec<&str> = Picture::ALL.iter().map(|(name, _)| *name).collect();
    let close = did_you_mean(name, names.iter().copied());
    let hint = close.map_or(format!("pictures are {}", names.join(", ")), |close| format!("did you mean `{close}`?"));
    refused(StatusCode::NOT_FOUND, [finding.hint(hint)])
}

/// Takes keys out of a body.
fn taken(body: &mut Map<String, Value>, keys: impl Iterator<Item = &'static str>) -> Map<String, Value> {
    keys.filter_map(|key| Some((key.to_string(), body.remove(key)?))).collect()
}

/// The answer that is drawn, as JSON; a refusal where there is none.
async fn answered(
    server: &Server,
    picture: Picture,
    body: &Map<String, Value>,
    headers: &HeaderMap,
) -> Result<Value, Response> {
    let question =
        Question::find(picture.question()).ok_or_else(|| wrong("picture", "its question is not asked here"))?;
    let Given { body, exit } = ask(server, question, body, headers).await?;
    match status(exit) {
        StatusCode::OK => Ok(serde_json::from_slice(&body).unwrap_or_default()),
        status => Err(crate::answers::document(status, Bytes::clone(&body))),
    }
}

fn options(how: &Map<String, Value>) -> Result<Options, Response> {
    let switch = |key: &str| match how.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_on)) => Ok(*is_on),
        Some(_) => Err(wrong(key, &format!("`{key}` is true or false"))),
    };
    let number = |key: &str| match how.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            None => Err(wrong(key, &format!("`{key}` is a whole number"))),
            number => Ok(number),
        },
    };
    let (stage, zoom) = (number("stage")?, number("zoom")?);
    Ok(Options { narrow: switch("narrow")?, titles: switch("titles")?, stage, zoom })
}
