//! Clusters as typed: how many devices, of which kind, over which network; and which devices are
//! neighbours on the fast fabric.

use crate::{Device, Joined, Network, Slice};
use diag::{Blame, Finding};
use serde::Serialize;

/// A number of equal nodes of one kind of device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// One where fewer devices than a usual node has were asked for.
    pub nodes: u64,
    /// Devices in each.
    pub devices_per_node: u64,
    /// Name of the network between islands: as picked with `@`, or the device's usual one. Absent
    /// where the device has none or states its own.
    pub network: Option<String>,
    /// The devices; their `network` is the one picked.
    pub device: Device,
    /// The slice its TPUs are handed out in, once or several times; absent for other devices.
    pub slice: Option<Slice>,
}

/// A cluster as typed, before its device is looked up: `64x8xH100@roce400`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterText<'a> {
    text: &'a str,
    counts: Vec<u64>,
    /// A built-in device, or the path of a file.
    pub device: &'a str,
    network: Option<&'a str>,
}

/// Most devices that are believed: a larger number is a typo.
const MOST_DEVICES: u64 = 1 << 24;

fn refuse(message: String) -> Finding {
    Finding::error("hardware/cluster", Blame::Usage, "on", message)
        .hint("write devices as `8xH200`, nodes and devices as `64x8xH200`, a network behind them as `64xH100@roce400`")
}

/// Whether a word in a device's place is the path of a file.
pub fn is_path(device: &str) -> bool {
    device.contains(['/', '\\']) || device.ends_with(".toml")
}

impl<'a> ClusterText<'a> {
    /// Takes a cluster apart: at most two counts, a device or a path, and perhaps a network.
    pub fn parse(text: &'a str) -> Result<ClusterText<'a>, Finding> {
        let mut counts = Vec::new();
        let mut rest = text;
        while counts.len() < 2
            && let Some((digits, behind)) = rest.split_once(['x', 'X', '×'])
            && digits.bytes().all(|b| b.is_ascii_digit())
        {
            let number = digits.parse().ok().filter(|n| (1..=MOST_DEVICES).contains(n));
            counts.push(number.ok_or_else(|| refuse(format!("`{text}` has no whole numbers of devices")))?);
            rest = behind;
        }
        let (device, network) = match rest.rsplit_once('@') {
            Some((device, network)) if !is_path(network) => (device, Some(network)),
            _ => (rest, None),
        };
        if !is_path(device) && device.contains('+') {
            let message = format!("`{text}` has several pools of devices, and this takes one");
            let hint = "`plan` and `fit` place a job over pools, each typed with its count: `8x8xH100+4x8xA100`";
            return Err(Finding::error("hardware/mixed", Blame::Usage, "on", message).hint(hint));
        }
        let has_counts = !counts.is_empty() || is_path(device);
        if !has_counts || device.is_empty() {
            return Err(refuse(format!("`{text}` is no cluster")));
        }
        Ok(ClusterText { text, counts, device, network })
    }

    /// The cluster of this device. Without a count, one node of it.
    pub fn on(&self, mut device: Device) -> Result<Cluster, Finding> {
        let text = self.text;
        let usual = device.devices_per_node;
        let sliced = self.slices(&device)?;
        let (nodes, devices_per_node) = match (&sliced, self.counts.as_slice()) {
            (Some((slices, slice)), _) => (slices.saturating_mul(slice.hosts), slice.chips / slice.hosts),
            (None, [nodes, per_node]) => (*nodes, *per_node),
            (None, [devices]) if *devices <= usual => (1, *devices),
            (None, [devices]) if devices.is_multiple_of(usual) => (devices / usual, usual),
            (None, [_, ..]) => return Err(refuse(format!("`{text}` does not fill nodes of {usual}"))),
            (None, []) => (1, usual),
        };
        if nodes.checked_mul(devices_per_node).is_none_or(|n| n > MOST_DEVICES) {
            return Err(refuse(format!("`{text}` has more than {MOST_DEVICES} devices")));
        }
        let network = match self.network {
            Some(key) => {
                let picked = Network::find(key)?;
                device.network = Some(picked.link);
                Some(picked.key)
            }
            None => {
                let usual = Network::all()?.iter().find(|network| Some(&network.link) == device.network.as_ref());
                usual.map(|network| network.key.clone())
            }
        };
        Ok(Cluster { nodes, devices_per_node, network, device, slice: sliced.map(|(_, slice)| slice) })
    }

    /// How many slices, and of which kind, where the device comes in slices: a count is one slice, or
    /// several of the largest; two counts are slices and the chips of each.
    fn slices(&self, device: &Device) -> Result<Option<(u64, Slice)>, Finding> {
        let sizes = device.slice_sizes();
        let Some(&largest) = sizes.last() else { return Ok(None) };
        let (slices, chips) = match self.counts.as_slice() {
            [slices, chips] => (*slices, *chips),
            [chips] if *chips > largest && chips.is_multiple_of(largest) => (chips / largest, largest),
            [chips] => (1, *chips),
            [] => (1, device.devices_per_node),
            _ => return Ok(None),
        };
        let joined = if slices > 1 { Joined::Several } else { Joined::Alone };
        if let Some(slice) = device.slice(chips, joined) {
            return Ok(Some((slices, slice)));
        }
        let (text, name) = (self.text, &device.name);
        let sizes: Vec<u64> = sizes.into_iter().filter(|chips| device.slice(*chips, joined).is_some()).collect();
        let message = match joined {
            Joined::Alone => format!("`{text}`: {name} has no slice of {chips} chips"),
            Joined::Several => format!("`{text}`: {name} has no slices of {chips} chips that can be joined"),
        };
        let example = sizes.iter().copied().find(|n| device.slice(*n, Joined::Several).is_some()).unwrap_or(largest);
        let list = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let hint = format!("a slice has {list} chips; two of one size are written `2x{example}x{name}`");
        Err(Finding::error("hardware/slice", Blame::Usage, "on", message).hint(hint))
    }
}

impl Cluster {
    /// Reads `8xH200` (devices, in nodes of the usual size), `64x8xH200` (nodes × devices), either
    /// with a network (`64x8xH100@roce400`), of a built-in device.
    pub fn parse(text: &str) -> Result<Cluster, Finding> {
        let typed = ClusterText::parse(text)?;
        typed.on(Device::find(typed.device)?)
    }

