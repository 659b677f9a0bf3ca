//! Names and paths that try to be code stay data: real shells and interpreters read what we quote,
//! and an emitted script is run with a stand-in for `torchrun`.

use crate::common;
use case::Seams;
use diag::quote;
use launch::Policy;
use launch::policy::Volume;
use launch::schedulers::{Scheduler, files};
use layout::{Engine, LayoutRequest};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;

const NASTY: &[&str] = &[
    "",
    "a b",
    "$(touch CANARY)",
    "`touch CANARY`",
    "'; touch CANARY; '",
    "\"; touch CANARY; \"",
    "a\nb\r\tc",
    "\\",
    "\\'",
    "${HOME}",
    "$HOME",
    "~root",
    "-rf",
    "!!",
    "*",
    "{a,b}",
    "#x",
    "=x",
    "%s",
    "\u{2028}é\u{1f600}",
    "{{ x }}",
    "on",
    "null",
];

/// What a shell makes of these words, each ended by a zero byte.
fn through_bash(words: &[String]) -> Vec<String> {
    let line = format!("printf '%s\\0' {}", quote::shell_line(words));
    let output = Command::new("bash").args(["-c", &line]).output().expect("bash runs");
    assert!(output.status.success(), "{line}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split_terminator('\0').map(str::to_string).collect()
}

/// What Python makes of literals in one language.
fn through_python(literals: &[String], code: &str) -> Vec<String> {
    let script = format!("import json,sys\nvalues = {code}\nsys.stdout.write(json.dumps(values))");
    let mut child = Command::new("python3")
        .args(["-c", &script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 runs");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), literals.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn round_trips(words: &[String]) {
    assert_eq!(through_bash(words), words);
    let python: Vec<String> = words.iter().map(|w| quote::python(w)).collect();
    assert_eq!(through_python(&python, "eval('[' + ','.join(sys.stdin.read().split('\\n')) + ']')"), words);
    let json: Vec<String> = words.iter().map(|w| quote::json(w)).collect();
    assert_eq!(through_python(&json, "[json.loads(l) for l in sys.stdin.read().split('\\n')]"), words);
    for word in words {
        let document = format!("x = {}", quote::toml(word));
        let table: toml::Table = toml::from_str(&document).unwrap();
        assert_eq!(table["x"].as_str(), Some(word.as_str()));
    }
}

#[test]
fn known_tricks_stay_data() {
    let words: Vec<String> = NASTY.iter().map(|w| w.to_string()).collect();
    round_trips(&words);
    assert!(NASTY.iter().all(|w| !quote::comment(w).contains(['\n', '\r', '\u{2028}'])));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]
    #[test]
    fn anything_round_trips(words in proptest::collection::vec("[^\\x00]{0,24}", 40)) {
        round_trips(&words);
    }
}

#[test]
#[cfg(unix)]
fn a_path_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"/data/\xff");
    assert_eq!(quote::path(bytes).unwrap_err().rule, "launch/path");
    assert_eq!(quote::path("/data/x".as_ref()).unwrap(), "/data/x");
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A policy whose every location and value tries to run something.
fn hostile_policy(base: &Path) -> Policy {
    let at = |name: &str| base.join(format!("it's $(touch CANARY) `touch CANARY` \"{name}\"")).display().to_string();
    let mut policy = Policy::default();
    policy.storage.checkpoints = at("checkpoints");
    policy.storage.data = at("data");
    policy.storage.logs = at("logs");
    policy.storage.caches = at("caches");
    policy.storage.temporary = at("tmp");
    policy.storage.forbid_root_volume = false;
    policy.data.paths = vec!["$(touch CANARY)".to_string(), "a\nb".to_string()];
    policy.data.tokenizer = Some("'; touch CANARY; '".to_string());
    policy.job.name = Some("x\n; touch CANARY".to_string());
    policy.job.host = "$(touch CANARY)".to_string();
    policy.job.image = Some("image: {x: $(touch CANARY)}".to_string());
    policy.slurm.venv = Some(at("venv"));
    policy.slurm.container_mounts = vec!["/a $(touch CANARY):/b `touch CANARY`".to_string()];
    policy.kubernetes.volumes = vec![Volume { claim: "$(touch CANARY)".to_string(), mount: at("volume") }];
    policy.kubernetes.node_selector.insert("$(touch CANARY)".to_string(), "\n`touch CANARY`".to_string());
    policy.environment.set.insert("SAFE".to_string(), "$(touch CANARY)\n'\"".to_string());
    policy
}

/// The words a container starts with, after Kubernetes has read them; none for Ray, whose entrypoint
/// wants a cluster. Read by PyYAML too where there is one.
fn container_words(scheduler: Scheduler, files: &[launch::File]) -> Option<Vec<String>> {
    let (name, at) = match scheduler {
        Scheduler::TrainJob => ("trainjob.yaml", "o['spec']['trainer']"),
        Scheduler::JobSet => {
            ("jobset.yaml", "o['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']['containers'][0]")
        }
        _ => return None,
    };
    let text = &files.iter().find(|f| f.path == name).unwrap().contents;
    // Every word is a string of JSON on a line of its own, which is YAML as well.
    let list = text.lines().map(str::trim_start).skip_while(|line| *line != "command:").skip(1);
    let words: Vec<String> =
        list.map_while(|line| line.strip_prefix("- ")).map(|word| serde_json::from_str(word).unwrap()).collect();
    assert!(words.len() > 3, "{text}");
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).output().is_ok_and(|o| o.status.success());
    if has_yaml {
        let code = format!("(lambda o: {at}['command'])(__import__('yaml').safe_load(sys.stdin.read()))");
        assert_eq!(through_python(std::slice::from_ref(text), &code), words);
    }
    Some(words.into_iter().map(|word| word.replace("$$", "$")).collect())
}

