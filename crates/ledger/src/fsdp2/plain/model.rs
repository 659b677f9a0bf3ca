//! The model of one stage and its forward pass.

use super::emitted::{Branch, Depth, StreamWeights};
use super::loss::{self, Head};
use super::ops::{add, grad, grad_of, leave, linear, makes, norm, weight_grad};
use super::params::{BlockParams, Linear, Mixing, NormParams, Param, Unit, layer};
use super::rank::Rank;
use super::shared::{self, Turns};
use super::{Blocks, Config, attention, emitted, gated_delta, mamba, mamba1, mla, mlp, moe};
use case::options::CrossEntropy;
use case::ways::AdapterLayers;
use recipe::Mixer;
use replay::line::{Line, Origin};
use replay::tape::{BF16, FP32, INT64, Storage, Tape, Tensor, checkpoint_stopping_early};
use std::rc::Rc;

/// The unit around all others.
const ROOT: usize = 0;

/// A layer: what an engine wraps and checkpointing computes again.
struct Layer {
    unit: usize,
    blocks: Vec<BlockParams>,
    /// What chooses its tokens, where it takes some only.
    depth: Option<Depth>,
    /// What looks n-grams up before it.
    branch: Option<Branch>,
    /// Whether it reads the token embeddings besides.
    reads_first: bool,
}

/// What stands before the first layer.
struct Front {
    unit: Option<usize>,
    table: Rc<Param>,
    /// A learned table of positions.
    positions: Option<Rc<Param>>,
    norm: Option<NormParams>,
}

/// The part of a model one rank holds.
pub(crate) struct Model {
    embedding: Option<Front>,
    layers: Vec<Rc<Layer>>,
    head: Option<(Option<usize>, Head)>,
    /// What makes one residual stream of several behind the last layer.
    collapse: Option<StreamWeights>,
}

impl Model {
    /// The model and its units: the root, then layers, with edges before and behind them when
    /// they are units of their own. A tied head's unit lists the token table once more.
    pub fn new(c: &Config) -> (Model, Vec<Unit>) {
        let mut units = vec![Unit::default()];
        let embedding = c.is_first.then(|| {
            let unit = apart(c, Origin::Embedding, &mut units);
            let held = &mut units[unit.unwrap_or(ROOT)];
            let table = held.table(c);
            let positions = c.learned.map(|rows| held.add(Line::ReplicatedParams, rows, c.hidden));
            Front { unit, table, positions, norm: c.has_embedding_norm.then(|| held.norm(c, c.hidden)) }
        });
        let mut turns = Turns::new(c, &mut units);
        let layers = (0..c.layers.len()).map(|at| {
            let unit = units.len();
            let reads_first = shared::is_used(&c.layers[at].1);
            let blocks = layer(c, at, &mut units, &mut turns);
            let depth = c.partial[at].then(|| Depth::new(c, &mut units[unit])).flatten();
            let branch = c.branched[at].then(|| Branch::new(c, &mut units[unit])).flatten();
            Rc::new(Layer { unit, blocks, depth, branch, reads_first })
        });
        let layers = layers.collect();
        let mut collapse = None;
        let head = c.is_last.then(|| {
            let unit = apart(c, Origin::Head, &mut units);
            // The emitted program leaves its last norm to the root.
            let behind = &mut units[if c.blocks == Blocks::Emitted { ROOT } else { unit.unwrap_or(ROOT) }];
            let norm = behind.norm(c, c.hidden);
            collapse = StreamWeights::collapse(c, behind);
            let held = &mut units[unit.unwrap_or(ROOT)];
            let tied = embedding.as_ref().map(|front| front.table.clone()).filter(|_| c.is_tied);
            if unit.is_some() {
                held.params.extend(tied.clone());
            }
            let weight = tied.unwrap_or_else(|| held.table(c));
            let bias = c.has_head_bias.then(|| held.add(Line::TpParams, c.vocab, 1));
            (unit, Head { norm, weight: Linear { weight, bias, adapter: None } })
        });
        if !c.adapted.is_empty() {
            units
                .iter()
                .flat_map(|unit| unit.params.iter().chain(&unit.quantised))
                .for_each(|param| param.leaf.freeze());
        }
        (Model { embedding, layers, head, collapse }, units)
    }

    /// The rotary table: one complex fp32 number for two channels of each position.
    pub fn rotary_table(c: &Config, tape: &Tape) -> Option<Rc<Storage>> {
        // The emitted program makes its table where it turns.
        let attention = c.attention.as_ref().filter(|_| c.rotates && c.blocks == Blocks::Common)?;
        let width = attention.mla.as_ref().map_or(attention.head_dim, |mla| mla.rope_dim);
        let angles = tape.storage(Line::Workspaces, c.sequence * width / 2 * FP32, "rotary angles");
        let table = tape.storage(Line::Workspaces, c.sequence * width * FP32, "rotary table");
        drop(angles);
        Some(table)
    }