    /// As it would be typed, of a built-in device.
    pub fn typed(&self) -> String {
        let network = self.network.as_ref().map_or_else(String::new, |key| format!("@{key}"));
        let (count, each) = match &self.slice {
            Some(slice) => (self.nodes / slice.hosts, slice.chips),
            None => (self.nodes, self.devices_per_node),
        };
        format!("{count}x{each}x{}{network}", self.device.name)
    }

    /// Devices in all.
    pub fn devices(&self) -> u64 {
        self.nodes * self.devices_per_node
    }

    /// Nodes that one island spans: one, unless the device's fabric leaves the node, as in an
    /// NVL72 rack (18 trays of 4) or a slice of a TPU pod. Only whole nodes belong to an island.
    pub fn nodes_per_island(&self) -> u64 {
        if let Some(slice) = &self.slice {
            return slice.hosts;
        }
        let device = &self.device;
        if device.island_devices <= device.devices_per_node {
            return 1;
        }
        (device.island_devices / self.devices_per_node).clamp(1, self.nodes)
    }

    /// Consecutive devices of this cluster that reach one another over the fast fabric. The last
    /// island may have fewer.
    pub fn island_devices(&self) -> u64 {
        match self.nodes_per_island() {
            // An island inside a node may be smaller than the node; a rack-scale fabric under
            // nodes larger than itself reaches no further than it does.
            1 => self.device.island_devices.min(self.devices_per_node),
            nodes => nodes * self.devices_per_node,
        }
    }