#[test]
fn an_emitted_script_runs_nothing_of_a_recipes() {
    let base = folder("hostile");
    let stand_in = base.join("bin");
    std::fs::create_dir_all(&stand_in).unwrap();
    let seen = base.join("seen");
    for name in ["torchrun", "python3"] {
        // The script asks Python of its own files as well.
        let own = "case $1 in */packages.py | */cause.py) exit 0 ;; esac";
        let text = format!("#!/bin/sh\n{own}\nprintf '%s\\0' \"$@\" > {}\n", quote::shell(&seen.display().to_string()));
        let path = stand_in.join(name);
        std::fs::write(&path, text).unwrap();
        assert!(Command::new("chmod").arg("755").arg(&path).status().unwrap().success());
    }
    // srun: its options, then the command; scontrol: names of nodes.
    let slurm = [
        ("srun", "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec \"$@\"\n"),
        ("scontrol", "#!/bin/sh\necho localhost\n"),
    ];
    for (name, text) in slurm {
        std::fs::write(stand_in.join(name), text).unwrap();
        assert!(Command::new("chmod").arg("755").arg(stand_in.join(name)).status().unwrap().success());
    }
    // The engine's sources: found by the variable, or named by the policy.
    let root = base.join("it's $(touch CANARY) `touch CANARY` \"engine\"");
    std::fs::create_dir_all(&root).unwrap();
    for script in ["pretrain_gpt.py", "run_train.py"] {
        std::fs::write(root.join(script), "").unwrap();
    }
    let root = root.display().to_string();
    let venv = PathBuf::from(hostile_policy(&base).slurm.venv.unwrap()).join("bin");
    std::fs::create_dir_all(&venv).unwrap();
    std::fs::write(venv.join("activate"), "").unwrap();
    let engines = Engine::ALL.iter().map(|(_, engine)| *engine).filter(|engine| *engine != Engine::Shardwright);
    let named = [Engine::Megatron, Engine::Nanotron].map(|engine| (engine, Some(root.clone())));
    for (engine, engine_root) in engines.map(|engine| (engine, None)).chain(named) {
        let mut recipe = common::recipe("llama3-8b");
        recipe.name = "x$(touch CANARY)`touch CANARY`'\"\n; touch CANARY #".into();
        let request = LayoutRequest { world: Some(8), engine: Some(engine), ..LayoutRequest::default() };
        let mut case = common::Case::new(&recipe, &request, Seams::Refuse).unwrap();
        case.policy = hostile_policy(&base);
        case.policy.job.engine_root = engine_root;
        if engine == Engine::Torchtitan {
            case.policy.data.paths.truncate(1);
        }
        if engine == Engine::Maxtext {
            // A text with a reference of omegaconf in it is refused by name.
            let tokenizer = case.policy.data.tokenizer.replace("${x}".to_string());
            common::assert_refused(case.emit(), "maxtext/unsayable");
            case.policy.data.tokenizer = tokenizer;
            case.policy.data.paths.truncate(1);
        }
        let emission = case.emit().unwrap();
        let is_found = emission.checkout.is_some();
        let here = base.join(format!("{}-{is_found}", engine.name()));
        std::fs::create_dir_all(&here).unwrap();
        let path = format!("{}:{}", stand_in.display(), std::env::var("PATH").unwrap());
        let ran = |mut command: Command| {
            let _ = std::fs::remove_file(&seen);
            let command = command.current_dir(&here).env("PATH", &path).env("SHARDWRIGHT_ENGINE", &root);
            let ran = command.output().unwrap();
            assert!(ran.status.success(), "{engine}: {}", String::from_utf8_lossy(&ran.stderr));
            let got = std::fs::read_to_string(&seen).unwrap();
            let got: Vec<&str> = got.split_terminator('\0').collect();
            let mut words = emission.words();
            if is_found {
                words[0] = format!("{root}/{}", words[0]);
            }
            assert_eq!(&got[got.len() - words.len()..], words, "{engine}");
        };
        // TPUs are not asked for by Ray and Slurm as we write them.
        let is_tpu = engine == Engine::XlaSpmd;
        for scheduler in [Scheduler::JobSet, Scheduler::TrainJob, Scheduler::RayJob] {
            if is_tpu && scheduler == Scheduler::RayJob {
                continue;
            }
            let job_files = match files(scheduler, &case.job(), &emission) {
                Ok(job_files) => job_files,
                // Ray carries a launch in one word of a command line, and the programs are longer.
                Err(findings) => {
                    assert!(scheduler == Scheduler::RayJob && findings.iter().all(|f| f.rule == "launch/bundle"));
                    continue;
                }
            };
            for file in &job_files {
                std::fs::write(here.join(&file.path), &file.contents).unwrap();
            }
            if let Some(words) = container_words(scheduler, &job_files) {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                ran(command);
            }
        }
        let modules = emission
            .files
            .iter()
            .map(|f| f.path.as_str())
            .filter(|path| path.ends_with(".py"))
            .chain(here.join("ray_launch.py").exists().then_some("ray_launch.py"));
        let check = Command::new("python3").args(["-m", "py_compile"]).args(modules).current_dir(&here).status();
        assert!(check.unwrap().success(), "{engine}");
        if is_tpu {
            continue;
        }
        // Directives of Slurm take no such paths, and say so.
        assert_eq!(files(Scheduler::Slurm, &case.job(), &emission).unwrap_err()[0].rule, "launch/slurm-path");
        case.policy.storage.logs = base.join("logs").display().to_string();
        let job_files = files(Scheduler::Slurm, &case.job(), &emission).unwrap();
        let text = &job_files.iter().find(|f| f.path == "job.sbatch").unwrap().contents;
        for line in text.lines().filter(|line| line.starts_with("#SBATCH")) {
            assert!(!line.contains("CANARY)") && !line.contains('`'), "{line}");
        }
        for file in &job_files {
            std::fs::write(here.join(&file.path), &file.contents).unwrap();
        }
        let mut command = Command::new("bash");
        command
            .arg("job.sbatch")
            .env("SLURM_SUBMIT_DIR", &here)
            .env("SLURM_JOB_NODELIST", "n")
            .env("SLURM_JOB_ID", "1");
        ran(command);
    }
    let canaries = Command::new("find").arg(&base).args(["-name", "CANARY*"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&canaries.stdout), "");
    assert!(!Path::new("CANARY").exists());
}