    /// Balancing biases of the emitted program's routers, and the counts they move by.
    pub fn balancing_biases(c: &Config, tape: &Tape) -> Vec<Rc<Storage>> {
        let Some(moe) = c.moe.as_ref().filter(|moe| moe.has_expert_bias && c.blocks == Blocks::Emitted) else {
            return Vec::new();
        };
        let routers = c.layers.iter().flat_map(|(_, mixers)| mixers).filter(|mixer| **mixer == Mixer::Moe).count();
        let make = |_| tape.storage(Line::ReplicatedParams, moe.experts * FP32, "balancing bias or counts");
        (0..2 * routers).map(make).collect()
    }

    /// One microbatch through the stage: hidden states, or the loss on the last stage. Stages
    /// behind the first are given their input.
    pub fn forward(&self, c: &Rc<Rank>, input: Option<&Tensor>) -> Tensor {
        self.forward_with_output(c, input).0
    }

    /// The same, and what the modules gave before the loss was taken.
    pub fn forward_with_output(&self, c: &Rc<Rank>, input: Option<&Tensor>) -> (Tensor, Tensor) {
        let out = self.output(c, input);
        let output = out.alias();
        (self.loss(c, out), output)
    }

    /// The loss of what the modules gave; what they gave where there is none.
    fn loss(&self, c: &Rc<Rank>, out: Tensor) -> Tensor {
        match (&self.head, c.config.blocks) {
            (None, _) => out,
            // Over shards of the vocabulary it is a function of torchtitan's own, whose compiled form was not read.
            (Some(_), Blocks::Common) if c.config.is_loss_compiled && c.config.tp == 1 => {
                loss::compiled_cross_entropy(c, &out)
            }
            (Some(_), Blocks::Common) => loss::cross_entropy(c, out),
            (Some(_), Blocks::Emitted) if c.config.loss.has_head() => emitted::share_of(c, &out),
            (Some(_), Blocks::Emitted) => emitted::cross_entropy(c, out),
        }
    }

    /// One microbatch whose distribution over the vocabulary is held to a teacher's.
    pub fn distilled(&self, c: &Rc<Rank>, wanted: Tensor) -> (Tensor, Tensor) {
        let out = self.output(c, None);
        let output = out.alias();
        (emitted::distance(c, out, wanted), output)
    }

    /// What the modules give: hidden states, logits, or the loss that a head takes itself.
    pub fn output(&self, c: &Rc<Rank>, input: Option<&Tensor>) -> Tensor {
        c.tape.enter(Origin::Embedding);
        c.take_documents();
        let tokens = self.embedding.as_ref().map(|_| c.act_of(c.config.tokens, INT64, "tokens"));
        let inside = |input: Option<&Tensor>| {
            let mut x = match (&self.embedding, input) {
                (Some(Front { unit, table, positions, norm: own_norm }), _) => {
                    unit.iter().for_each(|&unit| c.engine.pre_forward(unit));
                    let x = match c.config.blocks {
                        Blocks::Common => embed(c, table, tokens.as_ref()),
                        Blocks::Emitted => emitted::embed(c, table, tokens.as_ref()),
                    };
                    let mut x = emitted::by(c, x, c.config.multipliers.embedding);
                    if let Some(table) = positions {
                        x = placed(c, &x, table);
                    }
                    if let Some(own_norm) = own_norm {
                        x = norm(c, &x, c.config.hidden, own_norm);
                    }
                    unit.iter().fold(emitted::spread(c, x), |x, &unit| behind(c, unit, x))
                }
                (None, Some(input)) => input.clone(),
                (None, None) => unreachable!("a stage without an embedding is given its input"),
            };
            if c.config.shared.is_some() {
                c.first.replace(Some(x.clone()));
            }
            for layer in &self.layers {
                x = forward_layer(c, layer, &x);
            }
            c.first.take();
            c.tape.enter(Origin::Head);
            if let (Some(collapse), Blocks::Emitted) = (&self.collapse, c.config.blocks) {
                x = collapse.behind_all(c, &x);
            }
            match &self.head {
                Some((unit, head)) if c.config.blocks == Blocks::Emitted => {
                    let normed = norm(c, &x, c.config.hidden, &head.norm);
                    drop(x);
                    if c.config.loss.has_head() {
                        let scaled = |x: &Tensor| emitted::by(c, x.clone(), c.config.multipliers.logits);
                        return wrapped(c, *unit, &normed, |x| match c.config.loss {
                            CrossEntropy::Cce => emitted::cut_cross_entropy(c, &scaled(x), &head.weight),
                            _ => emitted::fused_cross_entropy(c, &scaled(x), &head.weight),
                        });
                    }
                    let logits = |x: &Tensor| linear(c, &emitted::enter(c, x), &head.weight);
                    wrapped(c, *unit, &normed, |x| emitted::by(c, logits(x), c.config.multipliers.logits))
                }
                Some((unit, head)) => wrapped(c, *unit, &x, |x| match &self.collapse {
                    Some(collapse) => loss::logits(c, head, &collapse.behind_all(c, x)),
                    None => loss::logits(c, head, x),
                }),
                None => x,
            }
        };
        match input {
            Some(input) => wrapped(c, Some(ROOT), input, |x| inside(Some(x))),
            None => {
                c.engine.pre_forward(ROOT);
                behind(c, ROOT, inside(None))
            }
        }
    }
}

