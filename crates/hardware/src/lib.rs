//! Devices and clusters, each fact with its source. Knows sizes and neighbourhoods; knows no
//! model and no layout.

mod profile;

pub use profile::{
    AttentionCurve, Calibrated, CollectiveCurve, GemmCurve, LaunchCurve, MemoryCurve, Profile, RecurrenceCurve,
    ScanCurve,
};

use diag::{Blame, Finding, did_you_mean};
use serde::{Deserialize, Serialize};

/// One accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// As typed in a cluster.
    pub name: String,
    /// Physical memory. Not a budget: context, reserve and fragmentation come off it.
    pub memory_bytes: u64,
    /// Where the figure comes from.
    pub memory_source: String,
    /// Formats its matrix units multiply in.
    pub formats: Vec<String>,
    /// Devices a node usually has.
    pub devices_per_node: u64,
    /// Devices that reach one another over the fast fabric.
    pub island_devices: u64,
    /// Where that comes from.
    pub island_source: String,
    /// Dense rates of its matrix units, one a format.
    #[serde(default)]
    pub peaks: Vec<Peak>,
    /// Its own memory, read or written.
    pub memory_rate: Option<Rate>,
    /// To the other devices of its island, one direction.
    pub island_link: Option<Link>,
    /// To other islands, one direction, this device's share.
    pub network: Option<Link>,
    /// To the memory of its host, one direction.
    pub host_link: Option<Link>,
    /// What a process holds outside its allocator; measured where somebody has measured it.
    pub reserve: Option<Reserve>,
}

/// The most that matrix units do in one format, without sparsity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peak {
    /// Format of the factors.
    pub format: String,
    /// Operations a second, a multiply and an add being two.
    pub flops: f64,
    /// Where the figure comes from.
    pub source: String,
}

/// Bytes a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// As the maker states it; what is reached of it is a profile's to say.
    pub bytes_per_second: f64,
    /// Where the figure comes from.
    pub source: String,
}

/// A way to another memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What it is.
    pub name: String,
    /// One direction, one device's share.
    pub bytes_per_second: f64,
    /// Before the first byte arrives.
    pub latency_seconds: f64,
    /// Where the figures come from.
    pub source: String,
}

/// Memory that no tensor is in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// Memory a process can see at all.
    pub visible_bytes: u64,
    /// The device context.
    pub context_bytes: u64,
    /// Library handles and loaded kernels.
    pub libraries_bytes: u64,
    /// The first communicator.
    pub first_communicator_bytes: u64,
    /// Each further communicator.
    pub communicator_bytes: u64,
    /// Where the figures come from.
    pub source: String,
}

impl Reserve {
    fn nothing() -> Reserve {
        Reserve {
            visible_bytes: 0,
            context_bytes: 0,
            libraries_bytes: 0,
            first_communicator_bytes: 0,
            communicator_bytes: 0,
            source: "unknown".to_string(),
        }
    }
}

/// A reserve, and whether it was read off this very device.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// The figures.
    pub reserve: Reserve,
    /// Whether they are this device's own.
    pub is_measured: bool,
}

/// A number of equal nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u64,
    /// Devices in each.
    pub devices_per_node: u64,
    /// What they are.
    pub device: Device,
}

const DEVICES: &[(&str, &str)] = &[
    ("H200", include_str!("../../../data/hardware/h200.toml")),
    ("H100", include_str!("../../../data/hardware/h100.toml")),
    ("A100", include_str!("../../../data/hardware/a100.toml")),
    ("B200", include_str!("../../../data/hardware/b200.toml")),
];

/// Devices a cluster may have; beyond it a typo is likelier.
const MOST_DEVICES: u64 = 1 << 24;

impl Device {
    /// The built-in device of this name, whatever its case.
    pub fn find(name: &str) -> Result<Device, Finding> {
        let known = DEVICES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((_, text)) = known else {
            let message = format!("unknown device `{name}`");
            let names = DEVICES.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
            let hint = match did_you_mean(name, DEVICES.iter().map(|(known, _)| *known)) {
                Some(close) => format!("did you mean `{close}`? known are {names}"),
                None => format!("known are {names}"),
            };
            return Err(Finding::error("hardware/device", Blame::Usage, name, message).hint(hint));
        };
        toml::from_str(text).map_err(|e| Finding::error("hardware/file", Blame::Bug, name, e.message().to_string()))
    }
}

