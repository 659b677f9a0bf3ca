//! What it may not read or do, and what it stops doing.

use super::client::Served;
use crate::common::{folder, run};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn files_are_read_below_the_folder_alone() {
    let text = include_str!("../../../../../data/recipes/nam56r-mini.toml");
    let (outside, inside) = (folder("served-outside"), folder("served-inside"));
    std::fs::write(outside.join("secret.toml"), text).unwrap();
    std::fs::write(inside.join("own.toml"), text).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(outside.join("secret.toml"), inside.join("link.toml")).unwrap();
    let closed = Served::start(&[]);
    let open = Served::start(&["--folder", inside.to_str().unwrap()]);
    assert_eq!(open.json("params", &json!({ "recipe": "own.toml" })).0, 200);
    let own = inside.join("own.toml").display().to_string();
    assert_eq!(open.json("params", &json!({ "recipe": own })).0, 200);
    assert_eq!(closed.json("params", &json!({ "recipe": own })).0, 422);
    let secret = outside.join("secret.toml").display().to_string();
    for name in [secret.as_str(), "../served-outside/secret.toml", "link.toml", "-", "/dev/stdin"] {
        for (question, body) in [
            ("params", json!({ "recipe": name })),
            ("import", json!({ "file": name })),
            ("hardware", json!({ "name": name })),
            ("fit", json!({ "recipe": "nam56r", "on": format!("8x{name}") })),
            ("diff", json!({ "before": { "recipe": name }, "after": { "recipe": "nam56r" }, "on": "8xH200" })),
        ] {
            for served in [&closed, &open] {
                let (status, answer) = served.json(question, &body);
                assert_eq!(status, 422, "{question} {name}: {answer}");
                assert!(!answer.to_string().contains("nam56r-mini"), "{question} {name}: {answer}");
            }
        }
    }
    // What is read may change: it is not remembered.
    std::fs::write(inside.join("own.toml"), text.replacen("\"nam56r-mini\"", "\"another\"", 1)).unwrap();
    assert_eq!(open.json("params", &json!({ "recipe": "own.toml" })).1["recipe"], "another");
}

#[test]
fn it_is_not_started_where_strangers_could_ask() {
    for (line, rule) in [
        ("serve --port 0 --bind 0.0.0.0", "[serve/token]"),
        ("serve --port 0 --bind 127.0.0.1 --token short", "[serve/token]"),
        ("serve --port 0 --folder no/such/folder", "[serve/folder]"),
        ("serve --port 1 --bind 192.0.2.1 --token 0123456789abcdef", "[serve/listen]"),
    ] {
        let ran = run(line);
        assert!(ran.code == 1 && ran.stderr.contains(rule), "{line}: {}", ran.stderr);
    }
}

/// A search ends when its asker goes away, and when it is told to.
#[test]
fn searches_stop() {
    let served = Served::start(&[]);
    let body = json!({ "recipe": "deepseek-v3", "on": "64xH100", "engine": "megatron" }).to_string();
    let job = |name: &str| {
        let (status, text) = served.text(&format!("GET /api/v1/jobs/{name} HTTP/1.1"), "");
        (status == 200).then(|| serde_json::from_str::<serde_json::Value>(&text).unwrap())
    };
    let until = |is: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing came of it");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let head = |name: &str| format!("POST /api/v1/plan HTTP/1.1\r\ncontent-type: application/json\r\nx-job: {name}");
    let gone = served.send(&head("gone"), &body);
    until(&|| job("gone").is_some_and(|job| job["of"].as_u64() > Some(0)));
    drop(gone);
    until(&|| job("gone").is_none());
    let stopped = std::thread::scope(|scope| {
        let answer = scope.spawn(|| served.text(&head("told"), &body));
        until(&|| job("told").is_some_and(|job| job["of"].as_u64() > Some(0)));
        served.text("DELETE /api/v1/jobs/told HTTP/1.1", "");
        answer.join().unwrap()
    });
    assert_eq!(stopped.0, 422);
    assert!(stopped.1.contains("plan/stopped"), "{}", stopped.1);
}

/// Whatever it is asked, and however often, it holds no more for it.
#[cfg(target_os = "linux")]
#[test]
fn many_questions_take_no_more_memory() {
    let served = Served::start(&[]);
    let ask = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let body = json!({ "recipe": "nam56r-mini", "world": 8, "gbs": 8 * number, "mbs": 1 });
            assert_eq!(served.json("check", &body).0, 200);
        }
    };
    ask(1..200);
    let before = served.resident();
    ask(200..1000);
    let after = served.resident();
    assert!(after < before + (24 << 20), "{before} bytes, and then {after}");
}