/// A new unit, when edges are units of their own.
fn apart(c: &Config, origin: Origin, units: &mut Vec<Unit>) -> Option<usize> {
    c.edges_apart.then(|| {
        units.push(Unit::at(origin));
        units.len() - 1
    })
}

/// Runs a unit's forward between an engine's hooks, or plainly when there is no unit. The input
/// passes through a node whose backward runs when the input's gradient is whole.
pub(super) fn wrapped(c: &Rc<Rank>, unit: Option<usize>, x: &Tensor, run: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    wrapped_all(c, unit, &[x], |inputs| run(&inputs[0]))
}

/// The same of several inputs, whose gradients must all be whole.
pub(super) fn wrapped_all(
    c: &Rc<Rank>,
    unit: Option<usize>,
    inputs: &[&Tensor],
    run: impl FnOnce(&[Tensor]) -> Tensor,
) -> Tensor {
    let Some(unit) = unit else { return run(&inputs.iter().map(|&x| x.clone()).collect::<Vec<_>>()) };
    c.engine.pre_forward(unit);
    let inside: Vec<Tensor> = inputs.iter().map(|x| x.alias()).collect();
    let engine = c.engine.clone();
    let edges = inputs.iter().map(|x| x.edge()).collect();
    c.tape.record(edges, &inside.iter().collect::<Vec<_>>(), Vec::new(), move |_, grads, _| {
        engine.post_backward(unit);
        grads
    });
    let out = run(&inside);
    drop(inside);
    behind(c, unit, out)
}

/// A unit's forward has run: its engine is told, now and when backward comes back.
pub(super) fn behind(c: &Rc<Rank>, unit: usize, out: Tensor) -> Tensor {
    c.engine.post_forward(unit);
    if let Some(edge) = out.grad_fn() {
        let engine = c.engine.clone();
        edge.node.before(Box::new(move || engine.pre_backward(unit)));
    }
    out
}

/// Rows of the token table; backward makes a dense gradient of it.
fn embed(c: &Rc<Rank>, table: &Rc<Param>, tokens: Option<&Tensor>) -> Tensor {
    let (elements, size) = (c.config.tokens * c.config.hidden, table.elements());
    let out = c.act(elements, "embedding output");
    let saved = tokens.cloned().into_iter().collect();
    c.tape.record(vec![table.edge()], &[&out], saved, move |t, _, _saved| vec![Some(weight_grad(t, size))]);
    leave(c, out)
}

/// `native_dropout`: keeps a mask of one byte an element.
fn dropped(c: &Rank, x: Tensor) -> Tensor {
    let elements = x.elements();
    let out = c.act(elements, "dropped output");
    let mask = c.act_of(elements, 1, "dropout mask");
    makes(c, &x, &out, vec![mask], elements, BF16);
    out
}

/// Rows of a learned position table added to those of tokens; one sequence of them serves the microbatch.
fn placed(c: &Rank, x: &Tensor, table: &Rc<Param>) -> Tensor {
    let (rows, size) = (x.elements() / c.config.micro_batch, table.elements());
    let _rows = c.act(rows, "position rows");
    let out = c.act(x.elements(), "placed tokens");
    c.tape.record(vec![x.edge(), table.edge()], &[&out], Vec::new(), move |t, grads, _| {
        let _summed = grad(t, rows, "position gradient");
        vec![grads[0].clone(), Some(weight_grad(t, size))]
    });
    out
}

