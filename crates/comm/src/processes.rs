//! Ranks as MPI processes. Everything travels as point-to-point frames that say which call they
//! belong to, and waiting is polling, so that a member that disagrees, dies or hangs is named
//! within the deadline instead of blocking inside MPI.
//!
//! A frame is sent buffered: it is out of the sender's hands at once, as between threads.

use crate::call::{Group, Header};
use crate::collectives::{Comm, Fabric};
use crate::element::{Dtype, Payload, Piece};
use crate::{Result, failure};
use diag::{Blame, Finding};
use mpi::environment::Universe;
use mpi::traits::{Communicator, Destination, Source};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of frames that may be on their way from one rank.
const BUFFER: usize = 1 << 28;
/// How long a poll that found nothing rests.
const REST: Duration = Duration::from_micros(20);

/// Runs `body` on this process's rank of the MPI world. A failure is told to every rank.
pub fn run<T>(deadline: Duration, body: impl FnOnce(&Comm) -> Result<T>) -> Result<T> {
    let missing = || Finding::error("comm/mpi", Blame::Environment, "mpi", "MPI is already running in this process");
    let mut universe = mpi::initialize().ok_or_else(missing)?;
    universe.set_buffer_size(BUFFER);
    let rank = universe.world().rank() as usize;
    let comm = Comm::new(Box::new(Process { rank, deadline, desk: RefCell::default(), universe }));
    catch_unwind(AssertUnwindSafe(|| body(&comm))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let finding = failure::died(rank, None, text);
        comm.end(&finding);
        Err(finding)
    })
}

/// What a frame belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A round of a group.
    Round(Vec<usize>, u64),
    /// A message under a tag.
    Message(u64),
    /// The end of the run.
    End,
}

/// A frame as it came.
struct Frame {
    /// What its sender calls, in words.
    words: String,
    payload: Payload,
}

#[derive(Default)]
struct Desk {
    /// Rounds each group has had.
    rounds: HashMap<Vec<usize>, u64>,
    came: HashMap<(usize, Key), VecDeque<Frame>>,
    /// Why the run is over.
    failure: Option<Finding>,
}

impl Desk {
    /// The next frame under a key, or why there will be none.
    fn next(&mut self, at: &(usize, Key)) -> Option<Result<Frame>> {
        if let Some(finding) = &self.failure {
            return Some(Err(finding.clone()));
        }
        let frames = self.came.get_mut(at)?;
        let frame = frames.pop_front();
        if frames.is_empty() {
            self.came.remove(at);
        }
        frame.map(Ok)
    }
}

struct Process {
    rank: usize,
    deadline: Duration,
    desk: RefCell<Desk>,
    universe: Universe,
}

impl Process {
    fn send(&self, to: usize, key: &Key, words: &str, payload: &Payload) {
        let frame = encode(key, words, payload);
        self.universe.world().process_at_rank(to as i32).buffered_send(&frame[..]);
    }

    /// Takes whatever has come off the wire.
    fn poll(&self) -> bool {
        let world = self.universe.world();
        let Some(status) = world.any_process().immediate_probe() else { return false };
        let from = status.source_rank();
        let (bytes, _) = world.process_at_rank(from).receive_vec::<u8>();
        let mut desk = self.desk.borrow_mut();
        match decode(&bytes) {
            Some((Key::End, frame)) => {
                let finding = Finding::error("comm/ended", Blame::Bug, "world", frame.words);
                desk.failure.get_or_insert(finding);
            }
            Some((key, frame)) => desk.came.entry((from as usize, key)).or_default().push_back(frame),
            None => {
                let message = format!("rank {from} sent something that is no frame");
                desk.failure.get_or_insert(Finding::error("comm/frame", Blame::Bug, "world", message));
            }
        }
        true
    }

    /// The next frame of a rank under a key.
    fn wait(&self, group: &Group, header: &Header, from: usize, key: &Key) -> Result<Frame> {
        let since = Instant::now();
        let at = (from, key.clone());
        loop {
            let found = self.desk.borrow_mut().next(&at);
            if let Some(found) = found {
                return found;
            }
            if !self.poll() {
                if since.elapsed() >= self.deadline {
                    let missing = [format!("rank {from}")];
                    let seconds = since.elapsed().as_secs_f64();
                    return Err(self.fail(failure::late(group, header, self.rank, &missing, seconds)));
                }
                std::thread::sleep(REST);
            }
        }
    }

    /// Ends the run for everyone.
    fn fail(&self, finding: Finding) -> Finding {
        let none = Payload::U64(Arc::new(Vec::new()));
        for to in (0..self.world()).filter(|r| *r != self.rank) {
            self.send(to, &Key::End, &finding.message, &none);
        }
        self.desk.borrow_mut().failure.get_or_insert(finding).clone()
    }

