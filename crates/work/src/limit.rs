//! How much a command may take.

use crate::{OPERATIONS_PER_SECOND, Work};
use diag::{Blame, Finding};
use units::Bytes;

/// The largest work that is begun.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Bytes of this machine's memory.
    pub bytes: u64,
    /// Operations, as [`Work`] counts them.
    pub operations: u64,
    /// Where the limit on bytes comes from, in brackets behind it; empty where it was typed.
    pub bytes_from: String,
}

/// What the user said of the limit: either part, or neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    bytes: Option<u64>,
    operations: Option<u64>,
}

/// Parts of four that may be taken of what is free: the rest is for whoever else runs here, and for what
/// a prediction leaves out.
const SHARE: u64 = 3;
/// Where a machine does not say what is free.
const UNKNOWN: u64 = 8 << 30;
/// Two minutes of two cores.
const OPERATIONS: u64 = (240.0 * OPERATIONS_PER_SECOND) as u64;
/// What an answer may take that somebody waits for: five seconds of two cores.
const OPERATIONS_OF_AN_ANSWER: u64 = (10.0 * OPERATIONS_PER_SECOND) as u64;
const BYTES_OF_AN_ANSWER: u64 = 2 << 30;

impl Limit {
    /// No limit, for callers that are bounded otherwise.
    pub fn none() -> Limit {
        Limit { bytes: u64::MAX, operations: u64::MAX, bytes_from: String::new() }
    }

    /// What was asked for; of what was not, three quarters of the memory that is `free`, and two minutes
    /// of two cores.
    pub fn new(asked: Asked, free: Option<u64>) -> Limit {
        let (bytes, bytes_from) = match (asked.bytes, free) {
            (Some(bytes), _) => (bytes, String::new()),
            (None, Some(free)) => {
                (free / 4 * SHARE, format!(" (three quarters of the {} that are free here)", Bytes(free)))
            }
            (None, None) => (UNKNOWN, " (this machine does not say what is free)".to_string()),
        };
        Limit { bytes, operations: asked.operations.unwrap_or(OPERATIONS), bytes_from }
    }

    /// The same for an answer that somebody waits for: five seconds of two cores and 2 GiB, unless asked
    /// otherwise.
    pub fn of_an_answer(asked: Asked, free: Option<u64>) -> Limit {
        let machine = Limit::new(asked, free);
        let operations = asked.operations.unwrap_or(OPERATIONS_OF_AN_ANSWER);
        if asked.bytes.is_some() || machine.bytes < BYTES_OF_AN_ANSWER {
            return Limit { operations, ..machine };
        }
        let bytes_from = " (what an answer takes unless told)".to_string();
        Limit { bytes: BYTES_OF_AN_ANSWER, operations, bytes_from }
    }

    /// Refuses work beyond it. `what` is the work as a subject (`rehearsing nam56r on 8 ranks`), and `less`
    /// is what would make it smaller, if anything is known to.
    pub fn check(&self, what: &str, work: Work, less: &str) -> Result<(), Vec<Finding>> {
        let findings: Vec<Finding> =
            [self.memory(what, work, less), self.time(what, work, less)].into_iter().flatten().collect();
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    }

    fn memory(&self, what: &str, work: Work, less: &str) -> Option<Finding> {
        if work.bytes <= self.bytes {
            return None;
        }
        let message = format!(
            "{what} takes about {} of this machine's memory, and {} are allowed{}",
            Bytes(work.bytes),
            Bytes(self.bytes),
            self.bytes_from
        );
        let raised = format!("`--work-limit {}` allows it", up_to_gib(work.bytes));
        Some(Finding::error("work/bytes", Blame::Usage, "memory", message).hint(either(less, &raised)))
    }

    fn time(&self, what: &str, work: Work, less: &str) -> Option<Finding> {
        if work.operations <= self.operations {
            return None;
        }
        let allowed = Work { operations: self.operations, ..Work::default() };
        let message = format!(
            "{what} takes about {} operations, roughly {} of one core, and {} are allowed, roughly {}",
            units::count(work.operations),
            duration(work.core_seconds()),
            units::count(self.operations),
            duration(allowed.core_seconds()),
        );
        let raised = format!("`--work-limit {}` allows it", up_to_minutes(work.core_seconds()));
        Some(Finding::error("work/operations", Blame::Usage, "operations", message).hint(either(less, &raised)))
    }
}

fn either(less: &str, raised: &str) -> String {
    if less.is_empty() { raised.to_string() } else { format!("{less}; or {raised}") }
}

/// Bytes as the flag takes them, not below.
fn up_to_gib(bytes: u64) -> String {
    match bytes {
        u64::MAX => "none".to_string(),
        _ => format!("{}GiB", bytes.div_ceil(Bytes::GIB.0)),
    }
}

/// Time as the flag takes it, not below.
fn up_to_minutes(seconds: f64) -> String {
    match seconds * OPERATIONS_PER_SECOND >= u64::MAX as f64 {
        true => "none".to_string(),
        false => format!("{}min", (seconds / 60.0).ceil() as u64),
    }
}