    /// Islands of this cluster.
    pub fn islands(&self) -> u64 {
        match self.nodes_per_island() {
            1 => self.nodes * self.devices_per_node.div_ceil(self.island_devices()),
            nodes => self.nodes.div_ceil(nodes),
        }
    }

    /// Which island a device is in, counting devices node by node.
    pub fn island_of(&self, device: u64) -> u64 {
        let island = self.island_devices();
        if self.nodes_per_island() > 1 {
            return device / island;
        }
        let (node, place) = (device / self.devices_per_node, device % self.devices_per_node);
        node * self.devices_per_node.div_ceil(island) + place / island
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(text: &str) -> Result<(u64, u64), String> {
        Cluster::parse(text).map(|c| (c.nodes, c.devices_per_node)).map_err(|f| f.message)
    }

    #[test]
    fn clusters_are_read() {
        assert_eq!(shape("8xH200"), Ok((1, 8)));
        assert_eq!(shape("64x8xh200"), Ok((64, 8)));
        assert_eq!(shape("64xH100"), Ok((8, 8)));
        assert_eq!(shape("64×8×H100"), Ok((64, 8)));
        assert_eq!(shape("2xGB10"), Ok((2, 1)));
        assert_eq!(shape("9xH100"), Err("`9xH100` does not fill nodes of 8".to_string()));
        assert_eq!(shape("H200"), Err("`H200` is no cluster".to_string()));
        assert_eq!(shape("8x"), Err("`8x` is no cluster".to_string()));
        assert_eq!(shape("0xH200"), Err("`0xH200` has no whole numbers of devices".to_string()));
        assert_eq!(shape("xH200"), Err("`xH200` has no whole numbers of devices".to_string()));
        assert_eq!(shape("9999999x9xH200"), Err("`9999999x9xH200` has more than 16777216 devices".to_string()));
        assert_eq!(Cluster::parse("8xH100+8xA100").unwrap_err().rule, "hardware/mixed");
        let hint = |text| Cluster::parse(text).unwrap_err().hint.unwrap();
        assert!(hint("8xA100-80GB").starts_with("did you mean `A100`? known are H200"));
        assert!(hint("8xH30").starts_with("known are H200"));
    }

    #[test]
    fn tpus_come_in_slices() {
        let slice = |text: &str| {
            let cluster = Cluster::parse(text).unwrap();
            let slice = cluster.slice.clone().unwrap();
            assert_eq!(Cluster::parse(&cluster.typed()).unwrap(), cluster, "{text}");
            (cluster.islands(), slice.topology, cluster.nodes, cluster.devices_per_node, slice.machine)
        };
        let is = |slices, topology: &str, hosts, chips, machine: &str| {
            (slices, topology.to_string(), hosts, chips, machine.to_string())
        };
        assert_eq!(slice("256xTPU-v5e"), is(1, "16x16", 64, 4, "ct5lp-hightpu-4t"));
        assert_eq!(slice("8xTPU-v5e"), is(1, "2x4", 1, 8, "ct5lp-hightpu-8t"));
        assert_eq!(slice("1xTPU-v6e"), is(1, "1x1", 1, 1, "ct6e-standard-1t"));
        assert_eq!(slice("16xTPUv6e"), is(1, "4x4", 4, 4, "ct6e-standard-4t"));
        assert_eq!(slice("2x8xTPU-v6e"), is(2, "2x4", 4, 4, "ct6e-standard-4t"));
        assert_eq!(slice("512xTPU-v6e"), is(2, "16x16", 128, 4, "ct6e-standard-4t"));
        assert_eq!(slice("64xTPU-v5p"), is(1, "4x4x4", 16, 4, "ct5p-hightpu-4t"));
        let refused = |text: &str| {
            let finding = Cluster::parse(text).unwrap_err();
            assert_eq!(finding.rule, "hardware/slice");
            (finding.message, finding.hint.unwrap())
        };
        let (message, hint) = refused("24xTPU-v5e");
        assert_eq!(message, "`24xTPU-v5e`: TPU-v5e has no slice of 24 chips");
        assert_eq!(hint, "a slice has 1, 4, 8, 16, 32, 64, 128, 256 chips; two of one size are written `2x8xTPU-v5e`");
        assert!(refused("2x4xTPU-v5e").0.contains("that can be joined"));
        assert_eq!(Cluster::parse("8xH200").unwrap().slice, None);
    }

    #[test]
    fn a_network_is_picked_and_named() {
        let usual = Cluster::parse("64x8xH100").unwrap();
        assert_eq!(usual.network.as_deref(), Some("ndr400"));
        let picked = Cluster::parse("64x8xH100@RoCE200").unwrap();
        assert_eq!(picked.network.as_deref(), Some("roce200"));
        assert_eq!(picked.device.network.unwrap().bytes_per_second, 2.5e10);
        assert_eq!(Cluster::parse("256xTPU-v5e").unwrap().network, None, "a device's own");
        assert_eq!(shape("8xH100@ndr40"), Err("unknown network `ndr40`".to_string()));
        assert_eq!(shape("8xH100@"), Err("unknown network ``".to_string()));
    }

    #[test]
    fn paths_stand_where_devices_do() {
        let parts = |text| ClusterText::parse(text).map(|t| (t.counts.clone(), t.device, t.network)).unwrap();
        assert_eq!(parts("8x./box.toml"), (vec![8], "./box.toml", None));
        assert_eq!(parts("4x8x../x@y/box.toml@roce400"), (vec![4, 8], "../x@y/box.toml", Some("roce400")));
        assert_eq!(parts("me@home/box.toml"), (vec![], "me@home/box.toml", None));
        let mut device = Device::find("H100").unwrap();
        device.devices_per_node = 4;
        let one = ClusterText::parse("box.toml").unwrap().on(device).unwrap();
        assert_eq!((one.nodes, one.devices_per_node), (1, 4));
    }

    #[test]
    fn islands_may_span_nodes() {
        let islands = |text: &str| {
            let cluster = Cluster::parse(text).unwrap();
            (cluster.nodes_per_island(), cluster.island_devices(), cluster.islands())
        };
        assert_eq!(islands("128xGB200"), (18, 72, 2));
        assert_eq!(islands("8xGB200"), (2, 8, 1));
        assert_eq!(islands("4xGB300"), (1, 4, 1));
        assert_eq!(islands("64xH100"), (1, 8, 8));
        assert_eq!(islands("2x4xH100"), (1, 4, 2), "a switch inside the box joins no boxes");
        assert_eq!(islands("2x16xH100"), (1, 8, 4), "and reaches half of a larger one");
        assert_eq!(islands("512xTPU-v5e"), (64, 256, 2), "hosts of 4 chips");
        assert_eq!(islands("2x16xTPU-v6e"), (4, 16, 2), "slices are islands, however much a pod could hold");
        assert_eq!(islands("2xGB10"), (1, 1, 2));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = Cluster::parse(&text);
        }

        #[test]
        fn nothing_like_a_cluster_makes_it_panic(
            text in "[0-9]{0,20}[xX×@]{0,2}[0-9]{0,9}[xX×@]{0,2}(H100|GB200|TPU-v5e|\\./a\\.toml|)[@x]{0,2}(roce400|ndr|)"
        ) {
            let _ = Cluster::parse(&text);
        }

        #[test]
        fn islands_cover_every_device_once(nodes in 1u64..200, per_node in 1u64..100, which in 0..Device::names().count()) {
            let device = Device::all().unwrap().swap_remove(which);
            let cluster = Cluster { nodes, devices_per_node: per_node, network: None, device, slice: None };
            let mut sizes = vec![0; cluster.islands() as usize];
            for device in 0..cluster.devices() {
                sizes[cluster.island_of(device) as usize] += 1;
            }
            prop_assert!(sizes.iter().all(|n| (1..=cluster.island_devices()).contains(n)));
            prop_assert!(cluster.island_devices() <= cluster.device.island_devices);
        }
    }
}
