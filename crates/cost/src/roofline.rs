//! Work into seconds: the larger of what the matrix units and what memory need, plus what a kernel
//! takes besides. Every figure is the profile's or the device's.

use crate::Unpriced;
use crate::ops::{Direction, Work};
use case::options::{Elementwise, Format, Launch, Options};
use hardware::{AttentionCurve, Device, GemmCurve, Profile};

/// Ways a product may be cut along k when it has too few tiles; libraries try a few.
const SPLITS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// What a round trip to the device adds to an operation when the host waits for each. Calibrated on
/// BigScience's runs of one and more sequences a microbatch.
const BLOCKED: f64 = 3e-5;

/// A device with its curves.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    profile: Profile,
    is_measured: bool,
    gemm: [Option<(f64, GemmCurve)>; 4],
    attention: AttentionCurve,
    bf16: f64,
    /// Bytes a second of large kernels.
    rate: f64,
    host: f64,
    /// Operations of the host around one product: a module of Transformer Engine checks formats,
    /// workspaces and recipes before it launches.
    around_products: f64,
}

impl Meter {
    pub fn new(device: &Device, options: &Options) -> Result<Meter, Unpriced> {
        let calibrated = device.profile()?;
        let is_measured = calibrated.is_own && calibrated.profile.measured;
        let profile = calibrated.profile;
        let curve = |format: Format| {
            let peak = device.peaks.iter().find(|p| p.format == format.name())?;
            Some((peak.flops, profile.gemm(format.name())?.clone()))
        };
        let gemm = [Format::Bf16, Format::Fp8, Format::Mxfp8, Format::Nvfp4].map(curve);
        let missing = |format: Format| Unpriced::new(device.name.clone(), format!("no peak or curve in {format}"));
        let bf16 = gemm[0].as_ref().ok_or_else(|| missing(Format::Bf16))?.0;
        if gemm.get(options.format as usize).is_none_or(Option::is_none) {
            return Err(missing(options.format));
        }
        let rate = device.known_memory_rate()?.bytes_per_second * profile.memory.fraction;
        let kernel = options.kernels.attention.name();
        let attention = profile.attention(kernel).cloned();
        let attention = attention.ok_or_else(|| Unpriced::new(device.name.clone(), format!("no curve of {kernel}")))?;
        let host = match (options.kernels.launch(), options.kernels.elementwise) {
            (Launch::Graphs, _) => 0.0,
            (Launch::Eager, Elementwise::Compiled) => profile.launch.compiled_seconds,
            (Launch::Eager, _) => profile.launch.host_seconds,
            (Launch::Blocking, _) => profile.launch.host_seconds + BLOCKED,
        };
        let around_products = match (options.kernels.elementwise, options.format) {
            (Elementwise::Fused, Format::Bf16) => 3.0,
            (Elementwise::Fused, _) => 5.0,
            (_, Format::Bf16) => 1.0,
            (_, _) => 3.0,
        };
        Ok(Meter { is_measured, around_products, gemm, attention, bf16, rate, host, profile })
    }

    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Whether compute is priced by curves read off this very device.
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Bytes a second of large kernels.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Seconds the device takes.
    pub fn seconds(&self, work: &Work) -> f64 {
        let memory = &self.profile.memory;
        match *work {
            Work::Gemm { format, m, n, k, groups, out_bytes } => self.gemm(format, [m, n, k], groups, out_bytes),
            Work::Attention { flops, bytes, tokens, rows, dim, pass } => {
                let curve = &self.attention;
                let (forward, backward) = curve.fractions(dim);
                let (fraction, half, half_rows) = match pass {
                    Direction::Forward => (forward, curve.half_tokens.0, curve.half_rows.0),
                    Direction::Backward => (backward, curve.half_tokens.1, curve.half_rows.1),
                };
                let reached = tokens / (tokens + half) * (rows / (rows + half_rows));
                (flops / (self.bf16 * fraction * reached.max(1e-3))).max(bytes / self.rate) + memory.fixed_seconds
            }
            Work::Scan { flops, bytes, pass } => {
                let scan = &self.profile.scan;
                let fraction = if pass == Direction::Forward { scan.forward } else { scan.backward };
                (flops / (self.bf16 * fraction)).max(bytes / self.rate) + memory.fixed_seconds
            }
            Work::Serial { steps, heads, pass } => {
                let curve = &self.profile.recurrence;
                let waves = (heads / self.profile.multiprocessors as f64).ceil().max(1.0);
                let times = if pass == Direction::Forward { 1.0 } else { curve.backward };
                steps * waves * times * curve.step_seconds
            }
            Work::Bytes { bytes, kernels } => bytes / self.rate + kernels * memory.fixed_seconds,
            Work::Sync => self.profile.launch.sync_seconds,
        }
    }

    /// Seconds the host takes to start it.
    pub fn host_seconds(&self, work: &Work) -> f64 {
        let kernels = match work {
            Work::Scan { .. } if self.host == 0.0 => 0.0,
            Work::Scan { pass: Direction::Forward, .. } => return self.profile.scan.host_seconds.0,
            Work::Scan { pass: Direction::Backward, .. } => return self.profile.scan.host_seconds.1,
            // Weights of a group are handed over one by one.
            Work::Gemm { groups, .. } if *groups > 1.0 => 3.0 * self.around_products,
            Work::Gemm { .. } => self.around_products,
            Work::Attention { .. } | Work::Serial { .. } => 2.0 * self.around_products,
            Work::Bytes { kernels, .. } => *kernels,
            Work::Sync => 0.0,
        };
        kernels * self.host
    }

