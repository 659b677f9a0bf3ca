//! Fleets, tokens, prices and ramps as typed.

use diag::{Blame, Finding};
use hardware::Device;

/// What `--on` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetText {
    /// One cluster, as it stands.
    One(String),
    /// Several, each as one.
    Several(Vec<String>),
    /// Any number of these devices, each with what stands behind it (`H100@roce400`); none for every device there is.
    Any(Vec<String>),
}

/// Most clusters of one question.
const MOST_CLUSTERS: usize = 64;

/// Most devices of a fleet that is looked for.
pub const MOST_DEVICES: u64 = 1 << 17;

fn refuse(message: String) -> Finding {
    Finding::error("plan/fleet", Blame::Usage, "on", message)
        .hint("write `8,16,32xH200` for these, `8..512xH200` for doublings, `?xH100` for the smallest that does")
}

impl FleetText {
    /// Reads `8xH200`, `8,16,32xH200`, `8..512xH200`, `?xH100`, `?xH100,H200` and `?`.
    pub fn parse(on: &str) -> Result<FleetText, Finding> {
        if let Some(rest) = on.strip_prefix('?') {
            return any(on, rest);
        }
        let Some((counts, rest)) = on.split_once(['x', 'X', '×']) else { return Ok(FleetText::One(on.to_string())) };
        // A path may hold dots and commas too.
        if counts.contains(['/', '\\']) {
            return Ok(FleetText::One(on.to_string()));
        }
        if let Some((first, last)) = counts.split_once("..") {
            return doublings(on, (first, last), rest);
        }
        if !counts.contains(',') {
            return Ok(FleetText::One(on.to_string()));
        }
        let clusters: Vec<String> = counts.split(',').map(|count| format!("{}x{rest}", count.trim())).collect();
        if clusters.len() > MOST_CLUSTERS {
            let message = format!("{} clusters are more than a sweep of {MOST_CLUSTERS}", clusters.len());
            let hint = "ask for fewer counts in --on, or in several sweeps";
            return Err(Finding::error("plan/sweep", Blame::Usage, "on", message).hint(hint));
        }
        Ok(FleetText::Several(clusters))
    }
}

fn any(on: &str, rest: &str) -> Result<FleetText, Finding> {
    if rest.is_empty() {
        return Ok(FleetText::Any(Vec::new()));
    }
    let shown: String = on.chars().take(60).collect();
    let devices = rest.strip_prefix(['x', 'X', '×']).ok_or_else(|| refuse(format!("`{shown}` names no device")))?;
    let devices: Vec<String> = devices.split(',').map(|device| device.trim().to_string()).collect();
    if devices.len() > MOST_CLUSTERS || devices.iter().any(String::is_empty) {
        return Err(refuse(format!("`{shown}` names no device, or too many")));
    }
    Ok(FleetText::Any(devices))
}

fn doublings(on: &str, (first, last): (&str, &str), rest: &str) -> Result<FleetText, Finding> {
    let shown: String = on.chars().take(60).collect();
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|n| (1..=1 << 24).contains(n));
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(refuse(format!("`{shown}` has no whole numbers of devices")));
    };
    if first > last {
        return Err(refuse(format!("`{shown}` ends before it begins")));
    }
    let mut counts: Vec<u64> = std::iter::successors(Some(first), |n| Some(n * 2)).take_while(|n| *n < last).collect();
    counts.push(last);
    Ok(FleetText::Several(counts.iter().map(|count| format!("{count}x{rest}")).collect()))
}

/// Sizes of a fleet that are looked at, rising: parts of a node, whole nodes up to 16, and beyond in eighths between
/// powers of two, since degrees have to divide a world; TPUs as slices, and several of the largest.
pub fn sizes(device: &Device) -> Vec<u64> {
    let slices = device.slice_sizes();
    if let Some(&largest) = slices.last() {
        let more = nodes().map(|count| count * largest).take_while(|devices| *devices <= MOST_DEVICES);
        let mut all: Vec<u64> = slices.iter().copied().chain(more).collect();
        all.dedup();
        return all;
    }
    let node = device.devices_per_node.max(1);
    let parts = (1..node).filter(|part| node.is_multiple_of(*part));
    parts.chain(nodes().map(|count| count * node).take_while(|devices| *devices <= MOST_DEVICES)).collect()
}

/// 1 to 16, 18, 20 … 32, 36 …
fn nodes() -> impl Iterator<Item = u64> {
    let beyond = (1..40).flat_map(|power| (9..=16u64).map(move |eighth| eighth << power));
    (1..=16).chain(beyond)
}

/// A number with a decimal unit: `15T`, `1.5B`, `300M`, `20000`.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'b' | 'B' | 'g' | 'G')) => (&text[..at], 1e9),
        Some((at, 't' | 'T')) => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let is_plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_plain).map(|number| (number * unit).round());
    number
        .filter(|number| (1.0..=1e17).contains(number))
        .map(|number| number as u64)
        .ok_or_else(|| "tokens of a run are a number as `15T`, `1.5B` or `20000`, up to 100,000 T".to_string())
}

/// A positive number in bounds: days, prices, a PUE.
pub fn positive(text: &str, most: f64) -> Result<f64, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse::<f64>().ok().filter(|n| is_plain && n.is_finite() && *n > 0.0 && *n <= most);
    number.ok_or_else(|| format!("a number above 0, and no more than {most}"))
}

