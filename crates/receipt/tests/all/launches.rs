//! A launch directory as a receipt reads it.

use crate::common::{folder, receipt};
use case::{Asked, Case, Purpose, Seams, Terms};
use evidence::{Event, EventKind};
use launch::job::{Frontend, Job};
use launch::record::{MemoryVerdict, Predicted, files};
use launch::schedulers::{self, Scheduler};
use memory::fit::{Fit, HEADROOM};
use receipt::{About, Launched, Outcome, Prediction};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

fn case(words: &str) -> Case {
    let words: Vec<&str> = words.split_whitespace().collect();
    let asked = Asked::parse(&words).unwrap();
    let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
    let typed = hardware::ClusterText::parse(asked.on.as_deref().unwrap()).unwrap();
    let cluster = typed.on(hardware::Device::find(typed.device).unwrap()).unwrap();
    Case::new(asked, recipe, Some(cluster), Terms { purpose: Purpose::Run, seams: Seams::Refuse }).unwrap()
}

/// A launch directory, as `shardwright launch --out` writes it.
fn launched(at: &Path, words: &str) -> Case {
    let case = case(words);
    let policy = launch::Policy::default();
    let job = Job::new(&case, &policy, Frontend::MegatronLm);
    let mut emission = launch::engines::emit(&job).unwrap();
    emission.files = schedulers::files(Scheduler::Torchrun, &job, &emission).unwrap();
    let memory = MemoryVerdict::of(&Fit::price(&case, HEADROOM).unwrap(), false);
    let predicted = Predicted { memory: &memory, step: json!(cost::step(&case).unwrap()), case: case.to_json() };
    let plan = json!({ "layout": { "world": case.layout.world } });
    fs::create_dir_all(at).unwrap();
    for file in files(&job, &emission, Scheduler::Torchrun, &predicted, plan) {
        fs::create_dir_all(at.join(&file.path).parent().unwrap()).unwrap();
        fs::write(at.join(file.path), file.contents).unwrap();
    }
    case
}

fn place(name: &str) -> PathBuf {
    folder(name).join("launch")
}

#[test]
fn a_launch_says_who_it_is_and_what_it_promised() {
    let at = place("launch");
    let case = launched(&at, "llama3-8b --tp 2 --pp 2 --engine megatron --on 8xH200");
    let read = Launched::read(&at).unwrap();
    let said = read.about.prediction.clone().unwrap();
    // What is promised at launch time is what the same program prices now.
    let by = said.by.clone();
    assert_eq!(said, Prediction::of_case(&by, &case));
    let step = said.step.unwrap();
    assert_eq!((step.devices, step.tokens), (8, case.layout.global_batch * case.recipe.sequence));
    assert!((step.parts.values().sum::<f64>() - step.seconds).abs() < 1e-9 * step.seconds);
    assert_eq!(said.ranks.len(), 2);
    for class in &said.ranks {
        assert_eq!(class.lines.values().sum::<u64>(), class.allocated_peak, "lines of a rank sum to its peak");
        assert_eq!(class.phases.iter().map(|(_, _, most)| *most).max(), Some(class.allocated_peak));
        assert!(class.phases.iter().all(|(_, after, most)| after <= most));
        assert!(class.last_rank - class.first_rank == 3 && class.outside > 0);
    }
    // Who it is does not depend on whether it was launched from a directory; what it was told does.
    let bare = About::of_case(&case, &by, None);
    let launch_id = read.about.identity.launch_id.clone();
    assert_eq!(read.about.identity, receipt::Identity { launch_id, ..bare.identity });
    assert!(read.about.identity.launch_id.is_some() && !read.about.arguments.is_empty() && bare.arguments.is_empty());
    assert_eq!(read.about.overlay["precision"], bare.overlay["precision"]);
    assert_eq!(read.about.versions["engine"], bare.versions["engine"]);
    assert!(read.logs.starts_with("./runs/logs"));
    assert!(Case::from_json(&read.about.case.unwrap(), Terms::RUN).is_ok());
}

