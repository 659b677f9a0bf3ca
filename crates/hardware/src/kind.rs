//! What kind of accelerator a device is and who makes it; and the slices that TPUs are handed out in.

use serde::{Deserialize, Serialize};
use units::named;

named! {
    /// What kind of accelerator.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Kind {
        /// Kernels are launched one by one. Records from before devices had a kind are of GPUs.
        #[default]
        Gpu = "gpu",
        /// A compiler owns the whole step.
        Tpu = "tpu",
    }
}

named! {
    /// Who makes it, and so which kernels, libraries and resource names it has.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Vendor {
        /// CUDA.
        #[default]
        Nvidia = "nvidia",
        /// ROCm.
        Amd = "amd",
        /// TPUs.
        Google = "google",
        /// Gaudi.
        Intel = "intel",
    }
}

impl Kind {
    /// The maker where a device file does not say.
    pub fn usual_vendor(self) -> Vendor {
        match self {
            Kind::Gpu => Vendor::Nvidia,
            Kind::Tpu => Vendor::Google,
        }
    }
}

impl Vendor {
    /// The one kind of accelerator it makes here.
    pub fn kind(self) -> Kind {
        match self {
            Vendor::Nvidia | Vendor::Amd | Vendor::Intel => Kind::Gpu,
            Vendor::Google => Kind::Tpu,
        }
    }

    /// Its devices in a sentence: `NVIDIA GPUs`.
    pub fn devices(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA GPUs",
            Vendor::Amd => "AMD GPUs",
            Vendor::Intel => "Intel accelerators",
            Vendor::Google => "TPUs",
        }
    }

    /// What a pod asks its device plugin for (the plugins' own documentation).
    pub fn resource(self) -> &'static str {
        match self {
            Vendor::Nvidia => "nvidia.com/gpu",
            Vendor::Amd => "amd.com/gpu",
            Vendor::Intel => "habana.ai/gaudi",
            Vendor::Google => "google.com/tpu",
        }
    }
}

/// Hosts of one machine type, and the topologies that slices of them have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceHost {
    /// The node label `cloud.google.com/gke-tpu-accelerator`.
    pub accelerator: String,
    /// The machine type of a host.
    pub machine: String,
    /// Chips of a host.
    pub chips_per_host: u64,
    /// Arrangements of a slice's chips: `4x8`, or `2x2x4` in a 3D torus.
    pub topologies: Vec<String>,
    /// Where that comes from.
    pub source: String,
}

/// TPU chips that reach one another over ICI and are handed out together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The node label `cloud.google.com/gke-tpu-accelerator`.
    pub accelerator: String,
    /// The machine type of its hosts.
    pub machine: String,
    /// The node label `cloud.google.com/gke-tpu-topology`.
    pub topology: String,
    /// Chips in all.
    pub chips: u64,
    /// Hosts, one process each.
    pub hosts: u64,
}

/// Chips of a topology; none where it is no two or three numbers.
pub fn chips_of(topology: &str) -> Option<u64> {
    let sides: Option<Vec<u64>> =
        topology.split('x').map(|side| side.parse().ok().filter(|n| (1..=1 << 16).contains(n))).collect();
    let sides = sides.filter(|sides| (2..=3).contains(&sides.len()))?;
    sides.iter().try_fold(1_u64, |product, side| product.checked_mul(*side))
}

impl SliceHost {
    /// Its slices, in the order of its file.
    pub fn slices(&self) -> impl Iterator<Item = Slice> {
        self.topologies.iter().filter_map(|topology| {
            let chips = chips_of(topology)?;
            Some(Slice {
                accelerator: self.accelerator.clone(),
                machine: self.machine.clone(),
                topology: topology.clone(),
                chips,
                hosts: chips.div_ceil(self.chips_per_host),
            })
        })
    }
}
