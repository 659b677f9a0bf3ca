//! Pictures of answers: XML whatever the model, every text inside its frame, hostile names as text.

use crate::common::folder;
use draw::{Options, Picture};
use roxmltree::{Document, Node};
use serde_json::Value;
use shardwright::{Answer, Call, answer};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn ask_with(line: &str, call: Call) -> Answer {
    let words: Vec<_> = std::iter::once("shardwright").chain(line.split_whitespace()).map(Into::into).collect();
    answer(&words, call)
}

fn ask(line: &str) -> Value {
    let said = ask_with(line, Call::default());
    assert!([0, 3].contains(&said.exit), "{line}: {}", said.messages);
    said.json.unwrap()
}

fn number(node: Node, name: &str) -> f64 {
    let text = node.attribute(name).unwrap_or_else(|| panic!("no {name} in {:?}", node.text()));
    text.parse().unwrap_or_else(|_| panic!("{name}=\"{text}\" is no number"))
}

/// Holds a picture to what every one must be; gives its height.
fn assert_sound(name: &str, svg: &str, options: &Options) -> f64 {
    assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{name}");
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{name} is no XML: {error}"));
    let root = document.root_element();
    assert_eq!(root.attribute("role"), Some("img"), "{name}");
    let (width, height) = (number(root, "width"), number(root, "height"));
    assert_eq!(width, if options.narrow { 390.0 } else { 960.0 }, "{name}");
    for word in ["title", "desc"] {
        let said = root.children().find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", word)));
        assert!(said.and_then(|node| node.text()).is_some_and(|text| !text.is_empty()), "{name} has no {word}");
    }
    let elements = || root.descendants().filter(|node| node.is_element());
    assert!(elements().all(|node| node.tag_name().name() != "script"), "{name}");
    for node in elements().filter(|node| node.tag_name().name() == "text") {
        let text = node.text().unwrap_or_default();
        let size = node.attribute("font-size").map_or(12.0, |_| number(node, "font-size"));
        assert!(size >= 10.0, "{name}: `{text}` is written in {size}");
        let bold = if node.attribute("font-weight").is_some() { 1.12 } else { 1.0 };
        let wide = draw::text_width(text, size * bold);
        let (x, y) = (number(node, "x"), number(node, "y"));
        let (left, right, top, bottom) = match (node.attribute("transform"), node.attribute("text-anchor")) {
            (Some(_), _) => (x - size, x + size, y, y + wide),
            (None, Some("middle")) => (x - wide / 2.0, x + wide / 2.0, y - size * 0.8, y),
            (None, Some("end")) => (x - wide, x, y - size * 0.8, y),
            _ => (x, x + wide, y - size * 0.8, y),
        };
        let inside = left >= -0.5 && right <= width + 0.5 && top >= 0.0 && bottom <= height;
        assert!(inside, "{name}: `{text}` leaves the picture: {left:.0}-{right:.0}, {top:.0}-{bottom:.0}");
    }
    for node in elements().filter(|node| node.tag_name().name() == "rect") {
        assert!(number(node, "width") >= 0.0 && number(node, "height") >= 0.0, "{name}");
    }
    height
}

