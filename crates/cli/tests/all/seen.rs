//! Files for viewers: the trace of a step and the snapshot of a rank's memory, read as a viewer reads them and
//! held to what the command says beside them.

use crate::common::{json, run, run_args};
use checkpoint::pickle::{Id, Node, Pickle};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

const DOCS: &str = include_str!("../../../../docs/viewers.md");
/// The largest file that is written.
const MOST_BYTES: u64 = 20 << 20;

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("seen-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

/// Slices of a trace by process and thread, each with start and length in nanoseconds.
type Rows = BTreeMap<(u64, u64), Vec<(u64, u64, Value)>>;

/// Nanoseconds of a figure in microseconds.
fn nanoseconds(value: &Value) -> u64 {
    (value.as_f64().expect("a number") * 1e3).round() as u64
}

fn rows(trace: &Value) -> Rows {
    let mut rows = Rows::new();
    for event in trace["traceEvents"].as_array().expect("events").iter().filter(|event| event["ph"] == "X") {
        let row = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        rows.entry(row).or_default().push((nanoseconds(&event["ts"]), nanoseconds(&event["dur"]), event.clone()));
    }
    rows.values_mut().for_each(|row| row.sort_by_key(|(start, length, _)| (*start, *start + *length)));
    rows
}

/// Holds a trace to a step: rows without overlap, schedules without gaps, and the same seconds.
fn assert_is_step(trace: &Value, step: &Value) {
    let (rows, seconds) = (rows(trace), step["seconds"].as_f64().unwrap());
    for (row, slices) in &rows {
        for pair in slices.windows(2) {
            let end = pair[0].0 + pair[0].1;
            assert!(pair[1].0 >= end, "{row:?}: {} and {}", pair[0].2, pair[1].2);
            assert!(row.1 != 0 || pair[1].0 == end, "{row:?}: a gap before {}", pair[1].2);
        }
    }
    let stages = step["stages"].as_array().unwrap();
    for (stage, said) in stages.iter().enumerate() {
        let schedule = &rows[&(stage as u64, 0)];
        let (start, length, _) = schedule[schedule.len() - 1];
        // A step of very many microbatches is summed in another order than it is drawn.
        let (end, rounding) = ((seconds * 1e9).round() as u64, 1 + (seconds * 1e-2) as u64);
        assert!(schedule[0].0 == 0 && (start + length).abs_diff(end) <= rounding, "stage {stage}: {end}");
        let sum = |category: &str, folded: &str| -> f64 {
            let of = |slice: &Value| match slice["cat"].as_str() {
                Some(own) if own == category => slice["args"]["seconds"].as_f64(),
                Some("folded") => slice["args"][folded].as_f64(),
                _ => None,
            };
            schedule.iter().filter_map(|(_, _, slice)| of(slice)).sum()
        };
        for (category, key) in [("pass", "busy"), ("wait", "idle"), ("send", "sending")] {
            let (drawn, said) = (sum(category, key), said[key].as_f64().unwrap());
            assert!((drawn - said).abs() <= 1e-9 * seconds, "stage {stage}: {drawn} s {key} drawn, {said} said");
        }
    }
}

/// Slices of the busiest stage by name, in seconds, against the step's lines.
fn assert_has_lines(trace: &Value, step: &Value) {
    let busy = |stage: &Value| stage["busy"].as_f64().unwrap();
    let stages = step["stages"].as_array().unwrap();
    let slow = (0..stages.len()).max_by(|a, b| busy(&stages[*a]).total_cmp(&busy(&stages[*b]))).unwrap() as u64;
    let mut sums: HashMap<String, f64> = HashMap::new();
    for (_, _, slice) in rows(trace).into_iter().filter(|((stage, _), _)| *stage == slow).flat_map(|(_, row)| row) {
        let name = slice["name"].as_str().unwrap().trim_start_matches("recompute: ").to_string();
        *sums.entry(name).or_default() += slice["args"]["seconds"].as_f64().unwrap();
        assert!(["counted", "measured", "modelled"].contains(&slice["args"]["basis"].as_str().unwrap()));
    }
    let once = ["gradients exposed", "weights exposed", "optimizer", "offload"];
    for line in step["parts"].as_array().unwrap() {
        let (name, said) = (line["name"].as_str().unwrap(), line["seconds"].as_f64().unwrap());
        let drawn = match name {
            "bubble" => sums["wait"],
            "pp exposed" => sums["send"],
            // Another stage may take longer over these.
            _ if once.contains(&name) => continue,
            name => *sums.get(name).unwrap_or_else(|| panic!("no slice is called `{name}`")),
        };
        assert!((drawn - said).abs() <= 1e-9 * step["seconds"].as_f64().unwrap(), "{name}: {drawn}, said {said}");
    }
}

fn read_trace(path: &Path) -> Value {
    assert!(path.metadata().unwrap().len() <= MOST_BYTES);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_trace_of_fit_is_its_step() {
    let path = folder("fit").join("t.json");
    for job in [
        "llama3-8b --on 8xH200 --tp 2",
        "llama3-8b --on 16xH200 --pp 4 --vpp 2 --microbatches 16 --recompute full",
        "deepseek-v3 --on 32x8xH200 --pp 16 --ep 16 --etp 1 --schedule dualpipe --microbatches 64 --engine any",
        "nam56r --on 64xH200 --tp 2 --pp 4 --ep 4 --etp 1 --schedule zb-h1 --microbatches 32 --engine any",
        "llama3-8b --on 8xH200 --engine fsdp2 --zero 3 --microbatches 8",
    ] {
        let answer = json(&format!("fit {job} --trace {}", path.display()));
        let trace = read_trace(&path);
        assert_is_step(&trace, &answer["step"]);
        assert_has_lines(&trace, &answer["step"]);
        assert_eq!(answer["trace"]["drawn"], "every pass, in parts", "{job}");
        let number = rows(&trace).values().map(Vec::len).sum::<usize>();
        assert_eq!(answer["trace"]["slices"], number, "{job}");
    }
}

/// Steps of very many passes are drawn with less in them, and say so.
#[test]
fn a_long_step_is_thinned_and_adds_up() {
    let path = folder("long").join("t.json");
    for (microbatches, says) in [(1_000, "every pass; the first"), (100_000, "those between are one slice")] {
        let line = format!(
            "fit llama3-8b --on 8xH200 --pp 8 --microbatches {microbatches} --gbs {microbatches} --trace {}",
            path.display()
        );
        let answer = json(&line);
        assert!(answer["trace"]["drawn"].as_str().unwrap().contains(says), "{}", answer["trace"]);
        assert_is_step(&read_trace(&path), &answer["step"]);
        let said = run(&line).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains("because more would make the file too large"), "{said}");
    }
}

#[test]
fn a_trace_of_plan_is_its_best() {
    let folder = folder("plan");
    let [trace, snapshot] = ["t.json", "m.pickle"].map(|name| folder.join(name));
    let answer = json(&format!(
        "plan llama3-8b --on 8xH200 --tp 2 --pp 2 --trace {} --memory-snapshot {}",
        trace.display(),
        snapshot.display()
    ));
    assert_is_step(&read_trace(&trace), &answer["best"]["step"]);
    let (now, _) = replayed(&snapshot);
    assert!(now > 0);
}

fn int(pickle: &Pickle, of: Id, key: &str) -> u64 {
    pickle.get(of, key).and_then(|id| pickle.int(id)).unwrap_or_else(|| panic!("no `{key}`")) as u64
}

fn text<'a>(pickle: &'a Pickle, of: Id, key: &str) -> &'a str {
    pickle.get(of, key).and_then(|id| pickle.text(id)).unwrap_or_else(|| panic!("no `{key}`"))
}

