//! Uneven routing: up to which share of tokens an expert model fits, said without being asked, and asked of a search.

use crate::common::{json, run, shell};
use std::path::Path;

const FIT: &str = "fit qwen3-30b-a3b --on 8xH200 --ep 8 --etp 1 --mbs 2 --levers no";

#[test]
fn every_fit_of_an_expert_model_says_where_routing_breaks_it() {
    let breaks = json(FIT)["overload"]["breaks_at"].as_f64().expect("it breaks somewhere");
    let sentence = format!("no longer fits once a rank's experts receive {breaks:.2} times their share");
    assert!(run(FIT).stdout.contains(&sentence), "{sentence}");
    let at = &json(&format!("{FIT} --overload {:.2},{breaks:.2}", breaks - 0.01))["overload"]["at"];
    let left = |index: usize| at[index]["headroom_bytes"].as_i64().unwrap();
    assert!(left(0) >= 0 && left(1) < 0, "{at}");
}

#[test]
fn a_fit_says_why_routing_does_not_break_it() {
    let overload = |line: &str| json(line)["overload"].clone();
    assert!(overload("fit llama3-8b --on 8xH200 --levers no").is_null());
    let whole = overload("fit qwen3-30b-a3b --on 8xH200 --tp 8 --recompute full --levers no");
    assert_eq!((whole["most"].as_f64(), whole["breaks_at"].as_f64()), (Some(1.0), None));
    let other = overload("fit qwen3-30b-a3b --on 8xH200 --ep 8 --engine fsdp2 --recompute full --levers no");
    assert!(other["unknown"].as_str().unwrap().ends_with("replays balanced routing only"), "{other}");
    let large = overload("fit mixtral-8x7b --on 8xH200 --ep 8 --zero 0 --levers no");
    assert_eq!(large["breaks_at"].as_f64(), Some(1.0), "balanced experts do not fit either");
    let pools = overload("fit qwen3-30b-a3b --on 8xH200+8xH100 --pp 2 --ep 8 --etp 1 --recompute full");
    assert!(pools["most"].as_f64() == Some(8.0) && pools["unknown"].is_null(), "{pools}");
}

/// Asking for more is never answered faster; what is answered fits under what was asked, and its command shows it.
#[test]
fn a_plan_may_be_asked_for_an_overload() {
    let line = "plan qwen3-30b-a3b --on 8xH200 --engine megatron --gbs 64 --seq 4096 --cp 1";
    let mut times = Vec::new();
    for factor in ["1", "1.2", "1.5", "2", "3"] {
        let answer = json(&format!("{line} --overload {factor}"));
        times.push(answer["fastest"]["step"]["seconds"].as_f64().unwrap());
        let (asked, overload) = (answer["headroom_bytes"].as_i64().unwrap(), &answer["best"]["overload"]);
        assert_eq!(answer["overload"].as_f64(), factor.parse().ok());
        if factor != "1" && overload["most"].as_f64().unwrap() > 1.0 {
            assert!(overload["at"][0]["headroom_bytes"].as_i64().unwrap() >= asked, "{overload}");
        }
        let most = overload["most"].as_f64().unwrap();
        let breaks = overload["breaks_at"].as_f64().unwrap_or(f64::INFINITY);
        assert!(breaks > factor.parse::<f64>().unwrap().min(most), "{overload}");
    }
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{times:?}");
    assert!(times[0] < times[4], "more costs something here: {times:?}");
    let text = run(&format!("{line} --overload 1.5")).stdout;
    let fit = text.lines().find(|line| line.starts_with("  shardwright fit ")).expect("a command").trim();
    assert!(fit.ends_with(" --overload 1.5"), "{fit}");
    let shown = shell(&format!("{fit} --levers no"), Path::new("."), "400");
    assert!(shown.code == 0 && shown.stdout.contains("Routing skew (worst rank)"), "{}", shown.stdout);
}

#[test]
fn an_overload_that_nobody_replays_is_refused() {
    assert_eq!(run("plan qwen3-30b-a3b --on 8xH200 --overload 0.5").code, 2);
    let refused = json("plan qwen3-30b-a3b --on 8xH200 --engine fsdp2 --overload 1.5");
    assert_eq!(refused["findings"][0]["rule"], "plan/ledger");
    let pools = json("plan qwen3-30b-a3b --on 8xH200+8xH100 --overload 1.5");
    assert_eq!(pools["findings"][0]["rule"], "pools/flag");
    let dense = "plan llama3-8b --on 8xH200 --engine fsdp2 --gbs 32";
    let seconds = |line: &str| json(line)["best"]["step"]["seconds"].clone();
    assert_eq!(seconds(&format!("{dense} --overload 2")), seconds(dense), "nothing is routed");
}
