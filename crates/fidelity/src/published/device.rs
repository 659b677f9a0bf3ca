//! Devices by the names people give them: `H100-80GB-HBM3`, `NVIDIA H100 80GB HBM3`, `h100`, `A100-SXM4-40GB`.

use super::words::tokens;
use serde_json::Value;

/// Words in a device's name that say nothing that its own name does not.
const PASSED: [&str; 14] =
    ["nvidia", "tesla", "dgx", "hgx", "gpu", "gpus", "sxm", "sxm4", "sxm5", "sxm6", "hbm2e", "hbm3", "hbm3e", "nvl72"];

/// The name of a row's device as this project has it. What stands in it beside the device and is not understood,
/// as `PCIe`, is another device, and refused by name.
pub(super) fn name(row: &Value) -> Result<String, String> {
    let hardware = &row["hardware"];
    let said = hardware["gpu"].as_str().ok_or("the row does not name its device")?;
    let (mut name, mut memory): (Option<String>, Option<u64>) = (None, hardware["mem_gb"].as_u64());
    let words = tokens(said);
    for (at, word) in words.iter().enumerate() {
        let size = word.strip_suffix("gib").or_else(|| word.strip_suffix("gb")).unwrap_or(word);
        let is_unit = ["gb", "gib"].contains(&word.as_str());
        match size.parse::<u64>() {
            Ok(gigabytes) => memory = memory.or(Some(gigabytes)),
            Err(_) if is_unit && at > 0 => {}
            Err(_) if word == "40g" || word == "80g" => memory = memory.or(size.trim_end_matches('g').parse().ok()),
            Err(_) if PASSED.contains(&word.as_str()) => {}
            Err(_) if name.is_none() => name = Some(word.clone()),
            Err(_) if word.starts_with('v') && name.as_deref() == Some("tpu") => name = Some(format!("tpu-{word}")),
            Err(_) => return Err(format!("`{word}` of device `{said}` is not understood")),
        }
    }
    let name = name.ok_or_else(|| format!("`{said}` names no device"))?.to_ascii_uppercase();
    Ok(match (name.as_str(), memory) {
        ("A100", Some(40)) => "A100-40G".to_string(),
        _ => name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_device_has_many_names() {
        let read = |gpu: &str| name(&json!({ "hardware": { "gpu": gpu } }));
        for gpu in ["H100", "h100", "H100-80GB-HBM3", "NVIDIA H100 80GB HBM3", "H100 SXM5", "NVIDIA-H100-SXM"] {
            assert_eq!(read(gpu).as_deref(), Ok("H100"), "{gpu}");
        }
        assert_eq!(read("A100-SXM4-40GB").as_deref(), Ok("A100-40G"));
        assert_eq!(read("A100 80 GB").as_deref(), Ok("A100"));
        assert_eq!(read("GB200 NVL72").as_deref(), Ok("GB200"));
        for gpu in ["H100 PCIe", "H100 NVL"] {
            assert!(read(gpu).unwrap_err().contains("not understood"), "{gpu}");
        }
    }
}
