//! What a layer consists of: operations with the work of each pass, one family a file. Work says
//! what is asked of a device, never how fast it does it.

mod attention;
mod depths;
mod edges;
mod elementwise;
mod engram;
mod experts;
mod linear;
mod mhc;
mod plain;
mod recurrence;
mod scan;
mod shared;
mod sparse;

use crate::flops::Convention;
use crate::part::Part;
use case::options::{Format, GraphModule, Options};
use layout::Layout;
use layout::ownership::Row;
use layout::request::RecomputeModule;
use recipe::kinds::depths::Depths;
use recipe::{Mixer, Recipe, Surface};

pub(crate) use edges::{embedding, head, logits};
pub(crate) use experts::is_fused;

/// Something a device is asked to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// `groups` products of m×k by k×n.
    Gemm {
        /// The format of the factors.
        format: Format,
        /// Rows of the result.
        m: f64,
        /// Columns of the result.
        n: f64,
        /// The summed dimension.
        k: f64,
        /// Products in one kernel.
        groups: f64,
        /// Bytes read and written for each element of the result.
        out_bytes: f64,
    },
    /// Scores and their use.
    Attention {
        /// Operations, masked ones left out.
        flops: f64,
        /// Bytes of queries, keys, values, result, and of scores where they are written.
        bytes: f64,
        /// Tokens a query row of blocks runs over.
        tokens: f64,
        /// Query tokens times heads.
        rows: f64,
        /// Mean width of a head.
        dim: f64,
        /// Whether this is the backward kernel.
        pass: Direction,
    },
    /// The products of a chunked scan, in bf16.
    Scan {
        /// Operations.
        flops: f64,
        /// Bytes.
        bytes: f64,
        /// Whether this is the backward kernel.
        pass: Direction,
    },
    /// Steps that wait for one another, in a kernel of which several programs share a multiprocessor.
    Walk {
        /// Steps.
        steps: f64,
        /// Heads that step side by side.
        heads: f64,
        /// Whether this is the backward kernel.
        pass: Direction,
    },
    /// Batched products in fp32, outside the matrix units.
    Fp32 {
        /// Operations.
        flops: f64,
        /// Bytes.
        bytes: f64,
        /// Kernels they are spread over.
        kernels: f64,
    },
    /// A sum along time of rows that lie apart, position by position.
    Cumulative {
        /// Positions.
        steps: f64,
    },
    /// Bytes read and written.
    Bytes {
        /// How many.
        bytes: f64,
        /// Kernels they are spread over.
        kernels: f64,
        /// How they lie.
        stream: Stream,
        /// How the host starts them.
        call: Call,
    },
    /// Numbers added into neighbouring places, one after another.
    Atomic {
        /// How many.
        adds: f64,
    },
    /// The host waits for the device.
    Sync,
}

/// How bytes that are only read and written lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Neighbours beside neighbours.
    Plain,
    /// Two formats in one kernel.
    Mixed,
    /// A side that is not contiguous.
    Strided,
    /// Rows scattered by index and summed.
    Scattered,
    /// Rows added by index.
    Indexed,
    /// A norm over a width that no kernel was tuned for.
    Normed,
    /// The gradient of a gated activation.
    Gated,
    /// A convolution along time.
    Convolved,
    /// Operations of torch in fp32 with a side that is broadcast or lies another way round.
    Broadcast,
}

/// How the host starts kernels that only read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Each by itself.
    Eager,
    /// All as one hand-fused function.
    Fused,
    /// All as one norm of Transformer Engine.
    Norm,
    /// As part of an operation that is counted already.
    Inside,
}

impl Work {
    /// Plain bytes, every kernel started by itself.
    pub fn bytes(bytes: f64, kernels: f64) -> Work {
        Work::stream(Stream::Plain, bytes, kernels)
    }

