//! Device and network files, read by hand so that every mistake is answered where it stands. The
//! same reader serves the built-in files and those users write. Reads texts, never files.

use crate::calibration::{Calibration, Factor, Headroom, RANGE, Term};
use crate::kind::chips_of;
use crate::network::Network;
use crate::{
    Device, Drives, Host, Kind, Link, Peak, Power, Rails, RailsJoined, Rate, Reserve, SliceHost, Tier, Vendor,
};
use diag::{Blame, Finding};
use reading::{Dialect, Section, read_text};

/// How a device file's mistakes are worded.
static DEVICE: Dialect = Dialect { whole: "the device file", ..WORDS };

/// How mistakes of the list of networks are worded.
static NETWORKS: Dialect = Dialect { whole: "the list of networks", ..WORDS };

const WORDS: Dialect = Dialect {
    whole: "the file",
    blame: Blame::Environment,
    most_bytes: 1 << 18,
    syntax: "hardware/syntax",
    text: "hardware/text",
    wrong_type: "hardware/type",
    missing_key: "hardware/missing-key",
    limit: "hardware/limit",
    choice: "hardware/choice",
    unknown_key: "hardware/unknown-key",
};

/// Memory a device may have: far above any, and low enough that sums never overflow.
const MOST_BYTES: u64 = 1 << 50;

/// Receipts that a calibration may be made of.
const MOST_RECEIPTS: u64 = 1 << 40;

/// Devices a node or an island may have.
const MOST_DEVICES: u64 = 1 << 20;

/// Formats a device may name. A word outside the list would never match what a layout asks for.
pub const FORMATS: &[&str] = &["bf16", "fp16", "tf32", "fp32", "fp8", "mxfp8", "nvfp4", "int8"];

impl Device {
    /// Reads a device file. Every mistake is reported, each where it stands.
    pub fn parse(text: &str) -> Result<Device, Vec<Finding>> {
        read_text(text, &DEVICE, device).map(|(device, _)| device)
    }
}

/// Reads a list of networks.
pub(crate) fn networks(text: &str) -> Result<Vec<Network>, Vec<Finding>> {
    let read = |mut root: Section| {
        let read: Vec<Option<Network>> = root.sections("network").into_iter().map(network).collect();
        root.finish();
        read.into_iter().collect()
    };
    read_text(text, &NETWORKS, read).map(|(networks, _)| networks)
}

fn device(mut root: Section) -> Option<Device> {
    let name = name(&mut root);
    let assumed: Vec<String> =
        ["kind", "vendor"].into_iter().filter(|key| !root.has(key)).map(str::to_string).collect();
    let kind = root.choice("kind", Kind::ALL, Kind::Gpu);
    let vendor = root.choice("vendor", Vendor::ALL, kind.usual_vendor());
    let memory_bytes = root.count("memory_bytes", MOST_BYTES);
    let memory_source = source(&mut root, "memory_source");
    let formats = formats(&mut root);
    let devices_per_node = root.count("devices_per_node", MOST_DEVICES);
    let island_devices = root.count("island_devices", MOST_DEVICES);
    let island_source = source(&mut root, "island_source");
    // Every table is read before any is given up on, so that no mistake waits for another.
    let peaks: Vec<Option<Peak>> = root.sections("peaks").into_iter().map(peak).collect();
    let memory_rate = optional(root.section("memory_rate"), rate);
    let island_link = optional(root.section("island_link"), link);
    let network = device_network(&mut root);
    let host_link = optional(root.section("host_link"), link);
    let host = optional(root.section("host"), host);
    let drives = optional(root.section("drives"), drives);
    let reserve = optional(root.section("reserve"), reserve);
    let power = optional(root.section("power"), power);
    let slices: Vec<Option<SliceHost>> = root.sections("slices").into_iter().map(slice_host).collect();
    let calibration = optional(root.section("calibration"), calibration);
    let device = (|| {
        Some(Device {
            name: name?,
            kind,
            vendor,
            assumed,
            memory_bytes: memory_bytes?,
            memory_source: memory_source?,
            formats: formats?,
            devices_per_node: devices_per_node?,
            island_devices: island_devices?,
            island_source: island_source?,
            peaks: peaks.into_iter().collect::<Option<Vec<_>>>()?,
            memory_rate: memory_rate?,
            island_link: island_link?,
            network: network?,
            host_link: host_link?,
            host: host?,
            drives: drives?,
            reserve: reserve?,
            power: power?,
            slices: slices.into_iter().collect::<Option<Vec<_>>>()?,
            calibration: calibration?,
        })
    })();
    if let Some(device) = &device {
        whole_device(&root, device);
    }
    root.finish();
    device
}

