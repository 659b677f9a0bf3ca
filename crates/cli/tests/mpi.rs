//! Ranks as MPI processes, as typed under `mpirun`: who prints, and that whatever happens to a rank
//! ends every other one by name, soon, with nobody left behind.

#[path = "all/common.rs"]
mod common;

use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Marks the processes of one run in their environment.
const MARK: &str = "SHARDWRIGHT_MPI_TEST";
/// In which every rank must have ended, once something has happened.
const SOON: Duration = Duration::from_secs(10);
const SMALL: &str = "--ranks mpi --dims hidden=16,vocab=32,depth=12";
const FOUR: &str = "rehearse nam56r --tp 2 --ep 2 --etp 1 --dp 2";
const STAGES: &str = "rehearse nam56r --tp 2 --pp 2 --ep 2 --etp 1";
const PIPELINE: &str = "rehearse llama3-8b --pp 4";
const EIGHT: &str = "rehearse nam56r --tp 2 --pp 2 --ep 2 --etp 1 --dp 2";

/// One run at a time: its ranks alone are more than the cores there are.
static TURN: Mutex<()> = Mutex::new(());

/// A run of `mpirun`, its output in files, so that nobody waits for a reader.
struct Run {
    mpirun: Child,
    mark: String,
    files: [std::path::PathBuf; 2],
}

struct Ended {
    stdout: String,
    stderr: String,
    code: Option<i32>,
    left: Vec<u32>,
    is_locked_up: bool,
}

impl Ended {
    /// Everything on standard output, with one space wherever lines were broken.
    fn words(&self) -> String {
        self.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn all(&self) -> String {
        format!("exit {:?}, left {:?}\n{}\n{}", self.code, self.left, self.stdout, self.stderr)
    }

    /// The run failed by name, and nobody is left.
    fn failed(&self, what: &str, words: &[&str]) {
        assert!(self.code.is_some_and(|code| code != 0), "{what}: {}", self.all());
        assert!(self.left.is_empty(), "{what}: {}", self.all());
        let said = self.words() + &self.stderr;
        words.iter().for_each(|w| assert!(said.contains(w), "{what}: `{w}` in {}", self.all()));
    }
}

/// Starts ranks: each list of words on so many processes.
fn start(apps: &[(usize, &str)]) -> Run {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}.{}", std::process::id(), NUMBER.fetch_add(1, Ordering::SeqCst));
    let files = ["out", "err"].map(|name| common::scratch(&format!("mpi.{mark}.{name}"), ""));
    let [out, err] = files.each_ref().map(|f| Stdio::from(File::create(f).expect("a file")));
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe"]).env(MARK, &mark).env("COLUMNS", common::WIDE);
    mpirun.stdin(Stdio::null());
    for (i, (ranks, line)) in apps.iter().enumerate() {
        mpirun.args((i > 0).then_some(":")).args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_shardwright")]);
        mpirun.args(line.split_whitespace());
    }
    let mpirun = mpirun.stdout(out).stderr(err).spawn().expect("mpirun starts");
    Run { mpirun, mark, files }
}

impl Run {
    /// Processes of this run whose environment says so too; of one rank, or all.
    fn pids(&self, rank: Option<usize>) -> Vec<u32> {
        let mark = format!("{MARK}={}", self.mark);
        let wanted = rank.map(|rank| format!("OMPI_COMM_WORLD_RANK={rank}"));
        let is_ours = |pid: &u32| {
            let Ok(bytes) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
            let has = |word: &str| bytes.split(|b| *b == 0).any(|line| line == word.as_bytes());
            has(&mark) && wanted.as_ref().is_none_or(|word| has(word))
        };
        let entries = std::fs::read_dir("/proc").expect("Linux").flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }

