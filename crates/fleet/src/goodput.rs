//! The share of a fleet's time that goes into steps that count, where failures come at random and checkpoints are
//! written at an interval; and the interval that loses least.
//!
//! Published rates are interruptions over wall-clock time, down times included, so that they are taken as that: a cycle
//! of `between` seconds begins with `down`, and while the job runs it fails at the rate `1 / (between - down)`. A run of
//! `interval` useful seconds and its save has to be finished without a failure, or is begun again; the expectation of
//! that is exact (J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
//! Generation Computer Systems 22, 2006, equation 13; a save that is written beside the steps loses its lag as well).

use serde::Serialize;

/// How a job fails, restarts and saves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Terms {
    /// Wall-clock seconds between interruptions of the job.
    pub between: f64,
    /// Seconds from an interruption to the first new step.
    pub down: f64,
    /// Seconds that a save keeps steps from running.
    pub stall: f64,
    /// Seconds after the stall until the save can be restarted from; 0 where it is written while steps wait.
    pub lag: f64,
}

/// Where the time goes, in the words of `receipt goodput`. The shares sum to one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Steps that count.
    pub useful: f64,
    /// Checkpoints saved, as far as steps wait for them.
    pub saved: f64,
    /// Work redone after failures.
    pub redone: f64,
    /// Down after failures.
    pub down: f64,
}

/// A job that fails before it has restarted does nothing else.
const NOTHING: Goodput = Goodput { useful: 0.0, saved: 0.0, redone: 0.0, down: 1.0 };

impl Terms {
    /// Failures a second of running; none where the next comes before the job runs again.
    fn rate(&self) -> Option<f64> {
        let running = self.between - self.down;
        (running > 0.0 && running.is_finite()).then(|| 1.0 / running)
    }

    /// What is expected where a save follows every `interval` seconds of useful steps.
    pub fn expected(&self, interval: f64) -> Goodput {
        let segment = interval + self.stall;
        if !self.between.is_finite() {
            return Goodput { useful: interval / segment, saved: self.stall / segment, redone: 0.0, down: 0.0 };
        }
        let Some(rate) = self.rate() else { return NOTHING };
        // Seconds of running until one segment more is safe.
        let running = (rate * self.lag).exp() * (rate * segment).exp_m1() / rate;
        if !running.is_finite() {
            return NOTHING;
        }
        let all = running * (1.0 + rate * self.down);
        let down = rate * running * self.down / all;
        let (useful, saved) = (interval / all, self.stall / all);
        Goodput { useful, saved, redone: (1.0 - useful - saved - down).max(0.0), down }
    }

    /// The interval that loses least: `λT` solves `e^(λ(T + stall)) (1 - λT) = 1`. No shorter than a save takes to be
    /// written, since the next one waits for it.
    pub fn best_interval(&self) -> f64 {
        let Some(rate) = self.rate() else { return self.lag.max(self.stall) };
        let stall = rate * self.stall;
        let (mut low, mut high) = (0.0_f64, 1.0_f64);
        for _ in 0..200 {
            let x = f64::midpoint(low, high);
            if -(-(x + stall)).exp_m1() > x { low = x } else { high = x }
        }
        (high / rate).max(self.lag - self.stall)
    }

    /// Young's first-order interval, √(2 · stall · between): what `receipt goodput` compares with.
    pub fn young(&self) -> f64 {
        (2.0 * self.stall * self.between).sqrt()
    }

