//! The end of a run. A rank that finishes says so and stays until all have. A rank that fails tells the
//! others why and hears how it ended on them; the lowest rank that can then reports to the user.

use super::launcher::STAY;
use super::wire::{Ending, Key, Last};
use super::{Process, REST};
use crate::call::{Call, Group, Header, Kind};
use crate::element::{Dtype, Payload};
use crate::{Result, failure};
use diag::Finding;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long ranks have to answer, and later to learn that the user was told.
const ANSWER: Duration = Duration::from_millis(2000);
/// The same when the launcher is already ending the processes: it kills them a second later.
const ANSWER_IN_HASTE: Duration = Duration::from_millis(250);

/// How a run ended early.
#[derive(Clone, Debug)]
pub struct Ended {
    /// By rank; one that did not answer has a finding that says so.
    pub endings: Vec<Ending>,
    /// Whether this process is the one that reports.
    pub speaks: bool,
}

impl Ended {
    /// For a failure before the ranks were connected.
    pub(super) fn alone(finding: Finding) -> Ended {
        Ended { endings: vec![Ending { findings: vec![finding], by: 0 }], speaks: true }
    }
}

fn nothing() -> Payload {
    Payload::U64(Arc::new(Vec::new()))
}

/// Tells the others that this rank is finished, and waits until all are.
pub(super) fn leave(process: &Process) -> Result<()> {
    let call = Call::new("world", "the end");
    let header = Header { call, kind: Kind::Barrier, dtype: Dtype::U64, len: None, detail: 0, counts: Vec::new() };
    process.launcher.begin(&header);
    for to in process.others() {
        process.send(to, &Key::Left, "", &nothing())?;
    }
    let since = Instant::now();
    loop {
        if let Some(finding) = process.over() {
            return Err(finding);
        }
        let missing: Vec<usize> = process.others().filter(|r| !process.desk.borrow().left.contains(r)).collect();
        if missing.is_empty() {
            // Finalizing waits for everyone as well; nothing remains to be said.
            process.launcher.notice();
            return Ok(());
        }
        if process.poll() {
            continue;
        }
        let words: Vec<String> = missing.iter().map(|r| format!("rank {r}")).collect();
        if process.launcher.ends() {
            let at = format!("at the end, as it waited for {}", words.join(", "));
            return Err(process.fail(failure::terminated(process.rank, "world", &at)));
        }
        if since.elapsed() >= process.deadline {
            let (group, seconds) = (Group::new(0..process.world()), since.elapsed().as_secs_f64());
            return Err(process.fail(failure::late(&group, &header, process.rank, &words, seconds)));
        }
        std::thread::sleep(REST);
    }
}

/// Tells the others how the run ended here, and collects how it ended there.
pub(super) fn end(process: &Process, findings: Vec<Finding>) -> Ended {
    process.launcher.notice();
    let mine = {
        let mut desk = process.desk.borrow_mut();
        let ending = desk.failure.get_or_insert(Ending { findings, by: process.rank }).clone();
        Last { ending, doing: process.launcher.doing().map(|h| failure::words(&h)), waits: process.waits.get() }
    };
    let encoded = mine.encode();
    for to in process.others() {
        // Fails if it is too long to send: the others then report that they heard nothing.
        let _ = process.send(to, &Key::End, "", &encoded);
    }
    let answered = answers(process);
    let mut lasts: Vec<Option<Last>> =
        (0..process.world()).map(|r| process.desk.borrow_mut().ends.remove(&r)).collect();
    // Decoded again as the others see it, so that equal endings compare equal.
    lasts[process.rank] = Last::decode(&encoded);
    let is_first = lasts.iter().position(Option::is_some) == Some(process.rank);
    let speaks = is_first && process.desk.borrow().speaker.is_none();
    if speaks {
        process.others().for_each(|to| drop(process.send(to, &Key::Speaks, "", &nothing())));
        while process.poll() {}
    } else {
        linger(process);
    }
    Ended { endings: endings(&lasts, answered), speaks }
}

/// Waits until every rank has answered or will not; gives the seconds it took.
fn answers(process: &Process) -> f64 {
    let since = Instant::now();
    let mut hasty = None;
    loop {
        while process.poll() {}
        if process.launcher.ends() {
            hasty.get_or_insert_with(Instant::now);
        }
        let is_here = |r: usize| process.desk.borrow().ends.contains_key(&r);
        let is_late = since.elapsed() >= ANSWER || hasty.is_some_and(|h: Instant| h.elapsed() >= ANSWER_IN_HASTE);
        if process.others().all(is_here) || is_late {
            return since.elapsed().as_secs_f64();
        }
        std::thread::sleep(REST);
    }
}

/// Waits until the reporting rank is done: the launcher ends everyone when the first process exits.
fn linger(process: &Process) {
    if process.launcher.ends() {
        std::thread::sleep(STAY);
    }
    let since = Instant::now();
    while since.elapsed() < ANSWER && !process.launcher.ends() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Everyone's ending; where a rank waited in vain, with a hint at whom to look first.
fn endings(lasts: &[Option<Last>], answered: f64) -> Vec<Ending> {
    let busy = lasts.iter().enumerate().filter_map(|(rank, last)| match last {
        None => Some(format!("rank {rank} (did not answer)")),
        Some(last) if last.waits.is_some() => None,
        Some(Last { doing: Some(words), .. }) => Some(format!("rank {rank} (last in {words})")),
        Some(_) => Some(format!("rank {rank} (has called nothing)")),
    });
    let busy: Vec<String> = busy.collect();
    let waits = |(rank, last): (usize, &Option<Last>)| {
        last.as_ref().and_then(|l| l.waits).map(|other| format!("rank {rank} for rank {other}"))
    };
    let circle: Vec<String> = lasts.iter().enumerate().filter_map(waits).collect();
    let hint = match busy.is_empty() {
        true => format!("a message was lost, or calls are out of order, for all wait: {}", circle.join(", ")),
        false => format!("look first at who waits for nobody: {}", busy.join(", ")),
    };
    let hinted = |mut finding: Finding| {
        if failure::is_of_waiting(&finding) {
            finding.hint = Some(hint.clone());
        }
        finding
    };
    let ending = |(rank, last): (usize, &Option<Last>)| match last {
        Some(Last { ending: Ending { findings, by }, .. }) => {
            Ending { findings: findings.iter().cloned().map(hinted).collect(), by: *by }
        }
        None => Ending { findings: vec![failure::silent(rank, answered)], by: rank },
    };
    lasts.iter().enumerate().map(ending).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use diag::Blame;

    #[test]
    fn who_waits_for_nobody_is_named() {
        let finding = Finding::error("comm/deadline", Blame::Environment, "tp", "rank 0 waited");
        let ending = Ending { findings: vec![finding], by: 0 };
        let waiting = Last { ending: ending.clone(), doing: Some("a barrier".to_string()), waits: Some(1) };
        let busy = Last { waits: None, ..waiting.clone() };
        let all = endings(&[Some(waiting.clone()), Some(busy), None], 2.0);
        let hint = all[0].findings[0].hint.clone().unwrap();
        assert!(hint.ends_with("nobody: rank 1 (last in a barrier), rank 2 (did not answer)"), "{hint}");
        assert_eq!((all[2].findings[0].rule, all[2].by), ("comm/silent", 2));
        let back = Last { waits: Some(0), ..waiting.clone() };
        let hint = endings(&[Some(waiting), Some(back)], 2.0)[1].findings[0].hint.clone().unwrap();
        assert!(hint.ends_with("all wait: rank 0 for rank 1, rank 1 for rank 0"), "{hint}");
    }
}
