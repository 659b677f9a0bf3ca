//! What a launch chooses besides its layout: constants tuned for a topology, dispatch, overlap, offload,
//! kernels; each said, emitted and recorded.

use crate::common::{Ran, run_args, scratch};
use recipe::import::megatron_args::shell_words;
use serde_json::Value;

const EXAMPLE: &str = "../../docs/example_policy.toml";

/// Runs words as a shell splits them.
fn run(line: &str) -> Ran {
    let words = shell_words(line);
    run_args(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn json(line: &str) -> Value {
    let ran = run(&format!("{line} --json"));
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{line}: {error}\n{}{}", ran.stdout, ran.stderr))
}

/// The value of an emitted argument.
fn argument<'a>(launch: &'a Value, flag: &str) -> Option<&'a Value> {
    let arguments = launch["arguments"].as_array().unwrap().iter();
    arguments.filter(|argument| argument["flag"] == flag).map(|argument| &argument["values"]).next()
}

/// A file of the launch.
fn file<'a>(launch: &'a Value, name: &str) -> &'a str {
    let files = launch["files"].as_array().unwrap().iter();
    files.filter(|file| file["path"] == name).map(|file| file["contents"].as_str().unwrap()).next().unwrap()
}

fn record(launch: &Value) -> Value {
    serde_json::from_str(file(launch, "launch.json")).unwrap()
}

#[test]
fn the_example_policy_works_with_the_examples() {
    for line in [
        "launch nam56r --mode nemo_native --on 8xH200 --scheduler slurm",
        "launch nam56r --mode author_dp --on 8xH200",
        "launch nam56r --mode nemo_native --on 64xH200 --scheduler jobset",
        "launch llama3-8b --on 8xH200",
        "launch llama3-8b --on 8xH200 --engine torchtitan",
        "launch llama3-8b --on 8xH200 --engine deepspeed --zero 3",
        "launch llama3-8b --on 8xH200 --engine fsdp2",
    ] {
        let ran = run(&format!("{line} --policy {EXAMPLE}"));
        assert_eq!(ran.code, 0, "{line}: {}", ran.stderr);
    }
    // On the topology it was tuned for the constants are told; elsewhere the engine's own are, and it says so.
    let tuned = json(&format!("launch nam56r --mode nemo_native --on 8xH200 --policy {EXAMPLE}"));
    assert_eq!(argument(&tuned, "--ddp-bucket-size").unwrap()[0], "80000000", "{}", tuned["topology"]);
    let other = json(&format!("launch nam56r --mode author_dp --on 8xH200 --policy {EXAMPLE}"));
    assert_eq!(argument(&other, "--ddp-bucket-size"), None);
    assert!(other["findings"].to_string().contains("the engine's own are used"), "{}", other["findings"]);
    let ran = run(&format!("preflight --policy {EXAMPLE} nam56r --mode nemo_native --on 8xH200 --json"));
    assert!(ran.stdout.contains("\"checks\""), "{}", ran.stderr);
}

#[test]
fn constants_belong_to_a_topology() {
    let line = "launch llama3-8b --tp 2 --on 8xH200";
    let topology = json(line)["topology"].as_str().unwrap().to_string();
    assert!(run(line).stdout.contains(&topology), "a reader can paste it");
    let policy = |topology: &str, words: &str| {
        let text =
            format!("[tuned.\"{topology}\"]\nengine_args = \"{words}\"\nvocab_multiple = 256\nsource = \"a sweep\"\n");
        scratch("tuned.toml", &text)
    };
    let words = "--ddp-num-buckets 8 --ddp-pad-buckets-for-high-nccl-busbw";
    let path = policy(&topology, words);
    let launched = json(&format!("{line} --policy {}", path.display()));
    assert_eq!(argument(&launched, "--ddp-num-buckets").unwrap()[0], "8");
    assert!(argument(&launched, "--ddp-pad-buckets-for-high-nccl-busbw").is_some());
    assert_eq!(launched["case"]["layout"]["vocab_multiple"], 256);
    assert_eq!(launched["case"]["options"]["--ddp-num-buckets"], "8", "it is part of the job that is priced");
    // Typed words come behind them.
    let typed = json(&format!("{line} --policy {} --engine-args '--ddp-num-buckets 4'", path.display()));
    assert_eq!(argument(&typed, "--ddp-num-buckets").unwrap()[0], "4");
    let elsewhere = run(&format!("launch llama3-8b --tp 4 --on 8xH200 --policy {}", path.display()));
    assert_eq!(elsewhere.code, 1);
    for words in ["[lane/buckets]", "tp2-cp1", "tp4-cp1", "--engine-args", "--attempt"] {
        assert!(elsewhere.stderr.contains(words), "{words}: {}", elsewhere.stderr);
    }
    let other = run(&format!("launch llama3-8b --tp 2 --engine torchtitan --on 8xH200 --policy {}", path.display()));
    assert!(other.code == 1 && other.stderr.contains("[lane/buckets]"), "of another engine: {}", other.stderr);
    let stranger = policy(&topology, "--log-throughput");
    let refused = run(&format!("{line} --policy {}", stranger.display()));
    assert!(refused.code == 1 && refused.stderr.contains("no bucket size or padding"), "{}", refused.stderr);
    let misplaced = scratch("misplaced.toml", "[run]\nengine_args = \"--ddp-bucket-size 1\"\n");
    let refused = run(&format!("{line} --policy {}", misplaced.display()));
    assert!(refused.code == 1 && refused.stderr.contains("names none"), "{}", refused.stderr);
    let note = json(&format!("{line} --policy {}", policy(&topology, words).display()));
    assert!(note["findings"].to_string().contains("lane/tuned"), "{}", note["findings"]);
}

