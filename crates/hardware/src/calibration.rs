//! What runs of one's own say of a device: factors on the time of each kind of work, each with the number of
//! receipts behind it. Written by `receipt calibrate` into a device file, and read like the rest of it.

use crate::profile::{GemmCurve, LinkCurve, Profile};
use serde::{Deserialize, Serialize};
use units::named;

/// Factors beyond these are no calibration but another device, or a mistake.
pub const RANGE: (f64, f64) = (0.25, 4.0);

named! {
    /// A kind of work whose time is scaled.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Term {
        /// Matrix products in 16 bits.
        Products = "products",
        /// Matrix products in 8 and 4 bits.
        ScaledProducts = "scaled-products",
        /// Products with a group of factors each, against single ones.
        Groups = "groups",
        /// Attention kernels.
        Attention = "attention",
        /// Scans and recurrences.
        Scans = "scans",
        /// Kernels that only read and write.
        Bytes = "bytes",
        /// Starting operations.
        Host = "host",
        /// Collectives inside an island.
        Island = "island",
        /// Collectives over the network.
        Network = "network",
    }
}

/// What receipts say of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Receipts it was made of.
    pub receipts: u64,
    /// Mean error of their steps before, each left out of what it was judged by afterwards.
    pub error_before: f64,
    /// And after.
    pub error_after: f64,
    /// When, and by which version.
    pub source: String,
    /// Kinds of work that the receipts say something of.
    pub terms: Vec<Factor>,
    /// Models that ran out of memory here although they were said to fit.
    #[serde(default)]
    pub headrooms: Vec<Headroom>,
}

/// The time of one kind of work against what the shipped curves say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Factor {
    /// The kind of work.
    pub term: Term,
    /// Times its seconds.
    pub seconds: f64,
    /// Receipts in which it is at least a twentieth of a step.
    pub receipts: u64,
}

/// Memory to leave free for a model that ran out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headroom {
    /// The recipe's name.
    pub model: String,
    /// And its size, since a name may stand for several.
    pub parameters: u64,
    /// What was said to be left when it ran out.
    pub bytes: u64,
    /// The receipt that says so.
    pub receipt: String,
}

impl Term {
    /// Scales its part of a profile to take `seconds` times as long.
    pub fn apply(self, seconds: f64, profile: &mut Profile) {
        let slower = |rate: &mut f64| *rate /= seconds;
        let products = |curve: &mut GemmCurve| {
            slower(&mut curve.sustained);
            slower(&mut curve.boost);
            slower(&mut curve.unaligned.0);
            slower(&mut curve.unaligned.1);
        };
        let links = |curve: &mut LinkCurve| {
            for protocol in [&mut curve.large, &mut curve.small] {
                protocol.share /= seconds;
                protocol.base *= seconds;
                protocol.hop *= seconds;
            }
        };
        let is_wide = |format: &str| matches!(format, "bf16" | "fp16" | "tf32" | "fp32");
        match self {
            Term::Products => profile.gemm.iter_mut().filter(|c| is_wide(&c.format)).for_each(products),
            Term::ScaledProducts => profile.gemm.iter_mut().filter(|c| !is_wide(&c.format)).for_each(products),
            Term::Groups => profile.gemm.iter_mut().for_each(|curve| slower(&mut curve.grouped)),
            Term::Attention => {
                for (_, forward, backward) in profile.attention.iter_mut().flat_map(|curve| curve.dims.iter_mut()) {
                    slower(forward);
                    slower(backward);
                }
            }
            Term::Scans => {
                slower(&mut profile.scan.forward);
                slower(&mut profile.scan.backward);
                profile.recurrence.step_seconds *= seconds;
            }
            Term::Bytes => {
                slower(&mut profile.memory.fraction);
                profile.memory.fixed_seconds *= seconds;
            }
            // Whoever calibrates has seen the host: it is no longer the usual one of a cluster.
            Term::Host => {
                profile.host.here = seconds;
                profile.host.speed = (seconds, seconds, seconds);
            }
            Term::Island => {
                let curves = &mut profile.collectives;
                links(&mut curves.gather);
                links(&mut curves.all_to_all);
                for tokens in [&mut curves.dispatch, &mut curves.combine] {
                    tokens.base *= seconds;
                    tokens.row *= seconds;
                    tokens.share /= seconds;
                }
                if let Some(switch) = &mut curves.switch {
                    switch.base *= seconds;
                    switch.share /= seconds;
                }
            }
            Term::Network => {
                let curves = &mut profile.collectives;
                slower(&mut curves.network);
                slower(&mut curves.network_all_to_all);
                curves.network_tokens.0 *= seconds;
                curves.network_tokens.1 *= seconds;
            }
        }
    }
}

