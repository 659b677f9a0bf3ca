//! Work into seconds: the larger of what the matrix units and what memory need, plus what a kernel
//! takes besides. Every figure is the profile's or the device's.

use crate::Unpriced;
use crate::ops::{Call, Direction, Stream, Work, is_fused};
use case::options::{Accumulate, Elementwise, Format, Options, Scaling};
use case::ways::ElementStep;
use hardware::{AttentionCurve, Device, GemmCurve, HostCurve, Profile, Started};

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
    /// What has preconditioners of matrices, where anything does.
    preconditions: Option<ElementStep>,
    /// How much longer a product takes in tf32 than in bf16.
    tf32: f64,
    gemm: [Option<(f64, GemmCurve)>; 4],
    attention: AttentionCurve,
    bf16: f64,
    /// Bytes a second of large kernels.
    rate: f64,
    starts: Starts,
    numbers: Numbers,
    /// Whether products of a group are kernels of their own (Transformer Engine's loop over streams), rather
    /// than tiles of one.
    is_loop: bool,
    /// The rate of products under the scaling of 8 bits, against one scale a tensor: of those that write a
    /// result, and of those that add into a weight's gradient.
    scaled: (f64, f64),
}

/// Rates of 8-bit products with a scale for every 128 elements against one scale a tensor: 215 µs against 185
/// for 8192 x 4096 x 4096 on an H200. A weight's gradient has scales in vectors on both sides, which takes 0.8
/// of that rate: 2058 µs against 1500 for 8192 x 28672 x 4096 (`tools/measure_kernels.py`).
const BLOCKWISE: (f64, f64) = (0.85, 0.68);

/// Seconds of one addition into a place that many add into: what sinks add to cuDNN 9.19's backward on an H200, 1.44 to
/// 1.68 ns a query and head over 4096 to 16384 queries of 8 to 64 heads.
const ATOMIC: f64 = 1.55e-9;

/// What a step of the emitted program's walk takes longer for every head more that a multiprocessor walks beside the first, as a share
/// of it: 0.39 forward and 0.33 backward over 44, 176 and 352 heads on an H200 (`launch/assets/fsdp2/walk.py`).
const SHARED_STEP: f64 = 0.36;

/// Share of the bf16 peak that batched products in fp32 reach: 30 of 989 TFLOP/s in a scan's chunks of 64 on an H200, whose units
/// for fp32 have a fifteenth of that peak, as an A100's have a sixteenth.
const FP32: f64 = 0.03;

/// A position of a sum along time, of a step of a recurrence: 751 µs for 4096 on an H200.
const CUMULATIVE: f64 = 0.245;

/// The rate of plain operations with a side that is broadcast or transposed, against copies: 54 GB in 25 ms of a profile on an H200
/// (two Mamba-2 blocks of the emitted FSDP2 program).
const BROADCAST: f64 = 0.53;

/// What numbers a device multiplies: its clock depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// As training has them.
    #[default]
    Drawn,
    /// All of them not a number, as where nobody answers a collective.
    Same,
}

/// Which gradient or pass an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Input,
    Weight,
}

/// Seconds of the host for each kind of operation under one engine's options, forward and backward.
#[derive(Clone, Copy, Debug)]
struct Starts {
    stream: Started,
    product: Started,
    group: (Started, Started),
    attention: Started,
    norm: Started,
    fused: Started,
    scan: Started,
    collective: Started,
    gradient: f64,
    tensor: f64,
    matrix: f64,
    /// A wait for each operation, where the host waits.
    blocked: f64,
}

/// What casts of a group's products take of the host against those with a scale a tensor, which are started one by one:
/// 67 and 63 µs a product in blocks, 55 and 83 with scales of the past, where that takes 96 and 106 (a GroupedLinear of 16
/// with `tools/measure_host.py` on an H200's host).
fn grouped_casts(scaling: Option<Scaling>) -> Started {
    match scaling {
        Some(Scaling::Blockwise) => (0.70, 0.59),
        Some(Scaling::Delayed) => (0.57, 0.78),
        _ => (1.0, 1.0),
    }
}

