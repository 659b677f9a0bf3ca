//! Words that some reader takes for a number, a truth or nothing arrive at every engine as the text they
//! are, by that engine's own rules of reading.

use crate::common;
use case::Seams;
use diag::quote;
use launch::job::Frontend;
use launch::schedulers::{Scheduler, files};
use layout::{Engine, LayoutRequest};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};

/// Words that YAML 1.1, YAML 1.2, TOML, JSON, Python or a shell read as something else, and some that break
/// quotes.
const WORDS: &[&str] = &[
    "1e5",
    "1",
    "0x10",
    "0o17",
    "017",
    "0b1",
    "1_000",
    "1.0",
    ".5",
    "5.",
    "-0",
    "+1",
    "1e400",
    ".inf",
    "-.inf",
    ".nan",
    "inf",
    "nan",
    "Infinity",
    "NaN",
    "12:30",
    "12:30:45",
    "1:2.5",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    "y",
    "Y",
    "n",
    "N",
    "yes",
    "No",
    "on",
    "OFF",
    "true",
    "True",
    "FALSE",
    "null",
    "Null",
    "NULL",
    "~",
    "=",
    "<<",
    "[1]",
    "{a: 1}",
    "{}",
    "a: b",
    "a #b",
    "#a",
    "*a",
    "&a",
    "!a",
    "!!int 1",
    "|",
    ">",
    "@a",
    "`a`",
    "%a",
    "'a'",
    "\"a\"",
    "a'b\"c",
    "\\n",
    "\\u0041",
    "a\\",
    "$HOME",
    "$(x)",
    "$$",
    "True ",
    " 1",
    "é",
    "日本",
    "a,b",
    "a=b",
    "(1)",
    "1,2",
    "None",
];

/// How a value stands in what is emitted, and for whom.
struct Said {
    by: String,
    reader: &'static str,
    text: String,
}

/// What each reader makes of each value: its type's name and its text. YAML is read by the implicit types of
/// YAML 1.1 (yaml.org/type), and by PyYAML where there is one.
const READERS: &str = r#"
import ast, json, re, sys
PLAIN = re.compile(r"""(?x)
  (y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF|~|null|Null|NULL|)
| [-+]?0b[0-1_]+ | [-+]?0[0-7_]+ | [-+]?0o[0-7_]+ | [-+]?(0|[1-9][0-9_]*) | [-+]?0x[0-9a-fA-F_]+
| [-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?
| [-+]?([0-9][0-9_]*)?\.?[0-9_]*([eE][-+]?[0-9]+)? | [-+]?\.(inf|Inf|INF) | \.(nan|NaN|NAN)
| [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.* | = | <<
""")
try:
    import yaml
except ImportError:
    yaml = None
def yaml_(text):
    if text.startswith('"'):
        # A double-quoted scalar of printable ASCII with \u and \U is a literal of Python as well.
        value = ast.literal_eval(text)
        assert re.fullmatch(r'"([ !#-\[\]-~]|\\["\\n]|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})*"', text), text
    else:
        assert re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", text) and not PLAIN.fullmatch(text), text
        value = text
    if yaml is not None:
        assert yaml.safe_load(text) == value, text
    return value
read = {"argv": str, "json": json.loads, "python": ast.literal_eval, "yaml": yaml_}
out = []
for reader, text in json.load(sys.stdin):
    value = read[reader](text)
    out.append([type(value).__name__, str(value)])
json.dump(out, sys.stdout)
"#;

