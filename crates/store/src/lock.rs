//! A lock that many readers or one writer of a folder's derived files hold. It ends with the value, or with the
//! process, whichever way that ends.

use crate::Failure;
use crate::sys::{self, Lock as Held};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Who else may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Others who share.
    Shared,
    /// Nobody.
    Alone,
}

/// A lock on a file. On a file system without locks it keeps nobody out.
#[derive(Debug)]
pub struct Guard {
    _file: File,
}

/// How often a lock that somebody has is asked for again.
const AGAIN: Duration = Duration::from_millis(10);

/// Locks a file, which is made where it is missing; none where somebody else kept it for as long as `patience`.
pub fn lock(path: &Path, sharing: Sharing, patience: Duration) -> Result<Option<Guard>, Failure> {
    let file = sys::open_lock(path).map_err(Failure::of("lock", path))?;
    let until = Instant::now() + patience;
    loop {
        if sys::lock_as(&file, sharing) != Held::Taken {
            return Ok(Some(Guard { _file: file }));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(AGAIN);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::claim::tests::Temp;

    #[test]
    fn many_share_and_one_is_alone() {
        let temp = Temp::new("lock");
        let path = temp.0.join("lock");
        let take = |sharing| lock(&path, sharing, Duration::from_millis(30)).unwrap();
        let (one, two) = (take(Sharing::Shared).unwrap(), take(Sharing::Shared).unwrap());
        assert!(take(Sharing::Alone).is_none());
        drop((one, two));
        let alone = take(Sharing::Alone).unwrap();
        assert!(take(Sharing::Shared).is_none());
        drop(alone);
        assert!(take(Sharing::Shared).is_some());
    }
}