    /// Sends a signal to a rank as soon as it is there and `delay` has passed.
    fn signal(&self, signal: &str, rank: usize, delay: Duration) {
        let pid = loop {
            match self.pids(Some(rank))[..] {
                [pid, ..] => break pid,
                [] => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        std::thread::sleep(delay);
        let sent = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs");
        assert!(sent.success(), "rank {rank} was gone after {delay:?}");
    }

    fn wait(mut self) -> Ended {
        // mpirun can lock itself up when a rank is killed while it starts the others: then all ranks are gone, and it is not.
        let mut alone: Option<Instant> = None;
        let status = loop {
            if let Some(status) = self.mpirun.try_wait().expect("mpirun") {
                break status;
            }
            let is_alone = self.pids(None).iter().all(|pid| *pid == self.mpirun.id());
            alone = alone.or_else(|| Some(Instant::now())).filter(|_| is_alone);
            if alone.is_some_and(|since| since.elapsed() > SOON + SOON) {
                self.mpirun.kill().expect("mpirun is there");
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let is_locked_up = alone.is_some_and(|since| since.elapsed() > SOON + SOON);
        // A process that was killed may need a moment to be gone.
        let since = Instant::now();
        while !self.pids(None).is_empty() && since.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let left = self.pids(None);
        let [stdout, stderr] = self.files.each_ref().map(|path| {
            let mut text = String::new();
            File::open(path).and_then(|mut f| f.read_to_string(&mut text)).expect("text");
            text
        });
        Ended { stdout, stderr, code: status.code(), left, is_locked_up }
    }
}

fn ran(ranks: usize, line: &str) -> Ended {
    start(&[(ranks, &format!("{line} {SMALL}"))]).wait()
}

#[test]
fn faults_end_every_rank_by_name() {
    let _turn = TURN.lock();
    let since = Instant::now();
    let fine = ran(8, &format!("{EIGHT} --steps 2"));
    assert_eq!((fine.code, &fine.left[..]), (Some(0), &[][..]), "{}", fine.all());
    let usual = since.elapsed();
    let cases: [(usize, &str, &str, &[&str]); 8] = [
        (4, FOUR, "die:1@1", &["on 4 ranks", "ranks 0-3: rank 1 died after", "on axis", "by --inject [comm/died]"]),
        (4, FOUR, "dtype:3@0", &["ranks 0-3: members of sp group [2 3] disagree: rank 2 calls", "f64", "f32"]),
        (4, FOUR, "drop:2@1", &["on 4 ranks", "[comm/deadline]", "who waits for nobody: ", "rank 2 (last in"]),
        (4, STAGES, "die:3@0", &["ranks 0-3: rank 3 died"]),
        (8, EIGHT, "die:5@1", &["ranks 0-7: rank 5 died"]),
        (8, EIGHT, "dtype:6@1", &["ranks 0-7: members of", "group [6 7] disagree"]),
        (8, EIGHT, "drop:0@1", &["on 8 ranks", "[comm/deadline]", "who waits for nobody: ", "rank 0 (last in"]),
        (4, PIPELINE, "drop:0@1", &["on 4 ranks", "on pp group", "rank 1 for rank 0", "[comm/deadline]"]),
    ];
    for (ranks, line, fault, words) in cases {
        let (since, what) = (Instant::now(), format!("{line} {fault}"));
        // Only what is lost has to be waited for; a busy machine must not be taken for a fault. Whoever began to wait first
        // reports, and may miss a rank that itself waits: the hint alone is sure to name the culprit.
        let deadline = if fault.starts_with("drop") { 4 } else { 60 };
        let ended = ran(ranks, &format!("{line} --steps 2 --inject {fault} --deadline {deadline}"));
        assert!(since.elapsed() < usual + SOON, "{what} took {:?}, and without it {usual:?}", since.elapsed());
        ended.failed(&what, words);
        assert_eq!(
            (ended.code, ended.stdout.matches("The run ended").count()),
            (Some(1), 1),
            "{what}: {}",
            ended.all()
        );
    }
    for fault in ["skew:2", "zero-expert:3"] {
        let ended = ran(4, &format!("{FOUR} --steps 1 --inject {fault}"));
        assert_eq!((ended.code, &ended.left[..]), (Some(0), &[][..]), "{fault}: {}", ended.all());
    }
}

#[test]
fn a_rank_that_is_killed_or_stopped_at_any_moment_ends_every_rank() {
    let _turn = TURN.lock();
    // Two hundred steps take longer than any of the delays, on one rank and then on all.
    let line = format!("{FOUR} {SMALL} --steps 200");
    let cases = [("-KILL", 1, 40), ("-KILL", 0, 700), ("-KILL", 3, 2000), ("-TERM", 2, 1200)];
    for (signal, rank, delay) in cases {
        let what = format!("{signal} to rank {rank} after {delay} ms");
        let once = || {
            let run = start(&[(4, &line)]);
            run.signal(signal, rank, Duration::from_millis(delay));
            let since = Instant::now();
            let ended = run.wait();
            assert!(ended.is_locked_up || since.elapsed() < SOON, "{what}: {:?}", since.elapsed());
            ended
        };
        // Of an mpirun that locked itself up nobody hears who was killed: it is tried again.
        let ended = (0..3).map(|_| once()).find(|ended| !ended.is_locked_up).expect("an mpirun that ends");
        // Before MPI is up nobody listens: mpirun says who was killed, or, where it has not heard of its ranks yet, that
        // one was, and hands on the signal in its exit code.
        let all = ended.all();
        let is_unheard = all.contains("1 process returned") && ended.code == Some(128 + 9);
        let is_named = all.contains("comm/") || all.contains(&format!("process rank {rank} "));
        assert!(is_named || delay < 100 && is_unheard, "{what}: {all}");
        ended.failed(&what, &[]);
    }
}

#[test]
fn ranks_that_wait_for_a_killed_or_stopped_one_name_it() {
    let _turn = TURN.lock();
    let line = format!("{FOUR} {SMALL} --steps 1 --inject drop:1@0 --deadline 60");
    for (signal, words) in [
        ("-KILL", ["rank 1: rank 1 did not answer", "[comm/terminated]", "nobody: rank 1 (did not answer)"]),
        ("-TERM", ["the launcher ended rank", "[comm/terminated]", "on 4 ranks"]),
    ] {
        let run = start(&[(4, &line)]);
        // By then all others wait for rank 1, for a minute.
        run.signal(signal, 1, Duration::from_secs(4));
        let since = Instant::now();
        let ended = run.wait();
        assert!(since.elapsed() < SOON, "{signal}: {:?}", since.elapsed());
        ended.failed(signal, &words);
    }
    // Stopped while MPI starts, and while all wait for rank 1.
    for (delay, words) in [(0, "comm/"), (3000, "rank 2 did not answer")] {
        let run = start(&[(4, &line.replace("--deadline 60", "--deadline 8"))]);
        run.signal("-STOP", 2, Duration::from_millis(delay));
        let since = Instant::now();
        let ended = run.wait();
        assert!(since.elapsed() < SOON + SOON, "{:?}", since.elapsed());
        ended.failed("stopped", &[words]);
    }
}

#[test]
fn one_process_prints_and_what_another_knows_is_told_with_its_name() {
    let _turn = TURN.lock();
    let line = format!("rehearse nam56r --cp 2 --ep 2 --dp 2 --steps 1 {SMALL}");
    let carry = start(&[(4, &line)]).wait();
    assert_eq!(carry.code, Some(0), "{}", carry.all());
    assert_eq!(carry.stderr.matches("`recurrent` hands its state").count(), 1, "{}", carry.all());
    assert_eq!(carry.stdout.matches("the split is right").count(), 1, "{}", carry.all());
    let answer: Value =
        serde_json::from_str(&start(&[(4, &format!("{line} --json"))]).wait().stdout).expect("one answer");
    let threads = common::json(&line.replace("--ranks mpi", ""));
    for key in ["losses", "traffic", "memory", "router_load", "parity"] {
        assert_eq!(answer[key], threads[key], "{key}");
    }
    let nam56r = include_str!("../../../data/recipes/nam56r.toml");
    let mimo = common::scratch("mpi.mimo.toml", &nam56r.replacen("[mamba]", "[mamba]\nmimo_rank = 2", 1));
    let cases: [(usize, String, &str); 3] = [
        (2, format!("{FOUR} {SMALL}"), "mpirun started 2 processes, and the layout has 4 ranks"),
        (2, format!("rehearse nam56r --tp 3 {SMALL}"), "[tp/heads]"),
        (2, format!("rehearse {} --dp 2 {SMALL}", mimo.display()), "[runtime/mimo]"),
    ];
    for (ranks, line, words) in cases {
        let refused = start(&[(ranks, &line)]).wait();
        refused.failed(&line, &[words]);
        assert_eq!(refused.stderr.matches(words).count(), 1, "{line}: {}", refused.all());
    }
    let line = format!("{FOUR} --steps 1 {SMALL}");
    let alone = start(&[(3, &line), (1, &format!("{line} --text no-such-file"))]).wait();
    alone.failed("one rank's file", &["rank 3: ", "no-such-file"]);
    assert_eq!((alone.stdout.clone() + &alone.stderr).matches("no-such-file").count(), 1, "{}", alone.all());
}