fn both(name: &str, kind: Picture, answer: &Value) {
    for narrow in [false, true] {
        let options = Options { narrow, ..Options::default() };
        let svg = draw::picture(kind, answer, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_sound(&format!("{kind} of {name}, narrow: {narrow}"), &svg, &options);
        assert!(svg.contains("data-tip=\""), "{kind} of {name}");
    }
}

#[test]
fn every_picture_of_every_recipe_is_sound() {
    for recipe in ask("recipes --json")["recipes"].as_array().unwrap() {
        let name = recipe["name"].as_str().unwrap();
        both(name, Picture::Pattern, &ask(&format!("params {name} --json")));
        for layout in ["--on 8xH200 --recompute full", "--pp 4 --gbs 64 --on 8x8xH100"] {
            let fit = ask(&format!("fit {name} {layout} --levers no --json"));
            both(name, Picture::Memory, &fit);
            both(name, Picture::Phases, &fit);
            both(name, Picture::Schedule, &ask(&format!("schedule {name} {layout} --json")));
        }
    }
}

#[test]
fn pictures_of_the_large_and_the_odd_are_sound() {
    for line in [
        "mesh --tp 2 --pp 2 --ep 2 --on 4x8xH100 --rank 13",
        "mesh --tp 8 --cp 4 --pp 16 --ep 16 --world 131072 --rank 77777",
        "mesh --world 1",
        "mesh --tp 3 --pp 5 --world 1005",
    ] {
        both(line, Picture::Mesh, &ask(&format!("{line} --json")));
    }
    let plan = "plan llama3-8b --gbs 64 --on";
    both(plan, Picture::Frontier, &ask(&format!("{plan} 8xH200 --json")));
    both(plan, Picture::Sweep, &ask(&format!("{plan} 4,8xH200 --cp 1 --pp 1 --json")));
    let schedules = [
        "llama3-70b --pp 4 --vpp 4 --tp 8 --gbs 64 --on 64xH100",
        "deepseek-v3 --engine any --pp 16 --ep 64 --gbs 15360 --schedule dualpipe --on 256x8xH100",
        "llama3-8b --engine any --pp 8 --schedule zb-h1 --microbatches 24 --on 8xH200",
        "llama3-8b --pp 8 --microbatches 20000 --on 8xH200",
    ];
    for line in schedules {
        let answer = ask(&format!("schedule {line} --json"));
        assert!(answer["events"].as_array().unwrap().len() <= 6200, "{line}");
        both(line, Picture::Schedule, &answer);
    }
}

#[test]
fn events_of_a_step_fill_it_and_say_what_is_left_out() {
    let answer = ask("schedule nam56r --pp 4 --tp 2 --microbatches 8 --recompute full --on 8xH200 --json");
    let events = answer["events"].as_array().unwrap();
    assert!(answer["left_out"].is_null() && answer["folded_passes"] == 0);
    let end = answer["seconds"].as_f64().unwrap();
    for stage in 0..4 {
        let own = events.iter().filter(|e| e["track"] == "schedule" && e["stage"] == stage);
        let mut clock = 0.0;
        for event in own {
            let (start, to) = (event["start"].as_f64().unwrap(), event["end"].as_f64().unwrap());
            assert!((start - clock).abs() < 1e-8, "a gap in stage {stage} at {clock}: {event}");
            clock = to;
        }
        assert!((clock - end).abs() < 1e-8, "stage {stage} ends at {clock} of {end}");
        let passes = |kind: &str| events.iter().filter(|e| e["kind"] == kind && e["stage"] == stage).count();
        assert_eq!((passes("forward"), passes("backward")), (8, 8));
        assert!(passes("recompute") >= 8 && passes("collective") >= 16, "stage {stage}");
    }
    let folded = ask("schedule llama3-8b --pp 8 --microbatches 20000 --on 8xH200 --json");
    let passes = |kind: &str| folded["events"].as_array().unwrap().iter().filter(|e| e["kind"] == kind).count() as u64;
    let all = folded["folded_passes"].as_u64().unwrap() + passes("forward") + passes("backward");
    assert_eq!(all, 8 * 2 * 20_000);
    assert!(folded["left_out"].as_str().unwrap().contains("are folded"));
}

#[test]
fn what_changed_is_drawn_line_by_line() {
    let fit = |layout: &str| ask(&format!("fit nam56r --on 8xH200 --levers no --json {layout}"));
    let (before, after) = (fit("--tp 2"), fit("--tp 2 --pp 2 --mbs 2"));
    for narrow in [false, true] {
        let options = Options { narrow, ..Options::default() };
        let svg = draw::difference(&before, &after, &options).unwrap();
        assert_sound("difference", &svg, &options);
        for line in after["rank_classes"][0]["lines"].as_array().unwrap() {
            let name = line["line"].as_str().unwrap();
            assert!(line["bytes"] == 0 || svg.contains(&format!("data-line=\"{name}\" data-case=\"now\"")), "{name}");
        }
        assert!(svg.contains("data-case=\"pinned\""));
    }
}

#[test]
fn two_pictures_word_for_word() {
    let drawn = [
        ("pattern_nam56r", Picture::Pattern, "params nam56r --with mtp --json"),
        ("memory_nam56r", Picture::Memory, "fit nam56r --pp 4 --tp 2 --microbatches 8 --levers no --on 8xH200 --json"),
    ];
    for (name, kind, line) in drawn {
        let svg = draw::picture(kind, &ask(line), &Options::default()).unwrap();
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(format!("{name}.svg"));
        if std::env::var_os("UPDATE_GOLDENS").is_some() {
            std::fs::write(&path, &svg).unwrap();
            continue;
        }
        let stored = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("golden {}: {e}", path.display()));
        assert_eq!(svg, stored, "{name}");
    }
}

