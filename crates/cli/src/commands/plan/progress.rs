//! A bar on standard error, where it is a terminal and the search takes more than a second.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Before this nobody needs a bar.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Progress {
    start: Instant,
    is_terminal: bool,
    is_shown: AtomicBool,
}

impl Progress {
    /// A bar that is not shown yet.
    pub fn new() -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        Progress { start: Instant::now(), is_terminal, is_shown: AtomicBool::new(false) }
    }

    /// Shows how far it is.
    pub fn show(&self, done: u64, all: u64) {
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
