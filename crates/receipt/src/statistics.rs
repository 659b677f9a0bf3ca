//! Medians, spread, and Student's t for means of runs. Computed here, so that nothing has to be installed.
//!
//! MLPerf's convergence checker (mlcommons/logging, `mlperf_logging/rcp_checker/rcp_checker.py`, `_find_p_value`)
//! tests at alpha 0.05 with the variances pooled and one side. We keep its alpha, and take Welch's test with both
//! sides: two builds need not be equally noisy, and either may be the better one.

use serde::Serialize;
use units::median;

/// A difference is called one below this probability of seeing it by chance.
pub const ALPHA: f64 = 0.05;

/// Several values of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub count: usize,
    /// The middle one.
    pub median: f64,
    /// Their mean.
    pub mean: f64,
    /// Sample standard deviation; none of a single value.
    pub deviation: Option<f64>,
}

impl Summary {
    /// Of these values; none of none.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let median = median(values)?;
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let deviation = (count > 1).then(|| (squares / (count - 1) as f64).sqrt());
        Some(Summary { count, median, mean, deviation })
    }
}

/// Welch's test of two means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Welch {
    /// Difference of the means over its standard error; positive where the second mean is larger.
    pub t: f64,
    /// Degrees of freedom, by Welch and Satterthwaite.
    pub freedom: f64,
    /// How likely a difference as large is if there is none.
    pub p: f64,
}

impl Welch {
    /// Whether the means differ, at [`ALPHA`].
    pub fn differs(&self) -> bool {
        self.p < ALPHA
    }
}

/// Tests whether two means differ; none with fewer than two values on a side.
pub fn welch(old: &[f64], new: &[f64]) -> Option<Welch> {
    let (a, b) = (Summary::of(old)?, Summary::of(new)?);
    let share = |s: Summary| Some(s.deviation?.powi(2) / s.count as f64);
    let (va, vb) = (share(a)?, share(b)?);
    let difference = b.mean - a.mean;
    if va + vb == 0.0 {
        // No noise at all: any difference is one.
        let (t, p) = if difference == 0.0 { (0.0, 1.0) } else { (f64::INFINITY.copysign(difference), 0.0) };
        return Some(Welch { t, freedom: (a.count + b.count - 2) as f64, p });
    }
    let t = difference / (va + vb).sqrt();
    let freedom = (va + vb).powi(2) / (va.powi(2) / (a.count - 1) as f64 + vb.powi(2) / (b.count - 1) as f64);
    Some(Welch { t, freedom, p: two_sided(t, freedom) })
}

