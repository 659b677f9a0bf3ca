//! Which built-in device a longer or sloppier name stands for. A digit is never forgiven: H20 is not an H200
//! and a V100 no A100, and so is a form with other memory.

use crate::Device;

/// Words of makers and sellers that do not make it another device.
const FORMS: [&str; 8] = ["nvidia", "google", "sxm", "sxm4", "sxm5", "hgx", "dgx", "nvl72"];

/// How far a size in a name may be from the device's memory: sellers round, and write GB for GiB.
const ROUNDING: f64 = 0.04;

/// The built-in device that is meant by this name, which is not quite its own.
pub fn suggestion(typed: &str) -> Option<&'static str> {
    if typed.len() > 64 {
        return None;
    }
    let lower = typed.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let (sizes, words): (Vec<&str>, Vec<&str>) = words.into_iter().partition(|word| gigabytes(word).is_some());
    let kept: String = words.into_iter().filter(|word| !FORMS.contains(word)).collect();
    let family = |name: &'static str| match name.rsplit_once('-') {
        Some((family, size)) if gigabytes(&size.to_ascii_lowercase()).is_some() => plain(family),
        _ => plain(name),
    };
    let of_family = Device::names().filter(|name| family(name) == kept);
    match sizes.as_slice() {
        [] => of_family.into_iter().find(|name| plain(name) == kept),
        sizes => of_family.into_iter().find(|name| sizes.iter().all(|size| holds(name, size))),
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// The number of `80gb`, `80g` or `80gib`.
fn gigabytes(word: &str) -> Option<f64> {
    let number = ["gib", "gb", "g"].iter().find_map(|unit| word.strip_suffix(unit))?;
    number.parse::<u32>().ok().map(f64::from)
}

fn holds(name: &str, size: &str) -> bool {
    let (Ok(device), Some(size)) = (Device::find(name), gigabytes(size)) else { return false };
    let close = |unit: f64| (device.memory_bytes as f64 / unit / size - 1.0).abs() < ROUNDING;
    close(1e9) || close(1_073_741_824.0)
}

/// How to use a device that nobody built in, as it can be typed.
pub fn describe_your_own() -> &'static str {
    "to describe another: `shardwright hardware H200 --toml > mine.toml`, put its figures in (docs/example_device.toml \
     is one), then `shardwright hardware ./mine.toml` checks it and `--on 8x./mine.toml` uses it"
}

#[cfg(test)]
mod tests {
    use super::suggestion;

    #[test]
    fn a_size_or_a_form_in_the_name_is_understood() {
        for (typed, meant) in [
            ("A100-80GB", "A100"),
            ("A100-SXM4-80GB", "A100"),
            ("a100_80g", "A100"),
            ("A100-40GB", "A100-40G"),
            ("NVIDIA H200", "H200"),
            ("H200-141GB", "H200"),
            ("H100-SXM5", "H100"),
            ("H100-80GB", "H100"),
            ("GB200-NVL72", "GB200"),
        ] {
            assert_eq!(suggestion(typed), Some(meant), "{typed}");
        }
    }

    #[test]
    fn another_device_is_not_taken_for_one_we_know() {
        for typed in
            ["H30", "H801", "V1000", "MI250X", "3090", "RTX3090", "L40", "H100-NVL", "H100-94GB", "A100-PCIE", "B100"]
        {
            assert_eq!(suggestion(typed), None, "{typed}");
        }
    }
}
