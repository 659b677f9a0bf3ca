//! Devices, networks and clusters, each fact with its source. Knows sizes and neighbourhoods; knows
//! no model and no layout.

mod calibration;
mod cluster;
mod kind;
mod network;
mod pools;
mod profile;
mod read;
mod suggest;

pub use calibration::{Calibration, Factor, Headroom, RANGE, Term};
pub use cluster::{Cluster, ClusterText, is_path};
pub use kind::{Kind, Slice, SliceHost, Vendor};
pub use network::Network;
pub use pools::{MOST_POOLS, check_pools, split_pools};
pub use profile::{
    AttentionCurve, Calibrated, CollectiveCurve, GemmCurve, HostCurve, LinkCurve, MemoryCurve, PowerCurve, Profile,
    Protocol, RecurrenceCurve, ScanCurve, Started, StreamRates, SwitchCurve, TokenCurve,
};
pub use read::FORMATS;
pub use suggest::{describe_your_own, suggestion};

use diag::{Blame, Finding};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;
use units::named;

/// One accelerator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// As typed in a cluster.
    pub name: String,
    /// What kind of accelerator it is.
    #[serde(default)]
    pub kind: Kind,
    /// Who makes it.
    #[serde(default)]
    pub vendor: Vendor,
    /// Keys of its file that were left out and taken to be the usual ones.
    #[serde(default)]
    pub assumed: Vec<String>,
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
    pub peaks: Vec<Peak>,
    /// Bandwidth of its own memory.
    pub memory_rate: Option<Rate>,
    /// Link to the other devices of its island, in one direction.
    pub island_link: Option<Link>,
    /// This device's share of the link to other islands, in one direction.
    pub network: Option<Link>,
    /// Link to the memory of its host, in one direction.
    pub host_link: Option<Link>,
    /// The memory of a node's host; none where the maker names no usual node.
    pub host: Option<Host>,
    /// The drives of a node; none where nobody says, since a maker's node names no drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drives: Option<Drives>,
    /// What a process holds outside its allocator; measured where somebody has measured it.
    pub reserve: Option<Reserve>,
    /// What it draws; none where its maker does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Power>,
    /// The slices TPUs are handed out in; none for other devices.
    #[serde(default)]
    pub slices: Vec<SliceHost>,
    /// What receipts of one's own say of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// The highest rate of the matrix units in one number format, without sparsity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Number format of the factors.
    pub format: String,
    /// Operations a second, a multiply and an add being two.
    pub flops: f64,
    /// Where the figure comes from.
    pub source: String,
}

/// A bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// As its maker states it. A [`Profile`] says how much of it is reached.
    pub bytes_per_second: f64,
    /// Where the figure comes from.
    pub source: String,
}

/// A link to another memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its name, such as `NVLink 4`.
    pub name: String,
    /// One direction, one device's share.
    pub bytes_per_second: f64,
    /// From the start of a transfer to its first byte.
    pub latency_seconds: f64,
    /// How a network is built above its ports; none where every device reaches every other at its full rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// How it joins ports of one number; none where a port's number makes no difference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Rails>,
    /// Process groups whose sums its switches form at once (SHARP); none where devices add up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharp_groups: Option<u64>,
    /// Where the figures come from.
    pub source: String,
}

/// Port `i` of every node hangs on rail `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rails {
    /// What joins one rail to another.
    pub joined: RailsJoined,
    /// Whether a device hands what goes to another rail to its neighbour there, over the island (NCCL's PXN,
    /// `NCCL_PXN_DISABLE`).
    pub pxn: bool,
}

named! {
    /// What joins the rails of a network.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RailsJoined {
        /// Spine switches.
        Optimised = "optimised",
        /// Nothing (Wang et al., "Rail-only", arXiv 2307.12169).
        Only = "only",
    }
}

/// The levels of a network: pods inside which it does not block, and what it leaves between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// Consecutive devices of a pod, a two-level island, or all that hang on one set of rails.
    pub pod_devices: u64,
    /// Of what the ports of a pod carry together, the share that leaves it: a taper of 7 to 1 is 1/7.
    pub leaves: f64,
}

/// The host of a node, as its devices are usually sold. What a machine really has is for `preflight`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Its memory, for all devices of the node together.
    pub memory_bytes: u64,
    /// What its memory channels move, all sockets together.
    pub bytes_per_second: f64,
    /// Where the figures come from.
    pub source: String,
}

