//! `launch.sh` as bash runs it, with a stand-in for the engine: whose checkpoints it loads, and what it
//! leaves behind however it ends.

use crate::common;
use case::Seams;
use launch::identity::Identity;
use launch::schedulers::{Scheduler, files};
use layout::{Engine, LayoutRequest};
use recipe::Mode;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A folder of this test's own, with a stand-in for torchrun that does this, and the engine's script.
fn folder(name: &str, torchrun: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(path.join("bin")).unwrap();
    let program = path.join("bin/torchrun");
    std::fs::write(&program, format!("#!/usr/bin/env bash\n{torchrun}\n")).unwrap();
    assert!(Command::new("chmod").arg("755").arg(&program).status().unwrap().success());
    std::fs::create_dir_all(path.join("engine")).unwrap();
    std::fs::write(path.join("engine/pretrain_hybrid.py"), "").unwrap();
    path
}

/// NAM56R in a mode, everything below one folder.
fn case(base: &Path, mode: Mode) -> common::Case {
    let tp = mode.tensor_parallel();
    let request = LayoutRequest {
        world: Some(8),
        tp: Some(tp),
        mode: Some(mode),
        engine: Some(Engine::Megatron),
        ..LayoutRequest::default()
    };
    let mut case = common::Case::new(&common::recipe("nam56r"), &request, Seams::Refuse).unwrap();
    let at = |name: &str| base.join(name).display().to_string();
    let storage = &mut case.policy.storage;
    (storage.checkpoints, storage.data, storage.logs) = (at("checkpoints"), at("data"), at("logs"));
    (storage.caches, storage.temporary, storage.forbid_root_volume) = (at("caches"), at("tmp"), false);
    case
}

/// What it says before the engine starts: Mamba-2 is in it.
const TUNES: &str = "the first step tunes 13 kernels, about 2 minutes without a cache";

/// Its script, started.
fn start(base: &Path, case: &common::Case) -> Child {
    started(base, case, &[])
}

