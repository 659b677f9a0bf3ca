//! Who may ask: pages of this server, and whoever has the token. What browsers are told besides.

use crate::refused;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use diag::{Blame, Finding};
use std::net::IpAddr;
use std::sync::Arc;

/// The cookie that a token in the address is exchanged for.
const COOKIE: &str = "shardwright";

/// Scripts, styles and requests of this server's own, pictures it made; no frame, no form, no plug-in.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Who may ask.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Whether only names of this machine are answered to: a page elsewhere may have its own name point here.
    pub is_loopback: bool,
    /// What has to be shown.
    pub token: Option<String>,
}

/// Lets a request through, or says why not; sets what every answer carries.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = match guard.refuses(request.method(), request.uri(), request.headers()) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Guard {
    fn refuses(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if self.is_loopback && !is_loopback_name(host) {
            let message = "this server answers to `localhost`, `127.0.0.1` and `[::1]` alone";
            let hint = "open it by one of these names; `--bind` with `--token` serves others";
            return Some(refused(
                StatusCode::FORBIDDEN,
                [Finding::error("serve/host", Blame::Usage, "host", message).hint(hint)],
            ));
        }
        if is_from_elsewhere(headers, host) {
            let message = "this was sent by a page of another site";
            return Some(refused(
                StatusCode::FORBIDDEN,
                [Finding::error("serve/origin", Blame::Usage, "origin", message)],
            ));
        }
        let token = self.token.as_deref()?;
        if method == Method::GET && uri.path() == "/" {
            let given = crate::query::body(uri.query().unwrap_or_default());
            if given.get("token").and_then(|given| given.as_str()).is_some_and(|given| is_same(given, token)) {
                return Some(exchanged(token));
            }
        }
        if shown(headers).any(|given| is_same(given, token)) {
            return None;
        }
        let message = "this server wants its token";
        let hint = "send `Authorization: Bearer TOKEN`, or open `/?token=TOKEN` once in a browser";
        let finding = Finding::error("serve/token", Blame::Usage, "token", message).hint(hint);
        let mut refusal = refused(StatusCode::UNAUTHORIZED, [finding]);
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        Some(refusal)
    }
}

/// Sends a browser back without the token in its address, and with the cookie.
fn exchanged(token: &str) -> Response {
    let cookie = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict");
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response();
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Tokens that a request shows.
fn shown(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).filter_map(|value| value.strip_prefix("Bearer "));
    let cookies = text(header::COOKIE).flat_map(|value| value.split(';')).filter_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == COOKIE).then_some(value)
    });
    bearer.chain(cookies)
}

/// Compared whole: how long it takes says nothing of where they differ.
fn is_same(given: &str, token: &str) -> bool {
    let differences = given.bytes().zip(token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differences == 0
}

fn is_loopback_name(host: &str) -> bool {
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a browser says that another site's page sent this. Links from elsewhere to the page itself are fine.
fn is_from_elsewhere(headers: &HeaderMap, host: &str) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let other_origin =
        text("origin").is_some_and(|origin| origin.split_once("://").is_none_or(|(_, name)| name != host));
    let is_visit = text("sec-fetch-mode") == Some("navigate");
    other_origin
        || (!is_visit && text("sec-fetch-site").is_some_and(|site| site == "cross-site" || site == "same-site"))
}

#[cfg(test)]
mod tests {
    use super::{is_loopback_name, is_same};

    #[test]
    fn names_of_this_machine() {
        for name in ["localhost", "LOCALHOST:8731", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8731", "127.9.9.9:80"] {
            assert!(is_loopback_name(name), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "localhost.evil.example:8731",
            "127.0.0.1.evil.example",
            "192.168.1.2",
            "0.0.0.0",
            "[::]:1",
        ] {
            assert!(!is_loopback_name(name), "{name}");
        }
        assert!(is_same("abc", "abc") && !is_same("abd", "abc") && !is_same("ab", "abc") && !is_same("", "abc"));
    }
}
