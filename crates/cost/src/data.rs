//! What happens once a step around the microbatches: gradients over replicas, weights back, the
//! optimizer; and from ZeRO 2 on what happens around every layer of every microbatch.

use crate::held::{Held, is_dealt_out};
use crate::nanotron;
use crate::overlap::{Over, Rules};
use crate::prices::{Counts, Load, Prices};
use crate::traffic::{Fabric, Ring, Spread};
use case::options::{Accumulate, Format, Gathered, StateDtypes};
use case::ways::{ElementStep, MomentumFormat};
use layout::{Engine, Layout, Schedule, ZeroStage};
use recipe::Dtype;

/// Bytes that Muon's own kernels move for an element, all in fp32 but for the product's factors: weight decay 8,
/// momentum 12, its look ahead 12, the norm 4, the division by it 8, casts to bf16 and back 12, the scale 8, the
/// step 12 (Emerging-Optimizers 0.4.0, `orthogonalized_optimizer.py`, kernel by kernel).
const MUON_BYTES: f64 = 76.0;

/// Bytes an optimizer reads and writes for an element it steps. AdamW reads the gradient, the main weight and
/// both moments, writes all but the gradient and the weight that is gathered; the gradient is read
/// once more for its norm. Muon's main weight is cast behind its step.
fn step_bytes(prices: &Prices) -> [f64; 2] {
    let bytes = |dtype: Dtype| dtype.bits() as f64 / 8.0;
    let StateDtypes { main, gradients, exp_avg, exp_avg_sq } = prices.setting.options.state;
    let (_, weight) = widths(prices);
    let ways = prices.setting.options.ways;
    let around = 2.0 * bytes(gradients) + 2.0 * bytes(main) + weight;
    let elements = match ways.elements {
        ElementStep::AdamW => around + 2.0 * (bytes(exp_avg) + bytes(exp_avg_sq)),
        ElementStep::AdamW8bit | ElementStep::PagedAdamW8bit => ADAMW_8_BITS,
        ElementStep::PagedAdamW => around + 16.0,
        ElementStep::Soap => SOAP_BYTES,
        ElementStep::Shampoo => SHAMPOO_BYTES,
        ElementStep::Lion => around + 8.0,
        ElementStep::Lion8bit => LION_8_BITS,
        ElementStep::Sgd => around + 2.0 * bytes(main),
        ElementStep::Adafactor => ADAFACTOR_BYTES,
        ElementStep::AoAdamW8bit => around + bytes(gradients) + AO_8_BITS,
        ElementStep::AoAdamW4bit => around + AO_4_BITS,
        ElementStep::AoAdamWFp8 => around + bytes(gradients) + AO_FP8,
    };
    let quantised = if ways.momentum == MomentumFormat::Int8 { INT8_MOMENTUM_BYTES } else { 0.0 };
    // The average is read and written, the weight read.
    let average = if ways.average { 8.0 + bytes(main) } else { 0.0 };
    [elements + average, bytes(gradients) + MUON_BYTES + bytes(main) + weight + quantised + average]
}

/// bitsandbytes' kernels over 8-bit state look codes up, and are not bound by what they read: bytes that would take as
/// long. 50 and 23 ps an element on an H200 (rows `adamw8` and `lion8` of `data/truth/ways_h200.jsonl` against `plain`),
/// at the 4.1 TB/s that plain copies reach there. How it scales to other devices nobody has measured.
const ADAMW_8_BITS: f64 = 205.0;
const LION_8_BITS: f64 = 95.0;

/// What the kernels that inductor of torch 2.11 writes for torchao's step move for an element beside weight and gradient,
/// which those of blocks of 256 read twice. 8 bits: both codes read, scaled moments written in fp32; codes and these
/// read, codes written. 4 bits: codes read, moments written in fp32; each read for its largest and for its codes, which
/// are written in int64, read and packed. fp8: codes read twice, written, read and written into place. How long codes
/// take to look up nobody has measured.
const AO_8_BITS: f64 = 2.0 + 8.0 + 2.0 + 8.0 + 2.0;
const AO_4_BITS: f64 = 1.0 + 8.0 + 8.0 + 8.0 + 16.0 + 16.0 + 1.0;
const AO_FP8: f64 = 2.0 + 2.0 + 2.0 + 2.0 + 2.0;

