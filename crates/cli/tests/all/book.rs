//! The docs as a book: every page is in its contents, every link leads somewhere, and the pages that teach are run as
//! printed: commands with the exit code they state, what they are said to print, and the pictures they draw. So is the
//! session of the project's README.
//!
//! ```` ```sh ```` holds commands, one a line, `# exit N` behind those that say no; ```` ```text ```` below it lines of the
//! last one's output, `…` where some were cut; ```` ```sh serve ```` starts a server. ```` ```python ```` is run by the Python
//! package's own tests.

use crate::common::{Ran, folder};
use layout::Engine;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What one command may take; the longest is a search of some ten seconds on one idle core.
const LIMIT: Duration = Duration::from_secs(300);

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}

/// Files below docs that end so, as paths from docs.
fn docs(ending: &str) -> BTreeSet<PathBuf> {
    let root = project().join("docs");
    let (mut found, mut folders) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().is_some_and(|name| name.ends_with(ending)) {
                found.insert(path.strip_prefix(&root).expect("below docs").to_path_buf());
            }
        }
    }
    found
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(project().join("docs").join(page)).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

/// A page without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let outside = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    });
    outside.collect::<Vec<_>>().join("\n")
}

/// Where the links of a page lead, those to other sites left out.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let targets =
        prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_string());
    targets.filter(|target| !target.contains("://")).collect()
}

/// A heading as an anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    prose.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn every_page_is_in_the_contents() {
    let contents = links(&read(Path::new("README.md")));
    let listed: BTreeSet<PathBuf> =
        contents.iter().map(|link| PathBuf::from(link.split('#').next().unwrap())).collect();
    let missing: Vec<PathBuf> =
        docs(".md").into_iter().filter(|page| page != Path::new("README.md") && !listed.contains(page)).collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

#[test]
fn every_link_leads_somewhere() {
    let pages = docs(".md").into_iter().map(|page| Path::new("docs").join(page));
    let mut wrong = Vec::new();
    for page in pages.chain(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(PathBuf::from)) {
        let text = std::fs::read_to_string(project().join(&page)).expect("a page");
        for link in links(&text) {
            let (file, at) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let path = project().join(&target);
            let is_there = path.exists();
            let is_in_it =
                at.is_empty() || std::fs::read_to_string(&path).is_ok_and(|text| anchors(&text).contains(at));
            if !is_there || !is_in_it {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

/// Every rule of an engine stands in the first column of its page, and nothing else does.
#[test]
fn engine_pages_have_the_engines_rules() {
    for (word, engine) in Engine::ALL {
        let page = read(&PathBuf::from(format!("engines/{word}.md")));
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|row| row.split(" | ").next());
        let named: BTreeSet<&str> = rows.flat_map(|row| row.trim_end_matches('`').split("`, `")).collect();
        let rules: BTreeSet<&str> = layout::engines::rules(*engine).iter().map(|rule| rule.id).collect();
        assert_eq!(named, rules, "docs/engines/{word}.md");
    }
}

/// A block of code: what stands behind its fence, and its lines.
struct Block<'a> {
    kind: &'a str,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut lines = text.lines();
    let mut blocks = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let lines = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(Block { kind, lines });
        }
    }
    blocks
}

fn run(line: &str, at: &Path) -> Ran {
    run_at(line, at, "80")
}

