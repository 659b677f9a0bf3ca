//! How much of its stated rates a device reaches, by shape of the products, kernels and copies that
//! training consists of. A profile is measured on one device and says how; a device without one borrows
//! the curves of its nearest relative, and says so.
//!
//! A profile knows no model. It answers how fast a shape runs, never what a step consists of.

use crate::Device;
use diag::{Blame, Finding};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// The curves of one device, one for each kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device it describes.
    pub device: String,
    /// Multiprocessors that share out the tiles of a product.
    pub multiprocessors: u64,
    /// Whether the compute curves were measured on this device.
    pub measured: bool,
    /// Where the count and the profile as a whole come from.
    pub source: String,
    /// Matrix products, one a format.
    pub gemm: Vec<GemmCurve>,
    /// Attention kernels.
    pub attention: Vec<AttentionCurve>,
    /// Chunked scans of state-space mixers.
    pub scan: ScanCurve,
    /// Steps of a recurrence that cannot be scanned.
    pub recurrence: RecurrenceCurve,
    /// Kernels that only read and write.
    pub memory: MemoryCurve,
    /// What products do to the clock.
    pub power: PowerCurve,
    /// Starting operations, wherever the device stands.
    #[serde(default = "HostCurve::shipped")]
    pub host: HostCurve,
    /// The processor beside the device, where it is always the same one.
    #[serde(default)]
    pub processor: Option<Processor>,
    /// Collectives over the fast fabric and the network.
    pub collectives: CollectiveCurve,
}

/// How matrix products run in one format: whole waves of tiles with a prologue along k at the clock
/// a cool device holds, and never faster than its power lets all units run together. Idle units
/// leave power to the others, so that the two bounds do not multiply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmCurve {
    /// Format of the factors.
    pub format: String,
    /// Share of the stated peak that power sustains over many large products.
    pub sustained: f64,
    /// Share that the units of one wave reach while power lasts.
    pub boost: f64,
    /// Depth along k that filling and draining a tile costs.
    pub k_overhead: f64,
    /// Tiles the library chooses among: rows, columns, and their rate against the best tile's.
    pub tiles: Vec<(u64, u64, f64)>,
    /// Seconds a kernel takes besides its work.
    pub fixed_seconds: f64,
    /// The rate of products with a group of factors each, against one product of the same work.
    pub grouped: f64,
    /// The rate of products that add their result into an fp32 buffer, against those that write it.
    pub accumulated: f64,
    /// Share of the peak where rows of a factor are no multiple of 16 bytes and the library leaves the
    /// units' own kernels: rows of whole words of 4 bytes, then any others.
    pub unaligned: (f64, f64),
    /// Where the figures come from.
    pub source: String,
}

/// How one attention kernel runs: a rate by width of a head on long sequences, less on short ones
/// and on few rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionCurve {
    /// `unfused`, `flash1`, `flash2` or `flash3`.
    pub kernel: String,
    /// Width of a head, and the share of the bf16 peak on long sequences in forward and in
    /// backward, whose work is two and a half times the forward's. Widths rise.
    pub dims: Vec<(f64, f64, f64)>,
    /// Tokens of a sequence at which half the rate is reached, in forward and in backward.
    pub half_tokens: (f64, f64),
    /// Rows (tokens times heads) at which half the rate is reached, likewise.
    pub half_rows: (f64, f64),
    /// Where the figures come from.
    pub source: String,
}

impl AttentionCurve {
    /// Shares of the peak in forward and backward for a width of head, between the widths measured.
    pub fn fractions(&self, dim: f64) -> (f64, f64) {
        let after = self.dims.iter().position(|(width, _, _)| *width >= dim);
        let Some((low, high)) = after.map(|i| (self.dims[i.saturating_sub(1)], self.dims[i])) else {
            return self.dims.last().map_or((1.0, 1.0), |(_, forward, backward)| (*forward, *backward));
        };
        let span = (high.0 / low.0).ln();
        // Narrower than the narrowest: the units are as busy as a head is wide.
        if span <= 0.0 {
            let share = (dim / high.0).min(1.0);
            return (high.1 * share, high.2 * share);
        }
        let at = (dim / low.0).ln() / span;
        (low.1 + at * (high.1 - low.1), low.2 + at * (high.2 - low.2))
    }
}

