//! How far times are to be trusted, as printed: intervals beside every step, and layouts that cannot be told apart.

use crate::common::{json, run};

#[test]
fn every_step_has_its_interval() {
    for line in ["plan llama3-8b --on 8xH100 --tp 2 --gbs 128", "fit llama3-8b --on 8xH100 --tp 2"] {
        let answer = json(line);
        let step = if line.starts_with("plan") { &answer["best"]["step"] } else { &answer["step"] };
        let interval = &step["interval"];
        let [low, high] = ["low", "high"].map(|edge| interval[edge].as_f64().unwrap());
        let seconds = step["seconds"].as_f64().unwrap();
        assert!(low < high && low < 1.2 * seconds && high > 0.8 * seconds, "{line}: {step}");
        assert!(interval["rows"].as_u64().unwrap() >= 8 && interval["share"] == 0.8, "{line}: {interval}");
        let text = run(line).stdout.replace("\n  ", " ");
        assert!(text.contains("in 8 of 10 such runs") && text.contains("such runs: "), "{line}: {text}");
    }
    let launched = run("launch llama3-8b --on 8xH100 --tp 2").stdout;
    assert!(launched.contains(" in 8 of 10 such runs"), "{launched}");
}

/// Equals of the best are within what tells two layouts apart of the fastest, and none of them has more room and is
/// simpler at once.
#[test]
fn layouts_that_cannot_be_told_apart_are_ranked_by_room_and_simplicity() {
    let line = "plan llama3-8b --on 8xH200";
    let answer = json(line);
    let equals = answer["equal"].as_array().unwrap();
    assert!(!equals.is_empty(), "{}", answer["told_apart"]);
    let share = answer["told_apart"]["share"].as_f64().unwrap();
    assert!((0.0..0.1).contains(&share));
    let best = &answer["best"];
    let [room, complexity] = ["headroom_bytes", "complexity"].map(|key| best[key].as_f64().unwrap());
    // Headroom counts in steps of a twentieth of the device, up to four of them.
    let visible = 139.0 * f64::from(1 << 30);
    let steps = |bytes: f64| (bytes / (visible / 20.0)).floor().min(4.0);
    for one in equals {
        assert!(one["slower"].as_f64().unwrap().abs() <= 2.0 * share, "{one}");
        let [own, simple] = ["headroom_bytes", "complexity"].map(|key| one[key].as_f64().unwrap());
        assert!(steps(own) <= steps(room), "{one}");
        assert!(steps(own) < steps(room) || simple >= complexity, "{one}");
        assert!(one["decides"]["part"].is_string(), "{one}");
    }
    let text = run(line).stdout;
    assert!(text.contains("equal to it") && text.contains("a few steps of both"), "{text}");
}

/// A layout beside the best one is said to be equal where it is, and only there.
#[test]
fn an_explanation_says_what_cannot_be_told_apart() {
    let line = "plan llama3-8b --on 8xH200 --cp 1 --gbs 64 --explain";
    for (layout, is_equal) in [("--tp 1 --pp 1", true), ("--tp 8", false)] {
        let ran = crate::common::run_args(&[&line.split(' ').collect::<Vec<_>>()[..], &[layout]].concat());
        assert_eq!(ran.stdout.contains("equal to it as far as anybody can tell"), is_equal, "{layout}: {}", ran.stdout);
    }
}
