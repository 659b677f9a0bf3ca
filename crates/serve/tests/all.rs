//! The router with a command line that only says what it was asked: who is let in, what is bounded, what is kept.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use serve::{Answered, Asked, Limits, Settings, router};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tower::ServiceExt;

/// How often it was asked, and how a question is answered.
fn settings(asked: &Arc<AtomicUsize>, answer: fn(&Asked) -> Answered) -> Settings {
    let asked = asked.clone();
    Settings {
        ask: Arc::new(move |question| {
            asked.fetch_add(1, Ordering::SeqCst);
            answer(&question)
        }),
        bind: [127, 0, 0, 1].into(),
        token: None,
        receipts: None,
        openapi: "{}".to_string(),
        assets: None,
        limits: Limits::of(2),
    }
}

/// Says what it was asked.
fn echo(asked: &Asked) -> Answered {
    let words: Vec<_> = asked.words.iter().map(|word| word.to_string_lossy()).collect();
    let exit = match words[1].as_ref() {
        "check" => 1,
        "axes" => 70,
        "fit" => 3,
        _ => 0,
    };
    Answered { document: json!({ "words": words, "texts": asked.texts }).to_string(), exit, may_keep: true }
}

/// A search that ends when it is told to.
fn endless(asked: &Asked) -> Answered {
    let mut done = 0;
    while !asked.stop.load(Ordering::SeqCst) {
        done += 1;
        (asked.progress)(done, 1000);
        std::thread::sleep(Duration::from_millis(2));
    }
    STOPPED.fetch_add(1, Ordering::SeqCst);
    Answered { document: "{\"stopped\": true}".to_string(), exit: 1, may_keep: true }
}

static STOPPED: AtomicUsize = AtomicUsize::new(0);

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
    request.body(body.into()).unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).header("host", "127.0.0.1:8731").body(Body::empty()).unwrap()
}

async fn send(router: &Router, request: Request<Body>) -> Response<Body> {
    router.clone().oneshot(request).await.unwrap()
}