/// How the chunked scan of a state-space mixer runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanCurve {
    /// Share of the bf16 peak its products reach in forward.
    pub forward: f64,
    /// And in backward.
    pub backward: f64,
    /// Where the figures come from.
    pub source: String,
}

/// How a recurrence without a scan runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecurrenceCurve {
    /// One step of one head, its state kept on the multiprocessor.
    pub step_seconds: f64,
    /// Backward steps against forward steps: the state is run again, then its gradient.
    pub backward: f64,
    /// Where the figures come from.
    pub source: String,
}

impl RecurrenceCurve {
    /// Seconds of a step, forward or backward.
    pub fn step(&self, is_backward: bool) -> f64 {
        self.step_seconds * if is_backward { self.backward } else { 1.0 }
    }
}

/// How kernels that only move bytes run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryCurve {
    /// Share of the stated rate that large tensors reach where neighbours read and write neighbours.
    pub fraction: f64,
    /// Rates of other kernels against these.
    pub streams: StreamRates,
    /// Seconds a kernel takes besides its bytes.
    pub fixed_seconds: f64,
    /// Where the figures come from.
    pub source: String,
}

/// Rates of kernels that only move bytes, against a plain copy or sum of the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRates {
    /// Two formats in one kernel: a cast to fp32, bf16 added into fp32.
    pub mixed: f64,
    /// A copy whose source or target is not contiguous.
    pub strided: f64,
    /// Rows scattered by index and summed (`scatter_add`).
    pub scattered: f64,
    /// Rows added by index, which is the gradient of reading rows by index (`index_add`).
    pub indexed: f64,
    /// Norms over widths that no kernel was tuned for.
    pub normed: f64,
    /// The gradient of a gated activation, compiled.
    pub gated: f64,
    /// Depth-wise convolutions along time.
    pub convolved: f64,
}

/// What products do to the clock of a device at its power limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerCurve {
    /// Power of kernels that only move bytes, against that of products: what they leave, products of the
    /// same pass use.
    pub streams: f64,
    /// Time of a product whose numbers are all the same against one of drawn numbers: nothing switches,
    /// and the clock stays up.
    pub same_products: f64,
    /// And of attention.
    pub same_attention: f64,
}

/// Seconds of the host for one operation, in forward and in backward.
pub type Started = (f64, f64);

/// What starting operations takes of the host, by what is started: a fact of the host, its Python and
/// its libraries, not of the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCurve {
    /// One operation of torch with its autograd node.
    pub eager: Started,
    /// One kernel of a compiled region.
    pub compiled: Started,
    /// A product as a plain linear layer.
    pub linear: Started,
    /// A product as a module of Transformer Engine.
    pub module: Started,
    /// What scales and casts of 8 and 4 bits add to it.
    pub scaled: Started,
    /// A norm of Transformer Engine, alone or in front of a product.
    pub norm: Started,
    /// Attention as a module of Transformer Engine.
    pub attention: Started,
    /// A hand-fused function: an activation, a residual sum.
    pub fused: Started,
    /// A group of products: what the call takes, and each product of it.
    pub group: (Started, Started),
    /// A chunked scan with its convolution.
    pub scan: Started,
    /// A collective with the copies and waits around it.
    pub collective: f64,
    /// A wait for a figure on the device.
    pub sync: f64,
    /// The gradient of one weight handed to its bucket.
    pub gradient: f64,
    /// One tensor in the optimizer's loops.
    pub tensor: f64,
    /// One matrix orthogonalised by Muon.
    pub matrix: f64,
    /// All of a training loop's Python, its garbage and its cold caches, against the operations it starts.
    pub around: Started,
    /// A step's own: data, logging, the schedule, the norm of gradients read.
    pub step_seconds: f64,
    /// Time of the hosts of training clusters against the one these were read off: the usual one, the
    /// fastest and the slowest.
    pub speed: (f64, f64, f64),
    /// Time of the host beside the very device, against the same.
    #[serde(default = "one")]
    pub here: f64,
    /// Where the figures come from.
    pub source: String,
}

/// A processor that is soldered beside its devices: their host is never another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Its name.
    pub name: String,
    /// [`HostCurve::speed`] of it.
    pub speed: (f64, f64, f64),
    /// Where the figures come from.
    pub source: String,
}