/// Prices by device: `2.5`, or `H100=2.5,A100=1.2`.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices(Vec<(Option<String>, f64)>);

impl Prices {
    /// Reads one price, or a list by device.
    pub fn parse(text: &str) -> Result<Prices, String> {
        let refused = || "a price of a device-hour is a number (`2.5`), or a list by device (`H100=2.5,A100=1.2`)";
        let list: Vec<&str> = text.split(',').collect();
        if list.len() > MOST_CLUSTERS {
            return Err(refused().to_string());
        }
        let one = |part: &str| -> Result<(Option<String>, f64), String> {
            let (device, price) = match part.split_once('=') {
                Some((device, price)) => (Some(device.trim()), price.trim()),
                None => (None, part.trim()),
            };
            let price = positive(price, 1e6).map_err(|_| refused().to_string())?;
            let known = device.map(|name| Device::find(name).map(|device| device.name));
            Ok((known.transpose().map_err(|finding| finding.message)?, price))
        };
        let prices: Vec<_> = list.into_iter().map(one).collect::<Result<_, _>>()?;
        let plain = prices.iter().filter(|(device, _)| device.is_none()).count();
        if plain > 1 || (plain == 1 && prices.len() > 1) {
            return Err(refused().to_string());
        }
        Ok(Prices(prices))
    }

    /// The price of a device's hour.
    pub fn of(&self, device: &str) -> Option<f64> {
        self.0.iter().find(|(name, _)| name.as_deref().is_none_or(|name| name == device)).map(|(_, price)| *price)
    }
}

impl std::fmt::Display for Prices {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let one = |(device, price): &(Option<String>, f64)| match device {
            Some(device) => format!("{device}={price}"),
            None => price.to_string(),
        };
        f.write_str(&self.0.iter().map(one).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fleets_are_read() {
        let several = |list: &[&str]| FleetText::Several(list.iter().map(|s| s.to_string()).collect());
        assert_eq!(FleetText::parse("8xH200").unwrap(), FleetText::One("8xH200".into()));
        assert_eq!(FleetText::parse("8, 16x8xH200").unwrap(), several(&["8x8xH200", "16x8xH200"]));
        assert_eq!(
            FleetText::parse("8..48xH200@roce400").unwrap(),
            several(&["8xH200@roce400", "16xH200@roce400", "32xH200@roce400", "48xH200@roce400"])
        );
        assert_eq!(FleetText::parse("8..8xH200").unwrap(), several(&["8xH200"]));
        assert_eq!(FleetText::parse("?xH100@roce400").unwrap(), FleetText::Any(vec!["H100@roce400".into()]));
        assert_eq!(FleetText::parse("?xH100,A100").unwrap(), FleetText::Any(vec!["H100".into(), "A100".into()]));
        assert_eq!(FleetText::parse("?").unwrap(), FleetText::Any(vec![]));
        assert_eq!(FleetText::parse("../x,y.toml").unwrap(), FleetText::One("../x,y.toml".into()));
        for wrong in ["?H100", "?x", "?xH100,", "16..8xH200", "a..8xH200", "0..8xH200", "8..99999999xH200"] {
            assert_eq!(FleetText::parse(wrong).unwrap_err().rule, "plan/fleet", "{wrong}");
        }
        let long = format!("{}8xH200", "8,".repeat(70));
        assert_eq!(FleetText::parse(&long).unwrap_err().rule, "plan/sweep");
    }

    #[test]
    fn prices_read_what_they_write() {
        for text in ["2.5", "H100=2.5,A100=1.25"] {
            assert_eq!(Prices::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn sizes_fill_nodes_and_slices() {
        let of = |name: &str| sizes(&Device::find(name).unwrap());
        let h100 = of("H100");
        assert_eq!(h100[..6], [1, 2, 4, 8, 16, 24]);
        assert!(h100.windows(2).all(|pair| pair[0] < pair[1]) && h100.len() < 128);
        assert!(h100.iter().all(|n| hardware::Cluster::parse(&format!("{n}xH100")).is_ok()));
        assert!(h100.contains(&16_384) && h100.last() == Some(&MOST_DEVICES));
        let tpu = of("TPU-v5p");
        assert!(tpu.iter().all(|n| hardware::Cluster::parse(&format!("{n}xTPU-v5p")).is_ok()), "{tpu:?}");
    }

    #[test]
    fn counts_and_prices_are_read() {
        assert_eq!(
            [count("15T"), count("1.5B"), count("20000")],
            [Ok(15_000_000_000_000), Ok(1_500_000_000), Ok(20_000)]
        );
        for wrong in ["", "T", "0", "-3T", "1e9", "inf", "NaN", "999999999T", "1..5T"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
        let prices = Prices::parse("h100=2.5, A100=1.2").unwrap();
        assert_eq!([prices.of("H100"), prices.of("A100"), prices.of("B200")], [Some(2.5), Some(1.2), None]);
        assert_eq!(Prices::parse("3").unwrap().of("B200"), Some(3.0));
        for wrong in ["", "0", "H100=", "=2", "2,3", "H100=2,3", "h101=2", "1e3", "NaN"] {
            assert!(Prices::parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "\\PC{0,40}", like in "[?0-9.,x×]{0,12}(H100|TPU-v5p|)[@=0-9.,]{0,8}") {
            for text in [text, like] {
                let _ = (FleetText::parse(&text), count(&text), positive(&text, 1e3), Prices::parse(&text));
            }
        }
    }
}