impl Device {
    /// Memory a process can see: what the driver reports, or the physical size where nobody has
    /// read it.
    pub fn visible_bytes(&self) -> u64 {
        self.reserve.as_ref().map_or(self.memory_bytes, |reserve| reserve.visible_bytes)
    }

    /// What a process holds outside its allocator: measured here, or the H200's where nobody has.
    pub fn outside(&self) -> Outside {
        match &self.reserve {
            Some(reserve) => Outside { reserve: reserve.clone(), is_measured: true },
            None => {
                let borrowed = Device::find("H200").ok().and_then(|device| device.reserve);
                Outside { reserve: borrowed.unwrap_or_else(Reserve::nothing), is_measured: false }
            }
        }
    }
}

impl Cluster {
    /// Reads `8xH200` (devices, in nodes of the usual size) or `64x8xH200` (nodes × devices).
    pub fn parse(text: &str) -> Result<Cluster, Finding> {
        let refuse = |message: String| {
            Finding::error("hardware/cluster", Blame::Usage, "on", message)
                .hint("write devices as `8xH200`, or nodes and devices as `64x8xH200`")
        };
        let parts: Vec<&str> = text.split(['x', 'X', '×']).collect();
        let number = |part: &str| part.parse::<u64>().ok().filter(|n| (1..=MOST_DEVICES).contains(n));
        let (counts, name) = match parts.as_slice() {
            [n, name] => (vec![number(n)], *name),
            [n, m, name] => (vec![number(n), number(m)], *name),
            _ => return Err(refuse(format!("`{text}` is no cluster"))),
        };
        let counts: Option<Vec<u64>> = counts.into_iter().collect();
        let Some(counts) = counts else { return Err(refuse(format!("`{text}` has no whole numbers of devices"))) };
        let device = Device::find(name)?;
        let (nodes, per_node) = match counts.as_slice() {
            [nodes, per_node] => (*nodes, *per_node),
            [devices] if *devices <= device.devices_per_node => (1, *devices),
            [devices] if devices.is_multiple_of(device.devices_per_node) => {
                (devices / device.devices_per_node, device.devices_per_node)
            }
            _ => {
                let message = format!("`{text}` does not fill nodes of {}", device.devices_per_node);
                return Err(refuse(message));
            }
        };
        if nodes.checked_mul(per_node).is_none_or(|n| n > MOST_DEVICES) {
            return Err(refuse(format!("`{text}` has more than {MOST_DEVICES} devices")));
        }
        Ok(Cluster { nodes, devices_per_node: per_node, device })
    }

    /// Devices in all.
    pub fn devices(&self) -> u64 {
        self.nodes * self.devices_per_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_read() {
        let shape = |text| Cluster::parse(text).map(|c| (c.nodes, c.devices_per_node)).map_err(|f| f.message);
        assert_eq!(shape("8xH200"), Ok((1, 8)));
        assert_eq!(shape("64x8xh200"), Ok((64, 8)));
        assert_eq!(shape("64xH100"), Ok((8, 8)));
        assert_eq!(shape("9xH100"), Err("`9xH100` does not fill nodes of 8".to_string()));
        assert_eq!(shape("H200"), Err("`H200` is no cluster".to_string()));
        assert_eq!(shape("0xH200"), Err("`0xH200` has no whole numbers of devices".to_string()));
        assert_eq!(
            Cluster::parse("8xH20").unwrap_err().hint.unwrap(),
            "did you mean `H200`? known are H200, H100, A100, B200"
        );
    }

    #[test]
    fn every_device_reads_and_names_its_sources() {
        for (name, _) in DEVICES {
            let device = Device::find(name).unwrap();
            assert!(!device.memory_source.is_empty() && device.memory_bytes > 1 << 30);
        }
    }
}
