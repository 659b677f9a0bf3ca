//! `report`: a case as one file that opens anywhere: the page with its answers inside.

use super::{asked, case_of, typed};
use crate::args::{Cli, ReportArgs};
use crate::files::write_file;
use crate::outcome::{Outcome, Refusal, Report};
use crate::pictures::undrawn;
use crate::table::wrap;
use case::{Case, Terms};
use clap::Parser;
use diag::{Blame, Finding, quote};
use draw::page::Embedded;
use draw::{Options, Picture, page};
use recipe::Mixer;
use serde_json::{Map, Value, json};

/// Ranks whose groups can be looked up in a report.
const MOST_RANKS: u64 = 64;

/// Ranks whose groups are drawn.
const MOST_DRAWN_RANKS: u64 = 8;

/// Stages whose phases and tensors can be.
const MOST_STAGES: u64 = 8;

/// Bytes of JSON that tensors by rank may take.
const MOST_BYTES: usize = 600_000;

pub fn run(args: &ReportArgs) -> Outcome {
    let case = case_of(asked(&args.recipe, &args.layout, &args.state, Some(&args.on)), Terms::RUN)?;
    let mut answers = Answers { all: Map::new() };
    answers.about(&case, args)?;
    answers.pictures();
    let job = typed(&case);
    // The page shows steps as a picture; the events behind it are ten times as long.
    let all = Value::Object(answers.all.clone());
    answers.all.remove("schedule");
    let shown = Value::Object(answers.all);
    let embedded = Embedded { case: &address(&case, &all["fit"]), job: &job, answers: &shown, still: &all };
    let html = page::embed(::serve::ASSETS, &embedded).map_err(undrawn)?;
    write_file(&args.output, &html)?;
    let path = args.output.display().to_string();
    let text = format!(
        "`{}` has the case and its answers in {} KiB: open it in a browser, or send it",
        quote::terminal(&path),
        html.len().div_ceil(1024)
    );
    let held: Vec<&String> = shown.as_object().map_or(Vec::new(), |map| map.keys().collect());
    let json = json!({ "file": path, "bytes": html.len(), "case": case.to_json(), "answers": held });
    Ok(Report::new(wrap(&text, "", 80), json).with_findings(&case.findings))
}

/// Answers by question, as the page asks for them.
struct Answers {
    all: Map<String, Value>,
}

impl Answers {
    /// Everything that is asked about a case. What is refused is left out; the page says so where it is looked for.
    fn about(&mut self, case: &Case, args: &ReportArgs) -> Result<(), Refusal> {
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<String>>();
        let job = case.words();
        let recipe = words_of_recipe(case);
        let layout = case.layout.words(case.recipe.uses(Mixer::Moe));
        let on = words(&["--on", &args.on]);
        let world = words(&["--world", &case.layout.world.to_string()]);
        let mode = case.layout.mode.map_or(Vec::new(), |mode| words(&["--mode", mode.name()]));
        let fit = ask(&["fit"], &[&job, &args.headroom_words()])??;
        self.all.insert("fit".to_string(), fit);
        self.add("params", &["params"], &[&recipe, &mode]);
        self.add("check", &["check"], &[&recipe, &layout, &on]);
        self.add("stages", &["stages"], &[&job]);
        self.add("schedule", &["schedule"], &[&job]);
        self.add("launch", &["launch"], &[&job]);
        self.add("mesh", &["mesh"], &[&layout, &on]);
        for rank in 0..case.layout.world.min(MOST_RANKS) {
            self.add(&format!("mesh?rank={rank}"), &["mesh"], &[&layout, &on, &words(&["--rank", &rank.to_string()])]);
        }
        let ranks = case.layout.world / case.layout.pp.get();
        let mut left = MOST_BYTES;
        for rank in (0..case.layout.pp.get().min(MOST_STAGES)).map(|stage| stage * ranks) {
            let words = [&recipe, &layout, &world, &words(&["--rank", &rank.to_string()])];
            let Ok(Ok(answer)) = ask(&["splits"], &words) else { break };
            let size = answer.to_string().len();
            if size > left {
                break;
            }
            left -= size;
            self.all.insert(format!("splits?rank={rank}"), answer);
        }
        if args.plan {
            self.add("plan", &["plan"], &[&recipe, &on, &args.run.words()]);
        }
        Ok(())
    }