/// Bytes that torch's Adafactor moves for an element of a matrix, kernel by kernel in fp32 (`_adafactor.py`): norm of
/// the weight 4, rows and columns 8, their product 4, its division 8, clamp 8, root 8, times the gradient 12, its norm 4,
/// weight decay 8, the step 12; and the gradient's norm before.
const ADAFACTOR_BYTES: f64 = 80.0;

/// Bytes that SOAP's kernels move for an element beside its products (`optimizer/soap.py`): the gradient's norm 4, momentum
/// 12, a square 8, second moments 12, root 8, epsilon 8, quotient 12, the step 12, weight decay 8.
const SOAP_BYTES: f64 = 84.0;

/// Bytes that Shampoo's kernels move for an element beside its blocks (`optimizer/shampoo.py`, grafted on RMSProp): the
/// gradient's norm 4, second moments 20, root 8, epsilon 8, quotient 12, scale 8, a copy or the turned one's scale 8, two norms 8, the
/// graft's length 8, weight decay 8, momentum 12, the graft's 20, look ahead 12, the step 12.
const SHAMPOO_BYTES: f64 = 148.0;

/// What Muon's kernels move for an element beyond `MUON_BYTES` where its momentum is int8: cleared 4, read narrow and
/// written 5, decayed 8, its largest 4, codes 8, rounded 8, written narrow 5, less what a momentum in fp32 moves.
const INT8_MOMENTUM_BYTES: f64 = 42.0 - 8.0;

/// Of a host's memory bandwidth, what stepping AdamW there reaches: ZeRO-Offload's kernel steps 10^9
/// elements in 0.22 s on two Xeon 8168 (Ren et al., arXiv 2101.06840, table 4), which have six channels
/// of DDR4-2666 each, 256 GB/s; an element is [`HOST_BYTES`].
const HOST_RATE: f64 = HOST_BYTES * 1e9 / 0.22 / 256e9;

/// Bytes the host reads and writes for an element: gradient, main weight and both moments in fp32
/// read, all but the gradient written, and the bf16 weight.
const HOST_BYTES: f64 = 16.0 + 12.0 + 2.0;

/// That machine's elements a second, for a device whose host nobody states.
const UNSTATED_HOST: f64 = 1e9 / 0.22;

/// Share of the host link that large copies reach: 55 of 64 GB/s, pinned, either way
/// (`tools/measure_curves.py` on an H200).
const HOST_LINK: f64 = 0.86;

/// Seconds once a step on one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct OnceAStep {
    /// Gradients over replicas, all of it and what shows.
    pub gradients: [f64; 2],
    /// Weights over replicas, likewise.
    pub weights: [f64; 2],
    /// The optimizer's own kernels.
    pub optimizer: f64,
    /// State that travels to and from the host, and is stepped there.
    pub offload: f64,
}

impl OnceAStep {
    /// What the step waits for.
    pub fn exposed(&self) -> f64 {
        self.gradients[1] + self.weights[1] + self.optimizer + self.offload
    }
}

/// Replicas of one mesh: those that share out state, and those that hold copies of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub sharing: Spread,
    pub copies: Spread,
}

impl Replicas {
    /// Dense replicas that share out state, in a job of so many ranks.
    pub fn ring(&self, fabric: &Fabric, world: u64) -> Ring {
        match self.copies.members {
            0 | 1 => fabric.ring_of_replicas(self.sharing, world / self.sharing.members),
            _ => fabric.ring(self.sharing),
        }
    }
}