/// A recipe whose name and source are what an attacker would try.
fn hostile() -> Call {
    let name = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>]]>";
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/recipes/nam56r-mini.toml")).unwrap();
    let renamed: Vec<String> = text
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some((key @ ("name" | "source"), _)) => format!("{key} = {}", diag::quote::toml(name)),
            _ => line.to_string(),
        })
        .collect();
    Call { texts: BTreeMap::from([("mine".to_string(), renamed.join("\n"))]), ..Call::default() }
}

#[test]
fn a_report_is_one_file_that_loads_nothing() {
    let folder = folder("report");
    let path = folder.join("report.html");
    let line = format!("report nam56r --pp 2 --tp 2 --microbatches 8 --on 8xH200 -o {}", path.display());
    let said = ask_with(&line, Call::default());
    assert_eq!(said.exit, 0, "{}", said.messages);
    let html = std::fs::read_to_string(&path).unwrap();
    assert!(html.len() < 2_000_000, "{} bytes", html.len());
    let policy = html.split_once("Content-Security-Policy\" content=\"").unwrap().1.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for loaded in ["src=\"", "@import", "url(http", "href=\"http", "<base"] {
        assert!(!html.contains(loaded), "{loaded}");
    }
    let json = html.split_once("id=\"answers\">").unwrap().1.split_once("</script>").unwrap().0;
    let embedded: Value = serde_json::from_str(json).unwrap();
    assert_eq!((embedded["case"]["recipe"].as_str(), embedded["case"]["pp"].as_u64()), (Some("nam56r"), Some(2)));
    let of = |key: &str| &embedded["answers"][key];
    let asked = ["fit", "params", "stages", "launch", "mesh?rank=7", "splits?rank=4"];
    assert!(asked.iter().all(|key| of(key)["schema"] == "shardwright/1"), "{:?}", said.json);
    assert!(of("splits?rank=4")["tensors"].as_array().is_some_and(|tensors| tensors.len() > 100));
    assert!(of("draw/phases?narrow=true&stage=1").is_string() && of("draw/mesh?rank=7&narrow=true").is_string());
    for kind in ["memory", "phases", "schedule", "pattern", "mesh"] {
        for key in [format!("draw/{kind}"), format!("draw/{kind}?narrow=true")] {
            assert!(of(&key).as_str().is_some_and(|svg| svg.starts_with("<svg")), "{key}");
        }
    }
    // What a reader without scripts sees.
    let still = html.split_once("<noscript>").unwrap().1.split_once("</noscript>").unwrap().0;
    for words in ["<h1>nam56r</h1>", "tp-params", "launch.sh", "torchrun", "--recompute full"] {
        assert!(still.contains(words), "{words}");
    }
    assert_eq!(still.matches("<svg").count(), 5);
    // A call that may not write gets none.
    let closed = Call { reads: shardwright::Reads::Nothing, ..Call::default() };
    assert_eq!(ask_with("report nam56r --on 8xH200 -o never.html", closed).exit, 1);
}