/// What collectives take on their links.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveCurve {
    /// Gathers and reductions to parts inside an island.
    pub gather: LinkCurve,
    /// A part to every member of an island.
    pub all_to_all: LinkCurve,
    /// All-reduces that the switch of an island sums, where it can.
    #[serde(default)]
    pub switch: Option<SwitchCurve>,
    /// Tokens to the ranks of their experts inside an island, by kernels made for it (DeepEP).
    pub dispatch: TokenCurve,
    /// And back, summed.
    pub combine: TokenCurve,
    /// Share of the network link that rings reach on large messages.
    pub network: f64,
    /// Share that an all-to-all reaches.
    pub network_all_to_all: f64,
    /// Seconds besides the bytes of tokens between islands, by the same kernels: out, and back.
    pub network_tokens: (f64, f64),
    /// Share of the multiprocessors a collective occupies while it runs beside compute.
    pub occupied: f64,
    /// Where the figures come from.
    pub source: String,
}

/// A collective inside an island under the better of two protocols: one for large messages, and one that starts
/// sooner and carries less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCurve {
    /// For large messages.
    pub large: Protocol,
    /// For small ones.
    pub small: Protocol,
}

/// Seconds of n members that send V bytes each: `base + hop (n - 1) + V (n + half) / (n share link)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Before the first byte.
    pub base: f64,
    /// For every further member.
    pub hop: f64,
    /// Share of the link that many members reach.
    pub share: f64,
    /// Members at which half of that is reached.
    pub half: f64,
}

/// Sums that a switch makes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCurve {
    /// Before the first byte.
    pub base: f64,
    /// Rate of bytes as a ring would send them, against the link.
    pub share: f64,
    /// Members from which on the library uses it.
    pub members: u64,
}

/// Tokens sent once to every rank that has one of their experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCurve {
    /// Before the first byte.
    pub base: f64,
    /// For every copy of a token.
    pub row: f64,
    /// Share of the link that bytes reach.
    pub share: f64,
}

/// A profile, and whether it is the device's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// The curves.
    pub profile: Profile,
    /// False where it is borrowed from a relative.
    pub is_own: bool,
}

const PROFILES: &[(&str, &str)] = &[
    ("H200", include_str!("../../../data/hardware/curves/h200.toml")),
    ("H100", include_str!("../../../data/hardware/curves/h100.toml")),
    ("A100", include_str!("../../../data/hardware/curves/a100.toml")),
    ("B200", include_str!("../../../data/hardware/curves/b200.toml")),
    ("B300", include_str!("../../../data/hardware/curves/b300.toml")),
    ("GB200", include_str!("../../../data/hardware/curves/gb200.toml")),
    ("GB300", include_str!("../../../data/hardware/curves/gb300.toml")),
];

fn one() -> f64 {
    1.0
}

impl HostCurve {
    /// The host whose figures are shipped.
    fn shipped() -> HostCurve {
        static READ: LazyLock<HostCurve> = LazyLock::new(|| {
            let text = include_str!("../../../data/hardware/host.toml");
            toml::from_str(text).unwrap_or_else(|error| panic!("data/hardware/host.toml: {error}"))
        });
        READ.clone()
    }
}

impl Profile {
    /// Reads a profile file.
    pub fn parse(name: &str, text: &str) -> Result<Profile, Finding> {
        let mut profile: Profile = toml::from_str(text)
            .map_err(|e| Finding::error("hardware/profile", Blame::Environment, name, e.message().to_string()))?;
        if let Some(processor) = &profile.processor {
            profile.host.speed = processor.speed;
        }
        Ok(profile)
    }

    /// The curve of a format, if the device multiplies in it.
    pub fn gemm(&self, format: &str) -> Option<&GemmCurve> {
        self.gemm.iter().find(|curve| curve.format == format)
    }

    /// The curve of an attention kernel, if the device runs it.
    pub fn attention(&self, kernel: &str) -> Option<&AttentionCurve> {
        self.attention.iter().find(|curve| curve.kernel == kernel)
    }
}

