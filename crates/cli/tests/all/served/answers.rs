//! The same answers as the command line's, byte for byte.

use super::client::Served;
use super::samples::samples;
use crate::common::{folder, run, run_args};
use serde_json::{Value, json};

/// Plans say how long they took.
fn without_time(text: &str) -> String {
    let is_time = |line: &&str| !["seconds", "threads", "per_second"].iter().any(|word| line.contains(word));
    text.lines().filter(is_time).collect::<Vec<_>>().join("\n")
}

#[test]
fn answers_are_what_the_command_prints() {
    let served = Served::start(&[]);
    for sample in samples() {
        let printed = match sample.question {
            "diff" => {
                run_args(&["diff", "--on=8xH200", "--json", "--", "--tp=2 -- nam56r", "--tp=2 --mbs=2 -- nam56r"])
            }
            _ => run(&format!("{} --json", sample.words)),
        };
        let (status, text) = served.ask(sample.question, &sample.body);
        let wanted = if matches!(printed.code, 0 | 3) { 200 } else { 422 };
        assert_eq!(status, wanted, "{}: {text}", sample.words);
        match sample.question {
            "plan" => assert_eq!(without_time(&text), without_time(&printed.stdout), "{}", sample.words),
            _ => assert_eq!(text, printed.stdout, "{}", sample.words),
        }
    }
}

#[test]
fn a_query_asks_the_same() {
    let served = Served::start(&[]);
    let (status, text) = served.text("GET /api/v1/check?recipe=nam56r&tp=2&on=8xH200&sp=true HTTP/1.1", "");
    assert_eq!((status, text), (200, run("check nam56r --tp 2 --on 8xH200 --sp --json").stdout));
}

#[test]
fn a_recipe_comes_as_a_text_and_mistakes_say_where_they_stand() {
    let served = Served::start(&[]);
    let text = include_str!("../../../../../data/recipes/nam56r-mini.toml");
    let mine = |text: &str| json!({ "recipe": { "name": "mine", "text": text } });
    let (status, counted) = served.json("params", &mine(text));
    assert_eq!((status, &counted["recipe"]), (200, &json!("nam56r-mini")));
    let config = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":128,"max_position_embeddings":64,"rms_norm_eps":1e-5,"tie_word_embeddings":false,"hidden_act":"silu"}"#;
    let (status, imported) = served.json("import", &json!({ "file": { "name": "config.json", "text": config } }));
    assert_eq!((status, imported["depth"].as_u64()), (200, Some(2)), "{imported}");
    assert_eq!(served.json("params", &mine(config)).0, 200);
    let (status, refused) = served.json("params", &mine(&format!("{text}\nwrong_key = 1\n")));
    let finding = &refused["findings"][0];
    let line = text.lines().count() as u64 + 2;
    assert_eq!((status, finding["line"].as_u64(), finding["column"].as_u64()), (422, Some(line), Some(1)), "{refused}");
}

/// A name that would be a script in a page, and one that would be a verdict of its own on a terminal.
#[test]
fn hostile_names_come_back_as_text() {
    let served = Served::start(&[]);
    let named = |name: &str| {
        let quoted = serde_json::to_string(name).unwrap();
        let text = include_str!("../../../../../data/recipes/nam56r-mini.toml").replacen("\"nam56r-mini\"", &quoted, 1);
        served.ask("params", &json!({ "recipe": { "name": "mine", "text": text } }))
    };
    let (status, body) = named("<script>alert(1)</script>");
    let read: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, read["recipe"].as_str()), (200, Some("<script>alert(1)</script>")), "{body}");
    let (status, body) = named("x\u{1b}[2J\u{202e}");
    assert_eq!(status, 422, "{body}");
    assert!(!body.contains('\u{1b}') && !body.contains('\u{202e}') && body.contains("recipe/text"), "{body}");
    let (_, page) = served.text("GET / HTTP/1.1", "");
    assert!(page.contains("<html"), "{page}");
}

#[test]
fn receipts_are_those_of_the_store_that_was_named() {
    let store = folder("served-store");
    std::fs::create_dir_all(&store).unwrap();
    let served = Served::start(&["--receipts", store.to_str().unwrap()]);
    let (status, listed) = served.json("receipts", &json!({}));
    assert_eq!((status, &listed["receipts"]), (200, &json!([])), "{listed}");
    let (status, none) = served.json("receipt", &json!({ "receipt": "abcdef" }));
    assert_eq!(status, 422, "{none}");
    let (_, outside) = served.json("receipt", &json!({ "receipt": "/etc/hostname.json" }));
    assert_eq!(outside["findings"][0]["rule"], "file/read", "{outside}");
}
