//! A batch that grows, as Megatron's `--rampup-batch-size` does: from so many sequences, by so many at a time, each
//! size for an equal share of the tokens it is given.

use crate::words::count;
use serde::Serialize;

/// A batch that grows to the step's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ramp {
    /// Sequences of the first step.
    pub start: u64,
    /// Sequences more at a time.
    pub step: u64,
    /// Tokens until the whole batch is reached.
    pub tokens: u64,
}

/// Steps of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Sequences of a step.
    pub batch: u64,
    /// Steps of it.
    pub steps: u64,
}

/// Sizes of a batch on its way.
const MOST_LEVELS: u64 = 256;

impl std::fmt::Display for Ramp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.start, self.step, self.tokens)
    }
}

impl Ramp {
    /// Reads `START:STEP:TOKENS`, as `32:32:50B`.
    pub fn parse(text: &str) -> Result<Ramp, String> {
        let refused =
            || "a growing batch is START:STEP:TOKENS, as `32:32:50B`: sequences, sequences more, tokens".to_string();
        let parts: Vec<&str> = text.split(':').collect();
        let &[start, step, tokens] = parts.as_slice() else { return Err(refused()) };
        let number = |text: &str| text.parse::<u64>().ok().filter(|n| (1..=1 << 32).contains(n)).ok_or_else(refused);
        Ok(Ramp { start: number(start)?, step: number(step)?, tokens: count(tokens).map_err(|_| refused())? })
    }

    /// Batches on the way to a whole one, and why there is no way.
    pub fn batches(&self, whole: u64) -> Result<Vec<u64>, String> {
        if self.start >= whole || !(whole - self.start).is_multiple_of(self.step) {
            return Err(format!("{} sequences do not grow by {} to the {whole} of a step", self.start, self.step));
        }
        let levels = (whole - self.start) / self.step;
        if levels > MOST_LEVELS {
            return Err(format!("{levels} sizes of a batch are more than {MOST_LEVELS}: grow by more at a time"));
        }
        Ok((0..levels).map(|level| self.start + level * self.step).collect())
    }
}

/// The steps of a run: those of a growing batch first, then whole ones. The last may be part of one.
pub fn levels(ramp: Option<&Ramp>, whole: u64, sequence: u64, tokens: u64) -> Result<Vec<Level>, String> {
    let (mut left, mut found) = (tokens, Vec::new());
    let steps = |tokens: u64, batch: u64| tokens.div_ceil(batch.saturating_mul(sequence).max(1));
    if let Some(ramp) = ramp {
        let batches = ramp.batches(whole)?;
        let each = ramp.tokens / batches.len() as u64;
        for batch in batches {
            let here = each.min(left);
            found.push(Level { batch, steps: steps(here, batch) });
            left -= here;
        }
    }
    found.push(Level { batch: whole, steps: steps(left, whole) });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ramps_are_read_and_refused() {
        assert_eq!(Ramp::parse("32:16:50B"), Ok(Ramp { start: 32, step: 16, tokens: 50_000_000_000 }));
        for wrong in ["", "32", "32:16", "0:1:1B", "1:0:1B", "32:16:0", "a:b:c", "1:1:1:1", "-1:1:1"] {
            assert!(Ramp::parse(wrong).is_err(), "{wrong}");
        }
        let ramp = Ramp { start: 32, step: 16, tokens: 1000 };
        assert_eq!(ramp.batches(64), Ok(vec![32, 48]));
        assert!(ramp.batches(32).is_err() && ramp.batches(72).is_err());
        assert!(Ramp { start: 1, step: 1, tokens: 9 }.batches(1 << 20).unwrap_err().contains("grow by more"));
    }

    proptest! {
        #[test]
        fn all_tokens_are_seen_and_little_more(start in 1u64..64, step in 1u64..64, n in 1u64..20, ramped in 1u64..1_000_000, tokens in 1u64..10_000_000) {
            let (ramp, whole, sequence) = (Ramp { start, step, tokens: ramped }, start + step * n, 128);
            let levels = levels(Some(&ramp), whole, sequence, tokens).unwrap();
            let seen: u64 = levels.iter().map(|level| level.steps * level.batch * sequence).sum();
            let rounding: u64 = levels.iter().map(|level| level.batch * sequence).sum();
            prop_assert!(seen >= tokens && seen <= tokens + rounding);
            prop_assert!(levels.windows(2).all(|pair| pair[0].batch < pair[1].batch));
        }
    }
}
