//! All ranks of a step wait for the slowest of them. Devices of one kind differ, by what their silicon draws and how they
//! are cooled, and the more there are the slower the slowest is.

/// Standard deviation of the time one device takes against that of another. Sinha et al., arXiv 2208.11035: over more
/// than 90 % of the devices of five clusters, times lie 8 % apart on average without outliers. Read as the whiskers of
/// a normal distribution, 2.7 deviations either way; that reading is assumed, and so is that newer devices differ as
/// much.
const DEVIATION: f64 = 0.08 / 5.4;

/// Expected time of the slowest of so many devices, against the mean: the largest of normal samples lies where
/// (n - 3/8) / (n + 1/4) of all samples are smaller (Blom, 1958).
pub(crate) fn slowest_of(devices: u64) -> f64 {
    if devices <= 1 {
        return 1.0;
    }
    let larger = 0.625 / (devices as f64 + 0.25);
    1.0 + DEVIATION * normal_quantile(larger)
}

/// How many deviations from the mean a share of at most a half lies beyond (Abramowitz and Stegun, 26.2.23).
fn normal_quantile(beyond: f64) -> f64 {
    let t = (-2.0 * beyond.ln()).sqrt();
    let over = 2.515517 + t * (0.802853 + t * 0.010328);
    let under = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    t - over / under
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest of 10, 100 and 1000 normal samples (Harter, Biometrika 48, 1961).
    #[test]
    fn the_largest_of_samples_is_where_tables_have_it() {
        for (devices, deviations) in [(10, 1.539), (100, 2.508), (1000, 3.241)] {
            let ours = (slowest_of(devices) - 1.0) / DEVIATION;
            assert!((ours - deviations).abs() < 0.02, "{devices}: {ours} against {deviations}");
        }
        assert_eq!(slowest_of(1), 1.0);
    }

    #[test]
    fn a_doubling_costs_a_few_parts_in_a_thousand() {
        for devices in [8, 64, 512, 4096] {
            let more = slowest_of(2 * devices) / slowest_of(devices) - 1.0;
            assert!((0.002..0.006).contains(&more), "{devices}: {more}");
        }
    }
}
