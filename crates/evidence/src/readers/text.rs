//! Words, numbers and times of logs, read from bytes.

use super::log::{Figure, Rounded};

/// One line as readers see it: prefixes of launchers taken off, colours removed, only what was drawn last.
pub struct Line<'l> {
    /// In its file, from one.
    pub number: u64,
    /// The rank that a prefix names (`[rank3]:`).
    pub rank: Option<u64>,
    /// Who printed it, as far as prefixes tell: lines of one process have the same.
    pub stream: u64,
    pub text: &'l [u8],
}

impl<'l> Line<'l> {
    /// Takes prefixes off: `[default0]:` and `[rank0]:` of torchrun's `--tee` (`torch/distributed/elastic/multiprocessing/
    /// tail_log.py`: `f"[{name}{local_rank}]:"`), `0: ` of `srun --label`. `scratch` holds a line whose colours were
    /// removed.
    pub fn new(number: u64, raw: &'l [u8], scratch: &'l mut Vec<u8>) -> Line<'l> {
        let mut text = raw.strip_suffix(b"\r").unwrap_or(raw);
        if let Some(at) = memchr::memrchr(b'\r', text) {
            text = &text[at + 1..];
        }
        if memchr::memchr(0x1b, text).is_some() {
            without_colours(text, scratch);
            text = scratch;
        }
        let (mut rank, mut stream) = (None, 0);
        for _ in 0..3 {
            let Some((name, id, rest)) = prefix(text) else { break };
            if name == b"rank" {
                rank = Some(id);
            }
            stream = stream << 20 | (id + 1) & 0xfffff;
            text = rest;
        }
        Line { number, rank, stream, text }
    }

    pub fn has(&self, word: &[u8]) -> bool {
        find(self.text, word).is_some()
    }

    /// What stands behind `word`.
    pub fn behind(&self, word: &[u8]) -> Option<&'l [u8]> {
        behind(self.text, word)
    }
}

/// A prefix's name, its number, and the rest; SLURM's has no name.
fn prefix(text: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    if let Some(inner) = text.strip_prefix(b"[") {
        let letters = inner.iter().take_while(|b| b.is_ascii_lowercase()).count();
        let digits = inner[letters..].iter().take(9).take_while(|b| b.is_ascii_digit()).count();
        let rest = inner[letters + digits..].strip_prefix(b"]:")?;
        let id = whole(&inner[letters..letters + digits])?;
        return (letters > 0).then_some((&inner[..letters], id, rest));
    }
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    let digits = text[spaces..].iter().take(7).take_while(|b| b.is_ascii_digit()).count();
    let rest = text[spaces + digits..].strip_prefix(b": ")?;
    Some((b"", whole(&text[spaces..spaces + digits])?, rest))
}

/// Escape sequences of colours: `ESC [ … letter`.
fn without_colours(text: &[u8], into: &mut Vec<u8>) {
    into.clear();
    let mut at = 0;
    while at < text.len() {
        if text[at] != 0x1b {
            into.push(text[at]);
            at += 1;
            continue;
        }
        at += 1;
        if text.get(at) == Some(&b'[') {
            at += 1;
            at += text[at..].iter().take_while(|b| !b.is_ascii_alphabetic()).count() + 1;
        }
    }
}

/// Where a word begins first. A word is looked for once a line, which a searcher that has to be built is too slow for:
/// its rarest byte is.
pub fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (place, byte) in word.iter().enumerate() {
        if RARITY[usize::from(*byte)] > RARITY[usize::from(word[at])] {
            at = place;
        }
    }
    let rarest = word.get(at)?;
    let last = text.len().checked_sub(word.len())?;
    let within = &text[at..=last + at];
    memchr::memchr_iter(*rarest, within).find(|found| text[*found..].starts_with(word))
}

/// How seldom a byte stands in logs, roughly.
static RARITY: [u8; 256] = {
    let mut all = [0; 256];
    let mut byte = 0;
    while byte < all.len() {
        all[byte] = rarity(byte as u8);
        byte += 1;
    }
    all
};

