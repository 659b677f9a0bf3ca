//! What a run comes to: days, device-hours, energy and money, from steps, their seconds and the share of time that
//! counts.

use crate::failures::DAY;
use serde::Serialize;

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bill {
    /// Seconds of all steps, one after another.
    pub seconds: f64,
    /// The same as little and as much as an interval says.
    pub spread: [f64; 2],
    /// The share of wall-clock time that goes into them.
    pub useful: f64,
    /// Devices.
    pub devices: u64,
    /// What one draws with its part of the node, where the profile says.
    pub watts: Option<f64>,
    /// Power of the hall over that of its machines.
    pub pue: f64,
    /// Of a device-hour, where it was given.
    pub price: Option<f64>,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Budget {
    /// Wall-clock days.
    pub days: f64,
    /// As few as this.
    pub days_low: f64,
    /// As many as this.
    pub days_high: f64,
    /// Devices times hours.
    pub device_hours: f64,
    /// In MWh, where the profile says what a device draws.
    pub energy_mwh: Option<f64>,
    /// In the unit of the price.
    pub cost: Option<f64>,
}

impl Bill {
    /// Adds it up. Where nothing counts, nothing ends: days are infinite.
    pub fn sum(&self) -> Budget {
        let days = |seconds: f64| seconds / self.useful.max(0.0) / DAY;
        let device_hours = days(self.seconds) * 24.0 * self.devices as f64;
        Budget {
            days: days(self.seconds),
            days_low: days(self.spread[0]),
            days_high: days(self.spread[1]),
            device_hours,
            energy_mwh: self.watts.map(|watts| device_hours * watts * self.pue / 1e6),
            cost: self.price.map(|price| device_hours * price),
        }
    }
}

/// The smallest of rising sizes that does, and what was asked of whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Smallest<T> {
    /// The first size that does, and what it came to.
    pub found: Option<(u64, T)>,
    /// Sizes that were tried and do not.
    pub tried: Vec<u64>,
    /// Sizes that a bound ruled out.
    pub skipped: Vec<u64>,
}

/// Looks through rising sizes from the first that a bound leaves; `does` answers for one of them.
pub fn smallest<T, E>(
    sizes: &[u64],
    least: u64,
    mut does: impl FnMut(u64) -> Result<Option<T>, E>,
) -> Result<Smallest<T>, E> {
    let mut outcome = Smallest { found: None, tried: Vec::new(), skipped: Vec::new() };
    for &size in sizes {
        if size < least {
            outcome.skipped.push(size);
            continue;
        }
        if let Some(found) = does(size)? {
            outcome.found = Some((size, found));
            return Ok(outcome);
        }
        outcome.tried.push(size);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_adds_up() {
        let bill = Bill {
            seconds: 9.0 * DAY,
            spread: [4.5 * DAY, 18.0 * DAY],
            useful: 0.9,
            devices: 100,
            watts: Some(1000.0),
            pue: 1.5,
            price: Some(2.0),
        };
        let budget = bill.sum();
        assert!(
            (budget.days - 10.0).abs() < 1e-9
                && (budget.days_low - 5.0).abs() < 1e-9
                && (budget.days_high - 20.0).abs() < 1e-9
        );
        assert!((budget.device_hours - 24_000.0).abs() < 1e-6);
        assert!((budget.energy_mwh.unwrap() - 36.0).abs() < 1e-9 && (budget.cost.unwrap() - 48_000.0).abs() < 1e-6);
        assert_eq!(Bill { useful: 0.0, ..bill }.sum().days, f64::INFINITY);
    }

    #[test]
    fn the_first_that_does_is_found_and_the_rest_is_counted() {
        let found = smallest(&[1, 2, 4, 8, 16], 2, |n| Ok::<_, ()>((n >= 8).then_some(n * 10))).unwrap();
        assert_eq!(found, Smallest { found: Some((8, 80)), tried: vec![2, 4], skipped: vec![1] });
        assert_eq!(smallest(&[1], 1, |_| Err::<Option<()>, _>("no")), Err("no"));
    }
}