    /// Bytes that lie another way, every kernel started by itself.
    pub fn stream(stream: Stream, bytes: f64, kernels: f64) -> Work {
        Work::Bytes { bytes, kernels, stream, call: Call::Eager }
    }

    /// A share of the same, as over layers of which some have it.
    #[must_use]
    fn of(self, share: f64) -> Work {
        match self {
            Work::Attention { flops, bytes, tokens, rows, dim, pass } => {
                Work::Attention { flops: share * flops, bytes: share * bytes, tokens, rows, dim, pass }
            }
            Work::Fp32 { flops, bytes, kernels } => {
                Work::Fp32 { flops: share * flops, bytes: share * bytes, kernels: share * kernels }
            }
            Work::Bytes { bytes, kernels, stream, call } => {
                Work::Bytes { bytes: share * bytes, kernels: share * kernels, stream, call }
            }
            other => other,
        }
    }

    /// The same bytes, started another way.
    #[must_use]
    pub fn started(self, by: Call) -> Work {
        match self {
            Work::Bytes { bytes, kernels, stream, .. } => Work::Bytes { bytes, kernels, stream, call: by },
            other => other,
        }
    }
}

/// Which way a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
}

/// One operation with its passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// What its time is booked as.
    pub part: Part,
    /// Modules whose recompute runs it again.
    pub modules: &'static [RecomputeModule],
    /// The module that names the whole block it stands in, where there is one.
    pub block: Option<RecomputeModule>,
    /// The module whose graph it is recorded in.
    pub scope: Option<GraphModule>,
    /// In forward.
    pub forward: Vec<Work>,
    /// In backward, towards the input.
    pub input: Vec<Work>,
    /// In backward, towards the weight.
    pub weight: Vec<Work>,
}

impl Op {
    /// An operation that only reads and writes.
    pub(crate) fn bytes(modules: &'static [RecomputeModule], forward: (f64, f64), backward: (f64, f64)) -> Op {
        let work = |(bytes, kernels)| vec![Work::bytes(bytes, kernels)];
        Op::streams(modules, work(forward), work(backward))
    }

    /// Operations that only read and write.
    pub(crate) fn streams(modules: &'static [RecomputeModule], forward: Vec<Work>, backward: Vec<Work>) -> Op {
        Op { part: Part::Bandwidth, modules, block: None, scope: None, forward, input: backward, weight: Vec::new() }
    }
}

/// Sizes that operations are made from.
#[derive(Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub recipe: &'a Recipe,
    pub layout: &'a Layout,
    pub options: &'a Options,
    /// Tokens of a microbatch on one rank inside tensor-parallel regions.
    pub tokens: f64,
    /// And between them.
    pub local: f64,
    pub tp: f64,
    pub cp: f64,
}