/// Replicas of dense and of expert tensors on the fabric.
pub(crate) fn replicas(prices: &Prices, layout: &Layout) -> [Replicas; 2] {
    let setting = &prices.setting;
    let of = |members: u64, stride: u64| {
        let sharing = setting.options.shard_group.unwrap_or(members).clamp(1, members);
        Replicas {
            sharing: setting.fabric.spread(sharing, stride),
            copies: setting.fabric.spread(members / sharing, stride * sharing),
        }
    };
    // Context ranks hold copies of dense tensors too, and lie between tensor and data ranks.
    let dense = of(layout.dense_shards(), layout.tp.get());
    let expert = of(layout.edp.get(), layout.etp.get() * layout.ep.get());
    [dense, expert]
}

/// Groups that state moves over, of one mesh.
#[derive(Clone, Copy, Debug)]
struct Rings {
    sharing: Ring,
    copies: Ring,
    /// Whether any of it goes over the network.
    crosses: bool,
}

impl Rings {
    fn new(fabric: &Fabric, of: Replicas) -> Rings {
        let crosses = of.sharing.crosses() || of.copies.crosses();
        Rings { sharing: fabric.ring(of.sharing), copies: fabric.ring(of.copies), crosses }
    }

    /// Of seconds that these take, what a port carries.
    fn on_port(&self, seconds: f64) -> f64 {
        if self.crosses { seconds } else { 0.0 }
    }

    /// Seconds to reduce gradients of `bytes` on the way to their shards, copies included.
    fn reduce(&self, zero: ZeroStage, bytes: f64) -> f64 {
        let shard = bytes / self.sharing.members;
        let down = match zero {
            ZeroStage::Zero => self.sharing.all_reduce(bytes).0,
            _ => self.sharing.gather(bytes),
        };
        down + self.copies.all_reduce(shard).0
    }
}

/// What of a layout decides how state moves: degrees, ZeRO and engine, not where depth is cut. One serves
/// every partition and order of the same degrees.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    zero: ZeroStage,
    is_nanotron: bool,
    /// Whether Muon's matrices are shared out.
    is_dealt: bool,
    turns: Turns,
    inside: Inside,
    /// Of dense and of expert tensors.
    rings: [Rings; 2],
    /// Seconds in which a port carries an activation to the next stage.
    send: f64,
    /// Tensor-parallel ranks, where they hold whole copies whose gradients they sum.
    summed: Option<Ring>,
    /// Tensor-parallel ranks, where there are several.
    over_tp: Option<Ring>,
}

impl Placed {
    pub(crate) fn new(prices: &Prices, layout: &Layout) -> Placed {
        let fabric = &prices.setting.fabric;
        let [dense, expert] = replicas(prices, layout);
        let sharing = dense.ring(fabric, layout.world);
        Placed {
            zero: layout.zero,
            is_nanotron: layout.engine == Some(Engine::Nanotron),
            is_dealt: is_dealt_out(layout),
            turns: Turns::of(layout),
            inside: inside(prices, layout),
            rings: [Rings { sharing, ..Rings::new(fabric, dense) }, Rings::new(fabric, expert)],
            send: prices.sent(layout).port,
            summed: layout.sp.then(|| fabric.ring(fabric.spread(layout.tp.get(), 1))),
            over_tp: layout.tp.splits().then(|| fabric.ring(fabric.spread(layout.tp.get(), 1))),
        }
    }

    /// Seconds in which a port is busy besides, with what a chunk or stage sends to others: forward to the next, backward
    /// to the one before. Of several chunks a stage only the one that runs at the time is counted.
    pub(crate) fn with_sends(&self, port: [f64; 2], counts: Counts) -> [f64; 2] {
        let send = |is_end: bool| if is_end { 0.0 } else { self.send };
        [port[0] + send(counts.is_last), port[1] + send(counts.is_first)]
    }

    /// Replicas that share out the state of a mesh.
    fn shards(&self, mesh: usize) -> f64 {
        match self.zero {
            ZeroStage::Zero => 1.0,
            _ => self.rings[mesh].sharing.members,
        }
    }

