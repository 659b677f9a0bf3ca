//! The machines a row ran on.

use super::super::need;
use hardware::{Cluster, Device};
use serde_json::Value;

/// Devices by the name and memory a row gives, in its own nodes.
pub(super) fn cluster(row: &Value) -> Result<Cluster, String> {
    let hardware = &row["hardware"];
    let gpu = hardware["gpu"].as_str().ok_or("the row does not name its device")?;
    let name = match (gpu, hardware["mem_gb"].as_u64()) {
        ("A100", Some(40)) => "A100-40G",
        _ => gpu,
    };
    let mut device = Device::find(name).map_err(|finding| finding.message)?;
    if let (Some(network), Some(share)) = (&mut device.network, network_share(row)) {
        network.bytes_per_second = share;
    }
    let count = need(hardware, "count")?;
    let per_node = hardware["per_node"].as_u64().unwrap_or(device.devices_per_node).clamp(1, count.max(1));
    Ok(Cluster { nodes: count.div_ceil(per_node), devices_per_node: per_node, device })
}

/// What one device gets of its node's network where the site is known to differ from the maker's
/// own machines, bytes a second.
fn network_share(row: &Value) -> Option<f64> {
    let source = row["source"].as_str()?;
    let gigabits_a_node = match row["hardware"]["gpu"].as_str()? {
        // Jean Zay: four 100 Gb/s Omni-Path links (BigScience `train/tr11-176B-ml/README.md`, Hardware).
        "A100" if source.starts_with("BigScience") => 400.0,
        // fms-fsdp README: "128 A100 GPUs with 400Gbps", "96 H100 GPUs with 800 Gbps".
        "A100" if source.contains("fms-fsdp") => 400.0,
        "H100" if source.contains("fms-fsdp") => 800.0,
        _ => return None,
    };
    Some(gigabits_a_node * 1e9 / 8.0 / 8.0)
}