/// What stands behind `shardwright` in the command an answer ends with.
fn next(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim);
    lines.find_map(|line| line.strip_prefix("shardwright ").filter(|line| line.starts_with("launch"))).unwrap()
}

#[test]
fn the_offload_lane_offloads() {
    let advice = run("lanes --for llama3-70b --on 8xH200 --goal offload");
    assert!(advice.stdout.contains("topology 1x8xH200"), "{}", advice.stdout);
    let ran = run(next(&advice.stdout));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let launched = json(next(&advice.stdout));
    let config: Value = serde_json::from_str(file(&launched, "ds_config.json")).unwrap();
    let zero = &config["zero_optimization"];
    assert_eq!((&zero["stage"], &zero["offload_optimizer"]["device"]), (&3.into(), &"cpu".into()));
    assert_eq!(zero["offload_param"]["device"], "cpu");
    assert_eq!(launched["memory"]["verdict"], "fits", "{}", launched["memory"]);
    // The host holds state and weights, and less of both stays on the device.
    let fit = |more: &str| {
        json(&format!(
            "fit llama3-70b --engine deepspeed --zero 3 --offload-optimizer 1 {more} --recompute full --on 8xH200"
        ))
    };
    let (state, both) = (fit(""), fit("--offload-params"));
    let host = |fit: &Value| fit["host"]["node_bytes"].as_u64().unwrap();
    let params = 70_553_706_496_u64;
    assert!(
        host(&both) - host(&state) >= params * 2 && host(&both) - host(&state) < params * 21 / 10,
        "{}",
        host(&both)
    );
    let held = |fit: &Value| fit["rank_classes"][0]["allocated_peak_bytes"].as_u64().unwrap();
    assert!(held(&both) < held(&state));
    let seconds = |fit: &Value| fit["step"]["seconds"].as_f64().unwrap();
    assert!(seconds(&both) >= seconds(&state));
}

#[test]
fn every_recipe_has_an_offload_command_that_runs_or_says_why_not() {
    for name in ["nam56r", "llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-h-8b"] {
        let advice = run(&format!("lanes --for {name} --on 8xH200 --goal offload"));
        if advice.stdout.contains("there is nothing to launch") {
            assert!(
                advice.stdout.contains("shardwright plan") && !advice.stderr.is_empty(),
                "{name}: {}",
                advice.stdout
            );
            continue;
        }
        let ran = run(next(&advice.stdout));
        assert_eq!(ran.code, 0, "{name}: {}{}", advice.stdout, ran.stderr);
    }
}