fn forward_layer(c: &Rc<Rank>, layer: &Rc<Layer>, x: &Tensor) -> Tensor {
    let first = c.first.borrow().clone().filter(|_| layer.reads_first);
    let inputs: Vec<&Tensor> = std::iter::once(x).chain(&first).collect();
    wrapped_all(c, Some(layer.unit), &inputs, |given| {
        if !c.config.checkpoints {
            return layer.forward(c, &given[0], given.get(1));
        }
        let (rank, layer) = (c.clone(), layer.clone());
        // Adapters make a layer's output ask for a gradient though its input may not.
        let inside = (!c.config.adapted.is_empty()).then(|| Tensor::empty().requiring_grad());
        let has_first = given.len() > 1;
        let inputs: Vec<&Tensor> = given.iter().chain(&inside).collect();
        checkpoint_stopping_early(&c.tape, &inputs, move |inputs| {
            let _early = layer.before_it_is_needed(&rank);
            layer.forward(&rank, &inputs[0], inputs.get(1).filter(|_| has_first))
        })
    })
}

impl Layer {
    /// A layer is computed again when backward first asks for something that it saved. What needs nothing saved has run
    /// by then: the scale of the last projection's adapter, in its format, or the product with a base in nf4.
    fn before_it_is_needed(&self, c: &Rank) -> Option<Tensor> {
        // What adds a block's output to several streams, or to tokens that were taken, asks at once for what it saved.
        let Mixing::Emitted(block) =
            &self.blocks.last().filter(|block| block.mhc.is_none() && self.depth.is_none())?.mixing
        else {
            return None;
        };
        let projection = block.last_projection().filter(|_| c.is_backward.get())?;
        let Param { rows, columns, format, .. } = *projection.weight;
        let (width, by) = match (&projection.adapter, c.config.ways.adapters) {
            (Some(_), AdapterLayers::Peft) => (rows, FP32),
            (Some(_), AdapterLayers::Ours) => (rows, BF16),
            (None, _) if format.is_quantised() => (columns, BF16),
            (None, _) => return None,
        };
        Some(grad_of(&c.tape, c.config.tokens * width, by, "gradient before the layer is there again"))
    }

    /// `first` are the token embeddings, where a shared block reads them.
    fn forward(&self, c: &Rc<Rank>, x: &Tensor, first: Option<&Tensor>) -> Tensor {
        let branched = self.branch.as_ref().map(|branch| branch.forward(c, x));
        let x = branched.as_ref().unwrap_or(x);
        match &self.depth {
            Some(depth) => depth.forward(c, x, |some, x| self.through(some, x, first)),
            None => self.through(c, x, first),
        }
    }

    /// All blocks in order.
    fn through(&self, c: &Rc<Rank>, x: &Tensor, first: Option<&Tensor>) -> Tensor {
        let mut x = x.clone();
        let mut read = x.clone();
        let mut aside: Option<Tensor> = None;
        for (at, block) in self.blocks.iter().enumerate() {
            c.tape.enter(block.origin);
            if let (Mixing::Shared(own), Some(first)) = (&block.mixing, first) {
                aside = Some(own.forward(c, &x, first));
                continue;
            }
            let mut entered = block.mhc.as_ref().map(|mhc| mhc.enter(c, &x));
            let stream = match (&mut entered, aside.take()) {
                (Some(entered), _) => std::mem::replace(&mut entered.inner, Tensor::empty()),
                (None, Some(aside)) => add(c, &x, &aside),
                (None, None) => x.clone(),
            };
            let normed = match &block.norm {
                _ if block.is_beside => std::mem::replace(&mut read, Tensor::empty()),
                Some(before) => norm(c, &stream, c.config.hidden, before),
                None => stream.clone(),
            };
            drop(stream);
            let is_read_again = self.blocks.get(at + 1).is_some_and(|next| next.is_beside);
            read = if is_read_again { normed.clone() } else { Tensor::empty() };
            let out = match &block.mixing {
                Mixing::Attention(params) => attention::forward(c, params, &normed),
                Mixing::Mla(params) => mla::forward(c, params, &normed),
                Mixing::Mlp(params) => mlp::forward(c, params, &normed),
                Mixing::Moe(params) => moe::forward(c, params, &normed),
                Mixing::Mamba(params) => mamba::forward(c, params, &normed),
                Mixing::Mamba1(params) => mamba1::forward(c, params, &normed),
                Mixing::GatedDelta(params) => gated_delta::forward(c, params, &normed),
                Mixing::Linear(params) => params.forward(c, &normed),
                Mixing::Shared(_) => unreachable!("a shared block is given the token embeddings"),
                Mixing::Emitted(block) => block.forward(c, &normed),
            };
            drop(normed);
            let out = match &block.post_norm {
                Some(behind) => norm(c, &out, c.config.hidden, behind),
                None => out,
            };
            let out = if c.config.drops { dropped(c, out) } else { out };
            let out = emitted::by(c, out, c.config.multipliers.residual);
            x = match entered {
                Some(entered) => entered.leave(c, &x, &out),
                None => add(c, &x, &out),
            };
        }
        x
    }
}
