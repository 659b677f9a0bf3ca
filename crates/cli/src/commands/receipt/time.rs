//! The time of a record. `SOURCE_DATE_EPOCH` says it where a result has to be the same again
//! (reproducible-builds.org/specs/source-date-epoch).

use std::time::{SystemTime, UNIX_EPOCH};

/// Now: RFC 3339, UTC, seconds.
pub fn now() -> String {
    let said = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse::<u64>().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    rfc3339(said.unwrap_or_else(clock))
}

fn rfc3339(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, chrono-compatible low-level date algorithms: years that begin in March.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, late) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + late;
    let [hour, minute, second] = [of_day / 3_600, of_day / 60 % 60, of_day % 60];
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d @N +%FT%TZ` prints them.
    #[test]
    fn dates_are_the_calendars() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_794_787_200, "2026-11-16T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