const fn rarity(byte: u8) -> u8 {
    match byte {
        b'[' | b']' | b'(' | b')' | b'|' | b'=' | b'%' | b'"' | b'!' | b'\t' => 5,
        b'A'..=b'Z' => 4,
        b'z' | b'x' | b'k' | b'v' | b'j' | b'q' | b'w' => 3,
        b'_' | b'b' | b'g' | b'p' | b'y' => 2,
        b' ' | b'e' | b't' | b'a' | b'o' | b'i' | b'n' | b'.' | b'-' | b'/' | b'0'..=b'9' => 0,
        _ => 1,
    }
}

pub fn behind<'t>(text: &'t [u8], word: &[u8]) -> Option<&'t [u8]> {
    find(text, word).map(|at| &text[at + word.len()..])
}

/// What stands before and behind the first `word`.
pub fn around<'t>(text: &'t [u8], word: &[u8]) -> Option<(&'t [u8], &'t [u8])> {
    find(text, word).map(|at| (&text[..at], &text[at + word.len()..]))
}

/// A number's own characters at the beginning, behind spaces.
pub fn token(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_start();
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-');
    &text[..text.iter().take_while(|b| is_part(b)).count()]
}

/// As many digits as there are.
pub fn digits(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii_start();
    &text[..text.iter().take_while(|b| b.is_ascii_digit()).count()]
}

pub fn whole(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0u64, |n, b| b.is_ascii_digit().then(|| n * 10 + u64::from(b - b'0')))
}

/// The first number behind spaces, whole.
pub fn leading(text: &[u8]) -> Option<u64> {
    whole(digits(text))
}

/// A number as Python prints it: `nan` and `inf` too.
pub fn number(text: &[u8]) -> Option<f64> {
    figure(text).map(|figure| figure.value)
}

/// A number and how finely it was printed.
pub fn figure(text: &[u8]) -> Option<Figure> {
    let text = text.trim_ascii();
    if text.is_empty() || text.len() > 40 {
        return None;
    }
    plain(text).or_else(|| {
        let value = std::str::from_utf8(text).ok()?.parse().ok()?;
        Some(Figure { value, digits: significant(text) })
    })
}

/// A decimal that a double holds as it is read: digits below 2^53, scaled by a power of ten that is exact, so that one
/// multiplication or division rounds as reading the text does (W. D. Clinger, "How to read floating point numbers
/// accurately", 1990). None for everything else.
fn plain(text: &[u8]) -> Option<Figure> {
    let (is_negative, digits) = match text[0] {
        b'-' => (true, &text[1..]),
        _ => (false, text),
    };
    let (mut mantissa, mut scale, mut significant) = (0u64, 0i32, 0u8);
    let (mut is_behind_point, mut is_any) = (false, false);
    let mut rest = digits.iter();
    for byte in rest.by_ref() {
        match byte {
            b'0'..=b'9' if significant < 15 => {
                mantissa = mantissa * 10 + u64::from(byte - b'0');
                significant += u8::from(mantissa > 0);
                scale -= i32::from(is_behind_point);
                is_any = true;
            }
            b'.' if !is_behind_point => is_behind_point = true,
            b'e' | b'E' if is_any => {
                scale += exponent(rest.as_slice())?;
                break;
            }
            _ => return None,
        }
    }
    if !is_any || !(-22..=22).contains(&scale) {
        return None;
    }
    let power = POWERS[scale.unsigned_abs() as usize];
    let value = if scale < 0 { mantissa as f64 / power } else { mantissa as f64 * power };
    let value = if is_negative { -value } else { value };
    Some(Figure { value, digits: (significant > 0).then_some(significant) })
}