/// Runs a line in a shell with `shardwright` on its path, so many columns wide, and ends it after a while.
fn run_at(line: &str, at: &Path, columns: &str) -> Ran {
    let binary = Path::new(env!("CARGO_BIN_EXE_shardwright")).parent().expect("a folder").display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let said = at.with_extension("said");
    let (out, err) = (said.with_extension("out"), said.with_extension("err"));
    let mut child = Command::new("bash")
        .args(["-o", "pipefail", "-c", line])
        .envs([("PATH", path.as_str()), ("COLUMNS", columns)])
        .current_dir(at)
        .stdin(Stdio::null())
        .stdout(File::create(&out).expect("a file"))
        .stderr(File::create(&err).expect("a file"))
        .spawn()
        .expect("bash runs");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill().expect("a child");
            panic!("`{line}` takes longer than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = |path: &Path| std::fs::read_to_string(path).expect("text");
    Ran { stdout: text(&out), stderr: text(&err), code: status.code().unwrap_or(-1) }
}

/// Whether a line is the one that an excerpt shows, `…` standing for what was cut inside it.
fn is_shown(printed: &str, shown: &str) -> bool {
    let Some((first, rest)) = shown.split_once('…') else { return printed == shown };
    let Some(mut left) = printed.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, behind)) = left.split_once(part) else { return false };
        left = behind;
    }
    left.ends_with(last)
}

/// What lines of an excerpt are missing from an output: those without `…` between them stand together there, in this order.
fn missing(excerpt: &[&str], printed: &str) -> Option<String> {
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    let mut from = 0;
    for run in excerpt.split(|line| line.trim() == "…").filter(|run| !run.is_empty()) {
        let run: Vec<&str> = run.iter().map(|line| line.trim_end()).collect();
        let is_here = |window: &[&str]| window.iter().zip(&run).all(|(printed, shown)| is_shown(printed, shown));
        match printed[from..].windows(run.len()).position(is_here) {
            Some(at) => from += at + run.len(),
            None => return Some(run.join("\n")),
        }
    }
    None
}

/// A server that answers at the address it prints, on whatever port is free.
fn serves(line: &str, at: &Path) {
    let words = line.strip_prefix("shardwright ").expect("a command of ours");
    let mut child = Command::new(env!("CARGO_BIN_EXE_shardwright"))
        .args(words.split_whitespace())
        .args(["--port", "0"])
        .current_dir(at)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut said).expect("a line");
    let address = said.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).map(str::to_string);
    let reached = address.and_then(|address| std::net::TcpStream::connect(address).ok()).is_some();
    child.kill().expect("a server");
    child.wait().expect("a server");
    assert!(reached, "`{line}` says {said:?}, and nobody answers there");
}

/// Pictures that a page's commands left in their folder are those that docs/img has.
fn pictures(page: &str, text: &str, at: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    for link in links(text).iter().filter(|link| link.ends_with(".svg")) {
        let stored = project().join("docs").join(link);
        let drawn = at.join(stored.file_name().expect("a name"));
        let Ok(now) = std::fs::read_to_string(&drawn) else {
            wrong.push(format!("{page}: no command draws {link}"));
            continue;
        };
        if std::env::var_os("UPDATE_GOLDENS").is_some() {
            std::fs::create_dir_all(stored.parent().expect("a folder")).expect("a folder");
            std::fs::write(&stored, &now).expect("a picture");
        }
        if std::fs::read_to_string(&stored).ok().as_ref() != Some(&now) {
            wrong.push(format!("{page}: {link} is not what its command draws; UPDATE_GOLDENS=1 renews it"));
        }
        if now.len() > 60_000 {
            wrong.push(format!("{page}: {link} has {} bytes", now.len()));
        }
    }
    wrong
}

/// Runs a page in a folder of its own, which holds the project's docs and data.
fn holds(page: &str) {
    holds_text(page, &read(Path::new(page)));
}