#[test]
fn nvme_is_written_and_held_to_the_drives_of_a_node() {
    let line = "llama3-8b --engine deepspeed --zero 3 --offload-optimizer 1 --offload-params --offload-nvme /mnt/nvme --on 8xH200";
    let launched = json(&format!("launch {line}"));
    let config: Value = serde_json::from_str(file(&launched, "ds_config.json")).unwrap();
    for part in ["offload_optimizer", "offload_param"] {
        let part = &config["zero_optimization"][part];
        assert_eq!((&part["device"], &part["nvme_path"]), (&"nvme".into(), &"/mnt/nvme".into()));
    }
    assert_eq!((&config["aio"]["block_size"], &config["aio"]["overlap_events"]), (&1_048_576.into(), &true.into()));
    assert_eq!(launched["memory"]["verdict"], "fits");
    // Nobody states the drives of an H200's node: bytes are counted, seconds refused by name.
    assert!(launched["step"]["unpriced"].as_str().unwrap().contains("drives"), "{}", launched["step"]);
    let device = run("hardware H200 --toml").stdout;
    let drives = |write: &str, bytes: &str| {
        let text = format!(
            "\n[drives]\ncount = 8\nbytes = {bytes}\nread_bytes_per_second = 6e9\nwrite_bytes_per_second = {write}\nsource = \"fio, here\"\n"
        );
        scratch(&format!("drives-{write}-{bytes}.toml"), &(device.clone() + &text)).display().to_string()
    };
    let fit = |words: &str, device: &str| {
        json(&format!("fit llama3-70b --engine deepspeed --zero 3 --gbs 8 --recompute full {words} --on 8x{device}"))
    };
    let (fast, slow) = (drives("3e9", "3840000000000"), drives("1.5e9", "3840000000000"));
    let nvme = "--offload-optimizer 1 --offload-params --offload-nvme /mnt/nvme";
    let [host, state, both, slower] = [
        fit("--offload-optimizer 1 --offload-params", &fast),
        fit("--offload-optimizer 1 --offload-nvme /mnt/nvme", &fast),
        fit(nvme, &fast),
        fit(nvme, &slow),
    ];
    let number = |fit: &Value, key: &str| fit["rank_classes"][0][key].as_f64().unwrap();
    let part = 70.55e9 / 8.0;
    assert!((number(&state, "drive_bytes") / (16.0 * part) - 1.0).abs() < 0.01);
    assert!((number(&both, "drive_bytes") / (18.0 * part) - 1.0).abs() < 0.01);
    // What stays on the host is buffers, of which gradients in fp32 are the most.
    assert!(number(&both, "host_bytes") < 0.4 * number(&host, "host_bytes"), "buffers, not state");
    // The step waits for all of it: 16 bytes read and 16 written an element, 2 written back, on an eighth of the drives.
    let seconds = |fit: &Value| fit["step"]["seconds"].as_f64().unwrap();
    let offload = |fit: &Value| {
        let parts = fit["step"]["parts"].as_array().unwrap();
        parts.iter().find(|line| line["name"] == "offload").unwrap()["seconds"].as_f64().unwrap()
    };
    let swapped = part * (16.0 / 6e9 + 18.0 / 3e9);
    assert!(((offload(&both) - offload(&host)) / swapped - 1.0).abs() < 0.01, "{} {}", offload(&both), offload(&host));
    assert!(((offload(&slower) - offload(&both)) / (part * 18.0 / 3e9) - 1.0).abs() < 0.01);
    // Weights are read once forward and once backward, beside compute.
    let more = seconds(&both) - seconds(&host) - swapped;
    assert!((-1e-6..2.0 * part * 2.0 / 6e9).contains(&more), "{more}");
    let small = fit(nvme, &drives("3e9", "100000000000"));
    assert_eq!(small["verdict"], "does-not-fit", "{}", small["host"]);
    let ran = run(&format!("fit llama3-70b --engine deepspeed --zero 3 --gbs 8 --recompute full {nvme} --on 8x{fast}"));
    assert!(ran.stdout.contains("its drives keep"), "{}", ran.stdout);
}

/// A weight whose part is larger than DeepSpeed's buffer gets a larger one, without which its first swap fails.
#[test]
fn buffers_hold_the_largest_part() {
    let line = "launch llama3-70b --engine deepspeed --zero 3 --offload-optimizer 1 --offload-params --offload-nvme /mnt/nvme --on 8xH200 --override-memory";
    let config: Value = serde_json::from_str(file(&json(line), "ds_config.json")).unwrap();
    let size = config["zero_optimization"]["offload_param"]["buffer_size"].as_u64().unwrap();
    assert_eq!(size, 128_256 * 8192 / 8, "the token table's part");
    let small = json(&line.replace("70b", "8b"));
    let config: Value = serde_json::from_str(file(&small, "ds_config.json")).unwrap();
    assert!(config["zero_optimization"]["offload_param"]["buffer_size"].is_null());
}

