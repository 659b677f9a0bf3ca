//! The table of devices in docs/fleets.md says what their files say.

use hardware::{Device, Kind};

const PAGE: &str = include_str!("../../../../docs/fleets.md");

fn curves(device: &Device) -> String {
    match device.profile() {
        Ok(found) if found.is_own => "its own".to_string(),
        Ok(found) => format!("{}'s", found.profile.device),
        Err(_) => "none: no price".to_string(),
    }
}

/// Of formats, bf16 where there is one.
fn peak(device: &Device) -> String {
    let peak = device.peak("bf16").ok().or(device.peaks.first()).expect("a peak");
    let tera = (peak.flops / 1e11).round() / 10.0;
    let digits = usize::from(tera.fract() != 0.0);
    format!("{tera:.digits$} ({})", peak.format)
}

#[test]
fn every_device_stands_in_the_table_with_its_source() {
    let devices = Device::all().unwrap();
    let rows: Vec<&str> =
        PAGE.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 4).collect();
    assert_eq!(rows.len(), devices.len() + 1, "a row a device, below the head");
    for (device, row) in devices.iter().zip(&rows[1..]) {
        let source = device.memory_source.split(':').next().unwrap();
        let gib = device.memory_bytes as f64 / f64::from(1 << 30);
        let wanted = format!("| {} | {gib:.1} | {source} | {} | {} |", device.name, peak(device), curves(device));
        assert_eq!(*row, wanted);
    }
}

/// Devices that were asked for by name, and what each says where it was left out.
#[test]
fn every_figure_has_a_source_and_what_has_none_is_refused() {
    for name in
        ["H20", "H800", "A800", "L40S", "RTX-4090", "RTX-5090", "RTX-PRO-6000", "V100", "MI300X", "MI325X", "MI355X"]
            .iter()
            .chain(&["GB200", "GB300", "Gaudi-3", "TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e", "TPU-v7"])
    {
        let device = Device::find(name).unwrap();
        assert!(!device.memory_source.is_empty() && device.peaks.iter().all(|peak| peak.source.len() > 10), "{name}");
        let links = [&device.island_link, &device.network, &device.host_link];
        assert!(links.into_iter().flatten().all(|link| link.source.len() > 10), "{name}");
        assert_eq!(device.kind == Kind::Tpu, name.starts_with("TPU"), "{name}");
    }
}