/// The local drives of a node, which its devices share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drives {
    /// Drives that data is striped over.
    pub count: u64,
    /// Room on each.
    pub bytes: u64,
    /// What each reads, in large blocks.
    pub read_bytes_per_second: f64,
    /// What each writes, for as long as a step takes.
    pub write_bytes_per_second: f64,
    /// Where the figures come from.
    pub source: String,
}

/// What a device draws, as its maker limits it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// The device alone.
    pub watts: f64,
    /// A node with all its devices, where its maker names one.
    pub node_watts: Option<f64>,
    /// Where the figures come from.
    pub source: String,
}

/// Memory of a device that the allocator never gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reserve {
    /// What `cudaMemGetInfo` reports as the total.
    pub visible_bytes: u64,
    /// CUDA context of a process.
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

/// A reserve, and whether it was measured on this device.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// The figures.
    pub reserve: Reserve,
    /// False where the H200's figures stand in for those of this device.
    pub is_measured: bool,
}

const DEVICES: &[(&str, &str)] = &[
    ("H200", include_str!("../../../data/hardware/h200.toml")),
    ("H100", include_str!("../../../data/hardware/h100.toml")),
    ("A100", include_str!("../../../data/hardware/a100.toml")),
    ("A100-40G", include_str!("../../../data/hardware/a100_40g.toml")),
    ("B200", include_str!("../../../data/hardware/b200.toml")),
    ("B300", include_str!("../../../data/hardware/b300.toml")),
    ("GB200", include_str!("../../../data/hardware/gb200.toml")),
    ("GB300", include_str!("../../../data/hardware/gb300.toml")),
    ("GB10", include_str!("../../../data/hardware/gb10.toml")),
    ("H800", include_str!("../../../data/hardware/h800.toml")),
    ("H20", include_str!("../../../data/hardware/h20.toml")),
    ("A800", include_str!("../../../data/hardware/a800.toml")),
    ("L40S", include_str!("../../../data/hardware/l40s.toml")),
    ("RTX-4090", include_str!("../../../data/hardware/rtx_4090.toml")),
    ("RTX-5090", include_str!("../../../data/hardware/rtx_5090.toml")),
    ("RTX-PRO-6000", include_str!("../../../data/hardware/rtx_pro_6000.toml")),
    ("V100", include_str!("../../../data/hardware/v100.toml")),
    ("MI300X", include_str!("../../../data/hardware/mi300x.toml")),
    ("MI325X", include_str!("../../../data/hardware/mi325x.toml")),
    ("MI355X", include_str!("../../../data/hardware/mi355x.toml")),
    ("Gaudi-3", include_str!("../../../data/hardware/gaudi3.toml")),
    ("TPU-v4", include_str!("../../../data/hardware/tpu_v4.toml")),
    ("TPU-v5e", include_str!("../../../data/hardware/tpu_v5e.toml")),
    ("TPU-v5p", include_str!("../../../data/hardware/tpu_v5p.toml")),
    ("TPU-v6e", include_str!("../../../data/hardware/tpu_v6e.toml")),
    ("TPU-v7", include_str!("../../../data/hardware/tpu_v7.toml")),
];

impl Device {
    /// The built-in device of this name, whatever its case and dashes.
    pub fn find(name: &str) -> Result<Device, Finding> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        let Some((known, text)) = DEVICES.iter().find(|(known, _)| plain(known) == plain(name)) else {
            let names = Device::names().collect::<Vec<_>>().join(", ");
            let hint = match suggestion(name) {
                Some(close) => format!("did you mean `{close}`? known are {names}"),
                None => format!("known are {names}; {}", describe_your_own()),
            };
            let shown: String = name.chars().take(60).collect();
            let message = format!("unknown device `{shown}`");
            return Err(Finding::error("hardware/device", Blame::Usage, shown, message).hint(hint));
        };
        Device::parse(text).map_err(|findings| {
            let why = findings.first().map_or("unreadable", |finding| finding.message.as_str());
            Finding::error("hardware/file", Blame::Bug, *known, why)
        })
    }

    /// The file of a built-in device, to start one's own from.
    pub fn toml(&self) -> Option<&'static str> {
        DEVICES.iter().find(|(known, _)| *known == self.name).map(|(_, text)| *text)
    }

    /// Names of the built-in devices.
    pub fn names() -> impl Iterator<Item = &'static str> {
        DEVICES.iter().map(|(name, _)| *name)
    }

    /// The built-in devices.
    pub fn all() -> Result<Vec<Device>, Finding> {
        Device::names().map(Device::find).collect()
    }
}

