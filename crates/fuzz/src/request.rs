//! Requests to `serve`, in process: a line with method and address, headers, an empty line, a body. Whatever they hold,
//! they are answered, and never with a bug of ours.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use serde_json::Value;
use serve::{Answered, Limits, Settings, router};
use shardwright::{Call, Reads, answer};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

fn served() -> &'static (Runtime, Router) {
    static SERVED: OnceLock<(Runtime, Router)> = OnceLock::new();
    SERVED.get_or_init(|| {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let settings = Settings {
            ask: Arc::new(|asked| {
                let call = Call {
                    reads: Reads::Nothing,
                    texts: asked.texts,
                    stop: asked.stop,
                    progress: Some(asked.progress),
                };
                let answer = answer(&asked.words, call);
                let document = answer.document().expect("every question has an answer in JSON");
                Answered { document, exit: answer.exit, may_keep: !answer.has_read }
            }),
            bind: [127, 0, 0, 1].into(),
            token: None,
            receipts: None,
            openapi: "{}".to_string(),
            assets: None,
            limits: Limits { search: Duration::from_millis(500), cache_bytes: 4 << 20, ..Limits::of(1) },
        };
        (runtime, router(settings))
    })
}

/// What is asked when nobody attacks.
pub fn seeds() -> Vec<Vec<u8>> {
    let post = |question: &str, body: &str| {
        format!("POST /api/v1/{question}\nhost: localhost\ncontent-type: application/json\nx-job: a1\n\n{body}")
            .into_bytes()
    };
    let get = |path: &str| format!("GET {path}\nhost: 127.0.0.1:8731\norigin: http://127.0.0.1:8731\n\n").into_bytes();
    let mut all = vec![
        get("/"),
        get("/api/v1/recipes?name=nam56r-mini"),
        get("/api/v1/check?recipe=nam56r-mini&tp=2&on=8xH200&sp=true&with=mtp&with=mla"),
        get("/api/v1/mesh?tp=2&pp=2&world=8&rank=%33&order=devicemesh"),
        get("/api/v1/jobs/a1"),
        get("/api/v1/glossary?word=lane"),
        b"DELETE /api/v1/jobs/a1\nhost: localhost\n\n".to_vec(),
        post("hardware", r#"{"name":"H200","toml":false}"#),
        post("lanes", r#"{"for":"nam56r-mini","on":"8xH200","goal":"throughput"}"#),
        post("options", r#"{"engine":"megatron"}"#),
        post("axes", r#"{"axis":"cp"}"#),
        post("params", r#"{"recipe":"nam56r-mini","with":["mtp"],"without":"moe","mode":null}"#),
        post(
            "check",
            r#"{"recipe":"nam56r-mini","tp":2,"pp":2,"ep":4,"etp":1,"world":8,"seq":"8k","engine":"megatron","zero":1}"#,
        ),
        post("splits", r#"{"recipe":"nam56r-mini","tp":2,"world":8,"rank":3}"#),
        post("stages", r#"{"recipe":"nam56r-mini","pp":2,"boundaries":[3],"balance":"params","weights":[1,2,3]}"#),
        post(
            "fit",
            r#"{"recipe":"nam56r-mini","on":"8xH200","tp":2,"mbs":1,"levers":"no","recompute":"selective:core_attn","headroom":"10%","overload":[1.0,2.0]}"#,
        ),
        post("receipts", r#"{"recipe":"nam56r","all":true}"#),
        post("compare", r#"{"receipts":["ab","cd"],"against":["ef"]}"#),
        post(
            "import",
            r#"{"file":{"name":"config.json","text":"{\"model_type\":\"llama\",\"hidden_size\":64}"},"seq":"8k"}"#,
        ),
        post(
            "diff",
            r#"{"before":{"recipe":"nam56r-mini","tp":2},"after":{"recipe":{"name":"mine","text":"depth = 2"},"mbs":2},"on":"8xH200"}"#,
        ),
    ];
    let text = serde_json::to_string(include_str!("../../../data/recipes/nam56r-mini.toml")).unwrap_or_default();
    all.push(post("params", &format!(r#"{{"recipe":{{"name":"mine","text":{text}}}}}"#)));
    all
}

/// Sends one, and holds the answer to what is promised.
pub fn request(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or(("GET", "/"));
    let mut request =
        Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap_or(Method::POST)).uri(path);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    // What is no request of HTTP ends before it gets here.
    let Ok(request) = request.body(Body::from(body.to_string())) else { return };
    let (runtime, router) = served();
    runtime.block_on(async {
        let response = router.clone().oneshot(request).await.expect("an answer");
        let (status, headers) = (response.status(), response.headers().clone());
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        assert!(headers.contains_key("content-security-policy") && headers["x-content-type-options"] == "nosniff");
        assert!(!headers.contains_key("access-control-allow-origin"));
        let text = String::from_utf8_lossy(&body);
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
        if headers.get("content-type").is_some_and(|kind| kind == "application/json") {
            let json: Value = serde_json::from_slice(&body).expect("JSON");
            let says_why = json["findings"].as_array().is_some_and(|findings| !findings.is_empty());
            assert!(status == StatusCode::OK || says_why, "{status}: {text}");
        }
    });
}