impl Calibration {
    /// What was said to be left of a model when it ran out of memory here.
    pub fn ran_out_with(&self, model: &str, parameters: u64) -> Option<&Headroom> {
        self.headrooms.iter().find(|known| known.model == model && known.parameters == parameters)
    }

    /// As a table of a device file.
    pub fn to_toml(&self) -> String {
        let mut out = format!(
            "[calibration]\nreceipts = {}\nerror_before = {}\nerror_after = {}\nsource = {}\n",
            self.receipts,
            float(self.error_before),
            float(self.error_after),
            diag::quote::toml(&self.source)
        );
        for Factor { term, seconds, receipts } in &self.terms {
            let seconds = float(*seconds);
            out += &format!("\n[[calibration.terms]]\nterm = \"{term}\"\nseconds = {seconds}\nreceipts = {receipts}\n");
        }
        for Headroom { model, parameters, bytes, receipt } in &self.headrooms {
            let (model, receipt) = (diag::quote::toml(model), diag::quote::toml(receipt));
            out += &format!(
                "\n[[calibration.headrooms]]\nmodel = {model}\nparameters = {parameters}\nbytes = {bytes}\nreceipt = {receipt}\n"
            );
        }
        out
    }
}

/// Four digits: no calibration knows more, and a file that people read shows none that mean nothing.
fn float(value: f64) -> String {
    format!("{:.4}", value.max(1e-4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn a_calibrated_file_reads_back_and_moves_its_curves() {
        let calibration = Calibration {
            receipts: 24,
            error_before: 0.0812,
            error_after: 0.0345,
            source: "receipt calibrate".to_string(),
            terms: vec![
                Factor { term: Term::Products, seconds: 1.25, receipts: 12 },
                Factor { term: Term::Host, seconds: 0.8, receipts: 3 },
            ],
            headrooms: vec![Headroom {
                model: "nam56r".to_string(),
                parameters: 4_730_000_000,
                bytes: 3 << 30,
                receipt: "ab".to_string(),
            }],
        };
        let plain = Device::find("H200").unwrap();
        let text = format!("{}\n{}", plain.toml().unwrap(), calibration.to_toml());
        let device = Device::parse(&text).unwrap();
        assert_eq!(device.calibration.as_ref(), Some(&calibration));
        let (old, new) = (plain.profile().unwrap().profile, device.profile().unwrap().profile);
        assert_eq!(new.gemm("bf16").unwrap().sustained, old.gemm("bf16").unwrap().sustained / 1.25);
        assert_eq!(new.gemm("fp8"), old.gemm("fp8"));
        assert_eq!((new.host.here, new.host.speed.0), (0.8, 0.8));
    }

    #[test]
    fn a_factor_that_is_no_calibration_is_refused_where_it_stands() {
        let plain = Device::find("H200").unwrap();
        let table = "[calibration]\nreceipts = 1\nerror_before = 0.1\nerror_after = 0.1\nsource = \"x\"\n\
                     [[calibration.terms]]\nterm = \"products\"\nseconds = 40.0\nreceipts = 1\n";
        let findings = Device::parse(&format!("{}\n{table}", plain.toml().unwrap())).unwrap_err();
        assert!(findings[0].message.contains("between 0.25 and 4"), "{}", findings[0].message);
    }
}