impl Starts {
    fn new(host: &HostCurve, options: &Options, speed: f64) -> Starts {
        let by = (host.around.0 * speed, host.around.1 * speed);
        let scale = |(forward, backward): Started| (forward * by.0, backward * by.1);
        let sum = |a: Started, b: Started| (a.0 + b.0, a.1 + b.1);
        let is_scaled = options.format != Format::Bf16;
        let scaled = |product: Started| if is_scaled { sum(product, host.scaled) } else { product };
        let by_recipe = grouped_casts(options.scaling);
        let casts = (host.scaled.0 / 8.0 * by_recipe.0, host.scaled.1 / 4.0 * by_recipe.1);
        let group = |each: Started| if is_scaled { sum(each, casts) } else { each };
        let (stream, product, attention, norm, fused) = match options.kernels.elementwise {
            Elementwise::Fused => (host.eager, host.module, host.attention, host.norm, host.fused),
            Elementwise::Eager => {
                (host.eager, host.linear, (2.0 * host.linear.0, 2.0 * host.linear.1), host.eager, host.eager)
            }
            Elementwise::Compiled => {
                let two = (2.0 * host.compiled.0, 2.0 * host.compiled.1);
                (host.compiled, two, host.linear, host.compiled, host.compiled)
            }
        };
        Starts {
            stream: scale(stream),
            product: scale(scaled(product)),
            group: match is_fused(options) {
                true => (scale(scaled(product)), (0.0, 0.0)),
                false => (scale(host.group.0), scale(group(host.group.1))),
            },
            attention: scale(attention),
            norm: scale(norm),
            fused: scale(fused),
            scan: scale(host.scan),
            collective: scale((host.collective, host.collective)),
            gradient: if options.kernels.accumulate == Accumulate::Reduced { 0.0 } else { host.gradient * by.1 },
            tensor: host.tensor * speed,
            matrix: host.matrix * speed,
            blocked: if options.kernels.blocking { BLOCKED } else { 0.0 },
        }
    }
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
        let starts = Starts::new(&profile.host, options, profile.host.speed.0);
        let is_loop = options.kernels.elementwise == Elementwise::Fused;
        let scaled = if options.scaling == Some(Scaling::Blockwise) { BLOCKWISE } else { (1.0, 1.0) };
        let numbers = Numbers::Drawn;
        let preconditions = Some(options.ways.elements).filter(|step| step.preconditions());
        let tf32 = device.peaks.iter().find(|peak| peak.format == "tf32").map(|peak| bf16 / peak.flops);
        if let Some(step) = preconditions.filter(|_| tf32.is_none()) {
            let why = format!("no peak in tf32, which {} multiplies in", step.title());
            return Err(Unpriced::new(device.name.clone(), why));
        }
        let tf32 = tf32.unwrap_or(1.0);
        Ok(Meter {
            preconditions,
            tf32,
            is_measured,
            starts,
            numbers,
            is_loop,
            scaled,
            gemm,
            attention,
            bf16,
            rate,
            profile,
        })
    }

    /// What steps elements, where it has preconditioners of matrices.
    pub fn preconditions(&self) -> Option<ElementStep> {
        self.preconditions
    }

    /// How much longer a product takes in tf32 than in bf16.
    pub fn slower_in_tf32(&self) -> f64 {
        self.tf32
    }

    /// The same device over other numbers, beside its own host.
    pub fn beside_its_host(self, options: &Options, numbers: Numbers) -> Meter {
        Meter { numbers, starts: Starts::new(&self.profile.host, options, self.profile.host.here), ..self }
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
            Work::Gemm { format, m, n, k, groups, out_bytes } => {
                self.gemm(format, [m, n, k], groups, out_bytes).seconds
            }
            Work::Attention { flops, bytes, tokens, rows, dim, pass } => {
                let curve = &self.attention;
                let (forward, backward) = curve.fractions(dim);
                let (fraction, half, half_rows) = match pass {
                    Direction::Forward => (forward, curve.half_tokens.0, curve.half_rows.0),
                    Direction::Backward => (backward, curve.half_tokens.1, curve.half_rows.1),
                };
                let reached = tokens / (tokens + half) * (rows / (rows + half_rows));
                let cool = if self.numbers == Numbers::Same { self.profile.power.same_attention } else { 1.0 };
                (cool * flops / (self.bf16 * fraction * reached.max(1e-3))).max(bytes / self.rate)
                    + memory.fixed_seconds
            }
            Work::Scan { flops, bytes, pass } => {
                let scan = &self.profile.scan;
                let fraction = if pass == Direction::Forward { scan.forward } else { scan.backward };
                (flops / (self.bf16 * fraction)).max(bytes / self.rate) + memory.fixed_seconds
            }
            Work::Walk { steps, heads, pass } => {
                let more = (heads / self.profile.multiprocessors as f64 - 1.0).max(0.0);
                steps * (1.0 + SHARED_STEP * more) * self.profile.recurrence.step(pass == Direction::Backward)
            }
            Work::Fp32 { flops, bytes, kernels } => {
                (flops / (self.bf16 * FP32)).max(bytes / self.rate) + kernels * memory.fixed_seconds
            }
            Work::Cumulative { steps } => steps * CUMULATIVE * self.profile.recurrence.step_seconds,
            Work::Bytes { bytes, kernels, stream, .. } => {
                bytes / (self.rate * self.stream(stream)) + kernels * memory.fixed_seconds
            }
            Work::Atomic { adds } => adds * ATOMIC,
            Work::Sync => self.profile.host.sync,
        }
    }

    /// The rate of a kind of kernel against plain ones.
    fn stream(&self, stream: Stream) -> f64 {
        let rates = &self.profile.memory.streams;
        match stream {
            Stream::Plain => 1.0,
            Stream::Mixed => rates.mixed,
            Stream::Strided => rates.strided,
            Stream::Scattered => rates.scattered,
            Stream::Indexed => rates.indexed,
            Stream::Normed => rates.normed,
            Stream::Gated => rates.gated,
            Stream::Convolved => rates.convolved,
            Stream::Broadcast => BROADCAST,
        }
    }

    /// Seconds that a product would not take if power did not bound it.
    pub fn powered(&self, work: &Work) -> f64 {
        match *work {
            Work::Gemm { format, m, n, k, groups, out_bytes } => {
                self.gemm(format, [m, n, k], groups, out_bytes).powered
            }
            _ => 0.0,
        }
    }

    /// Whether experts are modules of their own, started one by one, rather than one bank.
    pub fn is_loop(&self) -> bool {
        self.is_loop
    }

    /// Seconds the host takes to start it.
    pub fn host_seconds(&self, work: &Work, pass: Pass) -> f64 {
        let starts = &self.starts;
        // Backward of a product is one node with two products.
        let of = |started: Started| match pass {
            Pass::Forward => started.0,
            Pass::Input | Pass::Weight => started.1 / 2.0,
        };
        let node = |started: Started| if pass == Pass::Forward { started.0 } else { started.1 };
        let gradient = if pass == Pass::Weight { starts.gradient } else { 0.0 };
        match *work {
            // Torch's own grouped product is one operation.
            Work::Gemm { groups, .. } if groups > 1.0 && self.is_loop => {
                of(starts.group.0) + groups * (of(starts.group.1) + gradient + starts.blocked)
            }
            Work::Gemm { .. } => of(starts.product) + gradient + 3.0 * starts.blocked,
            Work::Attention { .. } | Work::Walk { .. } => node(starts.attention) + 6.0 * starts.blocked,
            Work::Scan { .. } => node(starts.scan) + 6.0 * starts.blocked,
            Work::Fp32 { kernels, .. } => kernels * (node(starts.stream) + starts.blocked),
            Work::Cumulative { .. } => node(starts.stream) + starts.blocked,
            Work::Bytes { call: Call::Inside, .. } | Work::Atomic { .. } | Work::Sync => 0.0,
            Work::Bytes { kernels, call: Call::Eager, .. } => kernels * (node(starts.stream) + starts.blocked),
            Work::Bytes { kernels, call: Call::Norm, .. } => node(starts.norm) + kernels * starts.blocked,
            Work::Bytes { kernels, call: Call::Fused, .. } => node(starts.fused) + kernels * starts.blocked,
        }
    }

    /// Seconds the host takes to start so many collectives in forward and in backward, each with the copies and
    /// waits around it on its stream.
    pub fn host_of_collectives(&self, (forward, backward): (f64, f64)) -> Started {
        (forward * self.starts.collective.0, backward * self.starts.collective.1)
    }

    /// Seconds the host takes to walk so many tensors behind the last backward, and to orthogonalise so many
    /// matrices.
    pub fn host_of_tensors(&self, tensors: f64, matrices: f64) -> f64 {
        tensors * self.starts.tensor + matrices * self.starts.matrix
    }

    /// Seconds the host takes for one eager operation outside a model, which records no gradient.
    pub fn host_of_one(&self) -> f64 {
        self.profile.host.eager.0 * self.profile.host.speed.0
    }

    /// Waves of tiles over the multiprocessors, on the best tile and cut along k.
    fn gemm(&self, format: Format, [m, n, k]: [f64; 3], groups: f64, out_bytes: f64) -> Product {
        let Some((peak, curve)) = &self.gemm[format as usize] else { return Product::NEVER };
        let bytes = groups * (format.bytes() * (m * k + n * k) + out_bytes * m * n) / self.rate;
        let aligned = |words: f64| [n, k].iter().all(|side| side * format.bytes() % words == 0.0);
        if format == Format::Bf16 && !aligned(16.0) {
            let share = if aligned(4.0) { curve.unaligned.0 } else { curve.unaligned.1 };
            let seconds = (2.0 * m * n * k * groups / (peak * share)).max(bytes) + curve.fixed_seconds;
            return Product { seconds, powered: 0.0 };
        }
        let (at_once, times) = if self.is_loop { (1.0, groups) } else { (groups, 1.0) };
        let grouped = if at_once > 1.0 { curve.grouped } else { 1.0 };
        let adds = out_bytes > 4.0;
        let scaled = if adds { self.scaled.1 } else { self.scaled.0 };
        let grouped = if format == Format::Fp8 { grouped * scaled } else { grouped };
        let many = grouped * if adds { curve.accumulated } else { 1.0 };
        let units = self.profile.multiprocessors as f64;
        let mut waves_take = f64::INFINITY;
        for &(rows, columns, tile) in &curve.tiles {
            let (rows, columns) = (rows as f64, columns as f64);
            let tiles = (m / rows).ceil() * (n / columns).ceil() * at_once;
            for split in SPLITS {
                let waves = (tiles * split / units).ceil();
                let flops = waves * units * rows * columns * 2.0 * (k / split + curve.k_overhead);
                waves_take = waves_take.min(times * flops / (peak * curve.boost * many * tile));
            }
        }
        // Filling and draining draws power too, but half of it waits.
        let powered = 2.0 * m * n * (k + curve.k_overhead / 2.0) * groups / (peak * curve.sustained * many);
        let hot = waves_take.max(powered);
        let cool = (self.profile.power.same_products * waves_take).max(bytes);
        let seconds = if self.numbers == Numbers::Same { cool } else { hot.max(bytes) };
        Product { seconds: seconds + times * curve.fixed_seconds, powered: seconds - cool }
    }
}

