//! What the launcher does to the ranks that are left when one dies: it ends them with SIGTERM, and
//! about a second later with SIGKILL (`odls_base_sigkill_timeout` of Open MPI). That second is for
//! last words.

use crate::call::Header;
use crate::{Result, failure};
use diag::{Blame, Finding};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a rank has to notice the signal in a call, where it can still ask the others.
const NOTICE: Duration = Duration::from_millis(300);
/// How long it stays after its last words: when the next process exits, the launcher kills the rest at
/// once.
pub const STAY: Duration = Duration::from_millis(400);
/// Exit status after SIGTERM, as shells report it.
const TERMINATED: i32 = 128 + SIGTERM;

/// Reports a finding from a rank that cannot ask the others.
pub type LastWords = dyn Fn(&Finding) + Send + Sync;

/// Ends this process with last words if a call into MPI takes longer than its limit.
pub struct Guard {
    _alive: Sender<()>,
}

impl Guard {
    pub fn new(limit: Duration, finding: Finding, last_words: &Arc<LastWords>) -> Guard {
        let (alive, over) = channel();
        let last_words = Arc::clone(last_words);
        std::thread::spawn(move || {
            if over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                last_words(&finding);
                std::thread::sleep(STAY);
                signal_hook::low_level::exit(1);
            }
        });
        Guard { _alive: alive }
    }
}

/// What this process knows of the launcher's signals.
#[derive(Clone)]
pub struct Launcher {
    ends: Arc<AtomicBool>,
    noticed: Arc<AtomicBool>,
    doing: Arc<Mutex<Option<Header>>>,
}

impl Launcher {
    /// Installs the handler. A rank that keeps computing instead of checking [`Launcher::ends`] gives
    /// `last_words`.
    pub fn listen(rank: usize, last_words: Arc<LastWords>) -> Result<Launcher> {
        let launcher = Launcher { ends: Arc::default(), noticed: Arc::default(), doing: Arc::default() };
        let mut signals = Signals::new([SIGTERM]).map_err(|e| {
            Finding::error("comm/mpi", Blame::Environment, "mpi", format!("SIGTERM cannot be listened for: {e}"))
        })?;
        let listening = launcher.clone();
        std::thread::spawn(move || {
            for _ in signals.forever() {
                listening.ends.store(true, Ordering::SeqCst);
                std::thread::sleep(NOTICE);
                if !listening.noticed.load(Ordering::SeqCst) {
                    let doing = listening.doing();
                    let axis = doing.as_ref().map_or("world", |h| h.call.axis);
                    last_words(&failure::terminated(rank, axis, &failure::after(doing.as_ref())));
                    std::thread::sleep(STAY);
                    signal_hook::low_level::exit(TERMINATED);
                }
            }
        });
        Ok(launcher)
    }

    /// Whether the launcher is ending this process.
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::SeqCst)
    }

    /// Says that the rank has noticed, and will report by itself.
    pub fn notice(&self) {
        self.noticed.store(true, Ordering::SeqCst);
    }

    /// Records the call that starts.
    pub fn begin(&self, header: &Header) {
        let short = Header { counts: Vec::new(), ..header.clone() };
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = Some(short);
    }

    /// The call made last.
    pub fn doing(&self) -> Option<Header> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
