//! Timers. `megatron/core/timers.py`: `'(min, max) time across ranks (ms):'` and lines
//! `'\n    {}: ({:.2f}, {:.2f})'.format((name + ' ').ljust(48, '.'), min_time, max_time)`; with `--timing-log-option max`
//! `'max time across ranks (ms):'` and `'\n    {}: {:.2f}'`; with `all`, `'times across ranks (ms):'`, `'\n  {}:'` and
//! `'\n     rank {:2d}: {:.2f}'`. Times of a step are divided by the log interval.

use crate::readers::log::Log;
use crate::readers::text::{Line, around, find, number};
use crate::{EventKind, Timer};

/// Names that are kept.
const MOST: usize = 1024;

/// Every timer that was printed so far.
#[derive(Default)]
pub struct Timers {
    all: Vec<Kept>,
    /// Where the next name is expected: engines print them in one order.
    next: usize,
    is_open: bool,
    /// With `all`: the name whose ranks follow.
    of: Option<Vec<u8>>,
}

struct Kept {
    name: Vec<u8>,
    count: u64,
    least: Option<f64>,
    sum: f64,
    most: f64,
}

impl Timers {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if self.is_open && self.entry(line, log) {
            return true;
        }
        (self.is_open, self.of) = (false, None);
        if line.text.ends_with(b" across ranks (ms):") {
            (self.is_open, self.next) = (true, 0);
        }
        self.is_open
    }

    fn entry(&mut self, line: &Line, log: &mut Log) -> bool {
        let Some(text) = line.text.strip_prefix(b"  ") else { return false };
        if let Some(rank) = text.strip_prefix(b"   rank ") {
            let (Some((_, value)), Some(name)) = (around(rank, b": "), self.of.clone()) else { return false };
            let Some(value) = number(value) else { return false };
            // One line a rank: the slowest and the fastest are found by adding each.
            self.add(&name, Some(value), value);
            return true;
        }
        let Some(text) = text.strip_prefix(b"  ") else {
            self.of = text.strip_suffix(b":").map(<[u8]>::to_vec);
            return self.of.is_some();
        };
        let Some(end) = find(text, b" .").or_else(|| find(text, b" :")) else {
            return false;
        };
        let name = &text[..end];
        let dots = text[end + 1..].iter().take_while(|b| **b == b'.').count();
        let Some(value) = text[end + 1 + dots..].strip_prefix(b": ") else { return false };
        let value = value.trim_ascii_end();
        let (least, most) = match value.strip_prefix(b"(").and_then(|v| v.strip_suffix(b")")) {
            Some(pair) => match around(pair, b", ").map(|(a, b)| (number(a), number(b))) {
                Some((Some(least), Some(most))) => (Some(least), most),
                _ => return self.broken(line, log),
            },
            None => match number(value) {
                Some(most) => (None, most),
                None => return self.broken(line, log),
            },
        };
        self.add(name, least, most);
        checkpoint(name, most, log);
        true
    }

    fn broken(&mut self, line: &Line, log: &mut Log) -> bool {
        log.unread(line, "a timer without its times");
        true
    }

    fn add(&mut self, name: &[u8], least: Option<f64>, most: f64) {
        let is_expected = self.all.get(self.next).is_some_and(|kept| kept.name == name);
        let at = if is_expected { Some(self.next) } else { self.all.iter().position(|kept| kept.name == name) };
        let at = match at {
            Some(at) => at,
            None if self.all.len() < MOST => {
                self.all.push(Kept { name: name.to_vec(), count: 0, least: None, sum: 0.0, most: 0.0 });
                self.all.len() - 1
            }
            None => return,
        };
        self.next = at + 1;
        let kept = &mut self.all[at];
        kept.count += 1;
        kept.sum += most;
        kept.most = kept.most.max(most);
        kept.least = match (kept.least, least) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    pub fn end(self, log: &mut Log) {
        let is_finite = |kept: &Kept| kept.sum.is_finite() && kept.least.is_none_or(f64::is_finite);
        for kept in self.all.into_iter().filter(is_finite) {
            log.evidence.timers.push(Timer {
                name: diag::quote::bytes(&kept.name, 120),
                count: kept.count,
                least_seconds: kept.least.map(|ms| ms / 1e3),
                mean_seconds: kept.sum / kept.count as f64 / 1e3,
                most_seconds: kept.most / 1e3,
                source: 0,
            });
        }
    }
}

/// Before core 0.17 lines of checkpoints have no time: how long one took is said by the timer that follows.
fn checkpoint(name: &[u8], milliseconds: f64, log: &mut Log) {
    let kind = match name {
        b"save-checkpoint" => EventKind::CheckpointSaved,
        b"load-checkpoint" => EventKind::CheckpointLoaded,
        _ => return,
    };
    if let Some(event) = log.last_event(kind)
        && event.seconds.is_none()
        && milliseconds.is_finite()
    {
        event.seconds = Some(milliseconds / 1e3);
    }
}