/// The same of a part of a page.
fn holds_text(page: &str, text: &str) {
    let at = folder(&format!("book-{}", page.replace('/', "-").trim_end_matches(".md")));
    for name in ["docs", "data"] {
        std::os::unix::fs::symlink(project().join(name), at.join(name)).expect("a link");
    }
    let mut wrong = Vec::new();
    let mut last: Option<(&str, String)> = None;
    for block in blocks(text) {
        match block.kind {
            "sh" => {
                for line in block.lines {
                    let expected =
                        line.split_once("# exit ").map_or(0, |(_, code)| code.trim().parse().expect("a code"));
                    let ran = run(line, &at);
                    if ran.code != expected {
                        wrong.push(format!("{page}: `{line}` exits {}, not {expected}:\n{}", ran.code, ran.stderr));
                    }
                    last = Some((line, ran.stdout + &ran.stderr));
                }
            }
            "sh serve" => block.lines.iter().for_each(|line| serves(line, &at)),
            "text" => {
                let (line, printed) = last.as_ref().expect("an excerpt stands below its command");
                wrong.extend(
                    missing(&block.lines, printed).map(|run| format!("{page}: `{line}` does not print\n{run}")),
                );
            }
            "python" => {}
            other => wrong.push(format!("{page}: a block of `{other}`, which nobody runs")),
        }
    }
    wrong.extend(pictures(page, text, &at));
    assert!(last.is_some() || page == "README.md", "{page} has no command");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_first_hour_runs() {
    holds("README.md");
    holds("first-hour.md");
}

/// Commands of a session, `$` before each, with what stands below it up to the next.
fn session<'a>(lines: &[&'a str]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) => found.push((command, Vec::new())),
            (None, Some((_, shown))) => shown.push(line),
            (None, None) => {}
        }
    }
    found
}

/// The first session of the project's README, 120 columns wide: commands with the exit code they state, and what they are said to print.
#[test]
fn the_readmes_session_is_what_is_printed() {
    let text = std::fs::read_to_string(project().join("README.md")).expect("the README");
    let at = folder("book-readme");
    std::os::unix::fs::symlink(project().join("data"), at.join("data")).expect("a link");
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for block in blocks(&text).iter().filter(|block| block.kind == "text") {
        for (line, shown) in session(&block.lines) {
            // What a machine is fit for is the machine's.
            if line.contains(" preflight ") {
                continue;
            }
            let expected = line.split_once("# exit ").map_or(0, |(_, code)| code.trim().parse().expect("a code"));
            let ran = run_at(line, &at, "120");
            if ran.code != expected {
                wrong.push(format!("`{line}` exits {}, not {expected}:\n{}", ran.code, ran.stderr));
            }
            compared += shown.len();
            let printed = ran.stdout + &ran.stderr;
            wrong.extend(missing(&shown, &printed).map(|run| format!("`{line}` does not print\n{run}")));
        }
    }
    assert!(compared > 40, "{compared} lines were compared");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn concepts_run_and_draw() {
    holds("concepts.md");
}

#[test]
fn numbers_and_trust_run() {
    holds("numbers.md");
    holds("trust.md");
}

#[test]
fn ways_to_train_run() {
    holds("ways.md");
}

/// What the page on launches begins with, and what a plan ends with.
#[test]
fn the_opening_of_the_page_on_launches_runs() {
    let text = read(Path::new("launch.md"));
    holds_text("launch.md", text.split("\n## ").next().expect("an opening"));
}

#[test]
fn engine_pages_run() {
    for page in docs(".md").iter().filter(|page| page.starts_with("engines")) {
        holds(page.to_str().expect("a name"));
    }
}

#[test]
fn excerpts_are_compared_in_order_and_together() {
    let printed = "a\nb  \nc\nd\n";
    assert_eq!(missing(&["a", "b", "…", "d"], printed), None);
    assert_eq!(missing(&["…", "c", "…"], printed), None);
    assert_eq!(missing(&["a", "c"], printed), Some("a\nc".to_string()));
    assert_eq!(missing(&["c", "…", "a"], printed), Some("a".to_string()));
    assert_eq!(missing(&["--tp 1 … --on … H200", "end"], "--tp 1 --dp 8 --on 8x H200\nend\n"), None);
    assert_eq!(missing(&["--tp 2 …"], "--tp 1 --dp 8\n"), Some("--tp 2 …".to_string()));
    assert_eq!(missing(&["--tp 1 … H100"], "--tp 1 H200\n"), Some("--tp 1 … H100".to_string()));
    assert_eq!(anchor("Who judged it"), "who-judged-it");
    assert_eq!(anchor("Probe: one rank on one GPU"), "probe-one-rank-on-one-gpu");
}
