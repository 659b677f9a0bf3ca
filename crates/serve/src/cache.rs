//! Answers that were given, the ones asked for last; bounded in bytes.

use axum::body::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// An answer as it is sent.
#[derive(Clone, Debug)]
pub struct Given {
    /// The document.
    pub body: Bytes,
    /// Exit code of the command.
    pub exit: u8,
}

/// Answers by what was asked.
#[derive(Debug)]
pub struct Cache {
    most_bytes: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    clock: u64,
    answers: HashMap<String, (u64, Given)>,
    /// Keys in the order they were asked for.
    order: BTreeMap<u64, String>,
}

impl Cache {
    /// One that holds nothing yet, and never more than this.
    pub fn new(most_bytes: usize) -> Cache {
        Cache { most_bytes, held: Mutex::default() }
    }

    /// The answer to a question that was asked before.
    pub fn get(&self, key: &str) -> Option<Given> {
        let held = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clock += 1;
        let (at, given) = held.answers.get_mut(key)?;
        let key = held.order.remove(at)?;
        *at = held.clock;
        held.order.insert(held.clock, key);
        Some(given.clone())
    }

    /// Remembers an answer, unless it is so large that it would push most others out.
    pub fn put(&self, key: String, given: Given) {
        let size = size(&key, &given);
        if size > self.most_bytes / 8 {
            return;
        }
        let held = &mut *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clock += 1;
        held.order.insert(held.clock, key.clone());
        held.bytes += size;
        if let Some((at, old)) = held.answers.insert(key.clone(), (held.clock, given)) {
            held.order.remove(&at);
            held.bytes -= self::size(&key, &old);
        }
        while held.bytes > self.most_bytes {
            let Some((_, oldest)) = held.order.pop_first() else { break };
            if let Some((_, old)) = held.answers.remove(&oldest) {
                held.bytes -= self::size(&oldest, &old);
            }
        }
    }

    #[cfg(test)]
    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

/// What an entry takes: its key stands twice.
fn size(key: &str, given: &Given) -> usize {
    2 * key.len() + given.body.len() + 256
}

#[cfg(test)]
mod tests {
    use super::{Cache, Given};

    fn given(bytes: usize) -> Given {
        Given { body: vec![b'x'; bytes].into(), exit: 0 }
    }

    #[test]
    fn what_was_asked_for_longest_ago_goes_first() {
        let cache = Cache::new(10_000);
        for number in 0..9 {
            cache.put(number.to_string(), given(700));
        }
        assert!(cache.get("0").is_some(), "nine of 1,000 bytes");
        cache.put("9".into(), given(700));
        cache.put("10".into(), given(700));
        assert!(cache.get("0").is_some() && cache.get("1").is_none(), "asked for meanwhile");
        assert!(cache.bytes() <= 10_000);
        cache.put("large".into(), given(5_000));
        assert!(cache.get("large").is_none());
        let before = cache.bytes();
        cache.put("9".into(), given(700));
        assert_eq!(cache.bytes(), before, "the same again takes nothing more");
    }
}