fn items<'a>(pickle: &'a Pickle, of: Id, key: &str) -> &'a [Id] {
    pickle.get(of, key).and_then(|id| pickle.items(id)).unwrap_or_else(|| panic!("no `{key}`"))
}

/// Reads a snapshot as the viewer does, event by event: bytes asked for at the highest point and bytes of segments.
fn replayed(path: &Path) -> (u64, u64) {
    let bytes = std::fs::read(path).unwrap();
    assert!(bytes.len() as u64 <= MOST_BYTES);
    let pickle = Pickle::read(&bytes, "snapshot", &|_, _| false).unwrap();
    let [trace] = items(&pickle, pickle.root(), "device_traces") else { panic!("one device") };
    let (mut held, mut now, mut most) = (HashMap::new(), 0, 0);
    for &event in pickle.items(*trace).unwrap() {
        let (address, size) = (int(&pickle, event, "addr"), int(&pickle, event, "size"));
        match text(&pickle, event, "action") {
            "alloc" => {
                assert_eq!(held.insert(address, size), None, "{address} is taken twice");
                now += size;
                most = most.max(now);
                let frames = items(&pickle, event, "frames");
                assert_eq!(text(&pickle, frames[0], "filename"), text(&pickle, event, "category"));
                assert!(frames.len() >= 3, "line, place and phase");
            }
            "free_completed" => {
                assert_eq!(held.remove(&address), Some(size), "{address} is given back and was not taken");
                now -= size;
            }
            "free_requested" => assert_eq!(held.get(&address), Some(&size)),
            "segment_alloc" | "segment_map" | "snapshot" => {}
            other => panic!("`{other}` is no action of torch's"),
        }
    }
    let mut reserved = 0;
    for &segment in items(&pickle, pickle.root(), "segments") {
        let mut at = int(&pickle, segment, "address");
        for &block in items(&pickle, segment, "blocks") {
            assert_eq!(int(&pickle, block, "address"), at);
            at += int(&pickle, block, "size");
            if text(&pickle, block, "state") != "inactive" {
                assert_eq!(held.remove(&int(&pickle, block, "address")), Some(int(&pickle, block, "requested_size")));
            }
        }
        assert_eq!(at - int(&pickle, segment, "address"), int(&pickle, segment, "total_size"));
        reserved += int(&pickle, segment, "total_size");
    }
    assert!(held.is_empty(), "blocks that no segment has");
    assert!(matches!(pickle.node(pickle.root()), Node::Dict(_)));
    (most, reserved)
}

