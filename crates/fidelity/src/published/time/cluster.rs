//! The machines a row ran on.

use super::super::words::Clauses;
use super::super::{device, need};
use hardware::{Cluster, Device, Link};
use serde_json::Value;

/// Devices by the name and memory a row gives, in its own nodes, on the network its source tells of.
pub(super) fn cluster(row: &Value) -> Result<Cluster, String> {
    let hardware = &row["hardware"];
    let name = device::name(row)?;
    let source = row["source"].as_str().unwrap_or_default();
    let count = need(hardware, "count")?;
    // Unsaid, as many as a node of the device usually has.
    let usual = || Device::find(&name).map(|device| device.devices_per_node).map_err(|finding| finding.message);
    let per_node = hardware["per_node"].as_u64().map_or_else(usual, Ok)?.clamp(1, count.max(1));
    let nodes = count.div_ceil(per_node);
    // Assumed, not stated by the source: Hugging Face's cluster of the playbook is AWS p5.
    let network = if source.contains("Ultra-Scale") { "@efa3200" } else { "" };
    let text = format!("{nodes}x{per_node}x{name}{network}");
    let mut cluster = Cluster::parse(&text).map_err(|finding| finding.message)?;
    if let Some(site) = site(source, &name) {
        cluster.network = None;
        cluster.device.network = Some(site);
    }
    if name == "H100" && is_capped(row, source) {
        slow_down(&mut cluster.device);
    }
    Ok(cluster)
}

/// Hosts with HBM2e and 500 W instead of 700, as a row's notes say it, or the document it is from
/// (torchtitan `benchmarks/llama3_h100_202412_torchtitan.md` and `asyncTP_llama3_h100_2025-06_torchtitan.md`,
/// Hardware; the hosts of the same team, which its older tables and torchao's were taken on, assumed the same).
fn is_capped(row: &Value, source: &str) -> bool {
    let notes = Clauses::of(row["notes"].as_str().unwrap_or_default());
    let documents = ["pytorch/torchtitan benchmarks/", "pytorch/ao torchao/"];
    notes.say(&["hbm2e", "500 w", "500w"]) == Some(true) || documents.iter().any(|known| source.starts_with(known))
}

fn slow_down(device: &mut Device) {
    // Switching takes power with the clock and the square of the voltage, which rises with it.
    let clock = (500.0_f64 / 700.0).cbrt();
    device.peaks.iter_mut().for_each(|peak| peak.flops *= clock);
    if let Some(rate) = &mut device.memory_rate {
        rate.bytes_per_second = 2.4e12;
    }
}

/// The network of a site that is known to differ from its maker's own machines.
fn site(source: &str, device: &str) -> Option<Link> {
    let (name, gigabits_a_node, microseconds, where_from) = match device {
        "A100" if source.starts_with("BigScience") => {
            ("Omni-Path, four 100 Gb/s links a node", 400.0, 5.0, "BLOOM model card, Hardware: 4 OmniPath links a node")
        }
        "A100" if source.contains("fms-fsdp") => ("400 Gb/s a node", 400.0, 15.0, "fms-fsdp README"),
        "H100" if source.contains("fms-fsdp") => ("800 Gb/s a node", 800.0, 15.0, "fms-fsdp README"),
        _ => return None,
    };
    Some(Link {
        tier: None,
        rails: None,
        sharp_groups: None,
        name: name.to_string(),
        bytes_per_second: gigabits_a_node * 1e9 / 8.0 / 8.0,
        latency_seconds: microseconds * 1e-6,
        source: format!("{where_from}; latency assumed"),
    })
}