    /// The best interval in whole steps, at least one, and what is expected with it.
    pub fn in_steps(&self, step_seconds: f64) -> (u64, Goodput) {
        let ideal = (self.best_interval() / step_seconds).clamp(1.0, 1e12);
        let expected = |steps: f64| (steps as u64, self.expected(steps * step_seconds));
        let (down, up) = (expected(ideal.floor()), expected(ideal.ceil()));
        let is_safe = down.0 as f64 * step_seconds + self.stall >= self.lag;
        if is_safe && down.1.useful >= up.1.useful { down } else { up }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Draws from a fixed sequence: splitmix64.
    struct Draws(u64);

    impl Draws {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        fn until(&mut self, mean: f64) -> f64 {
            -mean * (1.0 - self.uniform()).ln()
        }
    }

    /// The same job lived through second by second of its failures: useful seconds over wall-clock seconds.
    fn lived(terms: &Terms, interval: f64, failures: usize, seed: u64) -> f64 {
        let mut draws = Draws(seed);
        let mean = terms.between - terms.down;
        let segment = interval + terms.stall;
        let (mut wall, mut useful) = (0.0, 0.0);
        for _ in 0..failures {
            let runs = draws.until(mean);
            wall += runs + terms.down;
            // The first save after a restart is safe its lag behind the segment, each further one a segment later.
            let safe = (runs - terms.lag).max(0.0);
            useful += (safe / segment).floor() * interval;
        }
        useful / wall
    }

    #[test]
    fn the_expectation_is_what_happens() {
        let cases = [
            (Terms { between: 10_000.0, down: 600.0, stall: 3.0, lag: 0.0 }, 240.0),
            (Terms { between: 1_060.0, down: 600.0, stall: 20.0, lag: 0.0 }, 300.0),
            (Terms { between: 3_600.0, down: 180.0, stall: 2.0, lag: 120.0 }, 400.0),
            (Terms { between: 900.0, down: 0.0, stall: 60.0, lag: 0.0 }, 1_800.0),
        ];
        for (i, (terms, interval)) in cases.into_iter().enumerate() {
            let expected = terms.expected(interval).useful;
            let lived = lived(&terms, interval, 400_000, 7 + i as u64);
            assert!((expected - lived).abs() < 0.004, "{terms:?}: {expected} expected, {lived} lived through");
        }
    }

    #[test]
    fn shares_sum_to_one_and_zero_comes_out_where_nothing_can() {
        let terms = Terms { between: 500.0, down: 600.0, stall: 1.0, lag: 0.0 };
        assert_eq!(terms.expected(10.0).useful, 0.0);
        let never = Terms { between: f64::INFINITY, ..terms };
        assert!((never.expected(99.0).useful - 0.99).abs() < 1e-12);
        // A segment that no luck finishes.
        assert_eq!(Terms { between: 1_000.0, ..terms }.expected(1e9).useful, 0.0);
    }

    proptest! {
        #[test]
        fn no_interval_beats_the_best(
            between in 10.0..1e7f64, down in 0.0..0.9f64, stall in 1e-3..1e3f64, lag in 0.0..1e3f64, other in 1e-2..1e2f64
        ) {
            let terms = Terms { between, down: down * between, stall, lag: if lag < 1.0 { 0.0 } else { lag } };
            let best = terms.best_interval();
            let at = |interval: f64| terms.expected(interval);
            let found = at(best);
            let sum = found.useful + found.saved + found.redone + found.down;
            prop_assert!((sum - 1.0).abs() < 1e-6, "{:?}", found);
            let interval = best * other;
            if interval + stall >= terms.lag {
                prop_assert!(at(interval).useful <= found.useful * (1.0 + 1e-9) + 1e-12);
            }
        }

        #[test]
        fn young_agrees_where_saves_are_short(between in 1e4..1e7f64, stall in 0.1..5.0f64) {
            let terms = Terms { between, down: 0.0, stall, lag: 0.0 };
            prop_assert!((terms.young() / terms.best_interval() - 1.0).abs() < 0.02);
        }

        #[test]
        fn more_failures_never_help(between in 1e3..1e6f64, stall in 0.1..60.0f64, fewer in 1.01..10.0f64) {
            let often = Terms { between, down: 300.0, stall, lag: 0.0 };
            let seldom = Terms { between: between * fewer, ..often };
            let useful = |terms: &Terms| terms.expected(terms.best_interval()).useful;
            prop_assert!(useful(&often) <= useful(&seldom) + 1e-12);
        }
    }
}