/// The device whose curves are borrowed: by name for chips we know, else by number formats.
fn relative(device: &Device) -> Result<&'static str, Finding> {
    let is = |names: &[&str]| names.iter().any(|name| device.name.eq_ignore_ascii_case(name));
    let speaks = |format: &str| device.formats.iter().any(|f| f == format);
    if is(&["H800", "H20"]) {
        Ok("H100")
    } else if is(&["GB10"]) || speaks("mxfp8") {
        Ok("B200")
    } else if device.name.to_ascii_lowercase().starts_with("tpu") {
        let message = format!("nobody has measured the curves of {}, and no relative's fit", device.name);
        Err(Finding::error("hardware/no-curves", Blame::Environment, device.name.clone(), message))
    } else {
        Ok(if speaks("fp8") { "H200" } else { "A100" })
    }
}

impl Device {
    /// The curves of this device: its own, or those of its nearest relative.
    pub fn profile(&self) -> Result<Calibrated, Finding> {
        // Read once: a search prices many layouts on one device.
        static READ: LazyLock<Vec<Result<Profile, Finding>>> =
            LazyLock::new(|| PROFILES.iter().map(|(name, text)| Profile::parse(name, text)).collect());
        let find = |wanted: &str| PROFILES.iter().position(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let (index, is_own) = match find(&self.name) {
            Some(index) => (index, true),
            None => (find(relative(self)?).unwrap_or(0), false),
        };
        let mut profile = READ[index].clone()?;
        for factor in self.calibration.iter().flat_map(|calibration| &calibration.terms) {
            factor.term.apply(factor.seconds, &mut profile);
        }
        Ok(Calibrated { profile, is_own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A processor that is soldered beside its devices decides what their host takes; others keep the usual host.
    #[test]
    fn a_soldered_processor_is_the_host() {
        let speed = |name: &str| Device::find(name).unwrap().profile().unwrap().profile.host.speed;
        assert_eq!((speed("GB200"), speed("GB300")), ((1.08, 0.7, 1.65), (1.08, 0.7, 1.65)));
        assert_eq!((speed("B200"), speed("H200")), ((0.6, 0.4, 1.2), (0.6, 0.4, 1.2)));
    }

    #[test]
    fn every_profile_reads_and_names_its_sources() {
        for (name, text) in PROFILES {
            let profile = Profile::parse(name, text).unwrap();
            let device = Device::find(name).unwrap();
            assert_eq!(profile.device, *name);
            assert!(!profile.source.is_empty() && profile.gemm.iter().all(|c| !c.source.is_empty()));
            // fp16 runs like bf16, and no training step multiplies integers.
            for format in device.formats.iter().filter(|f| !matches!(f.as_str(), "fp16" | "int8" | "tf32" | "fp32")) {
                assert!(profile.gemm(format).is_some(), "{name} has no curve in {format}");
                assert!(device.peaks.iter().any(|p| p.format == *format), "{name} has no peak in {format}");
            }
            for kernel in ["unfused", "flash1", "flash2", "flash3"] {
                assert!(profile.attention(kernel).is_some(), "{name} has no curve of {kernel}");
            }
        }
    }

    #[test]
    fn attention_is_interpolated_between_widths() {
        let curve = &Profile::parse("H200", PROFILES[0].1).unwrap().attention[3];
        let (narrow, wide) = (curve.dims[0], curve.dims[1]);
        assert_eq!(curve.fractions(narrow.0), (narrow.1, narrow.2));
        assert_eq!(curve.fractions(wide.0), (wide.1, wide.2));
        let between = curve.fractions((narrow.0 * wide.0).sqrt()).0;
        assert!((between - (narrow.1 + wide.1) / 2.0).abs() < 1e-9);
        assert!(curve.fractions(narrow.0 / 2.0).0 < narrow.1);
        assert_eq!(curve.fractions(1e4).0, curve.dims.last().unwrap().1);
    }

    #[test]
    fn a_device_without_curves_borrows_a_relatives() {
        let mut device = Device::find("B200").unwrap();
        device.name = "GB999".to_string();
        let calibrated = device.profile().unwrap();
        assert!(!calibrated.is_own && calibrated.profile.device == "B200");
        assert!(Device::find("TPU-v5e").unwrap().profile().unwrap_err().message.contains("nobody has measured"));
    }
}