/// What only the whole file shows: a rate a format at most, of formats that are listed; an island
/// that is a node, a part of one, or whole nodes; no more memory visible than there is.
fn whole_device(root: &Section, device: &Device) {
    let refuse = |key: &str, message: String| {
        root.report(key, Finding::error("hardware/consistency", Blame::Environment, key, message));
    };
    for (i, peak) in device.peaks.iter().enumerate() {
        if !device.formats.contains(&peak.format) {
            refuse("peaks", format!("a rate of `{}` stands here, and `formats` does not list it", peak.format));
        }
        if device.peaks[..i].iter().any(|other| other.format == peak.format) {
            refuse("peaks", format!("`{}` has two rates", peak.format));
        }
    }
    if device.vendor.kind() != device.kind {
        let message = format!("{} makes no {}", device.vendor, device.kind);
        refuse("vendor", message);
    }
    if device.kind != Kind::Tpu && !device.slices.is_empty() {
        refuse("slices", "slices are of TPUs, and `kind` is not `tpu`".to_string());
    }
    let (island, node) = (device.island_devices, device.devices_per_node);
    if !island.is_multiple_of(node) && !node.is_multiple_of(island) {
        let message = format!("islands of {island} and nodes of {node} do not fit into one another");
        refuse("island_devices", message);
    }
    if device.reserve.as_ref().is_some_and(|reserve| reserve.visible_bytes > device.memory_bytes) {
        refuse(
            "reserve",
            "`visible_bytes` is more than `memory_bytes`: a process sees no more than there is".to_string(),
        );
    }
}

/// An optional table: left out is `Some(None)`, wrong is `None`.
fn optional<'a, T>(section: Option<Section<'a>>, read: impl Fn(Section<'a>) -> Option<T>) -> Option<Option<T>> {
    match section {
        None => Some(None),
        Some(section) => read(section).map(Some),
    }
}

/// A name that can be typed in a cluster and printed on a terminal.
fn name(section: &mut Section) -> Option<String> {
    let text = section.required_text("name")?;
    let is_plain = !text.trim().is_empty() && text.len() <= 64;
    if !is_plain {
        let message = "`name` must be one line of at most 64 bytes".to_string();
        section.report("name", Finding::error("hardware/name", Blame::Environment, "name", message));
    }
    is_plain.then(|| text.to_string())
}

/// Where a figure comes from; an empty text is no source.
fn source(section: &mut Section, key: &'static str) -> Option<String> {
    let text = section.required_text(key)?;
    let is_said = !text.trim().is_empty();
    if !is_said {
        let message = format!("`{key}` is empty: say where the figure comes from, if only `measured here`");
        section.report(key, Finding::error("hardware/source", Blame::Environment, key, message));
    }
    is_said.then(|| text.to_string())
}

fn formats(root: &mut Section) -> Option<Vec<String>> {
    if !root.has("formats") {
        // Words that may be left out do not report their absence; a device multiplies in something.
        root.words("formats");
        let message = "the device file lacks `formats`, a list of texts".to_string();
        root.report("formats", Finding::error("hardware/missing-key", Blame::Environment, "formats", message));
        return None;
    }
    let words = root.words("formats")?;
    let known: Vec<Option<String>> = words.iter().map(|word| format_word(root, "formats", word)).collect();
    known.into_iter().collect()
}

fn format_word(section: &Section, key: &str, word: &str) -> Option<String> {
    if FORMATS.contains(&word) {
        return Some(word.to_string());
    }
    let shown: String = word.chars().take(24).collect();
    let hint = match diag::did_you_mean(word, FORMATS.iter().copied()) {
        Some(close) => format!("did you mean `{close}`? known are {}", FORMATS.join(", ")),
        None => format!("known are {}", FORMATS.join(", ")),
    };
    let finding = Finding::error("hardware/choice", Blame::Environment, key, format!("unknown format `{shown}`"));
    section.report(key, finding.hint(hint));
    None
}

fn peak(mut section: Section) -> Option<Peak> {
    let word = section.required_text("format");
    let format = word.and_then(|word| format_word(&section, "format", word));
    let flops = section.required_positive("flops");
    let source = source(&mut section, "source");
    section.finish();
    Some(Peak { format: format?, flops: flops?, source: source? })
}

