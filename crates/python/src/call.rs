//! One call: a thread of ours works while Python's looks for signals.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use shardwright::Call;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::Builder;
use std::time::Duration;

/// How often signals are looked for, and progress is told.
const LOOK: Duration = Duration::from_millis(50);

/// How long a call that was told to stop is waited for; what does not listen is left to end by itself.
const GRACE: Duration = Duration::from_millis(500);

/// What a main thread usually has.
const STACK: usize = 8 << 20;

/// How far a search is.
#[derive(Default)]
struct Far {
    done: AtomicU64,
    of: AtomicU64,
}

/// The words with the program's name before them.
pub fn named(words: Vec<OsString>) -> impl Iterator<Item = OsString> {
    std::iter::once("shardwright".into()).chain(words)
}

pub fn answer(
    py: Python<'_>,
    words: Vec<OsString>,
    texts: BTreeMap<String, String>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<(u8, Option<String>, String, String)> {
    whole_process()?;
    let (stop, far) = (Arc::new(AtomicBool::new(false)), Arc::new(Far::default()));
    let call = Call { texts, stop: stop.clone(), progress: Some(told(far.clone())), ..Call::default() };
    let (sender, mut receiver) = channel();
    let words: Vec<OsString> = named(words).collect();
    let work = move || {
        // Nobody may wait any more.
        let _ = sender.send(shardwright::answer(&words, call));
    };
    Builder::new().name("shardwright".to_string()).stack_size(STACK).spawn(work)?;
    let answer = loop {
        let waited = &mut receiver;
        match py.detach(move || waited.recv_timeout(LOOK)) {
            Ok(answer) => break answer,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread that was to answer is gone"));
            }
        }
        if let Err(error) = look(py, &far, progress) {
            stop.store(true, Ordering::Relaxed);
            let waited = &mut receiver;
            let _ = py.detach(move || waited.recv_timeout(GRACE));
            return Err(error);
        }
    };
    let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
    Ok((answer.exit, answer.json.map(|json| json.to_string()), plain(&answer.text), plain(&answer.messages)))
}

/// What Python has to do meanwhile: signals, and whoever wants to know how far it is.
fn look(py: Python<'_>, far: &Far, progress: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    let (done, of) = (far.done.load(Ordering::Relaxed), far.of.load(Ordering::Relaxed));
    match progress {
        Some(progress) if of > 0 => progress.call1((done, of)).map(drop),
        _ => Ok(()),
    }
}

fn told(far: Arc<Far>) -> shardwright::Progress {
    Arc::new(move |done, of| {
        far.done.store(done, Ordering::Relaxed);
        far.of.store(of, Ordering::Relaxed);
    })
}

/// Threads do not survive a fork: a search in the child of a process that has searched would wait for ever.
fn whole_process() -> PyResult<()> {
    static FIRST: OnceLock<u32> = OnceLock::new();
    match *FIRST.get_or_init(std::process::id) == std::process::id() {
        true => Ok(()),
        false => Err(PyRuntimeError::new_err(
            "this process was forked from one that has used shardwright, whose threads are not in it; start workers by \
             multiprocessing.get_context(\"spawn\"), or ask in threads: calls do not hold the GIL",
        )),
    }
}