/// Seconds of a product, and how many of them the clock costs that power leaves.
struct Product {
    seconds: f64,
    powered: f64,
}

impl Product {
    const NEVER: Product = Product { seconds: f64::INFINITY, powered: 0.0 };
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

    /// Products whose rows are no multiple of 16 bytes, timed on an H200 with `tools/measure_kernels.py`, in
    /// milliseconds; the last is aligned.
    #[test]
    fn unaligned_products_take_what_was_measured() {
        let rows = [
            ([8192.0, 4124.0, 3584.0], 0.994),
            ([8192.0, 4098.0, 4096.0], 1.013),
            ([8192.0, 4097.0, 4096.0], 2.978),
            ([8192.0, 4104.0, 4096.0], 0.36),
        ];
        for ([m, n, k], measured) in rows {
            let work = Work::Gemm { format: Format::Bf16, m, n, k, groups: 1.0, out_bytes: 2.0 };
            let milliseconds = 1e3 * meter("H200", Format::Bf16).seconds(&work);
            let error = milliseconds / measured - 1.0;
            assert!(error.abs() < 0.2, "{m} x {n} x {k}: {milliseconds:.3}, measured {measured}");
        }
    }

    /// Products of nothing but not-a-number between kernels that only move bytes, timed on an H200 with
    /// `tools/measure_kernels.py`: nothing switches, and the clock stays up.
    #[test]
    fn products_of_equal_numbers_run_at_the_full_clock() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let options = Options::of(Some(Engine::Megatron), &recipe);
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        let meter = meter.beside_its_host(&options, Numbers::Same);
        for ([m, n, k], measured) in [([16384.0, 14336.0, 4096.0], 2.082), ([8192.0, 4096.0, 14336.0], 1.042)] {
            let work = Work::Gemm { format: Format::Bf16, m, n, k, groups: 1.0, out_bytes: 2.0 };
            let milliseconds = 1e3 * meter.seconds(&work);
            assert!((milliseconds / measured - 1.0).abs() < 0.08, "{m} x {n} x {k}: {milliseconds:.3}, {measured}");
        }
    }

    /// Products with a scale for every 128 elements, timed on an H200 with `tools/measure_kernels.py`, in
    /// milliseconds: forward, then the weight's gradient added into fp32.
    #[test]
    fn block_scaled_products_take_what_was_measured() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let options = Options { format: Format::Fp8, ..Options::of(Some(Engine::Megatron), &recipe) };
        let options = Options { scaling: Some(Scaling::Blockwise), ..options };
        let meter = Meter::new(&Device::find("H200").unwrap(), &options).unwrap();
        let rows = [
            ([8192.0, 28672.0, 4096.0], 2.0, 1.5),
            ([28672.0, 4096.0, 8192.0], 8.0, 2.058),
            ([2048.0, 4096.0, 7168.0], 2.0, 0.110),
            ([4096.0, 7168.0, 2048.0], 8.0, 0.144),
            ([7168.0, 2048.0, 2048.0], 8.0, 0.0786),
            ([1536.0, 2048.0, 2048.0], 8.0, 0.0289),
        ];
        for ([m, n, k], out_bytes, measured) in rows {
            let work = Work::Gemm { format: Format::Fp8, m, n, k, groups: 1.0, out_bytes };
            let milliseconds = 1e3 * meter.seconds(&work);
            assert!((milliseconds / measured - 1.0).abs() < 0.2, "{m} x {n} x {k}: {milliseconds:.3}, {measured}");
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