/// torchtitan prints tokens a second of one device and no time of a step.
#[test]
fn a_step_is_timed_by_the_rate_of_a_device() {
    let case = case("llama3-8b --engine torchtitan --gbs 32 --on 8xH200");
    let about = About::of_case(&case, "0.1.0", Some(Prediction::of_case("0.1.0", &case)));
    let step = |number| evidence::Step { number, device_tokens_per_second: Some(8_192.0), ..evidence::Step::default() };
    let mut run = evidence::Evidence { steps: (1..=6).map(step).collect(), ..evidence::Evidence::default() };
    run.mark_warm_up();
    let receipt = receipt::Receipt::new(receipt::Kind::Run, "2026-11-19T00:00:00Z".to_string(), about, run);
    // 32 sequences of 8,192 tokens on 8 devices.
    assert_eq!(Outcome::of(&receipt).step_seconds, Some(4.0));
}

/// A program that ends with exit status 0 before its first step has not finished anything.
#[test]
fn a_launch_without_a_step_failed() {
    let mut ended = receipt(1);
    ended.identity.engine = Some("megatron".to_string());
    let detail = "finished, exit status 0".to_string();
    ended.evidence.events.push(Event {
        kind: EventKind::End,
        attempt: 0,
        at: None,
        seconds: None,
        step: None,
        rank: None,
        detail: detail.clone(),
        source: 0,
        line: 1,
    });
    assert_eq!((Outcome::of(&ended).state, Outcome::of(&ended).cause), (Some(detail.clone()), None));
    ended.evidence.steps.clear();
    let outcome = Outcome::of(&ended);
    assert_eq!((outcome.state.as_deref(), outcome.steps), (Some("failed, without a step"), 0));
    let cause = outcome.cause.expect("a cause");
    assert!(cause.words.contains("no step") && cause.hint.is_some_and(|hint| hint.contains("run.steps")));
    // What a script of one's own prints is not known.
    ended.identity.engine = Some("deepspeed".to_string());
    assert_eq!(Outcome::of(&ended).state, Some(detail));
}

#[test]
fn a_changed_file_is_refused_by_name() {
    let at = place("changed");
    launched(&at, "llama3-8b --tp 2 --engine megatron --on 8xH200");
    for name in ["launch.json", "plan.json", "arguments.json", "environment.env", "recipe.toml", "launch.sh"] {
        let whole = fs::read(at.join(name)).unwrap();
        let mut changed = whole.clone();
        changed.push(b'\n');
        fs::write(at.join(name), changed).unwrap();
        let refused = Launched::read(&at).unwrap_err();
        assert_eq!((refused.len(), refused[0].rule, refused[0].object.as_str()), (1, "receipt/changed", name));
        fs::remove_file(at.join(name)).unwrap();
        let refused = Launched::read(&at).unwrap_err();
        assert_eq!((refused.len(), refused[0].rule, refused[0].object.as_str()), (1, "receipt/changed", name));
        fs::write(at.join(name), whole).unwrap();
    }
    assert!(Launched::read(&at).is_ok());
    // All at once, each by its name.
    fs::write(at.join("plan.json"), "").unwrap();
    fs::write(at.join("launch.sh"), "").unwrap();
    assert_eq!(Launched::read(&at).unwrap_err().len(), 2);
    // Sums that lead elsewhere, that leave out what is needed, and a folder without any.
    for sums in ["00  ../../etc/passwd\n", "00  /etc/passwd\n", "nonsense\n", ""] {
        fs::write(at.join("SHA256SUMS"), sums).unwrap();
        assert_eq!(Launched::read(&at).unwrap_err()[0].rule, "receipt/launch", "{sums}");
    }
    assert_eq!(Launched::read(&at.join("none")).unwrap_err()[0].rule, "receipt/launch");
}