    /// Sends a part to every other member and gives everyone's for us; our own is `parts[place]`.
    fn meet(&self, group: &Group, header: &Header, parts: Vec<Payload>) -> Result<Vec<Payload>> {
        let number = {
            let mut desk = self.desk.borrow_mut();
            let round = desk.rounds.entry(group.ranks().to_vec()).or_default();
            *round += 1;
            *round
        };
        let key = Key::Round(group.ranks().to_vec(), number);
        let words = failure::words(header);
        for (to, part) in group.ranks().iter().zip(&parts).filter(|(to, _)| **to != self.rank) {
            self.send(*to, &key, &words, part);
        }
        let mut out = Vec::with_capacity(group.len());
        for (&from, mine) in group.ranks().iter().zip(parts) {
            if from == self.rank {
                out.push(mine);
                continue;
            }
            let frame = self.wait(group, header, from, &key)?;
            if frame.words != words {
                let (first, second) = ((from, frame.words.as_str()), (self.rank, words.as_str()));
                return Err(self.fail(failure::disagree(group, header.call.axis, first, second)));
            }
            out.push(frame.payload);
        }
        Ok(out)
    }
}

impl Fabric for Process {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.universe.world().size() as usize
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
        let (key, words) = (Key::Message(tag), failure::words(&header));
        if to == self.rank {
            let mut desk = self.desk.borrow_mut();
            desk.came.entry((to, key)).or_default().push_back(Frame { words, payload });
        } else {
            self.send(to, &key, &words, &payload);
        }
        Ok(())
    }

    fn take(&self, from: usize, tag: u64, header: Header) -> Result<Payload> {
        let group = Group::new([from, self.rank]);
        let frame = self.wait(&group, &header, from, &Key::Message(tag))?;
        let words = failure::words(&header);
        if frame.words == words {
            return Ok(frame.payload);
        }
        let (first, second) = ((from, frame.words.as_str()), (self.rank, words.as_str()));
        Err(self.fail(failure::disagree(&group, header.call.axis, first, second)))
    }

    fn end(&self, finding: &Finding) {
        self.fail(finding.clone());
    }
}

fn cut(payload: &Payload, range: std::ops::Range<usize>) -> Payload {
    match payload {
        Payload::F32(v) => Payload::F32(Arc::new(v[range].to_vec())),
        Payload::F64(v) => Payload::F64(Arc::new(v[range].to_vec())),
        Payload::U64(v) => Payload::U64(Arc::new(v[range].to_vec())),
    }
}

/// A frame as bytes: the key, the words, the format, the elements. Numbers are little-endian.
fn encode(key: &Key, words: &str, payload: &Payload) -> Vec<u8> {
    let numbers: Vec<u64> = match key {
        Key::Round(ranks, round) => {
            [0, *round, ranks.len() as u64].into_iter().chain(ranks.iter().map(|r| *r as u64)).collect()
        }
        Key::Message(tag) => vec![1, *tag],
        Key::End => vec![2],
    };
    let mut out: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    out.extend((words.len() as u64).to_le_bytes());
    out.extend(words.as_bytes());
    match payload {
        Payload::F32(v) => {
            out.push(Dtype::F32 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Payload::F64(v) => {
            out.push(Dtype::F64 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Payload::U64(v) => {
            out.push(Dtype::U64 as u8);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
    out
}

fn decode(bytes: &[u8]) -> Option<(Key, Frame)> {
    let mut at = 0;
    let mut number = || {
        let found = bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        at += 8;
        found
    };
    let key = match number()? {
        0 => {
            let (round, len) = (number()?, number()?);
            let ranks = (0..len).map(|_| number().map(|r| r as usize)).collect::<Option<Vec<_>>>()?;
            Key::Round(ranks, round)
        }
        1 => Key::Message(number()?),
        2 => Key::End,
        _ => return None,
    };
    let len = number()? as usize;
    let words = String::from_utf8(bytes.get(at..at + len)?.to_vec()).ok()?;
    let dtype = *bytes.get(at + len)?;
    let data = &bytes[at + len + 1..];
    let payload = if dtype == Dtype::F32 as u8 {
        Payload::F32(Arc::new(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    } else if dtype == Dtype::F64 as u8 {
        Payload::F64(Arc::new(data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()))
    } else {
        Payload::U64(Arc::new(data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()))
    };
    Some((key, Frame { words, payload }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back() {
        let payload = Payload::F64(Arc::new(vec![1.5, -2.0]));
        for key in [Key::Round(vec![0, 3], 7), Key::Message(9), Key::End] {
            let (again, frame) = decode(&encode(&key, "all-reduce", &payload)).unwrap();
            assert_eq!((again, frame.words.as_str(), frame.payload.len()), (key, "all-reduce", 2));
        }
        assert!(decode(&[1, 2, 3]).is_none());
    }
}