/// Probability that Student's t with these degrees of freedom lies further from zero than `t`.
pub fn two_sided(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The t that is exceeded, on either side, with probability [`ALPHA`].
pub fn critical(freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e4);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if two_sided(middle, freedom) > ALPHA { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The regularised incomplete beta function, by its continued fraction (DLMF 8.17.22).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    // The fraction converges fast below the mean, and the function is its own mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() - log_beta(a, b)).exp() / a;
    let tiny = 1e-300;
    let hold = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut c, mut d) = (1.0, 1.0 / hold(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..10_000 {
        let n = f64::from(m);
        let even = n * (b - n) * x / ((a + 2.0 * n - 1.0) * (a + 2.0 * n));
        let odd = -(a + n) * (a + b + n) * x / ((a + 2.0 * n) * (a + 2.0 * n + 1.0));
        let mut step = 1.0;
        for term in [even, odd] {
            d = 1.0 / hold(1.0 + term * d);
            c = hold(1.0 + term / c);
            step = c * d;
            fraction *= step;
        }
        if (step - 1.0f64).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

fn log_beta(a: f64, b: f64) -> f64 {
    log_gamma(a) + log_gamma(b) - log_gamma(a + b)
}

/// Stirling's series (DLMF 5.11.1), after the argument was raised to where eight terms give all digits.
fn log_gamma(x: f64) -> f64 {
    let (mut x, mut below) = (x, 0.0);
    while x < 12.0 {
        below += x.ln();
        x += 1.0;
    }
    // Bernoulli's numbers over 2k(2k-1).
    const TERMS: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 360.0,
        1.0 / 1260.0,
        -1.0 / 1680.0,
        1.0 / 1188.0,
        -691.0 / 360_360.0,
        1.0 / 156.0,
        -3617.0 / 122_400.0,
    ];
    let series: f64 = TERMS.iter().enumerate().map(|(k, term)| term / x.powi(2 * k as i32 + 1)).sum();
    (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series - below
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Critical values at 0.05, both sides: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2,
    /// column 0.975.
    #[test]
    fn critical_values_are_the_handbooks() {
        let table = [
            (1.0, 12.706),
            (2.0, 4.303),
            (3.0, 3.182),
            (4.0, 2.776),
            (5.0, 2.571),
            (8.0, 2.306),
            (10.0, 2.228),
            (18.0, 2.101),
            (20.0, 2.086),
            (30.0, 2.042),
            (60.0, 2.000),
            (100.0, 1.984),
        ];
        for (freedom, t) in table {
            assert!((critical(freedom) - t).abs() < 6e-4, "{freedom}: {}", critical(freedom));
        }
    }

    /// With one degree of freedom t is Cauchy's distribution, with two it has a closed form.
    #[test]
    fn tails_have_their_closed_forms() {
        for i in 1..200 {
            let t = f64::from(i) * 0.17;
            let cauchy = 1.0 - 2.0 / std::f64::consts::PI * t.atan();
            let two = 1.0 - t / (2.0 + t * t).sqrt();
            assert!((two_sided(t, 1.0) - cauchy).abs() < 1e-12, "{t}");
            assert!((two_sided(t, 2.0) - two).abs() < 1e-12, "{t}");
        }
    }

    #[test]
    fn a_tail_falls_with_t_and_with_freedom_and_does_not_know_signs() {
        for freedom in [1.0, 1.7, 4.0, 9.3, 40.0, 1e3, 1e5] {
            let mut last = 1.0 + 1e-12;
            for i in 0..100 {
                let t = f64::from(i) * 0.11;
                let p = two_sided(t, freedom);
                assert!((0.0..=1.0).contains(&p) && p <= last, "{t} {freedom} {p}");
                assert_eq!(p, two_sided(-t, freedom));
                assert!(i < 10 || two_sided(t, freedom * 2.0) <= p + 1e-12);
                last = p;
            }
        }
        // Of many degrees of freedom it is the normal distribution's: 1.959964 leaves 0.05.
        assert!((two_sided(1.959_964, 1e7) - 0.05).abs() < 1e-6);
    }

    /// Two published examples of Welch's test: Rosetta Code, "Welch's t-test", sets d1 and d2, and v1 and v2.
    #[test]
    fn published_examples_come_out() {
        let d1 = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let d2 = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4];
        let found = welch(&d1, &d2).unwrap();
        assert!((found.p - 0.021_378_001_462_866_98).abs() < 1e-12, "{found:?}");
        assert!(found.differs() && found.t > 0.0);
        let (x, y) = ([3.0, 4.0, 1.0, 2.1], [490.2, 340.0, 433.9]);
        assert!((welch(&x, &y).unwrap().p - 0.010_751_561_149_784_496).abs() < 1e-12);
    }

    #[test]
    fn sides_may_be_swapped_and_scaled() {
        let (a, b) = ([1.0, 1.2, 0.9, 1.1], [1.3, 1.5, 1.4]);
        let (one, two) = (welch(&a, &b).unwrap(), welch(&b, &a).unwrap());
        assert!((one.p - two.p).abs() < 1e-15 && one.t == -two.t);
        let scaled = |v: &[f64]| v.iter().map(|x| x * 1e3 + 7.0).collect::<Vec<_>>();
        assert!((welch(&scaled(&a), &scaled(&b)).unwrap().p - one.p).abs() < 1e-9);
    }

    #[test]
    fn what_has_no_noise_differs_or_does_not() {
        assert!(welch(&[2.0, 2.0], &[3.0, 3.0]).unwrap().differs());
        assert!(!welch(&[2.0, 2.0], &[2.0, 2.0]).unwrap().differs());
        assert_eq!(welch(&[2.0], &[3.0, 3.0]), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
    }
}
