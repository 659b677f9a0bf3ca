//! Replays that end once a rank is known to hold more than it may.

use replay::Replay;

/// Where AdamW's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On the device.
    Here,
    /// On the host, all of it.
    OnHost,
}

/// A replay that was to stay within so many bytes.
#[derive(Clone, Debug)]
pub enum Within {
    /// It went to its end: it may have stayed within them.
    Whole(Replay),
    /// It ended early: so many bytes are missing at least.
    Over {
        /// Bytes by which it exceeds what it may hold, at least.
        missing: u64,
        /// Allocations that were walked to say so.
        walked: u64,
    },
}

impl Within {
    /// What a replay came to that was missing so many bytes where it ended.
    pub(crate) fn of((replay, missing): (Replay, Option<u64>)) -> Within {
        match missing {
            Some(missing) => Within::Over { missing, walked: replay.operations },
            None => Within::Whole(replay),
        }
    }
}