    /// Replicas that share out the matrices that Muon orthogonalises.
    fn hands(&self, mesh: usize) -> f64 {
        if self.is_dealt { self.shards(mesh) } else { 1.0 }
    }

    /// Replicas of dense tensors.
    fn dense(&self) -> &Ring {
        &self.rings[0].sharing
    }

    /// Whether state moves with every microbatch.
    pub(crate) fn moves_inside(&self) -> bool {
        self.inside.gathers != [0, 0] || self.inside.reduces
    }
}

/// Bytes of a gradient and of a weight as they travel.
pub(crate) fn widths(prices: &Prices) -> (f64, f64) {
    let (gradients, weights) = (prices.setting.options.state.gradients, prices.setting.recipe.precision.weights);
    (gradients.bits() as f64 / 8.0, weights.bits() as f64 / 8.0)
}

/// What every microbatch moves over replicas, beside what moves once a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Times weights are gathered, in forward and in backward.
    pub gathers: [u64; 2],
    /// Whether gradients are reduced.
    pub reduces: bool,
}

/// Whole weights or gradients that a rank does not keep travel with every microbatch: gradients from
/// ZeRO 2 on, weights under ZeRO 3. `fully_shard` gives weights back behind backward even where it
/// keeps them until then (`torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`), unless a pipeline
/// puts both off to the end of the step (`torch/distributed/pipelining/stage.py`).
pub(crate) fn inside(prices: &Prices, layout: &Layout) -> Inside {
    let gives_back = prices.setting.options.kernels.accumulate == Accumulate::Reduced;
    match layout.zero {
        ZeroStage::Zero | ZeroStage::One => Inside { gathers: [0, 0], reduces: false },
        ZeroStage::Two if gives_back && layout.pp.splits() => Inside { gathers: [0, 0], reduces: false },
        ZeroStage::Two => Inside { gathers: [u64::from(gives_back), 0], reduces: true },
        ZeroStage::Three => Inside { gathers: [1, 1], reduces: true },
    }
}

/// Gathers and reductions of one stage for one microbatch: seconds that show in forward and in
/// backward. A layer's weights are gathered while the layer before it runs.
pub(crate) fn sharded_weights(prices: &Prices, placed: &Placed, load: &Load) -> [f64; 2] {
    let (held, times) = (&load.held, load.times);
    let inside = placed.inside;
    let sums = adapter_sums(placed, held);
    if !placed.moves_inside() {
        return [0.0, sums];
    }
    let (gradient, weight) = widths(prices);
    // Seconds, and of them what goes over a port.
    let (mut gather, mut reduced) = (Over::default(), Over::default());
    // Every layer is a collective of its own.
    let units = held.units.max(1.0);
    // A teacher's weights come in forward alone.
    let dense = &placed.rings[0];
    let taught = prices.taught.as_ref().map_or(0.0, |taught| {
        let elements = taught.elements.iter().sum::<f64>();
        placed.dense().gather_in(taught.units.max(1.0), elements * weight)
    });
    for (mesh, rings) in placed.rings.iter().enumerate() {
        let elements = gathered(prices, held, mesh);
        gather.add(rings, rings.sharing.gather_in(units, elements * weight));
        if prices.setting.options.offload_params {
            // A rank's own part comes from its host before others can have it.
            let part = elements * weight / rings.sharing.members;
            gather.all += prices.setting.host_link.map_or(0.0, |rate| part / (rate * HOST_LINK));
        }
        reduced.add(rings, units * rings.reduce(placed.zero, held.trained[mesh] * gradient / units));
    }
    // Every use of a block that layers share gathers and reduces it; ZeRO 2 keeps it through forward.
    let again = if held.again > 0.0 { placed.dense().gather(held.again * weight) } else { 0.0 };
    if held.again > 0.0 {
        reduced.add(dense, dense.reduce(placed.zero, held.again * gradient));
    }
    let occupied = prices.setting.meter.profile().collectives.occupied;
    let [mut forward, mut backward] = inside.gathers.map(|count| gather.times(count as f64));
    forward.add(dense, if placed.zero == ZeroStage::Three { again + taught } else { taught });
    backward.add(dense, again);
    if inside.reduces {
        backward.all += reduced.all;
        backward.on_port += reduced.on_port;
    }
    let shown = [
        Rules::beside(occupied, forward, times.forward, load.port[0]),
        Rules::beside(occupied, backward, times.backward(), load.port[1]),
    ];
    let copies = copied(prices, placed, held).map(|bytes| bytes / prices.setting.meter.rate());
    let shown = [shown[0] + copies[0], shown[1] + copies[1]];
    let read = swapped_in(prices, placed, held);
    // Weights are read ahead of the gathers that send them on.
    let late = |pass: usize, compute: f64| (read * inside.gathers[pass] as f64 - compute - shown[pass]).max(0.0);
    [shown[0] + late(0, times.forward), shown[1] + late(1, times.backward()) + sums]
}

