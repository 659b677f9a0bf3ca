//! Questions that are being answered, by the names their askers gave them; and whose turn it is.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One answer on its way.
#[derive(Debug)]
pub struct Job {
    /// Set when nobody waits for it any more.
    pub stop: Arc<AtomicBool>,
    question: &'static str,
    since: Instant,
    is_running: AtomicBool,
    done: AtomicU64,
    all: AtomicU64,
}

impl Job {
    /// It has got its turn.
    pub fn begins(&self) {
        self.is_running.store(true, Ordering::Relaxed);
    }

    /// So far it is.
    pub fn is_at(&self, done: u64, all: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.all.store(all, Ordering::Relaxed);
    }

    fn json(&self, name: &str) -> Value {
        let state = match (self.stop.load(Ordering::Relaxed), self.is_running.load(Ordering::Relaxed)) {
            (true, _) => "stopping",
            (false, true) => "running",
            (false, false) => "waiting",
        };
        json!({
            "job": name, "question": self.question, "state": state, "seconds": self.since.elapsed().as_secs_f64(),
            "done": self.done.load(Ordering::Relaxed), "of": self.all.load(Ordering::Relaxed),
        })
    }
}

/// All that are on their way and have a name.
#[derive(Clone, Debug, Default)]
pub struct Jobs(Arc<Mutex<HashMap<String, Arc<Job>>>>);

impl Jobs {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one; none where its name is taken.
    pub fn begin(&self, name: Option<String>, question: &'static str) -> Option<Running> {
        let job = Arc::new(Job {
            stop: Arc::default(),
            question,
            since: Instant::now(),
            is_running: AtomicBool::new(false),
            done: AtomicU64::new(0),
            all: AtomicU64::new(0),
        });
        if let Some(name) = &name {
            let all = &mut *self.all();
            if all.contains_key(name) {
                return None;
            }
            all.insert(name.clone(), job.clone());
        }
        Some(Running { jobs: self.clone(), name, job })
    }

    /// How far one is.
    pub fn json(&self, name: &str) -> Option<Value> {
        self.all().get(name).map(|job| job.json(name))
    }

    /// Asks one to stop.
    pub fn stop(&self, name: &str) -> Option<Value> {
        let all = self.all();
        let job = all.get(name)?;
        job.stop.store(true, Ordering::Relaxed);
        Some(job.json(name))
    }
}

/// A job whose asker waits. Dropped with the connection: then it stops.
#[derive(Debug)]
pub struct Running {
    jobs: Jobs,
    name: Option<String>,
    /// The job.
    pub job: Arc<Job>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.job.stop.store(true, Ordering::Relaxed);
        if let Some(name) = &self.name {
            self.jobs.all().remove(name);
        }
    }
}

/// Turns: so many at once, so many that wait, and the rest is told to come back.
#[derive(Debug)]
pub struct Turns {
    at_once: Arc<Semaphore>,
    queue: Arc<Semaphore>,
    /// How long one waits at most.
    patience: Duration,
}

impl Turns {
    /// So many at once, and so many behind them.
    pub fn new(at_once: usize, waiting: usize, patience: Duration) -> Turns {
        let queue = Arc::new(Semaphore::new(at_once + waiting));
        Turns { at_once: Arc::new(Semaphore::new(at_once)), queue, patience }
    }

    /// A turn, held until both permits go; none where too many wait, or it took too long.
    pub async fn take(&self) -> Option<Turn> {
        let place = self.queue.clone().try_acquire_owned().ok()?;
        let turn = tokio::time::timeout(self.patience, self.at_once.clone().acquire_owned()).await.ok()?.ok()?;
        Some(Turn { _place: place, _turn: turn })
    }
}

/// The right to run.
#[derive(Debug)]
pub struct Turn {
    _place: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
}
