//! Ranks as threads of one process. Members of a group meet at a table: each lays its payload down, and
//! when all have, each takes references to all of them. Nothing is copied.

use crate::Result;
use crate::call::{Group, Header};
use crate::collectives::{Comm, Fabric};
use crate::element::{Payload, Piece};
use crate::failure;
use diag::Finding;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Runs `body` on every rank, each on a thread of its own, and gives the results by rank. When one fails
/// or panics all end with its finding; none waits longer than `deadline` in one call.
pub fn run<T: Send>(world: usize, deadline: Duration, body: impl Fn(&Comm) -> Result<T> + Sync) -> Vec<Result<T>> {
    let hall = Arc::new(Hall::new(world, deadline));
    let body = &body;
    std::thread::scope(|scope| {
        let spawn = |rank| {
            let hall = Arc::clone(&hall);
            scope.spawn(move || {
                let comm = Comm::new(Box::new(Thread { hall: Arc::clone(&hall), rank }));
                let result = catch_unwind(AssertUnwindSafe(|| body(&comm)));
                let result = result.unwrap_or_else(|panic| {
                    Err(failure::died(rank, hall.doing(rank).as_ref(), failure::panicked(&*panic)))
                });
                match result {
                    Ok(value) => {
                        hall.leave(rank);
                        Ok(value)
                    }
                    Err(finding) => Err(hall.fail(finding)),
                }
            })
        };
        let ranks: Vec<_> = (0..world).map(spawn).collect();
        let gone = |rank| failure::died(rank, None, "its thread is gone");
        ranks.into_iter().enumerate().map(|(r, t)| t.join().unwrap_or_else(|_| Err(gone(r)))).collect()
    })
}

/// What all ranks share.
struct Hall {
    deadline: Duration,
    status: Mutex<Status>,
    tables: Mutex<HashMap<Group, Arc<Table>>>,
    /// Messages by sender, receiver and tag.
    boxes: Mutex<HashMap<(usize, usize, u64), Arc<Mailbox>>>,
}

struct Status {
    /// The first failure; everyone ends with it.
    failure: Option<Finding>,
    has_left: Vec<bool>,
    /// The call each rank made last.
    doing: Vec<Option<Header>>,
    /// Whether each rank is waiting in it.
    waits: Vec<bool>,
}

impl Status {
    /// Ranks that are running and not waiting: whoever keeps the others waiting is among them.
    fn busy(&self) -> Option<String> {
        let is_busy = |rank: &usize| !self.waits[*rank] && !self.has_left[*rank];
        let words: Vec<String> = (0..self.waits.len()).filter(is_busy).map(|rank| self.words(rank)).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// A rank, and the call it made last.
    fn words(&self, rank: usize) -> String {
        match &self.doing[rank] {
            Some(header) => format!("rank {rank} (last in {header} on {})", header.call.axis),
            None => format!("rank {rank} (has called nothing)"),
        }
    }
}

/// Marks a rank as waiting until it is dropped.
struct Waiting<'a> {
    hall: &'a Hall,
    rank: usize,
}

impl<'a> Waiting<'a> {
    fn new(hall: &'a Hall, rank: usize) -> Waiting<'a> {
        lock(&hall.status).waits[rank] = true;
        Waiting { hall, rank }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.hall.status).waits[self.rank] = false;
    }
}

#[derive(Default)]
struct Table {
    rounds: Mutex<Rounds>,
    moved: Condvar,
}

#[derive(Default)]
struct Rounds {
    /// Number of the oldest round that is still on the table.
    first: u64,
    open: VecDeque<Round>,
    /// How many rounds each member has joined.
    joined: Vec<u64>,
}

struct Round {
    laid: Vec<Option<(Header, Payload)>>,
    taken: usize,
}

#[derive(Default)]
struct Mailbox {
    messages: Mutex<VecDeque<(Header, Payload)>>,
    moved: Condvar,
}