    /// Seconds the host takes to start so many collectives, each with the copies and waits around
    /// it on its stream.
    pub fn host_of_collectives(&self, calls: f64) -> f64 {
        2.5 * calls * self.host
    }

    /// Waves of tiles over the multiprocessors, on the best tile and cut along k.
    fn gemm(&self, format: Format, [m, n, k]: [f64; 3], groups: f64, out_bytes: f64) -> f64 {
        let Some((peak, curve)) = &self.gemm[format as usize] else { return f64::INFINITY };
        let grouped = if groups > 1.0 { curve.grouped } else { 1.0 };
        let many = grouped * if out_bytes > 4.0 { curve.accumulated } else { 1.0 };
        let units = self.profile.multiprocessors as f64;
        let mut waves_take = f64::INFINITY;
        for &(rows, columns, tile) in &curve.tiles {
            let (rows, columns) = (rows as f64, columns as f64);
            let tiles = (m / rows).ceil() * (n / columns).ceil() * groups;
            for split in SPLITS {
                let waves = (tiles * split / units).ceil();
                let flops = waves * units * rows * columns * 2.0 * (k / split + curve.k_overhead);
                waves_take = waves_take.min(flops / (peak * curve.boost * many * tile));
            }
        }
        // Filling and draining draws power too, but half of it waits.
        let powered = 2.0 * m * n * (k + curve.k_overhead / 2.0) * groups / (peak * curve.sustained * many);
        let bytes = groups * (format.bytes() * (m * k + n * k) + out_bytes * m * n);
        waves_take.max(powered).max(bytes / self.rate) + curve.fixed_seconds
    }

    /// Seconds of plain products of this many operations in bf16, large and square.
    pub fn large_products(&self, flops: f64) -> f64 {
        let sustained = self.gemm[0].as_ref().map_or(1.0, |(_, curve)| curve.sustained);
        flops / (self.bf16 * sustained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::Engine;

    fn meter(device: &str, format: Format) -> Meter {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let options = Options { format, ..Options::of(Some(Engine::Fsdp2), &recipe) };
        Meter::new(&Device::find(device).unwrap(), &options).unwrap()
    }

    /// Products timed on an H200 with `tools/measure_curves.py`, in milliseconds.
    #[test]
    fn products_take_what_was_measured() {
        let rows = [
            (Format::Bf16, [1024.0, 4096.0, 8192.0], 1.0, 0.098),
            (Format::Bf16, [4096.0, 8192.0, 1024.0], 1.0, 0.117),
            (Format::Bf16, [8192.0, 1024.0, 4096.0], 1.0, 0.098),
            (Format::Bf16, [16384.0, 4096.0, 4096.0], 1.0, 0.812),
            (Format::Bf16, [28672.0, 8192.0, 32768.0], 1.0, 22.16),
            (Format::Fp8, [8192.0, 8192.0, 8192.0], 1.0, 0.821),
            (Format::Fp8, [8192.0, 28672.0, 4096.0], 1.0, 1.553),
            (Format::Bf16, [4096.0, 4096.0, 3584.0], 8.0, 1.447),
            (Format::Bf16, [1024.0, 2048.0, 7168.0], 16.0, 0.665),
            (Format::Bf16, [256.0, 4096.0, 3584.0], 64.0, 0.736),
        ];
        for (format, [m, n, k], groups, measured) in rows {
            let work = Work::Gemm { format, m, n, k, groups, out_bytes: 2.0 };
            let milliseconds = 1e3 * meter("H200", format).seconds(&work);
            let error = milliseconds / measured - 1.0;
            // Groups scatter more: the library picks one tile for all shapes.
            let bound = if groups > 1.0 { 0.2 } else { 0.12 };
            assert!(error.abs() < bound, "{m} x {n} x {k} in {format}: {milliseconds:.3}, measured {measured}");
        }
    }

    /// Causal attention of 16384 tokens timed on an H200, in shares of the bf16 peak.
    #[test]
    fn attention_reaches_what_was_measured() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let options = Options::of(Some(Engine::Megatron), &recipe);
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        let rows = [
            (2048.0, 32.0, 128.0, Direction::Forward, 0.537),
            (8192.0, 32.0, 128.0, Direction::Forward, 0.633),
            (8192.0, 32.0, 128.0, Direction::Backward, 0.533),
            (4096.0, 16.0, 64.0, Direction::Forward, 0.395),
            (8192.0, 16.0, 160.0, Direction::Backward, 0.454),
        ];
        for (sequence, heads, dim, pass, measured) in rows {
            let flops = 4.0 * 16384.0 * sequence / 2.0 * heads * dim;
            let work = Work::Attention { flops, bytes: 0.0, tokens: sequence, rows: 16384.0 * heads, dim, pass };
            let share = flops / meter.seconds(&work) / 9.894e14;
            assert!((share / measured - 1.0).abs() < 0.12, "{sequence} x {heads} x {dim} {pass:?}: {share:.3}");
        }
    }

    #[test]
    fn bytes_bound_a_thin_product() {
        let meter = meter("H200", Format::Bf16);
        let thin = Work::Gemm { format: Format::Bf16, m: 16.0, n: 8192.0, k: 8192.0, groups: 1.0, out_bytes: 2.0 };
        let read = 2.0 * 8192.0 * 8192.0 / meter.rate();
        assert!(meter.seconds(&thin) >= read);
    }
}
