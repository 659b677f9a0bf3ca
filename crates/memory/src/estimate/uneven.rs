//! Passes in flight on a stage whose interleaved chunks hold different layers. Forwards go through the chunks from the
//! first on and backwards from the last on, in groups of pp microbatches, so that early chunks have more passes in flight
//! than late ones when a group turns (`layout::order::interleaved`). A mean over chunks is up to a third short.

use case::PerKind;

/// Rounds of pp microbatches that differ: of more, the third shows all of the steady state.
pub(super) const ROUNDS: usize = 3;

/// Layer passes in flight at the highest point.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Uneven {
    /// For a step of one round of pp microbatches, of two, and of more: passes over layers of each kind.
    pub rounds: [PerKind<u64>; ROUNDS],
}

impl Uneven {
    /// Walks the order of a stage over chunks of these layers.
    pub fn of(chunks: &[PerKind<u64>], saved: &PerKind<u64>, pp: u64, stage: u64) -> Uneven {
        Uneven { rounds: std::array::from_fn(|i| most(chunks, saved, pp, stage, i as u64 + 1)) }
    }
}

/// Layer passes in flight when they keep most.
fn most(chunks: &[PerKind<u64>], saved: &PerKind<u64>, pp: u64, stage: u64, rounds: u64) -> PerKind<u64> {
    let vpp = chunks.len() as u64;
    let bytes: Vec<u64> =
        chunks.iter().map(|layers| layers.iter().zip(saved.iter()).map(|(n, b)| n * b).sum()).collect();
    let passes = rounds * pp * vpp;
    let ahead = ((pp - stage - 1) * 2 + (vpp - 1) * pp).min(passes);
    let chunk_of = |pass: u64| ((pass / pp) % vpp) as usize;
    let mut live = vec![0u64; chunks.len()];
    let (mut kept, mut highest, mut at_highest) = (0, 0, live.clone());
    for pass in 0..passes {
        live[chunk_of(pass)] += 1;
        kept += bytes[chunk_of(pass)];
        if kept > highest {
            (highest, at_highest) = (kept, live.clone());
        }
        if pass >= ahead {
            let back = chunks.len() - 1 - chunk_of(pass - ahead);
            live[back] -= 1;
            kept -= bytes[back];
        }
    }
    let mut layers = saved.map(|_| 0);
    for (count, chunk) in at_highest.iter().zip(chunks) {
        layers.iter_mut().zip(chunk.iter()).for_each(|(all, n)| *all += count * n);
    }
    layers
}