/// Locks even if a holder panicked: the data is plain and stays consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hall {
    fn new(world: usize, deadline: Duration) -> Hall {
        let status =
            Status { failure: None, has_left: vec![false; world], doing: vec![None; world], waits: vec![false; world] };
        Hall { deadline, status: Mutex::new(status), tables: Mutex::default(), boxes: Mutex::default() }
    }

    fn table(&self, group: &Group) -> Arc<Table> {
        let mut tables = lock(&self.tables);
        match tables.get(group) {
            Some(table) => Arc::clone(table),
            None => Arc::clone(tables.entry(group.clone()).or_default()),
        }
    }

    fn mailbox(&self, from: usize, to: usize, tag: u64) -> Arc<Mailbox> {
        Arc::clone(lock(&self.boxes).entry((from, to, tag)).or_default())
    }

    fn doing(&self, rank: usize) -> Option<Header> {
        lock(&self.status).doing[rank].clone()
    }

    /// Records the call that a rank starts; refuses it when the run is over.
    fn begin(&self, rank: usize, header: &Header) -> Result<()> {
        let mut status = lock(&self.status);
        status.doing[rank] = Some(Header { counts: Vec::new(), ..header.clone() });
        status.failure.clone().map_or(Ok(()), Err)
    }

    /// Ends the run on every rank; all see the first failure.
    fn fail(&self, finding: Finding) -> Finding {
        let first = lock(&self.status).failure.get_or_insert(finding).clone();
        self.wake();
        first
    }

    fn leave(&self, rank: usize) {
        lock(&self.status).has_left[rank] = true;
        self.wake();
    }

    /// Wakes all that wait. Takes each lock, so that none is between checking and waiting.
    fn wake(&self) {
        for table in lock(&self.tables).values() {
            drop(lock(&table.rounds));
            table.moved.notify_all();
        }
        for mailbox in lock(&self.boxes).values() {
            drop(lock(&mailbox.messages));
            mailbox.moved.notify_all();
        }
    }

    /// Why a wait for `missing` will not end, if it will not.
    fn in_vain(&self, wait: &Wait, missing: &[usize]) -> Option<Finding> {
        let status = lock(&self.status);
        if let Some(failure) = &status.failure {
            return Some(failure.clone());
        }
        if let Some(gone) = missing.iter().find(|r| status.has_left[**r]) {
            return Some(failure::left(wait.group, wait.header, wait.rank, *gone));
        }
        let waited = wait.since.elapsed();
        (waited >= self.deadline).then(|| {
            let words = missing.iter().map(|&rank| status.words(rank));
            let late =
                failure::late(wait.group, wait.header, wait.rank, &words.collect::<Vec<_>>(), waited.as_secs_f64());
            status.busy().map_or(late.clone(), |who| late.hint(format!("look first at who waits for nobody: {who}")))
        })
    }
}

/// A wait: who waits, in which call, since when.
struct Wait<'a> {
    group: &'a Group,
    header: &'a Header,
    rank: usize,
    since: Instant,
}

/// One rank's connection.
struct Thread {
    hall: Arc<Hall>,
    rank: usize,
}

