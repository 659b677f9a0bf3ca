//! Numbers for people on an axis.

/// A step that divides a span into about so many parts: 1, 2 or 5 of a power of ten.
pub fn step(span: f64, parts: f64) -> f64 {
    if !(span.is_finite() && span > 0.0) {
        return 1.0;
    }
    let rough = span / parts;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Multiples of a step from `low` to `high`.
pub fn ticks(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil();
    let last = (high / step + 1e-9).floor();
    let number = (last - first).max(-1.0) as usize + usize::from(last >= first);
    (0..number.min(100)).map(|i| (first + i as f64) * step).collect()
}

/// A tick's number, with as many digits as its step needs.
pub fn tick(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let value = if value.abs() < step / 1e3 { 0.0 } else { value };
    format!("{value:.digits$}")
}

/// Bytes as GiB.
pub fn gib(bytes: f64) -> f64 {
    bytes / (1u64 << 30) as f64
}

/// Bytes with their sign.
pub fn signed(bytes: i128) -> String {
    let size = units::Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    match bytes {
        0 => "0".to_string(),
        b if b < 0 => format!("−{size}"),
        _ => format!("+{size}"),
    }
}

/// Seconds, in the unit that suits them.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_ticks_lie_between() {
        assert_eq!([step(139.8, 6.0), step(0.9, 5.0), step(0.0, 5.0)], [50.0, 0.2, 1.0]);
        assert_eq!(ticks(0.0, 139.8, 50.0), [0.0, 50.0, 100.0]);
        assert_eq!(ticks(3.0, 1.0, 1.0), [0.0; 0]);
        assert_eq!([tick(0.4, 0.2), tick(50.0, 50.0), tick(-1e-17, 0.1)], ["0.4", "50", "0.0"]);
    }
}