/// What stands behind an `E`: a sign and two digits.
fn exponent(text: &[u8]) -> Option<i32> {
    let [sign @ (b'+' | b'-'), tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = text else { return None };
    let size = i32::from(tens - b'0') * 10 + i32::from(ones - b'0');
    Some(if *sign == b'-' { -size } else { size })
}

/// Powers of ten that doubles hold exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Significant digits that were printed; none for zero and for what is no number.
fn significant(text: &[u8]) -> Option<u8> {
    let mut count = 0u8;
    for byte in text {
        match byte {
            b'0' if count == 0 => {}
            b'0'..=b'9' => count = count.saturating_add(1),
            b'e' | b'E' => break,
            b'.' | b'-' | b'+' | b',' => {}
            _ => return None,
        }
    }
    (count > 0).then_some(count)
}

/// A number with commas between thousands: `12,345.67`.
pub fn with_commas(text: &[u8]) -> Option<Figure> {
    let plain: Vec<u8> = text.iter().filter(|b| **b != b',').copied().collect();
    figure(&plain)
}

/// A figure of memory as it was printed, in units of `unit` bytes: it may be off by half of its last digit.
pub fn bytes_of(text: &[u8], unit: f64) -> Option<Rounded> {
    let text = text.trim_ascii();
    let value = number(text)?;
    if !(0.0..1e30).contains(&value) {
        return None;
    }
    let bytes = (value * unit).round();
    if bytes >= 9.0e18 {
        return None;
    }
    let is_scientific = text.iter().any(|b| matches!(b, b'e' | b'E'));
    let decimals = text.iter().position(|b| *b == b'.').map_or(0, |at| text.len() - at - 1).min(30);
    // What is printed in full stands for a whole number of bytes.
    let off = if is_scientific { 0.0 } else { (0.5 * unit * 0.1f64.powi(decimals as i32)).floor() };
    Some(Rounded { bytes: bytes as u64, resolution: off as u64 })
}

/// Bytes with their unit, as torch words them: `22.90 GiB`, `194.87 MiB`, `0 bytes`.
pub fn bytes_with_unit(text: &[u8]) -> Option<Rounded> {
    let text = text.trim_ascii_start();
    let value = token(text);
    let unit = token(&text[value.len()..]);
    let unit = match unit {
        b"GiB" | b"GiB." => GIB,
        b"MiB" | b"MiB." => MIB,
        b"KiB" | b"KiB." => 1024.0,
        b"bytes" | b"bytes." => 1.0,
        _ => return None,
    };
    bytes_of(value, unit)
}

pub const GIB: f64 = (1u64 << 30) as f64;
pub const MIB: f64 = (1u64 << 20) as f64;

/// Seconds since 1970 of `2025-11-16 05:55:20`, with parts of a second behind `.` or `,` where there are any. Logs do
/// not say their time zone: it is taken for UTC, so that differences are right and moments may be hours off.
pub fn moment(text: &[u8]) -> Option<f64> {
    let text = text.get(..text.len().min(26))?;
    let at = |from: usize, to: usize| whole(text.get(from..to)?);
    let marks = [(4, b"-"), (7, b"-"), (13, b":"), (16, b":")];
    if text.len() < 19 || marks.iter().any(|(at, mark)| text[*at] != mark[0]) || !matches!(text[10], b' ' | b'T') {
        return None;
    }
    let (year, month, day) = (at(0, 4)?, at(5, 7)?, at(8, 10)?);
    let (hour, minute, second) = (at(11, 13)?, at(14, 16)?, at(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    let part = match text.get(19) {
        Some(b'.' | b',') => {
            let part = &text[20..];
            let part = &part[..part.iter().take_while(|b| b.is_ascii_digit()).count().min(9)];
            whole(part).map_or(0.0, |n| n as f64 / 10f64.powi(part.len() as i32))
        }
        _ => 0.0,
    };
    Some(seconds as f64 + part)
}

/// Days since 1970-01-01 of a day of the Gregorian calendar (Howard Hinnant, "chrono-compatible low-level date
/// algorithms", `days_from_civil`).
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(raw: &[u8]) -> (Option<u64>, Vec<u8>) {
        let mut scratch = Vec::new();
        let line = Line::new(1, raw, &mut scratch);
        (line.rank, line.text.to_vec())
    }

    #[test]
    fn prefixes_and_colours_are_taken_off() {
        for (raw, rank, text) in [
            (&b"[default3]: iteration"[..], None, &b" iteration"[..]),
            (b"[rank12]:[titan] x", Some(12), b"[titan] x"),
            (b" 7: [rank3]:x", Some(3), b"x"),
            (b"[2025-01-01] x", None, b"[2025-01-01] x"),
            (b"12:30 x", None, b"12:30 x"),
            (b"\x1b[31mstep:  1  \x1b[38;2;180;60;0mloss\x1b[39m", None, b"step:  1  loss"),
            (b"Epoch 0: 10%\rEpoch 0: 20%\r", None, b"Epoch 0: 20%"),
            (b"\x1b", None, b""),
            (b"\x1b[", None, b""),
        ] {
            assert_eq!(stripped(raw), (rank, text.to_vec()), "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn words_are_found_where_they_begin_first() {
        for (text, word, at) in [
            (&b"[Rank 1] [Rank 2]"[..], &b"[Rank "[..], Some(0)),
            (b"a[Rank", b"[Rank ", None),
            (b"xx: [a] datetime: ", b"] datetime: ", Some(6)),
            (b"", b"x", None),
            (b"aab", b"ab", Some(1)),
            (b"ends in word", b"word", Some(8)),
        ] {
            assert_eq!(find(text, word), at, "{}", String::from_utf8_lossy(text));
        }
    }

    /// The short way to a number reads what the long one does, and leaves what it cannot.
    #[test]
    fn numbers_are_read_as_rust_reads_them() {
        let mut state = 7u64;
        let mut next = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        for _ in 0..20_000 {
            let (whole, part) = (next(10_000_000), next(10_000_000));
            let text = match next(4) {
                0 => format!("{whole}.{part:07}"),
                1 => format!("-{}.{part:06}E{}{:02}", next(10), ["+", "-"][next(2) as usize], next(30)),
                2 => format!("{whole}"),
                _ => format!("0.{part:07}"),
            };
            let expected: f64 = text.parse().unwrap();
            let read = figure(text.as_bytes()).unwrap();
            assert_eq!(
                (read.value.to_bits(), read.digits),
                (expected.to_bits(), significant(text.as_bytes())),
                "{text}"
            );
        }
        for text in ["nan", "inf", "-inf", "1e5", "12345678901234567890", "1E+300", ".5", "5."] {
            let (read, expected) = (number(text.as_bytes()).unwrap(), text.parse::<f64>().unwrap());
            assert!(read == expected || read.is_nan() && expected.is_nan(), "{text}");
        }
        for text in ["", "-", ".", "1.2.3", "E+05", "12ab", "1E5x", "--1"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn moments_are_seconds_since_1970() {
        assert_eq!(moment(b"1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(moment(b"2024-02-29 12:00:00.500000]"), Some(1_709_208_000.5));
        assert_eq!(moment(b"2026-11-16T05:55:20Z"), Some(1_794_808_520.0));
        assert_eq!(moment(b"2026-11-16 05:55:20,250 - x"), Some(1_794_808_520.25));
        for wrong in [&b"2026-13-16 05:55:20"[..], b"2026-11-16", b"", b"2026/11/16 05:55:20", b"2026-11-16 25:55:20"] {
            assert_eq!(moment(wrong), None);
        }
    }

    #[test]
    fn a_figure_knows_how_finely_it_was_printed() {
        assert_eq!(bytes_of(b"12345.67", MIB).unwrap(), Rounded { bytes: 12_945_373_266, resolution: 5242 });
        assert_eq!(bytes_of(b"13", GIB).unwrap(), Rounded { bytes: 13 << 30, resolution: 1 << 29 });
        // As Megatron-LM printed it before 0.16: every digit that Python has.
        assert_eq!(bytes_of(b"10283.00927734375", MIB).unwrap(), Rounded { bytes: 10_782_516_736, resolution: 0 });
        assert_eq!(bytes_of(b"-1.00", MIB), None);
        assert_eq!(bytes_of(b"nan", MIB), None);
        assert_eq!(figure(b"1.063210E+01").unwrap().digits, Some(7));
        assert_eq!(figure(b"0.012").unwrap().digits, Some(2));
        assert_eq!(figure(b"0.0").unwrap().digits, None);
    }
}