fn rate(mut section: Section) -> Option<Rate> {
    let bytes_per_second = section.required_positive("bytes_per_second");
    let source = source(&mut section, "source");
    section.finish();
    Some(Rate { bytes_per_second: bytes_per_second?, source: source? })
}

fn power(mut section: Section) -> Option<Power> {
    let watts = section.required_positive("watts");
    let node_watts =
        if section.has("node_watts") { section.required_positive("node_watts").map(Some) } else { Some(None) };
    let source = source(&mut section, "source");
    section.finish();
    Some(Power { watts: watts?, node_watts: node_watts?, source: source? })
}

fn host(mut section: Section) -> Option<Host> {
    let memory_bytes = section.count("memory_bytes", MOST_BYTES);
    let bytes_per_second = section.required_positive("bytes_per_second");
    let source = source(&mut section, "source");
    section.finish();
    Some(Host { memory_bytes: memory_bytes?, bytes_per_second: bytes_per_second?, source: source? })
}

fn drives(mut section: Section) -> Option<Drives> {
    let (count, bytes) = (section.count("count", MOST_DEVICES), section.count("bytes", MOST_BYTES));
    let read_bytes_per_second = section.required_positive("read_bytes_per_second");
    let write_bytes_per_second = section.required_positive("write_bytes_per_second");
    let source = source(&mut section, "source");
    section.finish();
    Some(Drives {
        count: count?,
        bytes: bytes?,
        read_bytes_per_second: read_bytes_per_second?,
        write_bytes_per_second: write_bytes_per_second?,
        source: source?,
    })
}

fn link(mut section: Section) -> Option<Link> {
    let link = link_facts(&mut section);
    section.finish();
    link
}

fn link_facts(section: &mut Section) -> Option<Link> {
    let name = name(section);
    let bytes_per_second = section.required_positive("bytes_per_second");
    let latency_seconds = section.required_positive("latency_seconds");
    let source = source(section, "source");
    let tier = optional(section.section("tier"), tier);
    let (bytes_per_second, latency_seconds) = (bytes_per_second?, latency_seconds?);
    let (rails, sharp_groups) = (None, None);
    Some(Link { name: name?, bytes_per_second, latency_seconds, tier: tier?, rails, sharp_groups, source: source? })
}

/// A link between islands, which may have rails and switches that add up.
fn network_facts(section: &mut Section) -> Option<Link> {
    let link = link_facts(section);
    let rails = rails(section);
    let sharp =
        if section.has("sharp_groups") { section.count("sharp_groups", MOST_DEVICES).map(Some) } else { Some(None) };
    if section.has("sharp_groups") && rails.is_none() {
        let message = "`sharp_groups` needs `rails`: switches add up one flow a rail".to_string();
        let hint = "NCCL-RDMA-SHARP asks for leaf switches that join the same port of every node";
        let finding = Finding::error("hardware/consistency", Blame::Environment, "sharp_groups", message);
        section.report("sharp_groups", finding.hint(hint));
        return None;
    }
    Some(Link { rails, sharp_groups: sharp?, ..link? })
}

fn rails(section: &mut Section) -> Option<Rails> {
    if !section.has("rails") {
        if section.has("pxn") {
            let message = "`pxn` says how rails are changed, and `rails` is not said".to_string();
            section.report("pxn", Finding::error("hardware/consistency", Blame::Environment, "pxn", message));
            section.flag_or("pxn", true);
        }
        return None;
    }
    let joined = section.choice("rails", RailsJoined::ALL, RailsJoined::Optimised);
    Some(Rails { joined, pxn: section.flag_or("pxn", true) })
}

fn network_link(mut section: Section) -> Option<Link> {
    let link = network_facts(&mut section);
    section.finish();
    link
}

fn tier(mut section: Section) -> Option<Tier> {
    let pod_devices = section.count("pod_devices", MOST_DEVICES);
    let leaves = section.required_positive("leaves").filter(|share| {
        let is_share = *share <= 1.0;
        if !is_share {
            let message = format!("`leaves` is {share}, and no more than all of a pod's rate leaves it");
            section.report("leaves", Finding::error("hardware/limit", Blame::Environment, "leaves", message));
        }
        is_share
    });
    section.finish();
    Some(Tier { pod_devices: pod_devices?, leaves: leaves? })
}

