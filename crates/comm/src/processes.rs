//! Ranks as MPI processes. Everything travels as point-to-point frames that say which call they
//! belong to, and waiting is polling, so that a member that disagrees, dies or hangs is named
//! within the deadline instead of blocking inside MPI.
//!
//! A frame is sent buffered: it is out of the sender's hands at once, as between threads. When the
//! run ends early, ranks tell one another how before any of them exits, for the launcher ends them
//! all when the first one does; MPI is then not finalized, which would wait for the dead.

mod closing;
mod launcher;
mod wire;

pub use closing::Ended;
pub use wire::Ending;

use crate::call::{Group, Header};
use crate::collectives::{Comm, Fabric};
use crate::element::{Payload, Piece};
use crate::{Result, failure};
use diag::{Blame, Finding};
use launcher::{Guard, LastWords, Launcher};
use mpi::environment::Universe;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::traits::{Communicator, Destination, Source};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Frame, Key, Last, Partial};

/// Bytes that may be in flight from one rank.
const BUFFER: usize = 1 << 28;
/// Pause after a poll that found nothing.
const REST: Duration = Duration::from_micros(20);

/// The least that MPI is given to start and to end, however short the deadline of a call.
const START: Duration = Duration::from_secs(8);

/// Runs `body` as this process's rank of the MPI world. When it fails on any rank, every process learns
/// how each of them ended, and exactly one is told to report it. A rank that the launcher kills while it
/// computes has no time to ask the others, and passes its finding to `last_words`.
pub fn run<T>(
    deadline: Duration,
    last_words: impl Fn(&Finding) + Send + Sync + 'static,
    body: impl FnOnce(&Comm) -> std::result::Result<T, Vec<Finding>>,
) -> std::result::Result<T, Ended> {
    let environment = |message: String| Finding::error("comm/mpi", Blame::Environment, "mpi", message);
    let last_words: Arc<LastWords> = Arc::new(last_words);
    let limit = deadline.max(START);
    let seconds = limit.as_secs_f64();
    // Inside these two MPI waits for every process without a limit, and nobody polls; hence the guard.
    let missing = format!("MPI did not start within {seconds:.0} s: a process that mpirun started is missing or stuck");
    let starting = Guard::new(limit, environment(missing), &last_words);
    let running = || environment("MPI is already running in this process".to_string());
    let mut universe = mpi::initialize().ok_or_else(|| Ended::alone(running()))?;
    drop(starting);
    universe.set_buffer_size(BUFFER);
    let rank = universe.world().rank() as usize;
    let launcher = Launcher::listen(rank, Arc::clone(&last_words)).map_err(Ended::alone)?;
    let (desk, waits) = (RefCell::default(), Cell::new(None));
    let process = Rc::new(Process { rank, deadline, desk, waits, universe, launcher });
    let comm = Comm::new(Box::new(Rc::clone(&process)));
    let result = catch_unwind(AssertUnwindSafe(|| body(&comm))).unwrap_or_else(|panic| {
        Err(vec![failure::died(rank, process.launcher.doing().as_ref(), failure::panicked(&*panic))])
    });
    let ended = match result {
        Ok(value) => match closing::leave(&process) {
            Ok(()) => {
                let missing =
                    format!("rank {rank} waited {seconds:.0} s for MPI to end: another rank is stuck or dead");
                let _ending = Guard::new(limit, environment(missing), &last_words);
                drop(comm);
                drop(process);
                return Ok(value);
            }
            Err(finding) => vec![finding],
        },
        Err(findings) => findings,
    };
    let ended = closing::end(&process, ended);
    // Dropping the process would finalize MPI, which waits for ranks that are dead.
    std::mem::forget((comm, process));
    Err(ended)
}

#[derive(Default)]
struct Desk {
    /// How many calls each group has made.
    rounds: HashMap<Vec<usize>, u64>,
    came: HashMap<(usize, Key), VecDeque<Frame>>,
    /// Frames of which only some messages have come, by sender.
    partial: HashMap<usize, Partial>,
    /// Why the run ended on this rank.
    failure: Option<Ending>,
    /// How it ended on the others, as far as they have said.
    ends: HashMap<usize, Last>,
    /// Ranks that have finished and left.
    left: Vec<usize>,
    /// The rank that reports to the user.
    speaker: Option<usize>,
}