#[test]
fn kernels_are_recorded_and_no_part_of_the_model() {
    let line = "launch llama3-8b --on 8xH200";
    let (auto, fused) = (json(line), json(&format!("{line} --engine-args '--attention-backend fused'")));
    let (auto, fused) = (record(&auto), record(&fused));
    assert_eq!(
        (&auto["overlay"]["attention_backend"], &fused["overlay"]["attention_backend"]),
        (&"auto".into(), &"fused".into())
    );
    let checkpoint = |record: &Value| record["identity"]["checkpoint"].clone();
    assert_eq!(checkpoint(&auto), checkpoint(&fused));
    assert_ne!(auto["identity"]["launch_id"], fused["identity"]["launch_id"]);
    for key in ["compile", "precision", "overlap", "wrapper", "optimizer", "environment"] {
        assert!(!auto["overlay"][key].is_null(), "{key}");
    }
    assert!(auto["overlay"]["environment"]["TRITON_CACHE_DIR"].is_string());
}

#[test]
fn a_figure_carries_its_lane() {
    let header = "lane nvidia-pretraining: not compiled, bf16, gradients+weights+tp(async) overlapped, \
                  Megatron DDP with the distributed optimizer, AdamW";
    for line in [
        "fit llama3-8b --tp 2 --on 8xH200",
        "launch llama3-8b --tp 2 --on 8xH200",
        "plan llama3-8b --tp 2 --cp 1 --pp 1 --zero 1 --mbs 1 --gbs 64 --recompute none --on 8xH200",
    ] {
        let text = run(line).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(header), "{line}: {text}");
    }
    let whole = json("fit llama3-8b --engine torchtitan --engine-args compile.enable=true --on 8xH200");
    assert_eq!(
        (&whole["header"]["compile"], &whole["header"]["lane"]),
        (&"torch.compile".into(), &"torchtitan".into())
    );
}

#[test]
fn dispatch_and_overlap_are_choices_that_are_said() {
    let line = "launch mixtral-8x7b --ep 8 --on 8xH200 --override-memory";
    let usual = run(line).stdout;
    assert!(usual.contains("alltoall: a token travels once") && usual.contains("on: gradients, weights"), "{usual}");
    assert!(usual.contains("--overlap-moe-expert-parallel-comm"), "what is off, and why");
    for (words, flag) in [
        ("--moe-token-dispatcher-type allgather", None),
        ("--moe-token-dispatcher-type flex", Some("--moe-token-dispatcher-type")),
        ("--overlap-moe-expert-parallel-comm --delay-wgrad-compute", Some("--delay-wgrad-compute")),
        ("--overlap-moe-expert-parallel-comm", Some("--overlap-moe-expert-parallel-comm")),
    ] {
        let launched = json(&format!("{line} --engine-args '{words}'"));
        // What is Megatron's own default needs no word.
        assert_eq!(
            argument(&launched, "--moe-token-dispatcher-type").is_none(),
            words.ends_with("allgather"),
            "{words}"
        );
        assert!(flag.is_none_or(|flag| argument(&launched, flag).is_some()), "{words}");
    }
    let hybrid =
        run("launch nam56r --mode author_dp --ep 8 --on 8xH200 --engine-args --overlap-moe-expert-parallel-comm");
    assert!(hybrid.code == 1 && hybrid.stderr.contains("GPTModel alone"), "{}", hybrid.stderr);
    let overlapped = json("launch llama3-8b --tp 2 --on 8xH200 --override-memory --engine-args --tp-comm-overlap");
    assert!(argument(&overlapped, "--tp-comm-overlap").is_some());
    assert_eq!(overlapped["memory"]["verdict"], "unmodelled");
    let faster = overlapped["step"]["seconds"].as_f64().unwrap();
    assert!(faster < json("launch llama3-8b --tp 2 --on 8xH200")["step"]["seconds"].as_f64().unwrap());
}

#[test]
fn experts_stand_in_the_feature_table_and_patch_points_apart_from_flags() {
    let on = run("params nam56r").stdout;
    assert!(on.lines().any(|line| line.contains("moe") && line.contains("every expert (E) block")), "{on}");
    assert_eq!(json("params nam56r --without moe")["features"]["moe"], false);
    let native = run("launch nam56r --mode nemo_native --on 8xH200 --explain").stdout;
    assert!(!native.contains("Runtime patch points") && native.contains("Plain flags that a mode puts"), "{native}");
    let author = run("launch nam56r --mode author_dp --on 8xH200 --explain").stdout;
    let points = author.split("Runtime patch points").nth(1).unwrap().split("From the layout").next().unwrap();
    assert!(points.contains("--spec") && !points.contains("--hybrid-layer-pattern"), "{points}");
}
