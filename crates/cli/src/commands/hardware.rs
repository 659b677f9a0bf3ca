//! `hardware`: devices and networks, each fact with its source.

use crate::args::HardwareArgs;
use crate::files::load_device;
use crate::outcome::{Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use diag::{Blame, Finding, did_you_mean};
use hardware::{Device, Link, Network, describe_your_own, is_path, suggestion};
use serde_json::json;
use units::Bytes;

pub fn run(args: &HardwareArgs) -> Outcome {
    let Some(name) = &args.name else { return every() };
    if args.toml {
        return file_of(name);
    }
    if !is_path(name)
        && let Ok(network) = Network::find(name)
    {
        return Ok(Report::new(network_text(&network), json!({ "network": network })));
    }
    let device = if is_path(name) { load_device(name)? } else { Device::find(name).map_err(|_| unknown(name))? };
    Ok(Report::new(device_text(&device), json!({ "device": device })))
}

/// Neither a device nor a network; what is close may be either.
fn unknown(name: &str) -> Refusal {
    let networks: Vec<&str> = Network::all().unwrap_or_default().iter().map(|n| n.key.as_str()).collect();
    let shown: String = name.chars().take(60).collect();
    let message = format!("`{shown}` is neither a device nor a network");
    let hint = match suggestion(name).or_else(|| did_you_mean(name, networks)) {
        Some(close) => format!("did you mean `{close}`? `shardwright hardware` lists all"),
        None => format!("`shardwright hardware` lists all; {}", describe_your_own()),
    };
    Finding::error("hardware/device", Blame::Usage, shown, message).hint(hint).into()
}

fn file_of(name: &str) -> Outcome {
    let device = load_device(name)?;
    match device.toml().filter(|_| !is_path(name)) {
        Some(text) => Ok(Report::file(text.to_string(), json!({ "name": device.name, "toml": text }))),
        None => {
            let message = format!("`{name}` is a file of yours already");
            Err(Finding::error("hardware/toml", Blame::Usage, name, message).hint("leave --toml out").into())
        }
    }
}

fn every() -> Outcome {
    let (devices, networks) = (Device::all()?, Network::all()?);
    let head = ["device", "memory", "bf16", "fp8", "memory rate", "node", "island", "island link", "network", "host"];
    let mut table = Table::new(&head).right(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).spare(&[&[9], &[5], &[6]]);
    for device in &devices {
        let peak = |format| device.peak(format).map_or(String::new(), |peak| tera(peak.flops));
        let rate = |link: &Option<Link>| link.as_ref().map_or(String::new(), |link| bytes_rate(link.bytes_per_second));
        table.row([
            device.name.clone(),
            Bytes(device.memory_bytes).to_string(),
            peak("bf16"),
            peak("fp8"),
            device.memory_rate.as_ref().map_or(String::new(), |rate| bytes_rate(rate.bytes_per_second)),
            device.devices_per_node.to_string(),
            device.island_devices.to_string(),
            rate(&device.island_link),
            rate(&device.network),
            rate(&device.host_link),
        ]);
    }
    let mut text = heading("Devices (dense TFLOP/s; links one direction, one device; an empty cell is not stated)");
    text += &table.render();
    let mut table = Table::new(&["network", "a device", "latency", "what it is"]).right(&[1, 2]);
    for Network { key, link } in networks {
        table.row([key.clone(), bytes_rate(link.bytes_per_second), micro(link.latency_seconds), link.name.clone()]);
    }
    text += &heading("Networks (behind a cluster: 64xH100@roce400)");
    text += &table.render();
    text +=
        "\n`shardwright hardware NAME` shows every fact with its source; docs/hardware.md says how to write your own\n";
    Ok(Report::new(text, json!({ "devices": devices, "networks": networks })))
}

fn device_text(device: &Device) -> String {
    let curves = device.profile().ok();
    let processor = curves.as_ref().filter(|curves| curves.is_own).and_then(|curves| curves.profile.processor.as_ref());
    let mut facts: Vec<(String, String, &str)> = Vec::new();
    facts.push(("memory".into(), Bytes(device.memory_bytes).to_string(), &device.memory_source));
    let near = format!("{} devices, {} a node", device.island_devices, device.devices_per_node);
    facts.push(("island".into(), near, &device.island_source));
    for peak in &device.peaks {
        facts.push((format!("{} rate", peak.format), format!("{} TFLOP/s", tera(peak.flops)), &peak.source));
    }
    if let Some(rate) = &device.memory_rate {
        facts.push(("memory rate".into(), bytes_rate(rate.bytes_per_second), &rate.source));
    }
    let links = [("island link", &device.island_link), ("network", &device.network), ("host link", &device.host_link)];
    for (what, link) in links {
        if let Some(link) = link {
            facts.push((what.into(), link_words(link), &link.source));
        }
    }
    if let Some(processor) = processor {
        let (usual, least, most) = processor.speed;
        let what = format!(
            "{}: starts operations in {usual} of the time of the host that was measured, {least} to {most}",
            processor.name
        );
        facts.push(("processor".into(), what, &processor.source));
    }
    if let Some(drives) = &device.drives {
        let what = format!(
            "{} of {} a node, each reading {} and writing {}",
            drives.count,
            Bytes(drives.bytes),
            bytes_rate(drives.read_bytes_per_second),
            bytes_rate(drives.write_bytes_per_second)
        );
        facts.push(("drives".into(), what, &drives.source));
    }
    if let Some(power) = &device.power {
        let node = power.node_watts.map_or(String::new(), |watts| format!(", a node {watts} W"));
        facts.push(("power".into(), format!("{} W{node}", power.watts), &power.source));
    }
    if let Some(reserve) = &device.reserve {
        let parts = [
            ("visible", reserve.visible_bytes),
            ("context", reserve.context_bytes),
            ("libraries", reserve.libraries_bytes),
            ("first communicator", reserve.first_communicator_bytes),
            ("each further", reserve.communicator_bytes),
        ];
        let words: Vec<String> = parts.iter().map(|(what, bytes)| format!("{what} {}", Bytes(*bytes))).collect();
        facts.push(("outside".into(), words.join(", "), &reserve.source));
    }
    for host in &device.slices {
        let what = format!(
            "{} on {} ({} chips a host, label {})",
            host.topologies.join(", "),
            host.machine,
            host.chips_per_host,
            host.accelerator
        );
        facts.push(("slices".into(), what, &host.source));
    }
    let mut out = format!(
        "\x1b[1m{}\x1b[0m  {}{}; multiplies in {}\n",
        device.name,
        device.kind_words(),
        assumed(device),
        device.formats.join(", ")
    );
    for (what, value, source) in facts {
        let value = wrap(&value, "               ", 80);
        out += &format!("  {what:<12} {}\x1b[2m{}\x1b[0m", value.trim_start(), wrap(source, "               ", 110));
    }
    out + &unstated(device)
}

/// What its file leaves out and is taken to be usual.
fn assumed(device: &Device) -> String {
    match device.assumed.as_slice() {
        [] => String::new(),
        keys => format!(" (its file does not say {})", keys.join(" and ")),
    }
}

/// What the device does not say, so that nobody reads an absence as a zero.
fn unstated(device: &Device) -> String {
    let mut missing: Vec<String> =
        device.formats.iter().filter(|f| device.peak(f).is_err()).map(|f| format!("{f} rate")).collect();
    let facts = [
        ("memory rate", device.memory_rate.is_none()),
        ("island link", device.island_link.is_none()),
        ("network", device.network.is_none()),
        ("host link", device.host_link.is_none()),
        ("memory outside the allocator", device.reserve.is_none()),
        ("power", device.power.is_none()),
        ("drives", device.drives.is_none()),
    ];
    missing.extend(facts.iter().filter(|(_, is_missing)| *is_missing).map(|(what, _)| what.to_string()));
    if missing.is_empty() { String::new() } else { wrap(&format!("not stated: {}", missing.join(", ")), "  ", 110) }
}

fn network_text(network: &Network) -> String {
    let link = &network.link;
    let source = wrap(&link.source, "  ", 110);
    format!("\x1b[1m{}\x1b[0m  {}\n\x1b[2m{source}\x1b[0m", network.key, link_words(link))
}

fn link_words(link: &Link) -> String {
    format!("{}: {}, {}", link.name, bytes_rate(link.bytes_per_second), micro(link.latency_seconds))
}

/// Operations a second in units of 10^12.
fn tera(flops: f64) -> String {
    format!("{}", (flops / 1e10).round() / 100.0)
}

/// Bytes a second as makers state them: powers of ten.
fn bytes_rate(rate: f64) -> String {
    format!("{} GB/s", (rate / 1e7).round() / 100.0)
}

fn micro(seconds: f64) -> String {
    format!("{} µs", (seconds * 1e8).round() / 100.0)
}