impl<'a> Shape<'a> {
    pub fn new(recipe: &'a Recipe, layout: &'a Layout, options: &'a Options) -> Shape<'a> {
        let tokens = (layout.micro_batch * layout.sequence) as f64 / layout.cp.get() as f64;
        Shape {
            recipe,
            layout,
            options,
            tokens,
            local: layout.tokens_per_microbatch_per_rank() as f64,
            tp: layout.tp.get() as f64,
            cp: layout.cp.get() as f64,
        }
    }
}

/// Operations in the cores of all blocks of a mixer in forward on one rank, without their projections.
pub(crate) fn core_flops(shape: Shape, mixer: Mixer, convention: Convention) -> f64 {
    let recipe = shape.recipe;
    let partial: usize =
        recipe.layers.iter().filter(|l| l.is_partial).map(|l| l.mixers().filter(|m| *m == mixer).count()).sum();
    let whole = recipe.count_with_suffix(mixer) as usize - partial;
    let some = recipe.features.depths().filter(|_| partial > 0).map(|depths| some_of(shape.layout, depths));
    let of_some = some.map_or(0.0, |some| one_core(Shape::new(recipe, &some, shape.options), mixer, convention));
    let of_all = if whole > 0 { one_core(shape, mixer, convention) } else { 0.0 };
    whole as f64 * of_all + partial as f64 * of_some
}

fn one_core(shape: Shape, mixer: Mixer, convention: Convention) -> f64 {
    match mixer {
        Mixer::Attention => attention::flops(shape, convention),
        Mixer::Mamba | Mixer::GatedDelta | Mixer::Linear => scan::flops(shape, mixer),
        Mixer::Shared => shared::flops(shape, convention),
        Mixer::Moe | Mixer::Mlp | Mixer::Recurrent => 0.0,
    }
}

/// Operations of one layer. One that takes some tokens only runs over sequences of these.
pub(crate) fn layer(shape: Shape, layer: &recipe::Layer, rows: &[&Row]) -> Vec<Op> {
    let Some(depths) = shape.recipe.features.depths().filter(|_| layer.is_partial) else {
        return through(shape, layer, rows);
    };
    let own: Vec<&Row> = rows.iter().copied().filter(|row| row.tensor.surface != Surface::DepthRouter).collect();
    let some = some_of(shape.layout, depths);
    let mut ops = through(Shape::new(shape.recipe, &some, shape.options), layer, &own);
    depths::around(shape, depths, &mut ops);
    ops
}

/// A layout whose sequences are the tokens that are taken of each.
fn some_of(layout: &Layout, depths: &Depths) -> Layout {
    Layout { sequence: depths.tokens(layout.sequence), ..layout.clone() }
}

/// Products from the ownership table's rows, the rest from a layer's mixers.
fn through(shape: Shape, layer: &recipe::Layer, rows: &[&Row]) -> Vec<Op> {
    let mut ops = Vec::new();
    if let Some(branch) = shape.recipe.features.engram().filter(|_| layer.has_engram) {
        engram::before(shape, branch, &mut ops);
    }
    for row in rows {
        let first = ops.len();
        linear::products(shape, &[row], &mut ops);
        let is_its = |m: &Mixer| row.tensor.path.split('.').nth(2).is_some_and(|at| at.starts_with(m.table()));
        layer.mixers().find(is_its).into_iter().for_each(|mixer| whole_block(mixer, &mut ops[first..]));
    }
    for block in &layer.blocks {
        let first = ops.len();
        // A shared block brings its own norms, and is not added to the stream.
        if block.mixers[0] != Mixer::Shared {
            elementwise::norms(shape, &mut ops);
            match shape.recipe.features.mhc() {
                Some(streams) => mhc::around(shape, streams, &mut ops),
                None => elementwise::sum(shape, &mut ops),
            }
        }
        block.mixers.iter().take(1).for_each(|mixer| record(*mixer, &mut ops[first..]));
        for mixer in &block.mixers {
            let first = ops.len();
            match mixer {
                Mixer::Attention => attention::core(shape, attention::Stack::of(rows), &mut ops),
                Mixer::Moe => experts::routing(shape, &mut ops),
                Mixer::Mamba => scan::mamba(shape, &mut ops),
                Mixer::Recurrent => recurrence::m2rnn(shape, &mut ops),
                Mixer::GatedDelta => scan::gated_delta(shape, &mut ops),
                Mixer::Linear => scan::linear(shape, &mut ops),
                Mixer::Mlp => elementwise::mlp(shape, &mut ops),
                Mixer::Shared => shared::block(shape, &mut ops),
            }
            whole_block(*mixer, &mut ops[first..]);
        }
    }
    ops
}

/// What a stand-in for other ranks does: this rank's part is copied to the place of every other's, all parts
/// by one call, which takes a third of an operation for each (47 µs for eight, `tools/measure_host.py`).
pub(crate) fn stood_in(gathered: [(f64, f64); 2]) -> Op {
    let [forward, backward] = gathered.map(|(bytes, parts)| vec![Work::bytes(2.0 * bytes, parts / 3.0)]);
    Op::streams(&[], forward, backward)
}

/// A policy that names a whole kind of block runs every operation of it again.
fn whole_block(mixer: Mixer, ops: &mut [Op]) {
    record(mixer, ops);
    let block = match mixer {
        Mixer::Attention => RecomputeModule::Attention,
        Mixer::Mamba => RecomputeModule::Mamba,
        Mixer::Recurrent => RecomputeModule::Recurrent,
        Mixer::GatedDelta => RecomputeModule::GatedDelta,
        Mixer::Moe | Mixer::Mlp | Mixer::Linear | Mixer::Shared => return,
    };
    ops.iter_mut().for_each(|op| op.block = Some(block));
}

/// The graph that operations of a block are recorded in, unless they say so themselves.
fn record(mixer: Mixer, ops: &mut [Op]) {
    let scope = match mixer {
        Mixer::Attention | Mixer::Shared => GraphModule::Attention,
        Mixer::Mlp => GraphModule::Mlp,
        Mixer::Moe => GraphModule::Moe,
        Mixer::Mamba | Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear => GraphModule::Mamba,
    };
    ops.iter_mut().for_each(|op| op.scope = op.scope.or(Some(scope)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use case::asked::PrecisionChoice;
    use layout::{LayoutRequest, OwnershipTable, check};

    /// Operations of the first layer that holds a mixer.
    fn ops(name: &str, mixer: Mixer, set: impl Fn(&mut LayoutRequest)) -> Vec<Op> {
        ops_of(&recipe::builtin::find(name).unwrap(), mixer, set, |_| {})
    }

    fn ops_of(recipe: &Recipe, mixer: Mixer, set: impl Fn(&mut LayoutRequest), told: impl Fn(&mut Options)) -> Vec<Op> {
        let mut request = LayoutRequest { sequence: Some(4096), ..LayoutRequest::default() };
        set(&mut request);
        let layout = check(recipe, &request).layout.unwrap();
        let mut options = Options::of(None, recipe);
        told(&mut options);
        let table = OwnershipTable::new(recipe, &layout).unwrap();
        let index = recipe.layers_with(mixer)[0];
        let place = recipe::Place::Layer(index);
        let rows: Vec<&Row> = table.rows.iter().filter(|row| row.tensor.place == place).collect();
        layer(Shape::new(recipe, &layout, &options), &recipe.layers[index], &rows)
    }

    fn products(ops: &[Op], part: Part) -> Vec<[f64; 4]> {
        let of = |op: &Op| match op.forward.first() {
            Some(&Work::Gemm { m, n, k, groups, .. }) if op.part == part => Some([m, n, k, groups]),
            _ => None,
        };
        ops.iter().filter_map(of).collect()
    }

    #[test]
    fn products_are_the_parts_this_rank_holds() {
        let ops = ops("llama3-8b", Mixer::Attention, |r| r.tp = Some(4));
        let expected = [
            [4096.0, 1536.0, 4096.0, 1.0],
            [4096.0, 4096.0, 1024.0, 1.0],
            [4096.0, 7168.0, 4096.0, 1.0],
            [4096.0, 4096.0, 3584.0, 1.0],
        ];
        assert_eq!(products(&ops, Part::Gemm), expected);
    }

    #[test]
    fn gradients_turn_the_product_around() {
        let op = ops("llama3-8b", Mixer::Attention, |_| {}).into_iter().find(|op| op.part == Part::Gemm).unwrap();
        let sides = |work: &Work| match *work {
            Work::Gemm { m, n, k, .. } => [m, n, k],
            _ => [0.0; 3],
        };
        let [m, n, k] = sides(&op.forward[0]);
        assert_eq!(sides(&op.input[0]), [m, k, n]);
        assert_eq!(sides(&op.weight[0]), [n, k, m]);
    }

    #[test]
    fn experts_share_routed_rows_evenly() {
        // 4096 tokens to two of eight experts each, four experts a rank.
        let ops = ops("mixtral-8x7b", Mixer::Moe, |r| (r.ep, r.world) = (Some(2), Some(2)));
        for [m, _, _, groups] in products(&ops, Part::Experts) {
            assert_eq!((m, groups), (2048.0, 4.0));
        }
    }

    /// Bytes of kernels that only read and write, forward and backward.
    fn streamed(ops: &[Op]) -> f64 {
        let works = ops.iter().flat_map(|op| op.forward.iter().chain(&op.input));
        works.map(|work| if let Work::Bytes { bytes, .. } = work { *bytes } else { 0.0 }).sum()
    }

    /// Sums of fp32 scores over the ranks of an expert: 16384 routed rows become 32768 of 3584 elements, cast up and
    /// down once in each direction, and their half once too (Megatron-Core `moe/token_dispatcher.py`).
    #[test]
    fn sums_over_the_ranks_of_an_expert_are_cast() {
        let of = |dtype| {
            let mut recipe = recipe::builtin::find("nam56r").unwrap();
            recipe.moe.as_mut().unwrap().router.dtype = dtype;
            let split = |r: &mut LayoutRequest| {
                (r.world, r.tp, r.etp, r.sp, r.micro_batch) = (Some(2), Some(2), Some(2), Some(true), Some(2));
            };
            ops_of(&recipe, Mixer::Moe, split, |_| {})
        };
        let routed_by_itself = 2.0 * 6.0 * 4096.0 * 3584.0;
        let summed = 6.0 * 3584.0 * 2.0 * (32768.0 + 16384.0);
        let differ = streamed(&of(recipe::Dtype::Fp32)) - streamed(&of(recipe::Dtype::Bf16));
        assert_eq!(differ, routed_by_itself + summed);
    }

    /// Rows of 2048 elements, 32768 of them, are copied to padded places and back in each direction; every expert's
    /// inputs and gradients are cast by themselves, 4 bytes an element.
    #[test]
    fn experts_in_block_scaled_bits_pad_and_cast_their_rows() {
        let recipe = recipe::builtin::find("qwen3-30b-a3b").unwrap();
        let of = |precision| {
            let split = |r: &mut LayoutRequest| (r.world, r.ep) = (Some(8), Some(8));
            ops_of(&recipe, Mixer::Moe, split, |o| *o = o.in_precision(precision))
        };
        let scaled = of(PrecisionChoice::Scaled(case::options::Scaling::Blockwise));
        let rows = 32768.0;
        let (padded, cast) = (4.0 * rows * 2048.0 * 4.0, 4.0 * rows * (2048.0 + 768.0 + 1536.0 + 2048.0));
        let attention = 4.0 * 4096.0 * (2048.0 + 5120.0 + 4096.0 + 2048.0);
        assert_eq!(streamed(&scaled) - streamed(&of(PrecisionChoice::Bf16)), padded + cast + attention);
        let kernels = scaled.iter().flat_map(|op| op.forward.iter().chain(&op.input)).map(|work| match work {
            Work::Bytes { kernels, call: Call::Inside, stream: Stream::Mixed, .. } => *kernels,
            _ => 0.0,
        });
        assert_eq!(kernels.sum::<f64>(), 4.0 * 16.0 + 4.0);
    }

    /// Of 16384 rows of 896: 29 passes by single kernels, 24 of them at the rate of mixed formats, become 5.
    #[test]
    fn a_fused_squared_relu_reads_and_writes_a_sixth() {
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let of = |is_on| ops_of(&recipe, Mixer::Moe, |_| {}, |o| o.kernels.relu2_fusion = is_on);
        let pass = 2.0 * 4.0 * 4096.0 * 896.0;
        assert_eq!(streamed(&of(false)) - streamed(&of(true)), 24.0 * pass);
    }

    #[test]
    fn masked_scores_are_not_computed() {
        let ops = ops("llama3-8b", Mixer::Attention, |_| {});
        let core = ops.iter().find(|op| op.part == Part::Attention).unwrap();
        let Work::Attention { flops, .. } = core.forward[0] else { panic!("{core:?}") };
        assert_eq!(flops, 4.0 * 4096.0 * 4096.0 / 2.0 * 4096.0);
    }

    /// Half of the layers see 128 keys, and their kernels walk 256 for blocks of 128 queries.
    #[test]
    fn windows_are_walked_in_blocks_and_sinks_wait_for_one_another() {
        let mut recipe = recipe::builtin::find("llama3-8b").unwrap();
        let odd = (0..32).filter(|layer| layer % 2 == 1).collect();
        let heads = recipe.attention.as_mut().unwrap();
        heads.window = Some(recipe::kinds::attention::Window::sliding(128, odd));
        heads.sinks = true;
        let ops = ops_of(&recipe, Mixer::Attention, |_| {}, |_| {});
        let walked: Vec<(f64, f64)> = ops
            .iter()
            .filter_map(|op| match op.forward.first() {
                Some(Work::Attention { flops, tokens, .. }) => Some((*flops, *tokens)),
                _ => None,
            })
            .collect();
        let scores = |keys: f64| 0.5 * 4.0 * 4096.0 * keys * 4096.0;
        let seen = 128.0 - 128.0 * 128.0 / (2.0 * 4096.0);
        assert_eq!(walked.len(), 2);
        assert!((walked[0].0 / scores(2048.0) - 1.0).abs() < 1e-9 && walked[0].1 == 4096.0, "{walked:?}");
        assert!((walked[1].0 / scores(seen + 128.0) - 1.0).abs() < 1e-9, "{walked:?}");
        assert_eq!(walked[1].1, 2.0 * (seen + 128.0));
        let adds =
            |op: &Op| op.input.iter().any(|work| matches!(work, Work::Atomic { adds } if *adds == 4096.0 * 32.0));
        assert_eq!(ops.iter().filter(|op| adds(op)).count(), 1);
    }

    /// Scores in fp32, eight experts a rank: what biases read and write beside the products, and what the fused kernels
    /// of mxfp8 leave of it.
    #[test]
    fn biases_and_clamps_of_experts_are_read_and_written_unless_they_are_fused() {
        let mut recipe = recipe::builtin::find("mixtral-8x7b").unwrap();
        let moe = recipe.moe.as_mut().unwrap();
        moe.router.dtype = recipe::Dtype::Fp32;
        let plain = recipe.clone();
        let moe = recipe.moe.as_mut().unwrap();
        (moe.bias, moe.activation) = (true, recipe::kinds::Activation::SwiGluOai);
        let of = |recipe: &Recipe, is_fused| {
            let precision = PrecisionChoice::Scaled(case::options::Scaling::Mxfp8);
            ops_of(
                recipe,
                Mixer::Moe,
                |_| {},
                |o| {
                    *o = if is_fused { o.in_precision(precision) } else { *o };
                    o.kernels.expert_fusion = is_fused;
                },
            )
        };
        let (rows, width, ffn) = (2.0 * 4096.0, 4096.0, 14336.0);
        let biases = rows * width * (14.0 + 6.0 + 8.0 + 12.0 + 28.0) + 4.0 * rows * ffn;
        let clamps = 2.0 * rows * ffn * (8.0 + 9.5 + 5.5);
        assert_eq!(streamed(&of(&recipe, false)) - streamed(&of(&plain, false)), biases + clamps);
        assert_eq!(streamed(&of(&recipe, true)), streamed(&of(&plain, true)));
    }

    #[test]
    fn a_recurrence_walks_the_whole_sequence_whatever_the_degrees() {
        let ops = ops("nam56r", Mixer::Recurrent, |r| r.tp = Some(2));
        let core = ops.iter().find(|op| op.part == Part::Recurrence).unwrap();
        assert!(matches!(core.forward[0], Work::Walk { steps, .. } if steps == 4096.0));
    }
}