#[test]
fn a_snapshot_is_the_replay_that_fit_judges() {
    let path = folder("snapshot").join("m.pickle");
    for job in [
        "nam56r --on 64xH200 --tp 2 --pp 4 --ep 4 --etp 1 --microbatches 16",
        "llama3-8b --on 8xH200 --engine fsdp2 --zero 3 --microbatches 8",
        "llama3-8b --on 8xH200 --engine deepspeed --zero 2 --recompute full",
        "llama3-8b --on 8xH200 --tp 2 --engine-args PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ] {
        let answer = json(&format!("fit {job} --memory-snapshot {}", path.display()));
        let worst = &answer["rank_classes"][answer["worst"].as_u64().unwrap() as usize];
        assert_eq!(answer["memory_snapshot"]["stage"], worst["stage"]);
        let (asked, reserved) = replayed(&path);
        let [allocated, most] = ["allocated_peak_bytes", "reserved_peak_bytes"].map(|key| worst[key].as_u64().unwrap());
        assert_eq!(reserved, most, "{job}");
        // What was asked for is rounded up when it is allocated; what is given back late is the device's a while yet.
        let near = asked as f64 / allocated as f64;
        assert!((0.95..1.05).contains(&near), "{job}: {asked} asked for, {allocated} allocated");
    }
}