#[test]
fn hostile_names_are_text_in_pictures_fragments_and_reports() {
    let folder = folder("report-hostile");
    let path = folder.join("report.html");
    let said = ask_with(&format!("report mine --on 8xH200 -o {}", path.display()), hostile());
    assert_eq!(said.exit, 0, "{}", said.messages);
    let html = std::fs::read_to_string(&path).unwrap();
    for tried in ["<script>alert", "<img", "onerror=alert(2)>"] {
        assert!(!html.contains(tried), "{tried}");
    }
    assert_eq!(html.matches("<script").count(), 2, "answers and the page's script");
    assert_eq!(html.matches("</script").count(), 2);
    for (kind, line) in [
        (Picture::Pattern, "params mine"),
        (Picture::Memory, "fit mine --on 8xH200"),
        (Picture::Schedule, "schedule mine --on 8xH200"),
    ] {
        let answer = ask_with(&format!("{line} --json"), hostile()).json.unwrap();
        both("a hostile name", kind, &answer);
        let question = line.split(' ').next().unwrap();
        assert!(!shardwright::html(question, &answer).contains("<script"), "{question}");
    }
}

#[test]
fn fragments_hold_the_pictures_and_tables() {
    for (line, words) in [
        ("fit nam56r --on 8xH200", &["<svg", "tp-params", "Phases of the worst rank", "--recompute full"][..]),
        (
            "plan llama3-8b --gbs 64 --on 8xH200",
            &["<svg", "<strong>run</strong>", "One change away", "Why the others lost"],
        ),
        ("splits nam56r --tp 2 --world 8", &["attention/heads-in", "<details>", "What no axis can fix"]),
        ("check nam56r --tp 16 --world 16", &["not legal", "hint: "]),
        ("params nam56r", &["<svg"]),
    ] {
        let said = ask_with(&format!("{line} --json"), Call::default());
        let question = line.split(' ').next().unwrap();
        let html = shardwright::html(question, &said.json.unwrap());
        for word in words {
            assert!(html.contains(word), "{line}: {word}");
        }
        assert!(html.starts_with("<div class=\"sw-html\">") && html.contains("prefers-color-scheme:dark"));
    }
}

#[test]
fn pictures_are_written_as_svg_and_png() {
    let folder = folder("pictures");
    for (name, line) in [
        ("fit", "fit llama3-8b --tp 2 --on 8xH200 --levers no"),
        ("schedule", "schedule llama3-8b --pp 2 --on 8xH200"),
        ("plan", "plan llama3-8b --gbs 64 --on 8xH200"),
        ("sweep", "plan llama3-8b --gbs 64 --cp 1 --pp 1 --on 4,8xH200"),
        ("params", "params llama3-8b"),
        ("mesh", "mesh --tp 2 --on 8xH200"),
    ] {
        let [svg, png] = ["svg", "png"].map(|ending| folder.join(format!("{name}.{ending}")));
        let said = ask_with(&format!("{line} --svg {} --png {}", svg.display(), png.display()), Call::default());
        assert_eq!(said.exit, 0, "{line}: {}", said.messages);
        let text = std::fs::read_to_string(&svg).unwrap();
        assert_sound(name, &text, &Options::default());
        assert!(text.contains("<title>") && !text.contains("data-tip"), "{name}: tips without a script");
        assert!(!text.contains("var("), "{name}: colours for every viewer");
        let bytes = std::fs::read(&png).unwrap();
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 5_000, "{name}");
    }
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let path = folder("undrawn").join("never.svg");
    let line = format!("plan llama3-405b --pp 2 --cp 1 --mbs 1 --gbs 64 --on 8xH100 --svg {}", path.display());
    let none = ask_with(&line, Call::default());
    assert!(none.exit == 3 && none.messages.contains("picture/undrawn") && !path.exists(), "{}", none.messages);
    let unpriced = ask_with("schedule llama3-8b --on 1xGB10", Call::default());
    assert!(unpriced.exit == 1 && unpriced.messages.contains("schedule/unpriced"), "{}", unpriced.messages);
    let refused = draw::picture(Picture::Memory, &serde_json::json!({ "findings": [] }), &Options::default());
    assert!(refused.unwrap_err().to_string().contains("missing field"));
}
