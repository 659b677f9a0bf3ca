//! The description that every call carries, by which members are compared and a failure is named.

use crate::element::Dtype;
use std::fmt;
use units::named;

named! {
    /// The kinds of call.
    pub enum Kind {
        /// Every member gets the sum or maximum of all members' values.
        AllReduce = "all-reduce",
        /// Every member gets all members' values.
        AllGather = "all-gather",
        /// Every member gets its part of the sum.
        ReduceScatter = "reduce-scatter",
        /// Every member gets the part that each member has for it.
        AllToAll = "all-to-all",
        /// Every member gets one member's values.
        Broadcast = "broadcast",
        /// Every member waits for all.
        Barrier = "barrier",
        /// One rank's message to another.
        Send = "send",
    }
}

/// Where and why a call is made: the axis of its group, and a name for what moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// As `--tp`, `--sp` and so on name it; `world` for all ranks.
    pub axis: &'static str,
    /// What moves, such as `into mlp`.
    pub name: &'static str,
}

impl Call {
    /// For constants: calls are named where they are made, once.
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

    /// Whether it has more than one member.
    pub fn splits(&self) -> bool {
        self.len() > 1
    }

    /// Index of a rank among the members.
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

/// What every member of a call must agree on, and the counts that each brings for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub call: Call,
    pub kind: Kind,
    pub dtype: Dtype,
    /// Number of elements that every member must bring; `None` where they may differ.
    pub len: Option<usize>,
    /// The operation of a reduction, or the root of a broadcast.
    pub detail: usize,
    /// How many elements of this member's payload go to each member, where it is divided among them.
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
        // Members of a reduce-scatter must divide alike; elsewhere each has counts of its own.
        if self.kind == Kind::ReduceScatter && !self.counts.is_empty() {
            write!(f, " in parts of {:?}", self.counts)?;
        }
        Ok(())
    }
}