impl Over {
    fn add(&mut self, rings: &Rings, seconds: f64) {
        self.all += seconds;
        self.on_port += rings.on_port(seconds);
    }

    fn times(self, count: f64) -> Over {
        Over { all: self.all * count, on_port: self.on_port * count }
    }
}

/// Bytes that `fully_shard` moves around the collectives of one microbatch in forward and in backward, as bytes of plain copies. A
/// rank's part is cast on the way into a gather, every weight is copied out of what was gathered, and gradients are put side by
/// side in the format they are reduced in (`_fully_shard/_fsdp_collectives.py`: all_gather_copy_in, split_with_sizes_copy,
/// chunk_cat).
pub(crate) fn copied(prices: &Prices, placed: &Placed, held: &Held) -> [f64; 2] {
    let options = &prices.setting.options;
    let layout = options.kernels.gathered;
    if layout == Gathered::Flat || !placed.moves_inside() {
        return [0.0, 0.0];
    }
    let ((gradient, weight), main) = (widths(prices), options.state.main.bits() as f64 / 8.0);
    let (mut gathers, mut reduces) = (0.0, 0.0);
    for (mesh, rings) in placed.rings.iter().enumerate() {
        if mesh == 1 && rings.sharing.members <= 1.0 && layout == Gathered::WhereShared {
            continue;
        }
        let elements = gathered(prices, held, mesh);
        let out = if rings.sharing.members > 1.0 { COPIED_OUT } else { COPIED };
        gathers += elements * ((main + weight) / rings.sharing.members / CAST + 2.0 * weight / out);
        reduces += held.trained[mesh] * (weight + gradient) / COPIED;
    }
    let [forward, backward] = placed.inside.gathers.map(|count| gathers * count as f64);
    [forward, backward + if placed.inside.reduces { reduces } else { 0.0 }]
}

/// Rates of those kernels against plain copies: casts into a gather 3.0 TB/s, weights out of it 3.9 (2.1 where a rank is alone, and
/// they are copied one by one), gradients side by side 1.9 and 2.0, of 4.1 on an H200 (two models of 1.9 and 8 billion parameters).
const CAST: f64 = 0.73;
const COPIED_OUT: f64 = 0.95;
const COPIED: f64 = 0.48;

/// Seconds to read a rank's own weights off the drives once.
fn swapped_in(prices: &Prices, placed: &Placed, held: &Held) -> f64 {
    let Some(drives) = prices.setting.drives.filter(|_| prices.setting.options.offload_params) else { return 0.0 };
    let parts = (0..2).map(|mesh| gathered(prices, held, mesh) / placed.rings[mesh].sharing.members);
    drives.fetched(parts.sum(), prices.setting.options.zero.sub_group)
}