async fn answer(router: &Router, request: Request<Body>) -> (StatusCode, Value) {
    let response = send(router, request).await;
    let (status, body) = (response.status(), to_bytes(response.into_body(), usize::MAX).await.unwrap());
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn rule(body: &Value) -> &str {
    body["findings"][0]["rule"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn exit_codes_are_statuses_and_yes_is_remembered() {
    let asked = Arc::new(AtomicUsize::new(0));
    let router = router(settings(&asked, echo));
    let body = json!({ "recipe": { "name": "mine", "text": "depth = 1" }, "tp": 2, "on": "8xH200" }).to_string();
    let (status, fit) = answer(&router, post("/api/v1/fit", body.clone())).await;
    assert_eq!((status, fit["texts"]["mine"].as_str()), (StatusCode::OK, Some("depth = 1")));
    assert_eq!(fit["words"], json!(["shardwright", "fit", "--on=8xH200", "--tp=2", "--json", "--", "mine"]));
    answer(&router, post("/api/v1/fit", body)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "the second time it is remembered");
    let other = json!({ "recipe": { "name": "mine", "text": "depth = 2" }, "tp": 2, "on": "8xH200" }).to_string();
    answer(&router, post("/api/v1/fit", other)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "another text is another question");
    let (status, _) = answer(&router, get("/api/v1/check?recipe=nam56r&tp=2")).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    answer(&router, get("/api/v1/check?recipe=nam56r&tp=2")).await;
    assert_eq!(asked.load(Ordering::SeqCst), 4, "a no is asked again");
    assert_eq!(answer(&router, get("/api/v1/axes")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn what_is_no_question_is_refused_by_name() {
    let asked = Arc::new(AtomicUsize::new(0));
    let router = router(settings(&asked, echo));
    let large = vec![b' '; (1 << 20) + 1];
    for (request, status, id) in [
        (post("/api/v1/fitt", "{}"), 404, "serve/request"),
        (post("/api/v1/completions", "{}"), 404, "serve/request"),
        (post("/api/v2/fit", "{}"), 404, "serve/request"),
        (post("/api/v1/fit", "[]"), 400, "serve/request"),
        (post("/api/v1/fit", "{"), 400, "serve/request"),
        (post("/api/v1/fit", large), 413, "serve/request"),
        (post("/api/v1/fit", "{}"), 422, "serve/body"),
        (post("/api/v1/fit", r#"{"recipe":"a","on":"8xH200","out":"x"}"#), 422, "serve/body"),
        (post("/api/v1/receipts", "{}"), 422, "serve/receipts"),
        (get("/api/v1/jobs/nobody"), 404, "serve/job"),
        (post("/api/v1/draw/memry", "{}"), 404, "serve/picture"),
        (post("/api/v1/draw/mesh", r#"{"narrow":3}"#), 422, "serve/picture"),
        (post("/api/v1/draw/mesh", r#"{"words":3}"#), 422, "serve/body"),
    ] {
        let what = request.uri().clone();
        let (got, body) = answer(&router, request).await;
        assert_eq!((got.as_u16(), rule(&body)), (status, id), "{what}: {body}");
        assert_eq!(body["error"], true);
    }
    let plain = Request::post("/api/v1/fit").header("host", "localhost").header("content-type", "text/plain");
    assert_eq!(answer(&router, plain.body("{}".into()).unwrap()).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(asked.load(Ordering::SeqCst), 0, "none of it reached the command line");
    let page = send(&router, get("/")).await;
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(send(&router, get("/../Cargo.toml")).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn only_pages_of_this_server_are_answered() {
    let router = router(settings(&Arc::default(), echo));
    let from = |headers: &[(&str, &str)]| {
        let mut request = Request::get("/api/v1/recipes");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    };
    for (headers, status, id) in [
        (&[("host", "localhost:8731")][..], 200, ""),
        (&[("host", "[::1]:8731"), ("origin", "http://[::1]:8731"), ("sec-fetch-site", "same-origin")], 200, ""),
        (&[("host", "shardwright.evil.example")], 403, "serve/host"),
        (&[], 403, "serve/host"),
        (&[("host", "localhost"), ("origin", "http://evil.example")], 403, "serve/origin"),
        (&[("host", "localhost"), ("origin", "null")], 403, "serve/origin"),
        (
            &[("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
            403,
            "serve/origin",
        ),
        (&[("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], 200, ""),
    ] {
        let (got, body) = answer(&router, from(headers)).await;
        assert_eq!((got.as_u16(), rule(&body)), (status, id), "{headers:?}");
    }
    let response = send(&router, get("/")).await;
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'self'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert!(!response.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn a_token_is_asked_for_wherever_strangers_come() {
    let mut open = settings(&Arc::default(), echo);
    open.bind = [0, 0, 0, 0].into();
    assert_eq!(open.refusal().unwrap().rule, "serve/token", "without one it is not started");
    open.token = Some("short".to_string());
    assert!(open.refusal().is_some());
    let token = "0123456789abcdef";
    open.token = Some(token.to_string());
    assert!(open.refusal().is_none());
    let router = router(open);
    let from = |path: &str, name: &str, value: &str| {
        Request::get(path).header("host", "box.example").header(name, value).body(Body::empty()).unwrap()
    };
    for (request, status) in [
        (from("/", "x", "y"), 401),
        (from("/api/v1/recipes", "authorization", "Bearer 0123456789abcdeF"), 401),
        (from("/api/v1/recipes", "authorization", token), 401),
        (from("/api/v1/recipes?token=0123456789abcdef", "x", "y"), 401),
        (from("/api/v1/recipes", "authorization", "Bearer 0123456789abcdef"), 200),
        (from("/api/v1/recipes", "cookie", "a=b; shardwright=0123456789abcdef"), 200),
    ] {
        let what = format!("{request:?}");
        assert_eq!(send(&router, request).await.status().as_u16(), status, "{what}");
    }
    let exchanged = send(&router, from("/?token=0123456789abcdef", "x", "y")).await;
    assert_eq!((exchanged.status().as_u16(), exchanged.headers()["location"].to_str().unwrap()), (303, "/"));
    let cookie = exchanged.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
}

/// Whether something comes true within a few seconds.
async fn soon(is: impl AsyncFn() -> bool) -> bool {
    for _ in 0..1000 {
        if is().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn searches_wait_their_turn_and_stop_when_nobody_waits() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut settings = settings(&asked, endless);
    settings.limits = Limits { searches: (1, 1), ..settings.limits };
    let router = router(settings);
    let search = |job: &str| {
        let mut request = post("/api/v1/plan", r#"{"recipe":"nam56r","on":"8xH200"}"#);
        request.headers_mut().insert("x-job", job.parse().unwrap());
        tokio::spawn(router.clone().oneshot(request))
    };
    let state = async |job: &str| answer(&router, get(&format!("/api/v1/jobs/{job}"))).await.1["state"].clone();
    let first = search("first");
    assert!(soon(async || state("first").await == "running").await);
    assert!(soon(async || answer(&router, get("/api/v1/jobs/first")).await.1["done"].as_u64() > Some(3)).await);
    let second = search("second");
    assert!(soon(async || state("second").await == "waiting").await);
    let third = search("third").await.unwrap().unwrap();
    assert_eq!((third.status().as_u16(), third.headers()["retry-after"].to_str().unwrap()), (503, "2"));
    let third: Value = serde_json::from_slice(&to_bytes(third.into_body(), 1 << 20).await.unwrap()).unwrap();
    assert_eq!(rule(&third), "serve/busy");
    let again = search("first").await.unwrap().unwrap();
    assert_eq!(again.status(), StatusCode::CONFLICT);
    // Quick questions do not wait behind searches. (They are as endless here, so only the state is looked at.)
    let delete = Request::delete("/api/v1/jobs/first").header("host", "localhost").body(Body::empty()).unwrap();
    assert_eq!(answer(&router, delete).await.0, StatusCode::OK);
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(soon(async || state("second").await == "running").await, "its turn");
    let before = STOPPED.load(Ordering::SeqCst);
    second.abort();
    assert!(soon(async || STOPPED.load(Ordering::SeqCst) > before).await, "its asker went away");
    assert!(soon(async || state("second").await.is_null()).await);
}

#[tokio::test]
async fn an_answer_has_its_time_and_a_panic_ends_only_itself() {
    let asked = Arc::new(AtomicUsize::new(0));
    let mut slow = settings(&asked, endless);
    slow.limits.answer = Duration::from_millis(30);
    let (status, body) = answer(&router(slow), get("/api/v1/recipes")).await;
    assert_eq!((status.as_u16(), rule(&body)), (503, "serve/time"));
    let router = router(settings(&asked, |question| match question.words[1].to_str() {
        Some("recipes") => panic!("on purpose"),
        _ => echo(question),
    }));
    let (status, body) = answer(&router, get("/api/v1/recipes")).await;
    assert_eq!((status.as_u16(), rule(&body)), (500, "serve/panic"));
    assert_eq!(answer(&router, get("/api/v1/glossary")).await.0, StatusCode::OK);
}

#[test]
fn no_question_takes_a_flag_that_writes_or_reads_a_file_of_its_own() {
    for question in serve::questions::QUESTIONS {
        for key in question.keys() {
            let flag = key.flag;
            let paths = [
                "out",
                "output",
                "svg",
                "png",
                "csv",
                "trace",
                "memory-snapshot",
                "policy",
                "store",
                "work-limit",
                "offload-nvme",
            ];
            assert!(!paths.contains(&flag), "{} --{flag}", question.name);
        }
    }
}
