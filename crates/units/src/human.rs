//! How quantities are written for people. Machines get plain integers instead.

/// A count in three significant digits: `4.73 B`, `512 M`, `1,024`.
pub fn count(n: u64) -> String {
    for (suffix, scale) in [("T", 1e12), ("B", 1e9), ("M", 1e6)] {
        // 999.5 M and above reads better, and rounds, as the next unit.
        if n as f64 >= scale * 0.9995 {
            return format!("{} {suffix}", three_digits(n as f64 / scale));
        }
    }
    exact(n)
}

/// All digits, in groups of three: `4,729,284,096`.
pub fn exact(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the largest binary unit that leaves a number of at least one.
pub fn gib(bytes: u64) -> String {
    for (suffix, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes >= 1 << shift {
            return format!("{} {suffix}", three_digits(bytes as f64 / (1u64 << shift) as f64));
        }
    }
    format!("{bytes} B")
}

fn three_digits(x: f64) -> String {
    if x < 9.995 {
        format!("{x:.2}")
    } else if x < 99.95 {
        format!("{x:.1}")
    } else {
        format!("{x:.0}")
    }
}

/// How much longer something takes, from the ratio: `+12%`, `same`, `unknown`.
pub fn longer(ratio: Option<f64>) -> String {
    match ratio.map(|ratio| 100.0 * (ratio - 1.0)) {
        None => "unknown".to_string(),
        Some(more) if more.abs() < 0.5 => "same".to_string(),
        Some(more) => format!("{more:+.0}%"),
    }
}

/// A change as a share of what was, with its sign; what rounds to nothing is not less than nothing.
pub fn change(share: f64) -> String {
    let percent = 100.0 * share;
    format!("{:+.1}%", if percent.abs() < 0.05 { 0.0 } else { percent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_rounds_to_nothing_has_no_minus() {
        assert_eq!([change(-0.0004), change(-0.0006), change(0.25)], ["+0.0%", "-0.1%", "+25.0%"]);
    }

    #[test]
    fn counts_read_in_three_digits() {
        assert_eq!(count(671_026_404_352), "671 B");
        assert_eq!(count(4_729_284_096), "4.73 B");
        assert_eq!(count(999_900_000), "1.00 B");
        assert_eq!(count(57_344), "57,344");
        assert_eq!(count(0), "0");
    }

    #[test]
    fn bytes_read_in_binary_units() {
        assert_eq!(gib(1 << 30), "1.00 GiB");
        assert_eq!(gib(32 << 10), "32.0 KiB");
        assert_eq!(gib(12), "12 B");
    }
}