impl Desk {
    /// The next frame under a key, if it has come.
    fn next(&mut self, at: &(usize, Key)) -> Option<Frame> {
        let frames = self.came.get_mut(at)?;
        let frame = frames.pop_front();
        if frames.is_empty() {
            self.came.remove(at);
        }
        frame
    }

    /// Files a whole frame under its sender and key.
    fn take(&mut self, from: usize, bytes: &[u8]) -> Option<()> {
        let (key, frame) = wire::decode(bytes)?;
        match key {
            Key::End => {
                let last = Last::decode(&frame.payload)?;
                self.failure.get_or_insert(last.ending.clone());
                self.ends.insert(from, last);
            }
            Key::Left => self.left.push(from),
            Key::Speaks => self.speaker = Some(from),
            key => self.came.entry((from, key)).or_default().push_back(frame),
        }
        Some(())
    }
}

struct Process {
    rank: usize,
    deadline: Duration,
    desk: RefCell<Desk>,
    /// The rank that this one is waiting for.
    waits: Cell<Option<usize>>,
    universe: Universe,
    launcher: Launcher,
}

/// A wait: who waits for whom, in which call, since when.
struct Wait<'a> {
    group: &'a Group,
    header: &'a Header,
    key: &'a Key,
    since: Instant,
}

impl Process {
    fn world(&self) -> usize {
        self.universe.world().size() as usize
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world()).filter(move |r| *r != rank)
    }

    fn send(&self, to: usize, key: &Key, words: &str, payload: &Payload) -> Result<()> {
        let frame = wire::encode(key, words, payload);
        if frame.len() > BUFFER / 8 {
            let (bytes, most) = (frame.len(), BUFFER / 8);
            let message = format!("rank {} cannot send {words}: {bytes} bytes, and at most {most} travel", self.rank);
            return Err(Finding::error("comm/size", Blame::Environment, "mpi", message));
        }
        let world = self.universe.world();
        let target = world.process_at_rank(to as i32);
        wire::messages(&frame).iter().for_each(|message| target.buffered_send(&message[..]));
        Ok(())
    }

    /// Receives one message, if one has come.
    fn poll(&self) -> bool {
        let Some((message, status)) = self.universe.world().any_process().immediate_matched_probe() else {
            return false;
        };
        let from = status.source_rank() as usize;
        let (bytes, _) = (message, status).matched_receive_vec::<u8>();
        let mut desk = self.desk.borrow_mut();
        let Some(frame) = desk.partial.entry(from).or_default().add(&bytes) else { return true };
        if desk.take(from, &frame).is_none() {
            let message = format!("rank {from} sent rank {} something that is no frame", self.rank);
            let findings = vec![Finding::error("comm/frame", Blame::Bug, "world", message)];
            desk.failure.get_or_insert(Ending { findings, by: self.rank });
        }
        true
    }

    /// Why the run is over, if it is.
    fn over(&self) -> Option<Finding> {
        self.desk.borrow().failure.as_ref().and_then(|ending| ending.findings.first().cloned())
    }

    /// The next frame of a rank under a key.
    fn wait(&self, wait: &Wait, from: usize) -> Result<Frame> {
        let at = (from, wait.key.clone());
        self.waits.set(Some(from));
        loop {
            if let Some(finding) = self.over() {
                return Err(finding);
            }
            let found = self.desk.borrow_mut().next(&at);
            if let Some(found) = found {
                self.waits.set(None);
                return Ok(found);
            }
            if self.poll() {
                continue;
            }
            if let Some(finding) = self.in_vain(wait, from) {
                return Err(self.fail(finding));
            }
            std::thread::sleep(REST);
        }
    }

    /// Why a wait for a rank will not end, if it will not.
    fn in_vain(&self, wait: &Wait, from: usize) -> Option<Finding> {
        let desk = self.desk.borrow();
        let Wait { group, header, key, since } = wait;
        if desk.left.contains(&from) {
            return Some(failure::left(group, header, self.rank, from));
        }
        let is_missing = |rank: &&usize| **rank != self.rank && !desk.came.contains_key(&(**rank, (*key).clone()));
        let after_from = group.ranks().iter().skip_while(|rank| **rank != from);
        let missing: Vec<String> = after_from.filter(is_missing).map(|rank| format!("rank {rank}")).collect();
        let axis = header.call.axis;
        if self.launcher.ends() {
            let at = format!("in {header} on {axis} group {group}, as it waited for {}", missing.join(", "));
            return Some(failure::terminated(self.rank, axis, &at));
        }
        let waited = since.elapsed();
        (waited >= self.deadline).then(|| failure::late(group, header, self.rank, &missing, waited.as_secs_f64()))
    }

    /// Ends the run on this rank; the others are told when it closes.
    fn fail(&self, finding: Finding) -> Finding {
        let ending = Ending { findings: vec![finding.clone()], by: self.rank };
        self.desk.borrow_mut().failure.get_or_insert(ending);
        finding
    }

    /// Sends `parts[i]` to member `i`, and gives what every member sent here; our own is `parts[place]`.
    fn meet(&self, group: &Group, header: &Header, parts: Vec<Payload>) -> Result<Vec<Payload>> {
        self.begin(header)?;
        let number = {
            let mut desk = self.desk.borrow_mut();
            let round = desk.rounds.entry(group.ranks().to_vec()).or_default();
            *round += 1;
            *round
        };
        let key = Key::Round(group.ranks().to_vec(), number);
        let words = failure::words(header);
        for (to, part) in group.ranks().iter().zip(&parts).filter(|(to, _)| **to != self.rank) {
            self.send(*to, &key, &words, part)?;
        }
        let wait = Wait { group, header, key: &key, since: Instant::now() };
        let mut out = Vec::with_capacity(group.len());
        for (&from, mine) in group.ranks().iter().zip(parts) {
            if from == self.rank {
                out.push(mine);
                continue;
            }
            out.push(self.agreed(&wait, from, &words)?);
        }
        Ok(out)
    }

    /// What a rank sent, if it made the same call.
    fn agreed(&self, wait: &Wait, from: usize, words: &str) -> Result<Payload> {
        let frame = self.wait(wait, from)?;
        if frame.words == words {
            return Ok(frame.payload);
        }
        let (first, second) = ((from, frame.words.as_str()), (self.rank, words));
        Err(self.fail(failure::disagree(wait.group, wait.header.call.axis, first, second)))
    }

    /// Records the call that starts; refuses it when the run is over.
    fn begin(&self, header: &Header) -> Result<()> {
        self.launcher.begin(header);
        self.over().map_or(Ok(()), Err)
    }
}