/// A recorded replay keeps the last events, as torch does, and what was made before stands in the segments.
#[test]
fn a_long_history_keeps_its_end() {
    let path = folder("history").join("m.pickle");
    let line = format!(
        "fit deepseek-v3 --on 16x8xH200 --ep 64 --etp 1 --schedule gpipe --pp 2 --microbatches 24 --recompute full --engine any \
         --work-limit none --memory-snapshot {}",
        path.display()
    );
    let answer = json(&line);
    assert!(answer["memory_snapshot"]["events_left_out"].as_u64().unwrap() > 0, "{}", answer["memory_snapshot"]);
    assert!(path.metadata().unwrap().len() <= MOST_BYTES);
}

/// Python's own reader, where there is one.
#[test]
fn python_reads_a_snapshot() {
    let path = folder("python").join("m.pickle");
    run(&format!("fit nam56r --on 8xH200 --tp 2 --memory-snapshot {}", path.display()));
    let program = "import pickle, sys\n\
        s = pickle.load(open(sys.argv[1], 'rb'))\n\
        t = s['device_traces'][0]\n\
        assert {e['action'] for e in t} >= {'alloc', 'free_requested', 'free_completed', 'segment_alloc', 'snapshot'}\n\
        assert all(set(e) == {'action', 'addr', 'size', 'stream', 'time_us', 'category', 'frames'} for e in t)\n\
        print(len(t), sum(b['size'] for g in s['segments'] for b in g['blocks']) == sum(g['total_size'] for g in s['segments']))";
    let Ok(output) = Command::new("python3").args(["-c", program]).arg(&path).output() else {
        eprintln!("skipped python_reads_a_snapshot: there is no python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.trim_end().ends_with("True"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// What cannot be written is refused by name, and nothing is left where it would stand.
#[test]
fn what_cannot_be_seen_is_refused() {
    let path = folder("refused").join("file");
    let at = path.display();
    for (line, rule) in [
        (format!("fit tiny --on 8xH200 --engine shardwright --memory-snapshot {at}"), "recipe/unknown"),
        (format!("fit llama3-8b --on 8xH200 --engine shardwright --memory-snapshot {at}"), "snapshot/unmodelled"),
        (format!("fit llama3-8b --on 1xGB10 --trace {at}"), "trace/unpriced"),
        (format!("plan llama3-8b --on 8,16xH200 --trace {at}"), "plan/sweep-seen"),
        (format!("plan llama3-8b --on 8xH200 --sequences 4096,8192 --memory-snapshot {at}"), "plan/sweep-seen"),
        (format!("fit llama3-8b --on 8xH200 --trace {at} --memory-snapshot {at}"), "file/input"),
        (
            format!("fit llama3-8b --on 8xH200 --pp 8 --seq 1024 --microbatches 16000000 --gbs 16000000 --trace {at}"),
            "work/operations",
        ),
    ] {
        let _ = std::fs::remove_file(&path);
        let ran = run(&line);
        assert_eq!(ran.code, 1, "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("[{rule}]")), "{line}: {}", ran.stderr);
        assert!(rule == "file/input" || !path.exists(), "{line}");
    }
    let ran = run(&format!("fit llama3-8b --on 8xH200 --serve --trace {at}"));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

/// Every command of the page on viewers, as printed.
#[test]
fn the_page_on_viewers_runs() {
    let lines: Vec<&str> = DOCS.lines().filter_map(|line| line.strip_prefix("$ shardwright ")).collect();
    assert!(lines.len() >= 2, "{DOCS}");
    let folder = folder("page");
    for line in lines {
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| match word.ends_with(".json") || word.ends_with(".pickle") {
                true => folder.join(word).display().to_string(),
                false => word.to_string(),
            })
            .collect();
        let ran = run_args(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, 0, "{line}: {}", ran.stderr);
    }
    assert!(std::fs::read_dir(&folder).unwrap().count() >= 2);
}
