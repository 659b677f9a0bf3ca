//! Calls that go wrong on purpose, so that a user can see what a fault looks like.

use crate::Result;
use crate::call::{Call, Group, Header};
use crate::collectives::Fabric;
use crate::element::{Dtype, Payload, Piece};
use diag::Finding;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a rank whose message was dropped looks whether the others have given up.
const LOOK: Duration = Duration::from_millis(5);

/// What is wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The rank brings another number format than the rest of its group.
    Dtype,
    /// What the rank sends never arrives. In a collective the rank itself then waits until the others
    /// have given up, and at most this long.
    Drop {
        /// Longest time that the rank itself waits.
        late: Duration,
    },
}

/// Calls over one axis that are missing, on every rank and to the end of the run: sums are a rank's own values,
/// and what others send arrives as zeros. Counts still travel, so that everybody waits for the right thing.
#[derive(Clone, Copy, Debug)]
pub struct Missing {
    /// The axis, as in [`Call`].
    pub axis: &'static str,
    /// Which of its calls.
    pub of: fn(Call) -> bool,
}

impl Missing {
    pub(crate) fn covers(&self, call: Call, dtype: Dtype) -> bool {
        dtype != Dtype::U64 && call.axis == self.axis && (self.of)(call)
    }
}

/// A backend that can be armed with a fault for its next call.
pub(crate) struct Faulty {
    fabric: Box<dyn Fabric>,
    armed: Cell<Option<Fault>>,
}

impl Faulty {
    pub fn over(fabric: Box<dyn Fabric>) -> Faulty {
        Faulty { fabric, armed: Cell::new(None) }
    }

    pub fn arm(&self, fault: Fault) {
        self.armed.set(Some(fault));
    }

    /// The header that goes out: with a wrong format if that is the fault.
    fn spoil(&self, mut header: Header) -> Header {
        match self.armed.take() {
            Some(Fault::Dtype) => header.dtype = other(header.dtype),
            Some(Fault::Drop { late }) => {
                let since = Instant::now();
                while since.elapsed() < late && !self.fabric.is_over() {
                    std::thread::sleep(LOOK);
                }
            }
            None => {}
        }
        header
    }
}

fn other(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F32 { Dtype::F64 } else { Dtype::F32 }
}

impl Fabric for Faulty {
    fn rank(&self) -> usize {
        self.fabric.rank()
    }

    fn world(&self) -> usize {
        self.fabric.world()
    }

    fn share(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Payload>> {
        self.fabric.share(group, self.spoil(header), payload)
    }

    fn deal(&self, group: &Group, header: Header, payload: Payload) -> Result<Vec<Piece>> {
        self.fabric.deal(group, self.spoil(header), payload)
    }

    fn post(&self, to: usize, tag: u64, mut header: Header, payload: Payload) -> Result<()> {
        match self.armed.take() {
            Some(Fault::Drop { .. }) => return Ok(()),
            Some(Fault::Dtype) => header.dtype = other(header.dtype),
            None => {}
        }
        self.fabric.post(to, tag, header, payload)
    }

    fn take(&self, from: usize, tag: u64, header: Header) -> Result<Payload> {
        self.fabric.take(from, tag, header)
    }

    fn end(&self, finding: &Finding) {
        self.fabric.end(finding);
    }

    fn is_over(&self) -> bool {
        self.fabric.is_over()
    }
}