impl Fabric for Rc<Process> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        Process::world(self)
    }

    fn share(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Payload>> {
        self.meet(group, &header, vec![payload; group.len()])
    }

    fn deal(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Piece>> {
        let mut start = 0;
        let part = |count: &usize| {
            let range = start..start + count;
            start += count;
            cut(&payload, range)
        };
        let parts = header.counts.iter().map(part).collect();
        let came = self.meet(group, &header, parts)?;
        Ok(came.into_iter().map(|payload| Piece { range: 0..payload.len(), payload }).collect())
    }

    fn post(&self, to: usize, tag: u64, header: Header, payload: Payload) -> Result<()> {
        self.begin(&header)?;
        let (key, words) = (Key::Message(tag), failure::words(&header));
        if to != self.rank {
            return self.send(to, &key, &words, &payload);
        }
        let mut desk = self.desk.borrow_mut();
        desk.came.entry((to, key)).or_default().push_back(Frame { words, payload });
        Ok(())
    }

    fn take(&self, from: usize, tag: u64, header: Header) -> Result<Payload> {
        self.begin(&header)?;
        let group = Group::new([from, self.rank]);
        let wait = Wait { group: &group, header: &header, key: &Key::Message(tag), since: Instant::now() };
        self.agreed(&wait, from, &failure::words(&header))
    }

    fn end(&self, finding: &Finding) {
        self.fail(finding.clone());
    }

    fn is_over(&self) -> bool {
        while self.poll() {}
        self.launcher.ends() || self.over().is_some()
    }
}

fn cut(payload: &Payload, range: std::ops::Range<usize>) -> Payload {
    match payload {
        Payload::F32(v) => Payload::F32(Arc::new(v[range].to_vec())),
        Payload::F64(v) => Payload::F64(Arc::new(v[range].to_vec())),
        Payload::U64(v) => Payload::U64(Arc::new(v[range].to_vec())),
    }
}