/// `network = "ndr400"` names one of the built-in networks; `[network]` states one.
fn device_network(root: &mut Section) -> Option<Option<Link>> {
    if !root.is_text("network") {
        return optional(root.section("network"), network_link);
    }
    match Network::find(root.text("network")?) {
        Ok(network) => Some(Some(network.link)),
        Err(finding) => {
            root.report("network", finding);
            None
        }
    }
}

fn network(mut section: Section) -> Option<Network> {
    let key = section.required_text("key").map(str::to_string);
    let link = network_facts(&mut section);
    section.finish();
    Some(Network { key: key?, link: link? })
}

fn calibration(mut section: Section) -> Option<Calibration> {
    let receipts = section.count("receipts", MOST_RECEIPTS);
    let error_before = section.required_positive("error_before");
    let error_after = section.required_positive("error_after");
    let source = source(&mut section, "source");
    let terms: Vec<Option<Factor>> = section.sections("terms").into_iter().map(factor).collect();
    let headrooms: Vec<Option<Headroom>> = section.sections("headrooms").into_iter().map(headroom).collect();
    section.finish();
    Some(Calibration {
        receipts: receipts?,
        error_before: error_before?,
        error_after: error_after?,
        source: source?,
        terms: terms.into_iter().collect::<Option<Vec<_>>>()?,
        headrooms: headrooms.into_iter().collect::<Option<Vec<_>>>()?,
    })
}

fn factor(mut section: Section) -> Option<Factor> {
    let term = section.required_text("term").map(|_| section.choice("term", Term::ALL, Term::Products));
    let seconds = section.required_positive("seconds").filter(|seconds| {
        let is_near = (RANGE.0..=RANGE.1).contains(seconds);
        if !is_near {
            let message = format!("`seconds` is {seconds}, and a factor lies between {} and {}", RANGE.0, RANGE.1);
            section.report("seconds", Finding::error("hardware/limit", Blame::Environment, "seconds", message));
        }
        is_near
    });
    let receipts = section.count("receipts", MOST_RECEIPTS);
    section.finish();
    Some(Factor { term: term?, seconds: seconds?, receipts: receipts? })
}

fn headroom(mut section: Section) -> Option<Headroom> {
    let model = section.required_text("model").map(str::to_string);
    let parameters = section.count("parameters", u64::MAX >> 1);
    let bytes = section.count("bytes", MOST_BYTES);
    let receipt = section.required_text("receipt").map(str::to_string);
    section.finish();
    Some(Headroom { model: model?, parameters: parameters?, bytes: bytes?, receipt: receipt? })
}

fn slice_host(mut section: Section) -> Option<SliceHost> {
    let accelerator = section.required_text("accelerator").map(str::to_string);
    let machine = section.required_text("machine").map(str::to_string);
    let chips_per_host = section.count("chips_per_host", MOST_DEVICES);
    let topologies = section.words("topologies").unwrap_or_default();
    let source = source(&mut section, "source");
    let fills = |topology: &&str| {
        let chips = chips_of(topology);
        chips.zip(chips_per_host).is_some_and(|(chips, host)| chips.is_multiple_of(host))
    };
    let wrong = topologies.iter().find(|topology| !fills(topology));
    if wrong.is_some() || topologies.is_empty() {
        let shown: String = wrong.map_or(String::new(), |topology| topology.chars().take(24).collect());
        let message = format!("topology `{shown}` is no `4x8` or `2x2x4` of whole hosts");
        let finding = Finding::error("hardware/consistency", Blame::Environment, "topologies", message);
        section.report("topologies", finding);
        section.finish();
        return None;
    }
    let topologies = topologies.iter().map(|topology| topology.to_string()).collect();
    section.finish();
    Some(SliceHost {
        accelerator: accelerator?,
        machine: machine?,
        chips_per_host: chips_per_host?,
        topologies,
        source: source?,
    })
}

fn reserve(mut section: Section) -> Option<Reserve> {
    let mut bytes = |key| section.count(key, MOST_BYTES);
    let (visible, context, libraries) = (bytes("visible_bytes"), bytes("context_bytes"), bytes("libraries_bytes"));
    let (first, further) = (bytes("first_communicator_bytes"), bytes("communicator_bytes"));
    let source = source(&mut section, "source");
    section.finish();
    Some(Reserve {
        visible_bytes: visible?,
        context_bytes: context?,
        libraries_bytes: libraries?,
        first_communicator_bytes: first?,
        communicator_bytes: further?,
        source: source?,
    })
}