/// Elements of a mesh that are gathered: a quantised base is whole on every replica.
fn gathered(prices: &Prices, held: &Held, mesh: usize) -> f64 {
    let is_kept = mesh == 0 && prices.setting.options.ways.base.is_quantised();
    held.elements[mesh] - if is_kept { held.multiplied } else { 0.0 }
}

/// Gradients of adapters in fp32, which a hook sums factor by factor in every backward while the rest of it
/// waits: over replicas, and over tp what is whole there (`launch/assets/fsdp2/lora.py`).
fn adapter_sums(placed: &Placed, held: &Held) -> f64 {
    let each = |ring: &Ring, count: f64, elements: f64| match count {
        0.0 => 0.0,
        _ => count * ring.all_reduce(elements / count * 4.0).0,
    };
    // One factor of each pair is whole over tp.
    let over_tp = placed.over_tp.as_ref().map_or(0.0, |ring| each(ring, held.factors[0] / 2.0, held.adapters_whole));
    let over = |mesh: usize| each(&placed.rings[mesh].sharing, held.factors[mesh], held.adapters[mesh]);
    over(0) + over(1) + over_tp
}

/// Chunks of a stage that take turns: how many there are, and for how many microbatches each runs before the next does.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turns {
    chunks: f64,
    microbatches: f64,
}

impl Turns {
    /// Under the interleaved order a chunk's gradients are whole when its turn of the last microbatches ends, and travel
    /// while the chunks before it have theirs; its weights come while those before it have their first (Megatron-Core
    /// `pipeline_parallel/schedules.py`: grad_sync_func, param_sync_func, microbatch_group_size_per_vp_stage).
    fn of(layout: &Layout) -> Turns {
        match layout.schedule {
            Schedule::Interleaved => Turns {
                chunks: layout.vpp.get() as f64,
                microbatches: layout.pp.get().min(layout.microbatches).max(1) as f64,
            },
            _ => Turns { chunks: 1.0, microbatches: 1.0 },
        }
    }

    /// What shows of the weights a stage gathers once, where a microbatch's forward takes so long: of all chunks beside
    /// their turns, and of the first beside its own pass.
    fn weights(self, occupied: f64, moved: Over, pass: f64, busy: f64) -> f64 {
        let all = self.beside(self.chunks - 1.0, occupied, moved, pass, busy);
        let share = 1.0 / self.chunks;
        all.max(Rules::beside(occupied, moved.times(share), share * pass, share * busy))
    }

    /// The same of gradients. All stages reduce a chunk's at the same time, as many passes late as there are stages before
    /// them (`align_grad_reduce`), so that a turn is lost and the last chunk's are waited for.
    fn gradients(self, occupied: f64, moved: Over, pass: f64, busy: f64) -> f64 {
        let all = self.beside((self.chunks - 2.0).max(0.0), occupied, moved, pass, busy);
        if self.chunks > 1.0 { all.max(moved.all / self.chunks) } else { all }
    }

    /// Beside so many turns and one pass more of a chunk.
    fn beside(self, turns: f64, occupied: f64, moved: Over, pass: f64, busy: f64) -> f64 {
        let covers = (turns * self.microbatches + 1.0) / self.chunks;
        Rules::beside(occupied, moved, covers * pass, covers * busy)
    }
}

