//! The collectives, written once over three primitives that a backend provides. Reductions run
//! here, in the order of the group, so that every backend gives the same bits.

use crate::books::{Books, Kept};
use crate::call::{Call, Group, Header, Kind};
use crate::element::{Element, Payload, Piece};
use crate::failure;
use crate::fault::{Fault, Faulty, Missing};
use crate::traffic::Traffic;
use crate::{Dtype, Result};
use diag::Finding;
use std::cell::Cell;
use std::sync::Arc;

/// What a backend (threads, MPI) provides. Groups have at least two members in every call.
pub trait Fabric {
    fn rank(&self) -> usize;
    fn world(&self) -> usize;
    /// Gives every member's payload, by place in the group.
    fn share(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Payload>>;
    /// Gives from every member, by place, the part that its `header.counts` has for this rank.
    fn deal(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Piece>>;
    /// Sends a message to a rank, without waiting for it to be taken.
    fn post(&self, to: usize, tag: u64, header: Header, payload: Payload) -> Result<()>;
    /// Waits for the next message from a rank under a tag.
    fn take(&self, from: usize, tag: u64, header: Header) -> Result<Payload>;
    /// Ends the run on every rank because of something that happened outside a call.
    fn end(&self, finding: &Finding);
    /// Whether the run has ended on every rank.
    fn is_over(&self) -> bool;
}

/// How an all-reduce combines values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
}

/// One rank's connection to the others.
pub struct Comm {
    fabric: Faulty,
    traffic: Traffic,
    books: Kept,
    missing: Cell<Option<Missing>>,
}

/// Elements a reduction handles at a time, so that the accumulator stays in cache.
const BLOCK: usize = 4096;

impl Comm {
    /// Over this backend.
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Comm {
        Comm {
            fabric: Faulty::over(fabric),
            traffic: Traffic::default(),
            books: Kept::default(),
            missing: Cell::new(None),
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.fabric.rank()
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.fabric.world()
    }

    /// What this rank has put into calls so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Charges messages of this rank to an allocation counter, from now on.
    pub fn keep_books(&self, books: &'static dyn Books) {
        self.books.open(books);
    }

    /// Makes this rank's next call go wrong, to see what the others make of it.
    pub fn arm(&self, fault: Fault) {
        self.fabric.arm(fault);
    }

    /// Leaves calls out from now on. Every rank must be told alike.
    pub fn miss(&self, missing: Missing) {
        self.missing.set(Some(missing));
    }

    fn misses<T: Element>(&self, call: Call) -> bool {
        self.missing.get().is_some_and(|missing| missing.covers(call, T::DTYPE))
    }

    /// Ends the run on every rank, because this one failed outside a call.
    pub fn end(&self, finding: &Finding) {
        self.fabric.end(finding);
    }

    fn place<T: Element>(&self, group: &Group, header: &Header, put: usize) -> Result<usize> {
        let place = group.place(self.rank());
        let place = place.ok_or_else(|| failure::misused(group, header, self.rank(), "it is not a member"))?;
        self.traffic.add(header.call, header.kind, put, T::BYTES);
        Ok(place)
    }

    /// Combines all members' values element by element; all bring the same number.
    pub fn all_reduce<T: Element>(&self, group: &Group, call: Call, op: Op, values: Vec<T>) -> Result<Vec<T>> {
        if !group.splits() || (op == Op::Sum && self.misses::<T>(call)) {
            return Ok(values);
        }
        let len = values.len();
        let mut header = header::<T>(call, Kind::AllReduce, Some(len));
        header.detail = op as usize;
        header.counts = even(len, group.len());
        let place = self.place::<T>(group, &header, len)?;
        let (payload, loan) = self.books.lend(values);
        let pieces = self.books.aside(|| self.fabric.deal(group, header.clone(), payload))?;
        // Kept, so that sums can be written over the values instead of into a new buffer.
        let mine = pieces[place].payload.clone();
        let segment = reduce::<T>(&pieces, op, &header)?;
        drop(pieces);
        header.counts = Vec::new();
        let (payload, _segment) = self.books.lend(segment);
        let segments = self.books.aside(|| self.fabric.share(group, header, payload))?;
        drop(loan);
        // Between processes a piece is a shorter buffer of its own.
        let room = reuse::<T>(mine).filter(|v| v.len() == len);
        let mut out = room.map_or_else(|| vec![T::ZERO; len], |room| self.books.own(room));
        let mut at = 0;
        for segment in segments.iter().filter_map(T::values) {
            out[at..at + segment.len()].copy_from_slice(segment);
            at += segment.len();
        }
        Ok(out)
    }

    /// All members' values one after another, in the order of the group; all bring the same number.
    pub fn all_gather<T: Element>(&self, group: &Group, call: Call, values: Vec<T>) -> Result<Vec<T>> {
        let len = Some(values.len());
        Ok(self.gather(group, call, len, values)?.0)
    }

    /// The same where members bring different numbers; gives the numbers too.
    pub fn all_gather_uneven<T: Element>(
        &self,
        group: &Group,
        call: Call,
        values: Vec<T>,
    ) -> Result<(Vec<T>, Vec<usize>)> {
        self.gather(group, call, None, values)
    }

    fn gather<T: Element>(
        &self,
        group: &Group,
        call: Call,
        len: Option<usize>,
        values: Vec<T>,
    ) -> Result<(Vec<T>, Vec<usize>)> {
        if !group.splits() {
            let count = values.len();
            return Ok((values, vec![count]));
        }
        let header = header::<T>(call, Kind::AllGather, len);
        self.place::<T>(group, &header, values.len())?;
        let (payload, _loan) = self.books.lend(values);
        let all = self.books.aside(|| self.fabric.share(group, header, payload))?;
        let counts: Vec<usize> = all.iter().map(Payload::len).collect();
        let mut out = Vec::with_capacity(counts.iter().sum());
        let is_heard = |place: usize| group.ranks()[place] == self.rank() || !self.misses::<T>(call);
        for (place, part) in all.iter().filter_map(T::values).enumerate() {
            match is_heard(place) {
                true => out.extend_from_slice(part),
                false => out.resize(out.len() + part.len(), T::ZERO),
            }
        }
        Ok((out, counts))
    }

    /// This rank's equal share of the sum of all members' values.
    pub fn reduce_scatter<T: Element>(&self, group: &Group, call: Call, values: Vec<T>) -> Result<Vec<T>> {
        let counts = even(values.len(), group.len());
        self.reduce_scatter_uneven(group, call, values, &counts)
    }

    /// This rank's share of the sum, where member `i` gets `counts[i]` elements.
    pub fn reduce_scatter_uneven<T: Element>(
        &self,
        group: &Group,
        call: Call,
        values: Vec<T>,
        counts: &[usize],
    ) -> Result<Vec<T>> {
        if !group.splits() {
            return Ok(values);
        }
        let mut header = header::<T>(call, Kind::ReduceScatter, Some(values.len()));
        header.counts = counts.to_vec();
        let place = self.place::<T>(group, &header, values.len())?;
        self.deals_all(group, &header, values.len())?;
        if self.misses::<T>(call) {
            let start: usize = counts[..place].iter().sum();
            return Ok(values[start..start + counts[place]].to_vec());
        }
        let (payload, _loan) = self.books.lend(values);
        let pieces = self.books.aside(|| self.fabric.deal(group, header.clone(), payload))?;
        reduce::<T>(&pieces, Op::Sum, &header)
    }

    /// Sends `send[i]` elements to member `i` and expects `receive[i]` from it; gives what came, by
    /// place.
    pub fn all_to_all<T: Element>(
        &self,
        group: &Group,
        call: Call,
        values: Vec<T>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Vec<T>> {
        if !group.splits() {
            return Ok(values);
        }
        let mut header = header::<T>(call, Kind::AllToAll, None);
        header.counts = send.to_vec();
        self.place::<T>(group, &header, values.len())?;
        self.deals_all(group, &header, values.len())?;
        let (payload, _loan) = self.books.lend(values);
        let pieces = self.books.aside(|| self.fabric.deal(group, header.clone(), payload))?;
        let came: Vec<usize> = pieces.iter().map(|p| p.range.len()).collect();
        if came != receive {
            let why = format!("it expected {receive:?} elements by place, and {came:?} came");
            return Err(failure::misused(group, &header, self.rank(), &why));
        }
        let mut out = Vec::with_capacity(came.iter().sum());
        for (place, piece) in pieces.iter().enumerate() {
            if group.ranks()[place] != self.rank() && self.misses::<T>(call) {
                out.resize(out.len() + piece.range.len(), T::ZERO);
                continue;
            }
            out.extend(T::values(&piece.payload).into_iter().flat_map(|v| &v[piece.range.clone()]));
        }
        Ok(out)
    }

    /// The values of the member at place `root`; what other members bring is ignored.
    pub fn broadcast<T: Element>(&self, group: &Group, call: Call, root: usize, values: Vec<T>) -> Result<Vec<T>> {
        if !group.splits() {
            return Ok(values);
        }
        let mut header = header::<T>(call, Kind::Broadcast, None);
        header.detail = root;
        let is_root = group.place(self.rank()) == Some(root);
        let values = if is_root { values } else { Vec::new() };
        self.place::<T>(group, &header, values.len())?;
        let (payload, _loan) = self.books.lend(values);
        let all = self.books.aside(|| self.fabric.share(group, header, payload))?;
        Ok(T::values(&all[root]).map_or_else(Vec::new, |v| v.to_vec()))
    }

    /// Waits for all members.
    pub fn barrier(&self, group: &Group, call: Call) -> Result<()> {
        if group.splits() {
            let header = header::<u64>(call, Kind::Barrier, None);
            self.place::<u64>(group, &header, 0)?;
            let (payload, _) = self.books.lend(Vec::<u64>::new());
            self.fabric.share(group, header, payload)?;
        }
        Ok(())
    }

    /// Sends values to a rank, which may be this one; does not wait until they are taken.
    pub fn send<T: Element>(&self, to: usize, call: Call, values: Vec<T>) -> Result<()> {
        self.send_tagged(to, call, 0, values)
    }

    /// Waits for `len` values from a rank.
    pub fn receive<T: Element>(&self, from: usize, call: Call, len: usize) -> Result<Vec<T>> {
        self.receive_tagged(from, call, 0, len)
    }

    /// The same under a tag. Messages of one tag are received in the order they were sent, whatever was
    /// sent under other tags.
    pub fn send_tagged<T: Element>(&self, to: usize, call: Call, tag: u64, values: Vec<T>) -> Result<()> {
        let header = header::<T>(call, Kind::Send, Some(values.len()));
        if to != self.rank() {
            self.traffic.add(call, Kind::Send, values.len(), T::BYTES);
        }
        // The charge ends here: from now on the message counts for whoever receives it.
        let (payload, _) = self.books.lend(values);
        self.books.aside(|| self.fabric.post(to, tag, header, payload))
    }

    /// Takes `len` values left under a tag.
    pub fn receive_tagged<T: Element>(&self, from: usize, call: Call, tag: u64, len: usize) -> Result<Vec<T>> {
        let header = header::<T>(call, Kind::Send, Some(len));
        let payload = self.books.aside(|| self.fabric.take(from, tag, header))?;
        if from != self.rank() && self.misses::<T>(call) {
            return Ok(vec![T::ZERO; len]);
        }
        Ok(reuse::<T>(payload).map_or_else(Vec::new, |values| self.books.own(values)))
    }

    fn deals_all(&self, group: &Group, header: &Header, len: usize) -> Result<()> {
        if header.counts.len() == group.len() && header.counts.iter().sum::<usize>() == len {
            return Ok(());
        }
        let why = format!("{:?} does not deal out {len} elements", header.counts);
        Err(failure::misused(group, header, self.rank(), &why))
    }
}

fn header<T: Element>(call: Call, kind: Kind, len: Option<usize>) -> Header {
    let dtype: Dtype = T::DTYPE;
    Header { call, kind, dtype, len, detail: 0, counts: Vec::new() }
}

/// Shares as equal as possible; the first get the larger ones.
fn even(len: usize, members: usize) -> Vec<usize> {
    (0..members).map(|i| len / members + usize::from(i < len % members)).collect()
}

/// Combines pieces in the order of the group, block by block, so that results do not depend on timing.
fn reduce<T: Element>(pieces: &[Piece], op: Op, header: &Header) -> Result<Vec<T>> {
    let slices: Vec<&[T]> = pieces.iter().filter_map(|p| T::values(&p.payload).map(|v| &v[p.range.clone()])).collect();
    debug_assert_eq!(slices.len(), pieces.len(), "dtypes were compared: {header}");
    let mut out = slices[0].to_vec();
    for (block, start) in out.chunks_mut(BLOCK).zip((0..).step_by(BLOCK)) {
        for slice in &slices[1..] {
            let other = &slice[start..start + block.len()];
            match op {
                Op::Sum => block.iter_mut().zip(other).for_each(|(a, b)| *a = a.plus(*b)),
                Op::Max => block.iter_mut().zip(other).for_each(|(a, b)| *a = if *b > *a { *b } else { *a }),
            }
        }
    }
    Ok(out)
}

/// The buffer of a payload; copied only if another rank still reads it.
fn reuse<T: Element>(payload: Payload) -> Option<Vec<T>> {
    let values = T::values(&payload).cloned();
    drop(payload);
    values.map(|v| Arc::try_unwrap(v).unwrap_or_else(|shared| shared.to_vec()))
}