fn read(said: &[Said]) -> Vec<(String, String)> {
    let asked: Vec<Value> = said.iter().map(|said| json!([said.reader, said.text])).collect();
    let mut python = Command::new("python3")
        .args(["-c", READERS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    python.stdin.take().unwrap().write_all(json!(asked).to_string().as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The value behind a marker on the line that has it.
fn behind(text: &str, marker: &str) -> String {
    let line = text.lines().find(|line| line.contains(marker)).unwrap_or_else(|| panic!("no {marker} in {text}"));
    line.split_once(marker).unwrap().1.to_string()
}

/// A dictionary's value in a line of Python, up to the end of its string.
fn member(text: &str, marker: &str) -> String {
    let rest = behind(text, marker);
    let mut is_escaped = false;
    let end = rest.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        ends
    });
    rest[..=end.expect("a string ends").0].to_string()
}

/// How every engine is told a tokenizer of this name, and Kubernetes a variable of this value.
fn told(word: &str) -> Vec<Said> {
    let mut said = Vec::new();
    let engines = [Engine::Megatron, Engine::Torchtitan, Engine::Nanotron, Engine::Maxtext, Engine::Fsdp2];
    let frontends = engines.map(|engine| (engine, Frontend::MegatronLm)).into_iter();
    for (engine, frontend) in frontends.chain([(Engine::Megatron, Frontend::Bridge)]) {
        let request = LayoutRequest { world: Some(8), engine: Some(engine), ..LayoutRequest::default() };
        let recipe = common::recipe("llama3-8b");
        let mut case = common::Case::new(&recipe, &request, Seams::Allow).unwrap();
        case.frontend = frontend;
        case.policy.data.tokenizer = Some(word.to_string());
        case.policy.environment.set.insert("WORD".to_string(), word.to_string());
        let emission = match case.emit() {
            Ok(emission) => emission,
            // MaxText's own code turns the word into nothing, quotes or not.
            Err(findings) => {
                let is_taken = word.to_lowercase() == "none" && engine == Engine::Maxtext;
                assert!(is_taken && findings.iter().all(|f| f.rule == "maxtext/unsayable"), "{word}: {findings:?}");
                continue;
            }
        };
        let file = |name: &str| &emission.files.iter().find(|f| f.path == name).unwrap().contents;
        let (reader, text) = match (engine, frontend) {
            (Engine::Megatron, Frontend::Bridge) => {
                ("python", member(file("bridge_recipe.py"), "\"tokenizer_model\": "))
            }
            (Engine::Megatron, _) => {
                let words = emission.words();
                let behind = |flag: &str| words[words.iter().position(|word| word == flag).unwrap() + 1].clone();
                // The engine would take the tokenizer's size in place of the recipe's.
                assert_eq!(
                    behind("--padded-vocab-size"),
                    case.job().layout.padded_vocab(case.job().recipe.vocab).to_string()
                );
                ("argv", behind("--tokenizer-model"))
            }
            (Engine::Torchtitan, _) => ("python", behind(file("titan_config.py"), "ASSETS = ")),
            (Engine::Nanotron, _) => ("yaml", behind(file("nanotron.yaml"), "tokenizer_name_or_path: ")),
            (Engine::Maxtext, _) => {
                let words = emission.words();
                let word = words.iter().find_map(|word| word.strip_prefix("tokenizer_path="));
                ("yaml", word.unwrap().to_string())
            }
            _ => {
                let job = files(Scheduler::JobSet, &case.job(), &emission).unwrap();
                let text = &job.iter().find(|f| f.path == "jobset.yaml").unwrap().contents;
                let mut lines =
                    text.lines().skip_while(|line| !line.ends_with("name: WORD") && !line.ends_with("\"WORD\""));
                let value = behind(lines.nth(1).unwrap(), "value: ");
                ("yaml", value.replace("$$", "$"))
            }
        };
        said.push(Said { by: format!("{engine} {}", frontend.name()), reader, text });
    }
    said.push(Said { by: "JSON".to_string(), reader: "json", text: quote::json(word) });
    said.push(Said { by: "a launch's record".to_string(), reader: "json", text: json!(word).to_string() });
    said
}

fn arrive<'a>(words: impl IntoIterator<Item = &'a str>) {
    let all: Vec<(&str, Said)> =
        words.into_iter().flat_map(|word| told(word).into_iter().map(move |said| (word, said))).collect();
    let (words, said): (Vec<&str>, Vec<Said>) = all.into_iter().unzip();
    for ((word, said), (kind, value)) in words.iter().zip(&said).zip(read(&said)) {
        assert_eq!((kind.as_str(), value.as_str()), ("str", *word), "{}: {}", said.by, said.text);
    }
}

#[test]
fn words_arrive_as_texts() {
    arrive(WORDS.iter().copied());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]
    #[test]
    fn any_text_arrives(words in proptest::collection::vec("[0-9eE_.:+~yn-]{1,6}|[!-~]{1,8}", 12)) {
        let is_said = |word: &&String| !word.contains("${") && *word != "???";
        arrive(words.iter().filter(is_said).map(String::as_str));
    }
}