/// Gradients, weights and the optimizer of one stage. Its times are one microbatch's, under whose
/// last backward gradients travel and under whose first forward weights do; `slack` is how long
/// the stage waits for others before its first and behind its last pass.
pub(crate) fn once_a_step(prices: &Prices, placed: &Placed, load: &Load, slack: f64) -> OnceAStep {
    let (held, times) = (&load.held, load.times);
    let (gradient, weight) = widths(prices);
    let overlap = prices.setting.options.overlap;
    let mut once = OnceAStep::default();
    let inside = placed.inside;
    let (mut gradients, mut weights) = (Over::default(), Over::default());
    if placed.is_nanotron {
        let moved = nanotron::moved(prices, placed.zero, placed.dense(), held);
        gradients.add(&placed.rings[0], moved.0);
        weights.add(&placed.rings[0], moved.1);
    } else if placed.zero != ZeroStage::Three {
        for (mesh, rings) in placed.rings.iter().enumerate() {
            if !inside.reduces {
                gradients.add(rings, rings.reduce(placed.zero, held.trained[mesh] * gradient));
            }
            if placed.zero != ZeroStage::Zero && inside.gathers == [0, 0] {
                weights.add(rings, rings.sharing.gather(held.elements[mesh] * weight));
            }
        }
    }
    (once.gradients[0], once.weights[0]) = (gradients.all, weights.all);
    let occupied = prices.setting.meter.profile().collectives.occupied;
    let hides = overlap.gradients || placed.is_nanotron && nanotron::hides_gradients(placed.zero);
    once.gradients[1] = match hides {
        true => placed.turns.gradients(occupied, gradients, times.backward(), load.port[1]),
        false => gradients.all,
    };
    once.weights[1] = match overlap.weights {
        true => placed.turns.weights(occupied, weights, times.forward, load.port[0]),
        false => weights.all,
    };
    // What a stage waits for others anyway, it need not show twice.
    once.gradients[1] = (once.gradients[1] - slack).max(0.0);
    once.weights[1] = (once.weights[1] - slack).max(0.0);
    if !placed.is_dealt {
        // Every matrix's direction is gathered in fp32 while nothing else runs.
        let gathers =
            (0..2).map(|mesh| placed.rings[mesh].sharing.gather_in(held.matrices[mesh], held.muon[mesh] * 4.0));
        let gathered: f64 = gathers.sum();
        once.weights[0] += gathered;
        once.weights[1] += gathered;
    }
    if let Some(ring) = &placed.summed {
        let whole = ring.all_reduce(held.whole * gradient).0;
        once.gradients[0] += whole;
        once.gradients[1] += whole;
    }
    (once.optimizer, once.offload) = optimizer(prices, placed, held);
    once
}

/// The optimizer's kernels on a rank whose replicas are stood in for, with the copies that stand for gathered
/// weights, and the host's loops.
pub(crate) fn stepped_alone(prices: &Prices, layout: &Layout, counts: Counts) -> (f64, f64) {
    let (placed, held) = (prices.placed(layout), prices.held(counts));
    let gathered = |mesh: usize| match placed.zero {
        ZeroStage::Zero => 0.0,
        _ if placed.rings[mesh].sharing.members > 1.0 => 2.0 * held.elements[mesh] * widths(prices).1,
        _ => 0.0,
    };
    let copies = (gathered(0) + gathered(1)) / prices.setting.meter.rate();
    let kernels = stepped(prices, &placed, &held).0 + copies;
    (kernels, host(prices, &placed, &held))
}

/// Seconds of the optimizer on a device, and of the host's link and step. The norm of all gradients is read
/// before anything is stepped, so that the host has no lead when its loops begin.
fn optimizer(prices: &Prices, placed: &Placed, held: &Held) -> (f64, f64) {
    let (kernels, away) = stepped(prices, placed, held);
    ((kernels * prices.setting.slowest).max(host(prices, placed, held)), away)
}

/// Seconds of the host's loops over tensors, and over the matrices that a rank orthogonalises one after the other.
fn host(prices: &Prices, placed: &Placed, held: &Held) -> f64 {
    let matrices = (0..2).map(|mesh| held.matrices[mesh] / placed.hands(mesh)).sum();
    let meter = &prices.setting.meter;
    meter.host_of_tensors(held.tensors, matrices) + held.looped * meter.host_of_one()
}