impl Thread {
    /// Lays a payload down and waits for those of all members.
    fn meet(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<(Header, Payload)>> {
        self.hall.begin(self.rank, &header)?;
        let place =
            group.place(self.rank).ok_or_else(|| failure::misused(group, &header, self.rank, "not a member"))?;
        let table = self.hall.table(group);
        let mut rounds = lock(&table.rounds);
        let number = rounds.join(place, group.len());
        if let Some((other, theirs)) = rounds.lay(number, place, header.clone(), payload) {
            drop(rounds);
            let (theirs, ours) = (failure::words(&theirs), failure::words(&header));
            let (first, second) = ((group.ranks()[other], theirs.as_str()), (self.rank, ours.as_str()));
            return Err(self.hall.fail(failure::disagree(group, header.call.axis, first, second)));
        }
        table.moved.notify_all();
        let wait = Wait { group, header: &header, rank: self.rank, since: Instant::now() };
        let _waiting = Waiting::new(&self.hall, self.rank);
        loop {
            if let Some(all) = rounds.take(number) {
                return Ok(all);
            }
            let missing: Vec<usize> = rounds.missing(number).into_iter().map(|p| group.ranks()[p]).collect();
            if let Some(finding) = self.hall.in_vain(&wait, &missing) {
                drop(rounds);
                return Err(self.hall.fail(finding));
            }
            let left = self.hall.deadline.saturating_sub(wait.since.elapsed()).max(Duration::from_millis(1));
            rounds = table.moved.wait_timeout(rounds, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Rounds {
    /// The round that a member joins with its next call.
    fn join(&mut self, place: usize, members: usize) -> u64 {
        self.joined.resize(members, 0);
        let number = self.joined[place];
        self.joined[place] += 1;
        while self.first + self.open.len() as u64 <= number {
            self.open.push_back(Round { laid: (0..members).map(|_| None).collect(), taken: 0 });
        }
        number
    }

    fn round(&mut self, number: u64) -> &mut Round {
        &mut self.open[(number - self.first) as usize]
    }

    /// Lays a payload down; gives the member whose call differs, if there is one.
    fn lay(&mut self, number: u64, place: usize, header: Header, payload: Payload) -> Option<(usize, Header)> {
        let round = self.round(number);
        let others = round.laid.iter().enumerate();
        let disagrees = others.filter_map(|(i, l)| l.as_ref().map(|(h, _)| (i, h))).find(|(_, h)| !h.agrees(&header));
        let found = disagrees.map(|(i, h)| (i, h.clone()));
        // A round in which calls differ never completes, so that nobody takes from it.
        if found.is_none() {
            round.laid[place] = Some((header, payload));
        }
        found
    }

    fn missing(&mut self, number: u64) -> Vec<usize> {
        let laid = &self.round(number).laid;
        (0..laid.len()).filter(|&i| laid[i].is_none()).collect()
    }

    /// All payloads, once all are there. The last member to take removes the round.
    fn take(&mut self, number: u64) -> Option<Vec<(Header, Payload)>> {
        let round = self.round(number);
        if round.laid.iter().any(Option::is_none) {
            return None;
        }
        round.taken += 1;
        let is_last = round.taken == round.laid.len();
        let all = round.laid.iter().flatten().cloned().collect();
        if is_last {
            round.laid.iter_mut().for_each(|l| *l = None);
            // Rounds complete in order, because every member joins them in order.
            while self.open.front().is_some_and(|r| r.taken == r.laid.len()) {
                self.open.pop_front();
                self.first += 1;
            }
        }
        Some(all)
    }
}

impl Fabric for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        lock(&self.hall.status).has_left.len()
    }

    fn share(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Payload>> {
        Ok(self.meet(group, header, payload)?.into_iter().map(|(_, payload)| payload).collect())
    }

    fn deal(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Piece>> {
        let place = group.place(self.rank).unwrap_or(0);
        let piece = |(header, payload): (Header, Payload)| {
            let start: usize = header.counts[..place].iter().sum();
            Piece { payload, range: start..start + header.counts[place] }
        };
        Ok(self.meet(group, header, payload)?.into_iter().map(piece).collect())
    }

    fn end(&self, finding: &Finding) {
        self.hall.fail(finding.clone());
    }

    fn is_over(&self) -> bool {
        lock(&self.hall.status).failure.is_some()
    }

    fn post(&self, to: usize, tag: u64, header: Header, payload: Payload) -> Result<()> {
        self.hall.begin(self.rank, &header)?;
        let mailbox = self.hall.mailbox(self.rank, to, tag);
        lock(&mailbox.messages).push_back((header, payload));
        mailbox.moved.notify_all();
        Ok(())
    }

    fn take(&self, from: usize, tag: u64, header: Header) -> Result<Payload> {
        self.hall.begin(self.rank, &header)?;
        let group = Group::new([from, self.rank]);
        let mailbox = self.hall.mailbox(from, self.rank, tag);
        let wait = Wait { group: &group, header: &header, rank: self.rank, since: Instant::now() };
        let _waiting = Waiting::new(&self.hall, self.rank);
        let mut messages = lock(&mailbox.messages);
        loop {
            if let Some((theirs, payload)) = messages.pop_front() {
                if theirs.agrees(&header) {
                    return Ok(payload);
                }
                drop(messages);
                let (theirs, ours) = (failure::words(&theirs), failure::words(&header));
                let (first, second) = ((from, theirs.as_str()), (self.rank, ours.as_str()));
                return Err(self.hall.fail(failure::disagree(&group, header.call.axis, first, second)));
            }
            if let Some(finding) = self.hall.in_vain(&wait, &[from]) {
                drop(messages);
                return Err(self.hall.fail(finding));
            }
            let left = self.hall.deadline.saturating_sub(wait.since.elapsed()).max(Duration::from_millis(1));
            messages = mailbox.moved.wait_timeout(messages, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A single rank: every group has one member, and messages go to itself.
pub fn alone() -> Comm {
    Comm::new(Box::new(Thread { hall: Arc::new(Hall::new(1, Duration::from_secs(1))), rank: 0 }))
}

#[cfg(test)]
mod tests;