    fn add(&mut self, key: &str, command: &[&str], words: &[&Vec<String>]) {
        if let Ok(Ok(answer)) = ask(command, words) {
            self.all.insert(key.to_string(), answer);
        }
    }

    /// Pictures of what is there, for wide screens and narrow ones; those of a stage or a rank by its number, too.
    fn pictures(&mut self) {
        let stages = self.all["fit"]["rank_classes"].as_array().map_or(0, Vec::len) as u64;
        let kinds =
            [Picture::Memory, Picture::Phases, Picture::Schedule, Picture::Pattern, Picture::Mesh, Picture::Frontier];
        let mut drawn = Map::new();
        let mut draw = |kind: Picture, answer: &Value, more: [Option<String>; 2], stage: Option<u64>| {
            for narrow in [false, true] {
                let [rank, stage_key] = &more;
                let keys: Vec<&str> = [rank.as_deref(), narrow.then_some("narrow=true"), stage_key.as_deref()]
                    .into_iter()
                    .flatten()
                    .collect();
                let key =
                    if keys.is_empty() { format!("draw/{kind}") } else { format!("draw/{kind}?{}", keys.join("&")) };
                if let Ok(svg) = draw::picture(kind, answer, &Options { narrow, stage, ..Options::default() }) {
                    drawn.insert(key, json!(svg));
                }
            }
        };
        for kind in kinds {
            let Some(answer) = self.all.get(kind.question()) else { continue };
            draw(kind, answer, [None, None], None);
            let looked_at = if kind == Picture::Phases { stages.min(MOST_STAGES) } else { 0 };
            for stage in 0..looked_at {
                draw(kind, answer, [None, Some(format!("stage={stage}"))], Some(stage));
            }
        }
        for rank in 0..MOST_DRAWN_RANKS {
            let Some(answer) = self.all.get(&format!("mesh?rank={rank}")) else { break };
            draw(Picture::Mesh, answer, [Some(format!("rank={rank}")), None], None);
        }
        self.all.extend(drawn);
    }
}

/// The answer to a question that this program asks itself, or why there is none.
fn ask(command: &[&str], words: &[&Vec<String>]) -> Result<Result<Value, Refusal>, Refusal> {
    let typed = ["shardwright"]
        .iter()
        .chain(command)
        .map(|word| word.to_string())
        .chain(words.iter().copied().flatten().cloned())
        .chain(["--json".to_string()]);
    let cli = Cli::try_parse_from(typed).map_err(|error| {
        let message = format!("the report asked what cannot be read: {error}");
        Finding::error("report/asked", Blame::Bug, "report", message)
    })?;
    Ok(crate::run(&cli).and_then(|report| match report.json() {
        Some(json) => Ok(json),
        None => Err(Finding::error("report/asked", Blame::Bug, "report", "an answer without JSON").into()),
    }))
}

/// The recipe with its features, as typed.
fn words_of_recipe(case: &Case) -> Vec<String> {
    let asked = &case.asked.recipe;
    let mut out = vec![asked.recipe.clone()];
    for (flag, features) in [("--with", &asked.with), ("--without", &asked.without)] {
        if !features.is_empty() {
            let names: Vec<&str> = features.iter().map(|feature| feature.name()).collect();
            out.extend([flag.to_string(), names.join(",")]);
        }
    }
    out
}

/// The case in the page's own keys.
fn address(case: &Case, fit: &Value) -> Value {
    let mut out = json!({ "recipe": case.asked.recipe.recipe, "on": case.asked.on });
    let typed = [
        "tp",
        "sp",
        "cp",
        "pp",
        "vpp",
        "ep",
        "etp",
        "dp",
        "zero",
        "mbs",
        "microbatches",
        "seq",
        "schedule",
        "recompute",
        "mode",
        "engine",
        "boundaries",
    ];
    for key in typed {
        if !fit["layout"][key].is_null() {
            out[key] = fit["layout"][key].clone();
        }
    }
    out
}