/// Seconds for people, rough.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} minutes", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.0} hours", s / 3600.0),
        s if s < 730.0 * 86400.0 => format!("{:.0} days", s / 86400.0),
        s => format!("{} years", units::exact((s / (365.25 * 86400.0)) as u64)),
    }
}

/// Units of the flag: how each is written, how much it is, and of what.
const UNITS: &[(&str, f64, Part)] = &[
    ("MiB", (1u64 << 20) as f64, Part::Bytes),
    ("GiB", (1u64 << 30) as f64, Part::Bytes),
    ("TiB", (1u64 << 40) as f64, Part::Bytes),
    ("ms", OPERATIONS_PER_SECOND / 1000.0, Part::Operations),
    ("min", 60.0 * OPERATIONS_PER_SECOND, Part::Operations),
    ("s", OPERATIONS_PER_SECOND, Part::Operations),
    ("h", 3600.0 * OPERATIONS_PER_SECOND, Part::Operations),
];

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Bytes,
    Operations,
}

impl Asked {
    /// Reads `16GiB`, `10min`, both with a comma between, or `none`.
    pub fn parse(text: &str) -> Result<Asked, String> {
        if text.trim() == "none" {
            return Ok(Asked { bytes: Some(u64::MAX), operations: Some(u64::MAX) });
        }
        let mut asked = Asked::default();
        for word in text.split(',').map(str::trim) {
            let refuse = || {
                format!("`{word}` is neither memory (`16GiB`) nor time of one core (`90s`, `10min`, `2h`), nor `none`")
            };
            let (unit, scale, part) = UNITS.iter().find(|(unit, ..)| word.ends_with(unit)).ok_or_else(refuse)?;
            let number = word[..word.len() - unit.len()].trim().parse::<f64>().ok();
            let number = number.filter(|n| n.is_finite() && *n > 0.0).ok_or_else(refuse)?;
            let place = match part {
                Part::Bytes => &mut asked.bytes,
                Part::Operations => &mut asked.operations,
            };
            if place.replace((number * scale) as u64).is_some() {
                return Err(format!("`{text}` says one limit twice"));
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(bytes: u64, operations: u64) -> Work {
        Work { bytes, operations }
    }

    #[test]
    fn a_limit_is_memory_time_or_both() {
        let limit = |text: &str| Limit::new(Asked::parse(text).unwrap(), Some(16 << 30));
        assert_eq!((limit("4GiB").bytes, limit("4GiB").operations), (4 << 30, OPERATIONS));
        assert_eq!((limit("90s").bytes, limit("90s").operations), (12 << 30, 90_000_000_000));
        assert_eq!((limit("512MiB, 2h").bytes, limit("512MiB,2h").operations), (512 << 20, 7_200_000_000_000));
        assert_eq!((limit("none").bytes, limit("none").operations), (u64::MAX, u64::MAX));
        for wrong in ["", "4", "4GB", "GiB", "-1GiB", "1GiB,2GiB", "nan s", "inf s", "none,4GiB"] {
            assert!(Asked::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_beyond_a_limit_is_refused_with_the_flag_that_raises_it() {
        let limit = Limit::new(Asked::default(), Some(16 << 30));
        assert!(limit.check("counting", work(12 << 30, OPERATIONS), "").is_ok());
        let refused = limit.check("counting", work((100 << 30) + 1, 10 * OPERATIONS + 1), "count less").unwrap_err();
        assert_eq!(refused.iter().map(|f| f.rule).collect::<Vec<_>>(), ["work/bytes", "work/operations"]);
        assert_eq!(
            refused[0].message,
            "counting takes about 100 GiB of this machine's memory, and 12.0 GiB are allowed (three quarters of the \
             16.0 GiB that are free here)"
        );
        assert_eq!(refused[0].hint.as_deref(), Some("count less; or `--work-limit 101GiB` allows it"));
        assert_eq!(
            refused[1].message,
            "counting takes about 2.40 T operations, roughly 40 minutes of one core, and 240 B are allowed, roughly \
             4 minutes"
        );
        let raised = Limit::new(Asked::parse("101GiB,41min").unwrap(), None);
        assert!(raised.check("counting", work((100 << 30) + 1, 10 * OPERATIONS + 1), "").is_ok());
    }

    #[test]
    fn what_cannot_be_counted_is_beyond_every_limit_but_none() {
        let all = work(u64::MAX, 2).times(u64::MAX) + work(1, 1);
        assert_eq!(all, work(u64::MAX, u64::MAX));
        let refused = Limit::new(Asked::parse("1024TiB,9999h").unwrap(), None).check("it", all, "").unwrap_err();
        assert_eq!(refused.len(), 2);
        assert!(refused[0].hint.as_deref().unwrap().contains("`--work-limit none`"));
        assert!(Limit::none().check("it", all, "").is_ok());
        assert_eq!(work(3, 4).repeated(5), work(3, 20));
    }
}
