//! How a learning rate comes down behind its warm-up, and how a batch grows.

use super::Run;
use units::named;

named! {
    /// How the learning rate comes down from its peak to the least.
    pub enum Decay {
        /// In half a cosine over all steps behind the warm-up.
        Cosine = "cosine",
        /// In a line over the same.
        Linear = "linear",
        /// Not at all.
        Constant = "constant",
        /// Warm-up, stable, decay: not until the last steps, then in a line.
        Wsd = "wsd",
    }
}

impl Run {
    /// Steps of warm-up that are run.
    pub fn warmup(&self) -> u64 {
        self.warmup_steps.min(self.steps.saturating_sub(1))
    }

    /// Steps over which the rate comes down: of `wsd` those that are said, else a tenth of the run; never more than
    /// the warm-up leaves.
    pub fn decaying(&self) -> u64 {
        let behind = self.steps - self.warmup();
        match self.decay {
            Decay::Cosine | Decay::Linear => behind,
            Decay::Constant => 0,
            Decay::Wsd => self.decay_steps.unwrap_or(self.steps.div_ceil(10)).min(behind),
        }
    }

    /// Where the rate ends.
    pub fn last_rate(&self) -> f64 {
        if self.decay == Decay::Constant { self.learning_rate } else { self.least_learning_rate }
    }
}

/// A batch that grows from `start` sequences by `step` at a time to the layout's, over so many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BatchRamp {
    /// Sequences of the first step.
    pub start: u64,
    /// Sequences it grows by.
    pub step: u64,
    /// Tokens after which it has grown.
    pub tokens: u64,
}

impl BatchRamp {
    /// Batches with the tokens after which they hold; the last is the whole. Refused with the reason where the way from
    /// one to the other is no whole number of steps, or a batch no whole number of `each`, the sequences of a microbatch
    /// on all replicas.
    pub fn levels(&self, whole: u64, each: u64) -> Result<Vec<(u64, u64)>, String> {
        let BatchRamp { start, step, tokens } = *self;
        if start == 0 || step == 0 || start >= whole || !(whole - start).is_multiple_of(step) {
            return Err(format!("{start} sequences do not come to {whole} by {step} at a time"));
        }
        if !start.is_multiple_of(each) || !step.is_multiple_of(each) {
            return Err(format!(
                "batches of {start} and steps of {step} are no multiples of the {each} of a microbatch"
            ));
        }
        let count = (whole - start) / step;
        if count > MOST_LEVELS {
            return Err(format!("{count} batches on the way are more than {MOST_LEVELS}"));
        }
        let at = |level: u64| (u128::from(tokens) * u128::from(level) / u128::from(count)) as u64;
        Ok((0..=count).map(|level| (at(level), start + level * step)).collect())
    }
}

/// Batches that a ramp may have.
const MOST_LEVELS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_comes_down_when_it_should() {
        let of = |decay, decay_steps| Run { steps: 1000, warmup_steps: 50, decay, decay_steps, ..Run::default() };
        assert_eq!(of(Decay::Cosine, None).decaying(), 950);
        assert_eq!((of(Decay::Constant, None).decaying(), of(Decay::Constant, None).last_rate()), (0, 3e-4));
        assert_eq!(of(Decay::Wsd, None).decaying(), 100);
        assert_eq!(of(Decay::Wsd, Some(200)).decaying(), 200);
        assert_eq!(of(Decay::Wsd, Some(5000)).decaying(), 950);
    }

    #[test]
    fn batches_grow_in_whole_steps() {
        let ramp = BatchRamp { start: 32, step: 32, tokens: 3_000 };
        assert_eq!(ramp.levels(128, 16), Ok(vec![(0, 32), (1000, 64), (2000, 96), (3000, 128)]));
        assert!(ramp.levels(120, 8).unwrap_err().contains("120"));
        assert!(ramp.levels(128, 64).unwrap_err().contains("multiples"));
        assert!(ramp.levels(32, 16).is_err());
        assert!(BatchRamp { step: 1, ..ramp }.levels(1 << 40, 1).unwrap_err().contains("1000"));
    }
}