/// Seconds of the optimizer's kernels, and of the host's link and step.
fn stepped(prices: &Prices, placed: &Placed, held: &Held) -> (f64, f64) {
    let setting = &prices.setting;
    let shards = |mesh: usize| placed.shards(mesh);
    let offload = prices.offload;
    let [adamw_bytes, muon_bytes] = step_bytes(prices);
    let ways = setting.options.ways;
    let (mut bytes, mut products, mut away, mut paged) = (0.0, held.preconditioned, 0.0, 0.0);
    for mesh in 0..2 {
        // What Muon steps stays on the device, which orthogonalises it (`memory::fit::Offload`).
        let adam = (held.trained[mesh] - held.muon[mesh]) / shards(mesh);
        bytes += adam * (1.0 - offload) * adamw_bytes + held.muon[mesh] / shards(mesh) * muon_bytes;
        products += held.orthogonal[mesh] / placed.hands(mesh);
        paged += adam * ways.elements.paged_bytes() as f64;
        away += adam * offload;
    }
    // A buffer of all gradients is scaled bucket by bucket before it is reduced, and cleared behind the step
    // (Megatron-Core `distributed/param_and_grad_buffer.py`); FSDP has none.
    if setting.options.kernels.accumulate != Accumulate::Reduced {
        bytes += 3.0 * widths(prices).0 * held.trained.iter().sum::<f64>();
    }
    // `fully_shard` leaves gradients where they lie, and clipping multiplies all of them.
    if setting.options.kernels.gathered != Gathered::Flat {
        let shards: f64 = (0..2).map(|mesh| held.trained[mesh] / shards(mesh)).sum();
        bytes += 2.0 * widths(prices).0 * shards;
    }
    // Weights are cast once for all microbatches, where they are not kept in the products' format.
    if setting.options.format != Format::Bf16 && !setting.options.fp8_param_gather {
        bytes += (2.0 + 2.0 * setting.options.format.bytes()) * held.multiplied;
    }
    let kernels = (bytes + held.adapters.iter().sum::<f64>() * adamw_bytes) / setting.meter.rate();
    // The gradient goes down in fp32 and the weight comes back in bf16.
    paged += held.adapters.iter().sum::<f64>() * ways.elements.paged_bytes() as f64;
    // Pages are fetched before they are stepped, and evicted when passes need the room.
    let travel = setting.host_link.map_or(0.0, |rate| (away * 6.0 + 2.0 * paged) / (rate * HOST_LINK));
    let stepped = setting.cluster.device.host.as_ref();
    let stepped = stepped.map_or(UNSTATED_HOST, |host| host.bytes_per_second * HOST_RATE / HOST_BYTES);
    let host = away * setting.cluster.devices_per_node as f64 / stepped;
    let drives = setting.drives.map_or(0.0, |drives| {
        let back = if setting.options.offload_params {
            drives.written_back(away, setting.options.zero.sub_group)
        } else {
            0.0
        };
        drives.stepped(away) + back
    });
    (kernels + products, travel + host + drives)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(all: f64) -> Over {
        Over { all, on_port: 0.0 }
    }

    /// Eight chunks that take turns of four microbatches: the other chunks' turns cover what one pass of all of them would not.
    #[test]
    fn turns_of_other_chunks_hide_what_a_stage_moves() {
        let (one, eight) = (Turns { chunks: 1.0, microbatches: 1.0 }, Turns { chunks: 8.0, microbatches: 4.0 });
        assert_eq!(one.gradients(0.0, moved(3.0), 1.0, 0.0), 2.0);
        assert_eq!(one.weights(0.0, moved(3.0), 1.0, 0.0), 2.0);
        // Seven turns of half a second less a late one, and the last chunk's gradients, for which nothing is left.
        assert!((eight.gradients(0.0, moved(3.0), 1.0, 0.0) - 3.0 / 8.0).abs() < 1e-12);
        assert!((eight.weights(0.0, moved(3.0), 1.0, 0.0) - 2.0 / 8.0).abs() < 1e-12);
        assert!((eight.gradients(0.0, moved(10.0), 1.0, 0.0) - (10.0 - 25.0 / 8.0)).abs() < 1e-12);
        // What hides takes its share of the multiprocessors.
        assert!(eight.weights(0.1, moved(3.0), 1.0, 0.0) > 2.0 / 8.0);
    }
}