/// Where a link leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the devices of its island.
    Island,
    /// To other islands.
    Network,
    /// To its host's memory.
    Host,
}

impl Device {
    /// The slice of so many chips, on the fewest hosts; among several, only slices of more than one host
    /// can be joined (Google Cloud, "Deploy TPU Multislices in GKE": multi-host node pools only).
    pub fn slice(&self, chips: u64, joined: Joined) -> Option<Slice> {
        let is_one = |slice: &Slice| slice.chips == chips && (joined == Joined::Alone || slice.hosts > 1);
        self.slices.iter().flat_map(SliceHost::slices).filter(is_one).min_by_key(|slice| slice.hosts)
    }

    /// Sizes of its slices, rising.
    pub fn slice_sizes(&self) -> Vec<u64> {
        let sizes: std::collections::BTreeSet<u64> =
            self.slices.iter().flat_map(SliceHost::slices).map(|slice| slice.chips).collect();
        sizes.into_iter().collect()
    }

    /// What it is, in a sentence: `H200 is an NVIDIA GPU`.
    pub fn kind_words(&self) -> &'static str {
        match self.vendor {
            Vendor::Nvidia => "an NVIDIA GPU",
            Vendor::Amd => "an AMD GPU",
            Vendor::Intel => "an Intel accelerator",
            Vendor::Google => "a TPU",
        }
    }
}

/// Whether a slice stands alone or among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// The whole job.
    Alone,
    /// One of several over the data centre's network.
    Several,
}

/// A figure that a device file does not state is refused by its name: unknown is not zero.
impl Device {
    /// The dense rate of its matrix units in this format.
    pub fn peak(&self, format: &str) -> Result<&Peak, Finding> {
        let found = self.peaks.iter().find(|peak| peak.format == format);
        found.ok_or_else(|| self.unknown(&format!("how fast it multiplies in {format}"), "[[peaks]]"))
    }

    /// The rate of its own memory.
    pub fn known_memory_rate(&self) -> Result<&Rate, Finding> {
        self.memory_rate.as_ref().ok_or_else(|| self.unknown("how fast its memory is", "[memory_rate]"))
    }

    /// The drives of its node.
    pub fn known_drives(&self) -> Result<&Drives, Finding> {
        self.drives.as_ref().ok_or_else(|| self.unknown("how many drives a node has and what they move", "[drives]"))
    }

    /// The link that goes this way.
    pub fn link(&self, way: Way) -> Result<&Link, Finding> {
        let (link, what, key) = match way {
            Way::Island => (&self.island_link, "how fast it reaches its island", "[island_link]"),
            Way::Network => (&self.network, "how fast it reaches other islands", "[network]"),
            Way::Host => (&self.host_link, "how fast it reaches its host's memory", "[host_link]"),
        };
        link.as_ref().ok_or_else(|| self.unknown(what, key))
    }

    fn unknown(&self, what: &str, key: &str) -> Finding {
        let message = format!("{} does not say {what}", self.name);
        let hint =
            format!("start a file from `shardwright hardware {} --toml`, and add `{key}` with its source", self.name);
        Finding::error("hardware/unknown-fact", Blame::Environment, self.name.clone(), message).hint(hint)
    }
}

impl Device {
    /// What it draws with its part of a node, where that is stated, or alone.
    pub fn watts(&self) -> Option<f64> {
        let power = self.power.as_ref()?;
        Some(power.node_watts.map_or(power.watts, |node| node / self.devices_per_node.max(1) as f64))
    }

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
                // Read once: a search asks for every layout it prices.
                static BORROWED: LazyLock<Reserve> = LazyLock::new(|| {
                    Device::find("H200").ok().and_then(|device| device.reserve).unwrap_or_else(Reserve::nothing)
                });
                Outside { reserve: BORROWED.clone(), is_measured: false }
            }
        }
    }
}

#[cfg(test)]
mod tests;