/// Its script, started with these variables.
fn started(base: &Path, case: &common::Case, variables: &[(&str, &str)]) -> Child {
    let here = base.join("launch");
    std::fs::create_dir_all(&here).unwrap();
    for file in files(Scheduler::Torchrun, &case.job(), &case.emit().unwrap()).unwrap() {
        let path = here.join(file.path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file.contents).unwrap();
    }
    let path = format!("{}:{}", base.join("bin").display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.arg("./launch.sh")
        .current_dir(here)
        .env("PATH", path)
        .env("SHARDWRIGHT_PACKAGES", "ignore")
        .env("SHARDWRIGHT_ENGINE", base.join("engine"))
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    bash.spawn().unwrap()
}

/// Its exit status, and what it printed where errors go.
fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn summary(case: &common::Case) -> Value {
    let text = std::fs::read_to_string(format!("{}/summary-node0.json", case.job().logs())).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_run_leaves_a_summary_and_keeps_the_one_before() {
    let base = folder("script-runs", "echo one; echo two >&2; [ ! -e \"$SHARDWRIGHT_LOGS/fail\" ] || exit 7");
    let case = case(&base, Mode::NemoNative);
    assert_eq!(ended(start(&base, &case)).0, Some(0));
    let first = summary(&case);
    assert_eq!(
        (&first["state"], &first["exit_status"], &first["signal"]),
        (&"finished".into(), &0.into(), &Value::Null)
    );
    assert_eq!(
        (&first["restarts"], &first["log"]["first_line"], &first["log"]["last_line"]),
        (&0.into(), &1.into(), &3.into())
    );
    let identity = Identity::of(&case.job());
    assert_eq!((&first["launch_id"], &first["mode"]), (&identity.launch_id.into(), &"nemo_native".into()));
    for key in ["started", "ended"] {
        assert_eq!(first[key].as_str().unwrap().len(), "2026-01-01T00:00:00Z".len(), "{key}");
    }
    let folder = PathBuf::from(first["log"]["folder"].as_str().unwrap());
    let log = std::fs::read_to_string(folder.join(first["log"]["file"].as_str().unwrap())).unwrap();
    assert_eq!(log, format!("{TUNES}\none\ntwo\n"));
    std::fs::write(folder.join("fail"), "").unwrap();
    assert_eq!(ended(start(&base, &case)).0, Some(7));
    let second = summary(&case);
    assert_eq!(
        (&second["state"], &second["exit_status"], &second["restarts"]),
        (&"failed".into(), &7.into(), &1.into())
    );
    assert_eq!((&second["log"]["first_line"], &second["log"]["last_line"]), (&4.into(), &6.into()));
    let kept = std::fs::read_to_string(folder.join("summary-node0.0.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), first);
}

#[test]
fn a_signal_reaches_the_engine_and_the_summary() {
    let base = folder("script-signal", "trap 'echo stopping; exit 3' TERM; echo here; while :; do sleep 0.05; done");
    let case = case(&base, Mode::AuthorDp);
    let child = start(&base, &case);
    let log = format!("{}/node0.log", case.job().logs());
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("here")) {
        assert!(Instant::now() < until, "the engine never started");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(summary(&case)["state"], "running", "what a node that is killed outright leaves");
    assert!(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(ended(child).0, Some(3));
    let left = summary(&case);
    assert_eq!((&left["state"], &left["signal"], &left["exit_status"]), (&"stopped".into(), &"TERM".into(), &3.into()));
    assert!(std::fs::read_to_string(&log).unwrap().contains("stopping"));
}

#[test]
fn checkpoints_of_the_other_mode_are_not_loaded() {
    let base = folder("script-identity", "echo trained");
    let (native, author) = (case(&base, Mode::NemoNative), case(&base, Mode::AuthorDp));
    assert_eq!(ended(start(&base, &native)).0, Some(0));
    assert_eq!(ended(start(&base, &author)).0, Some(0), "it has a folder of its own");
    let [ours, theirs] = [&native, &author].map(|case| PathBuf::from(case.job().checkpoints()));
    assert_ne!(ours, theirs);
    std::fs::copy(ours.join("identity.json"), theirs.join("identity.json")).unwrap();
    let (status, said) = ended(start(&base, &author));
    assert_eq!(status, Some(1));
    assert!(said.contains("another model, mode or layout") && said.contains("nemo_native"), "{said}");
    assert_eq!(summary(&author)["state"], "refused");
    // Checkpoints that nobody put a name on are no better.
    std::fs::rename(theirs.join("identity.json"), theirs.join("iter_0000010")).unwrap();
    let (status, said) = ended(start(&base, &author));
    assert!(status == Some(1) && said.contains("nobody says whose"), "{said}");
    let adopted = started(&base, &author, &[("SHARDWRIGHT_ADOPT_CHECKPOINTS", "1")]);
    assert_eq!(ended(adopted).0, Some(0), "as the message says");
    assert_eq!(ended(start(&base, &author)).0, Some(0), "and it holds");
}

#[test]
fn what_is_launched_decides_every_name() {
    let base = folder("script-names", "");
    let (native, author) = (case(&base, Mode::NemoNative), case(&base, Mode::AuthorDp));
    let [one, two] = [&native, &author].map(|case| Identity::of(&case.job()));
    assert_eq!(one, Identity::of(&native.job()), "the same words give the same id");
    assert!(one.job_name.starts_with("nam56r-nemo-native-") && two.job_name.starts_with("nam56r-author-dp-"));
    assert_ne!(one.launch_id, two.launch_id);
    assert_eq!(one.checkpoint_name, "nam56r-nemo_native-moe-megatron-tp2-pp1-vpp1-ep1-etp2");
    // A name in the policy is honoured, and makes no two launches one.
    let (mut native, mut author) = (native, author);
    for case in [&mut native, &mut author] {
        case.policy.job.name = Some("Mine".to_string());
    }
    let [one, two] = [&native, &author].map(|case| Identity::of(&case.job()));
    assert!(one.job_name.starts_with("mine-") && two.job_name.starts_with("mine-") && one.job_name != two.job_name);
    assert_ne!(native.job().checkpoints(), author.job().checkpoints());
    // Who says that it is another attempt gets another id, and the same checkpoints.
    let again = launch::Job { attempt: Some("second"), ..native.job() };
    assert_ne!(Identity::of(&again).launch_id, one.launch_id);
    assert_eq!(again.checkpoints(), native.job().checkpoints());
    let script = |case: &common::Case| {
        let all = files(Scheduler::Torchrun, &case.job(), &case.emit().unwrap()).unwrap();
        all.into_iter().find(|file| file.path == "launch.sh").unwrap().contents
    };
    assert!(script(&native).contains(&format!("--rdzv-id {}", one.job_name)));
    assert!(script(&author).contains(&format!("--rdzv-id {}", two.job_name)));
}

#[test]
fn layouts_enter_checkpoints_only_where_an_engine_cannot_reshard() {
    for (engine, is_tied) in [
        (Engine::Megatron, true),
        (Engine::Torchtitan, false),
        (Engine::Fsdp2, false),
        (Engine::Maxtext, false),
        (Engine::XlaSpmd, false),
        (Engine::Deepspeed, true),
        (Engine::Nanotron, true),
    ] {
        let named = |tp| {
            let request =
                LayoutRequest { world: Some(8), tp: Some(tp), engine: Some(engine), ..LayoutRequest::default() };
            let case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
            Identity::of(&case.job()).checkpoint_name
        };
        assert_eq!(named(1) != named(2), is_tied, "{engine}: {} {}", named(1), named(2));
    }
}

/// What the script hands its engine as the place to meet, told by a variable or by the policy.
fn met(base: &Path, host: &str, variables: &[(&str, &str)]) -> String {
    let mut case = case(base, Mode::NemoNative);
    case.policy.job.host = launch::Policy::parse(&format!("[job]\nhost = \"{host}\"\n")).unwrap().job.host;
    let ended = started(base, &case, variables).wait().unwrap();
    assert!(ended.success());
    std::fs::read_to_string(base.join("endpoint")).unwrap().trim().to_string()
}

#[test]
fn hosts_of_every_kind_arrive() {
    let base = folder("hosts", "while [ \"$1\" != --rdzv-endpoint ]; do shift; done; echo \"$2\" > ../endpoint");
    assert_eq!(met(&base, "node_0", &[]), "node_0:29500");
    assert_eq!(met(&base, "::1", &[]), "[::1]:29500");
    assert_eq!(met(&base, "[fd00::7]", &[]), "[fd00::7]:29500");
    assert_eq!(met(&base, "node_0", &[("RDZV_HOST", "fd00::8")]), "[fd00::8]:29500");
    assert_eq!(met(&base, "node_0", &[("PET_MASTER_ADDR", "[fd00::9]")]), "[fd00::9]:29500");
    assert_eq!(met(&base, "node_0", &[("RDZV_HOST", "10.0.0.1")]), "10.0.0.1:29500");
}

#[test]
fn what_the_script_sets_a_policy_cannot() {
    let base = folder("own", "true");
    for engine in [Engine::Megatron, Engine::Maxtext] {
        let request = LayoutRequest { world: Some(8), engine: Some(engine), ..LayoutRequest::default() };
        let case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
        let emission = case.emit().unwrap();
        let text = &files(Scheduler::Torchrun, &case.job(), &emission).unwrap();
        let text = &text.iter().find(|file| file.path == "launch.sh").unwrap().contents;
        // A line that goes on with the one before holds the engine's words.
        let goes_on = text.lines().scan(false, |goes_on, line| Some(std::mem::replace(goes_on, line.ends_with('\\'))));
        let own = text.lines().zip(goes_on).filter(|(_, goes_on)| !goes_on).map(|(line, _)| line);
        let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let assigned = own
            .flat_map(|line| line.split([' ', ';']))
            .filter_map(|word| Some(word.split_once('=')?.0))
            .filter(is_name);
        let looped = text.lines().filter_map(|line| line.trim().strip_prefix("for ")?.split(' ').next());
        let carried: Vec<&str> = emission.environment.iter().map(|variable| variable.name.as_str()).collect();
        let named = assigned.chain(looped).filter(|name| !carried.contains(name) && *name != "PYTHONPATH");
        // The script reads these, and words of its own name them.
        let read = ["SHARDWRIGHT_ADOPT_CHECKPOINTS", "SHARDWRIGHT_PACKAGES"];
        let named: Vec<&str> = named.filter(|name| !read.contains(name)).collect();
        assert!(named.contains(&"summary") && named.contains(&"RDZV_HOST"), "{named:?}");
        for name in named {
            let refused = launch::Policy::parse(&format!("[environment.set]\n{name} = \"/x\"\n"));
            assert_eq!(refused.unwrap_err()[0].rule, "policy/variable", "{engine} sets {name}");
        }
    }
    // What a policy adds to Python's path stands behind the launch's own folder.
    let mut case = case(&base, Mode::NemoNative);
    case.policy.environment.set.insert("PYTHONPATH".to_string(), "/mine".to_string());
    let text = files(Scheduler::Torchrun, &case.job(), &case.emit().unwrap()).unwrap();
    let text = &text.iter().find(|file| file.path == "launch.sh").unwrap().contents;
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}"));
    assert!(at("export PYTHONPATH=/mine") < at("export PYTHONPATH=\"$here"));
}

/// A stand-in for `shardwright` that says what it was told and fails when asked to.
fn recorder(base: &Path, status: u8) -> String {
    let program = base.join("bin/recorder");
    let text = format!(
        "#!/usr/bin/env bash\necho \"recorder: $*\"; grep -o '\"state\": \"[a-z]*\"' \"$SHARDWRIGHT_LOGS/summary-node0.json\"; exit {status}\n"
    );
    std::fs::write(&program, text).unwrap();
    assert!(Command::new("chmod").arg("755").arg(&program).status().unwrap().success());
    program.display().to_string()
}

/// Exit status, standard output and standard error of a run on a node, with `launch.json` beside its script or not.
fn recorded(base: &Path, case: &common::Case, node: &str, program: &str) -> (Option<i32>, String, String) {
    let child = started(base, case, &[("NODE_RANK", node), ("SHARDWRIGHT", program)]);
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_receipt_is_recorded_at_the_end_whatever_the_end() {
    let base = folder("script-receipt", "echo one; [ ! -e \"$SHARDWRIGHT_LOGS/fail\" ] || exit 7");
    let case = case(&base, Mode::NemoNative);
    std::fs::create_dir_all(base.join("launch")).unwrap();
    std::fs::write(base.join("launch/launch.json"), "{}").unwrap();
    let here = base.join("launch").display().to_string();
    let (status, said, _) = recorded(&base, &case, "0", &recorder(&base, 0));
    assert_eq!(status, Some(0));
    assert_eq!(said, format!("{TUNES}\none\nrecorder: receipt record {here}\n\"state\": \"finished\"\n"));
    // The engine's own status is the job's, whether it could be recorded or not.
    let logs = PathBuf::from(case.job().logs());
    std::fs::write(logs.join("fail"), "").unwrap();
    for recorder_status in [0, 5] {
        let (status, said, _) = recorded(&base, &case, "0", &recorder(&base, recorder_status));
        assert!(status == Some(7) && said.ends_with("\"state\": \"failed\"\n"), "{status:?} {said}");
    }
    std::fs::remove_file(logs.join("fail")).unwrap();
    let (status, _, said) = recorded(&base, &case, "0", &recorder(&base, 5));
    assert!(status == Some(0) && said.ends_with("\n  shardwright receipt record .\n"), "{said}");
    // Node 0 speaks for all; and its log holds nothing of that.
    let (_, said, _) = recorded(&base, &case, "1", &recorder(&base, 0));
    assert_eq!(said, format!("{TUNES}\none\n"));
    let log = std::fs::read_to_string(logs.join("node0.log")).unwrap();
    assert!(!log.contains("recorder"), "{log}");
}

#[test]
fn without_the_program_the_summary_stands_and_the_command_is_said() {
    let base = folder("script-no-program", "echo one");
    let case = case(&base, Mode::NemoNative);
    for (has_record, program) in [(true, "/no/such/program"), (false, "true")] {
        if has_record {
            std::fs::create_dir_all(base.join("launch")).unwrap();
            std::fs::write(base.join("launch/launch.json"), "{}").unwrap();
        } else {
            std::fs::remove_file(base.join("launch/launch.json")).unwrap();
        }
        let (status, _, said) = recorded(&base, &case, "0", program);
        assert_eq!(status, Some(0));
        let summary_path = format!("{}/summary-node0.json", case.job().logs());
        assert!(said.contains(&summary_path) && said.ends_with("\n  shardwright receipt record .\n"), "{said}");
        assert_eq!(summary(&case)["state"], "finished");
    }
}

#[test]
fn a_run_that_is_stopped_is_recorded_too() {
    let base = folder("script-stopped", "trap 'exit 3' TERM; echo here; while :; do sleep 0.05; done");
    let case = case(&base, Mode::NemoNative);
    std::fs::create_dir_all(base.join("launch")).unwrap();
    std::fs::write(base.join("launch/launch.json"), "{}").unwrap();
    let program = recorder(&base, 0);
    let child = started(&base, &case, &[("SHARDWRIGHT", &program)]);
    let log = format!("{}/node0.log", case.job().logs());
    let until = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(&log).is_ok_and(|text| text.contains("here")) {
        assert!(Instant::now() < until, "the engine never started");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("\"state\": \"stopped\"\n"), "{output:?}");
}

/// A traceback as a rank prints it.
const RAISED: &str = r#"raised() {
  echo '[default0]:[rank0]: Traceback (most recent call last):'
  echo '[default0]:[rank0]:   File "/opt/engine/training.py", line 4481, in train'
  echo "[default0]:[rank0]: TypeError: unsupported operand type(s) for //: 'int' and 'NoneType'"
}
report() {
  echo 'Traceback (most recent call last):'
  echo '  File "/opt/venv/bin/torchrun", line 8, in <module>'
  echo 'torch.distributed.elastic.multiprocessing.errors.ChildFailedError:'
}
"#;

#[test]
fn a_run_that_fails_leaves_its_first_exception() {
    let base =
        folder("script-cause", &format!("{RAISED}echo 'step 1 loss 9.0 seconds 1.0'; raised >&2; report >&2; exit 1"));
    let case = case(&base, Mode::NemoNative);
    let (status, said) = ended(start(&base, &case));
    assert_eq!(status, Some(1));
    let words =
        "rank 0: TypeError: unsupported operand type(s) for //: 'int' and 'NoneType' (training.py:4481 in train)";
    assert!(said.contains(words), "{said}");
    let cause = &summary(&case)["cause"];
    assert_eq!((&cause["type"], &cause["rank"]), (&"TypeError".into(), &0.into()));
    assert_eq!(cause["place"], "training.py:4481 in train");
}

#[test]
fn a_run_that_finishes_has_no_cause() {
    let base = folder("script-no-cause", &format!("{RAISED}raised; exit 0"));
    let case = case(&base, Mode::NemoNative);
    assert_eq!(ended(start(&base, &case)).0, Some(0));
    assert_eq!(summary(&case)["cause"], Value::Null);
}

/// What torchrun would start a third time has raised the same twice, and never made a step.
#[test]
fn what_repeats_before_the_first_step_is_not_started_again() {
    let torchrun = format!(
        "{RAISED}trap 'exit 1' TERM; raised; echo 'attempts left; will restart worker group'; raised; while :; do sleep 0.05; done"
    );
    let base = folder("script-repeats", &torchrun);
    let mut case = case(&base, Mode::NemoNative);
    case.policy.job.restarts = 5;
    let (status, _) = ended(start(&base, &case));
    assert_eq!((status, &summary(&case)["state"]), (Some(1), &"failed".into()));
    let log = std::fs::read_to_string(format!("{}/node0.log", case.job().logs())).unwrap();
    assert!(log.contains("not started again, the same twice before the first step: rank 0: TypeError"), "{log}");
}

/// Steps as Megatron, torchtitan and our programs print them: what repeats behind one may be a device's.
#[test]
fn steps_of_every_engine_are_seen() {
    let at = folder("script-steps", "");
    std::fs::write(at.join("cause.py"), include_str!("../../assets/node/cause.py")).unwrap();
    let program = "import sys, cause\nfinder = cause.Finder()\nfinder.line(sys.argv[1])\nprint(finder.has_stepped)";
    let saw = |line: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", program, line]).env("PYTHONPATH", &at).env("PYTHONDONTWRITEBYTECODE", "1");
        String::from_utf8(python.output().unwrap().stdout).unwrap().trim() == "True"
    };
    for line in [
        "[default7]: [2026-08-20 10:01:41.123456] iteration        1/     100 | consumed samples:          512 |",
        " iteration        1/     100 | consumed samples:          512 |",
        "[default0]:[titan] 2026-08-20 10:01:41,000 - root - INFO - step:  1  loss:  8.1309  grad_norm:  1.5",
        "[default0]:step 1 loss 9.0 seconds 1.0",
    ] {
        assert!(saw(line), "{line}");
    }
    assert!(!saw("[default0]:[rank0]: RuntimeError: behind iteration 1/ 100"));
}

/// The first cause in a log, as the summary keeps it.
#[test]
fn a_kernel_that_failed_is_a_cause() {
    let at = folder("script-causes", "");
    std::fs::write(at.join("cause.py"), include_str!("../../assets/node/cause.py")).unwrap();
    let said = |log: &str| {
        std::fs::write(at.join("log"), log).unwrap();
        let output = Command::new("python3").arg(at.join("cause.py")).arg(at.join("log")).args(["1", "--say"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let aborted = "  error: Signal 6 (SIGABRT) received by PID 3486\n";
    let watchdog = "[default0]:[rank0]:[E1119 ProcessGroupNCCL.cpp:2119] [PG ID 5] Process group watchdog thread terminated with \
                    exception: CUDA error: unspecified launch failure\n";
    assert_eq!(said(&format!("{watchdog}{aborted}")), "rank 0: CUDA: CUDA error: unspecified launch failure\n");
    assert_eq!(said(aborted), "SIGABRT: the program crashed\n");
    assert_eq!(said("Signal 9 (SIGKILL) received by PID 3486\n"), "SIGKILL: killed from outside\n");
}

/// The text of a script for a scheduler.
fn script_for(scheduler: Scheduler, case: &common::Case) -> String {
    let all = files(scheduler, &case.job(), &case.emit().unwrap()).unwrap();
    all.into_iter().find(|file| file.path == "launch.sh").unwrap().contents
}

#[test]
fn restarts_are_for_schedulers_and_for_policies_that_ask() {
    let base = folder("script-restarts", "");
    let mut case = case(&base, Mode::NemoNative);
    assert!(script_for(Scheduler::Torchrun, &case).contains("--max-restarts 0 "));
    assert!(!script_for(Scheduler::Torchrun, &case).contains("--watch"));
    assert!(script_for(Scheduler::Slurm, &case).contains("--max-restarts 3 "));
    assert!(script_for(Scheduler::Slurm, &case).contains("--watch"));
    case.policy.job.restarts = 5;
    assert!(script_for(Scheduler::Torchrun, &case).contains("--max-restarts 5 "));
}

#[test]
fn only_a_policy_keeps_runs_off_the_root_volume() {
    let base = folder("script-root", "");
    let mut case = case(&base, Mode::NemoNative);
    case.policy.storage.forbid_root_volume = true;
    assert!(script_for(Scheduler::Torchrun, &case).contains("the policy keeps runs off it"));
    case.policy = launch::Policy::default();
    let script = script_for(Scheduler::Torchrun, &case);
    assert!(!script.contains("the policy keeps runs off it"));
    assert!(script.contains("checkpoints of ") && script.contains(" do not fit in "), "{script}");
}

/// What `preflight` counts: every checkpoint that the run writes, or those that are kept and the one being written.
#[test]
fn the_script_asks_for_room_for_every_checkpoint_that_is_kept() {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Fsdp2), ..LayoutRequest::default() };
    let mut case = common::Case::new(&common::recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    let one = launch::preflight::checkpoint_bytes(case.job().recipe);
    let needed = |case: &common::Case| {
        let script = script_for(Scheduler::Torchrun, case);
        let line = script.lines().find_map(|line| line.strip_prefix("needed=")).map(str::to_string);
        line.map(|kib| kib.parse::<u64>().unwrap())
    };
    for (steps, save_every, count) in [(100, 50, 2), (100, 100, 1), (90, 10, 9)] {
        (case.policy.run.steps, case.policy.run.save_every) = (steps, save_every);
        assert_eq!(needed(&case), Some((count * one).div_ceil(1024)), "{steps} {save_every}");
    }
    case.policy.storage.keep_last = Some(2);
    assert_eq!(needed(&case), None, "a policy that says where is preflight's");
}

/// A run that never started says why in its log and in its summary.
#[test]
fn what_is_refused_leaves_its_cause() {
    let base = folder("script-refused", "echo started");
    let mut case = case(&base, Mode::NemoNative);
    let log = format!("{}/node0.log", case.job().logs());
    let cause = |case: &common::Case, kind: &str, words: &str| {
        let left = summary(case);
        assert_eq!((&left["state"], &left["cause"]["type"]), (&"refused".into(), &kind.into()), "{left}");
        assert!(left["cause"]["message"].as_str().is_some_and(|message| message.contains(words)), "{left}");
        assert!(std::fs::read_to_string(&log).unwrap().contains(words), "{words}");
    };
    let nowhere = [("SHARDWRIGHT_ENGINE", "/no/such"), ("PYTHONPATH", "")];
    let checkout = case.emit().unwrap().checkout.unwrap();
    if !checkout.places.iter().any(|place| Path::new(place).join(checkout.script).exists()) {
        assert_eq!(ended(started(&base, &case, &nowhere)).0, Some(1));
        cause(&case, "engine", "pretrain_hybrid.py of Megatron-LM (tag core_v0.19.0) was not found");
    }
    case.policy.job.engine_root = Some("/opt/engine".to_string());
    let log = format!("{}/node0.log", case.job().logs());
    assert_eq!(ended(started(&base, &case, &[("SHARDWRIGHT_PACKAGES", "")])).0, Some(1));
    let left = summary(&case);
    assert_eq!(left["cause"]["type"], "packages", "{left}");
    assert!(left["cause"]["message"].as_str().unwrap().contains("not installed"), "{left}");
    // No volume is that large.
    case.policy = launch::Policy::default();
    case.policy.run.steps = u64::MAX / 2;
    case.policy.run.save_every = 1;
    let here = base.join("disk");
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(here.join("bin")).unwrap();
    let (status, said) = ended(start(&here, &case));
    assert!(status == Some(1) && said.contains(" do not fit in "), "{said}");
    let at = here.join("launch").join(case.job().logs());
    let text = std::fs::read_to_string(at.join("summary-node0.json")).unwrap();
    let left: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&left["state"], &left["cause"]["type"]), (&"refused".into(), &"disk".into()), "{left}");
    assert!(!log.is_empty());
}

/// Nothing that this launch imports is here, and torchrun is not started for it.
#[test]
fn packages_are_looked_for_before_anything_starts() {
    let base = folder("script-packages", "echo started");
    let mut case = case(&base, Mode::NemoNative);
    case.policy.job.engine_root = Some("/opt/engine".to_string());
    let child = started(&base, &case, &[("SHARDWRIGHT_PACKAGES", "")]);
    let (status, said) = ended(child);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("packages: mamba_ssm not installed, needed >= 2.2.0 for M blocks"), "{said}");
    assert!(said.contains("/opt/engine/pretrain_hybrid.py no such file"), "{said}");
    let log = std::fs::read_to_string(format!("{}/node0.log", case.job().logs())).unwrap();
    assert!(log.contains("packages: ") && !log.contains("started"), "{log}");
    assert_eq!(summary(&case)["state"], "refused");
}

/// Where the script says that the engine is, by what it hands torchrun; or what it says when it is nowhere.
fn engine_found(base: &Path, case: &common::Case, variables: &[(&str, &str)]) -> Result<String, String> {
    let (status, said) = ended(started(base, case, variables));
    let seen = base.join("seen");
    if status == Some(0) { Ok(std::fs::read_to_string(seen).unwrap()) } else { Err(said) }
}

#[test]
fn the_engine_is_looked_for_before_anything_starts() {
    let words =
        "for word; do case $word in *pretrain_hybrid.py) echo -n \"$word $SHARDWRIGHT_ENGINE\" > ../seen ;; esac; done";
    let base = folder("script-engine", words);
    let case = case(&base, Mode::NemoNative);
    let theirs = base.join("engine").display().to_string();
    let found = Ok(format!("{theirs}/pretrain_hybrid.py {theirs}"));
    assert_eq!(engine_found(&base, &case, &[]), found);
    // The Python path is looked through as well, and a folder without the script is none.
    let path = format!("/no/such:{theirs}");
    let wrong = base.join("bin").display().to_string();
    let variables = [("SHARDWRIGHT_ENGINE", wrong.as_str()), ("PYTHONPATH", path.as_str())];
    assert_eq!(engine_found(&base, &case, &variables), found);
    // Places of images, should this be one, have it too.
    let checkout = case.emit().unwrap().checkout.unwrap();
    if checkout.places.iter().any(|place| Path::new(place).join(checkout.script).exists()) {
        return;
    }
    let said = engine_found(&base, &case, &[("SHARDWRIGHT_ENGINE", ""), ("PYTHONPATH", "")]).unwrap_err();
    let words =
        "pretrain_hybrid.py of Megatron-LM (tag core_v0.19.0) was not found; SHARDWRIGHT_ENGINE=/path/of/its/folder";
    assert!(said.contains(words), "{said}");
    assert_eq!(summary(&case)["state"], "refused");
}
