//! Where a search is: told to whoever called, or a bar on standard error where that is a terminal and the search
//! takes more than a second.

use crate::call;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Before this nobody needs a bar.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Progress {
    start: Instant,
    is_terminal: bool,
    is_shown: AtomicBool,
    told: Option<call::Progress>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// A bar that is not shown yet.
    pub fn new() -> Progress {
        let told = call::progress();
        let is_terminal = told.is_none() && std::io::stderr().is_terminal();
        Progress { start: Instant::now(), is_terminal, is_shown: AtomicBool::new(false), told, stop: call::stop() }
    }

    /// Whether nobody waits any more.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Shows how far it is; whether to go on.
    pub fn show(&self, done: u64, all: u64) -> bool {
        match &self.told {
            Some(tell) => tell(done, all),
            None => self.draw(done, all),
        }
        !self.is_stopped()
    }

    fn draw(&self, done: u64, all: u64) {
        if !self.is_terminal || self.start.elapsed() < PATIENCE {
            return;
        }
        const WIDTH: u64 = 40;
        let filled = (WIDTH * done / all.max(1)) as usize;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH as usize - filled));
        let _ = write!(std::io::stderr(), "\r  {bar} {done} of {all} degrees inside a layer");
        self.is_shown.store(true, Ordering::Relaxed);
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if self.is_shown.load(Ordering::Relaxed) {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
