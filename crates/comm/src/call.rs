//! What a call says about itself, so that members can be compared and a failure can be named.

use crate::element::Dtype;
use std::fmt;
use units::named;

named! {
    /// What a collective does.
    pub enum Kind {
        /// Everyone gets the sum or maximum of everyone's.
        AllReduce = "all-reduce",
        /// Everyone gets everyone's.
        AllGather = "all-gather",
        /// Everyone gets its part of the sum.
        ReduceScatter = "reduce-scatter",
        /// Everyone gets its part of everyone's.
        AllToAll = "all-to-all",
        /// Everyone gets one member's.
        Broadcast = "broadcast",
        /// Everyone waits for everyone.
        Barrier = "barrier",
        /// One rank's message to another.
        Send = "send",
    }
}

/// Where and why a call is made: the axis its group lies on, and a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// The axis.
    pub axis: &'static str,
    /// What moves.
    pub name: &'static str,
}

impl Call {
    /// A call on an axis.
    pub const fn new(axis: &'static str, name: &'static str) -> Call {
        Call { axis, name }
    }
}

/// The ranks of a collective, in the order reductions add them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    ranks: Vec<usize>,
}

impl Group {
    /// A group of these ranks.
    pub fn new(ranks: impl IntoIterator<Item = usize>) -> Group {
        Group { ranks: ranks.into_iter().collect() }
    }

    /// Its ranks.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether there is anybody to talk to.
    pub fn splits(&self) -> bool {
        self.len() > 1
    }

    /// The place of a rank among the members.
    pub fn place(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|r| *r == rank)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.ranks.iter().map(usize::to_string).collect();
        write!(f, "[{}]", words.join(" "))
    }
}

/// What every member of a call must agree on, and the counts that are each member's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Axis and name.
    pub call: Call,
    /// What is done.
    pub kind: Kind,
    /// Format of the elements.
    pub dtype: Dtype,
    /// Number of elements everyone must bring; `None` where members may differ.
    pub len: Option<usize>,
    /// Parameter of the kind: the reduction, or the root of a broadcast.
    pub detail: usize,
    /// Elements of this member's payload meant for each member, where the payload is dealt out.
    pub counts: Vec<usize>,
}

impl Header {
    /// Whether two members make the same call.
    pub fn agrees(&self, other: &Header) -> bool {
        let same = |h: &Header| (h.call, h.kind, h.dtype, h.len, h.detail);
        let deals = self.kind == Kind::ReduceScatter;
        same(self) == same(other) && (!deals || self.counts == other.counts)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` of {}", self.kind, self.call.name, self.dtype)?;
        if let Some(len) = self.len {
            write!(f, " × {len}")?;
        }
        // Members of a reduce-scatter must deal alike; elsewhere counts are each member's own.
        if self.kind == Kind::ReduceScatter && !self.counts.is_empty() {
            write!(f, " in parts of {:?}", self.counts)?;
        }
        Ok(())
    }
}
