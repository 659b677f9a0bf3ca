//! A chunk of the model and its forward pass (`models/gpt/gpt_model.py`,
//! `models/hybrid/hybrid_model.py`, `transformer/transformer_layer.py`).

use super::blocks::BlockParams;
use super::config::{ChunkLayers, Config};
use super::embedding::Tables;
use super::fsdp::{self, Units};
use super::mtp::Prediction;
use super::params::{Norm, Param, Params};
use super::rank::Rank;
use super::side::SideParams;
use super::{
    absorbed, attention, embedding, gated_delta, loss, m2rnn, mamba, mamba3, mla, mlp, moe, ops, recompute, rope,
};
use recipe::{Mixer, Role};
use replay::line::Origin;
use replay::tape::{INT64, Storage, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// A block of a layer.
pub(super) struct Block {
    origin: Origin,
    params: BlockParams,
}

/// A layer: what full recompute wraps.
pub(super) struct Layer {
    blocks: Vec<Block>,
}

/// Final norm, prediction suffix and output head.
pub(super) struct Head {
    pub norm: Norm,
    pub suffix: Option<Prediction>,
    pub weight: Rc<Param>,
}

/// One chunk of the model.
pub(super) struct Chunk {
    pub params: Vec<Rc<Param>>,
    tables: Option<Rc<Tables>>,
    layers: Vec<Rc<Layer>>,
    /// Where each layer's parameters stand among the chunk's.
    pub ranges: Vec<Range<usize>>,
    units: Rc<Units>,
    head: Option<Head>,
    /// `decoder.input_tensor`: the last input received, kept until the next.
    pub input: RefCell<Option<Tensor>>,
    rope: RefCell<Option<Rc<Storage>>>,
}

impl Chunk {
    /// All chunks of a rank. Where the first and the last chunk share one, so do they its tables.
    pub fn all(c: &Config) -> Vec<Chunk> {
        let mut tables = None;
        let mut chunks = Vec::new();
        for held in &c.chunks {
            let chunk = Chunk::new(c, held, tables.clone());
            tables = tables.or_else(|| chunk.tables.clone());
            chunks.push(chunk);
        }
        chunks
    }

    fn new(c: &Config, held: &ChunkLayers, known: Option<Rc<Tables>>) -> Chunk {
        let mut params = Params::new(c);
        // The suffix looks tokens up too, in a copy of the table where the first chunk is elsewhere.
        let suffix = c.suffix.as_ref().filter(|_| held.is_last);
        let shares_first = known.is_some() || held.is_first;
        let tables = match known {
            Some(known) if held.is_last => Some(known),
            _ if held.is_first => Some(build_tables(c, &mut params, Sides::Built)),
            _ => suffix.map(|_| build_tables(c, &mut params, Sides::Elsewhere)),
        };
        let (mut layers, mut ranges) = (Vec::new(), Vec::new());
        for (index, mixers) in &held.layers {
            let (start, origin) = (params.all.len(), |mixer| Origin::Layer { index: *index, mixer });
            layers.push(Rc::new(Layer::build_with(c, origin, *index, mixers, &mut params)));
            ranges.push(start..params.all.len());
        }
        let head = held.is_last.then(|| {
            let norm = params.norm(c.hidden);
            let suffix = suffix.zip(tables.clone());
            let suffix = suffix.map(|(suffix, tables)| Prediction::build(c, suffix, tables, &mut params));
            // Away from the first stage a tied head has a weight of its own beside the suffix's
            // table (`skip_weight_param_allocation` in `models/hybrid/hybrid_model.py`).
            let tied = tables.as_ref().filter(|_| c.is_tied && shares_first).map(|tables| tables.tokens.clone());
            let role = if c.is_tied { Role::Embedding } else { Role::Head };
            Head { norm, suffix, weight: tied.unwrap_or_else(|| params.matrix(role, c.vocab, c.hidden)) }
        });
        let tables = tables.filter(|_| held.is_first);
        let units = Rc::new(Units::new(&params.all, &ranges));
        Chunk {
            params: params.all,
            tables,
            layers,
            ranges,
            units,
            head,
            input: RefCell::default(),
            rope: RefCell::default(),
        }
    }

    /// One microbatch through the chunk: hidden states, or the loss on the last chunk.
    pub fn forward(&self, c: &Rc<Rank>) -> Tensor {
        let config = &c.config;
        c.tape.enter(Origin::Embedding);
        let _tokens = c.act_of(config.tokens, INT64, "tokens");
        let _positions = c.act_of(config.sequence, INT64, "positions");
        let _borders = c.take_documents();
        let mut x = match (&self.tables, &*self.input.borrow()) {
            (Some(tables), _) => embedding::forward(c, tables),
            (None, Some(input)) => input.clone(),
            (None, None) => unreachable!("a chunk without an embedding is given its input"),
        };
        // `decoder_input` is a local of the model's forward until it returns.
        let _decoder_input = x.clone();
        self.units.gather_edges(c);
        self.rotary_table(c);
        for (unit, layer) in self.layers.iter().enumerate() {
            x = fsdp::around(c, &self.units, unit, &x, |x| match config.recompute.whole_layers {
                true => recompute::whole_layer(c, layer, x),
                false => layer.forward(c, x),
            });
        }
        c.tape.enter(Origin::Head);
        match &self.head {
            Some(head) => loss::forward(c, head, x),
            None => x,
        }
    }

    /// The step's passes are over.
    pub fn finish_step(&self) {
        self.units.finish();
    }

    /// One table a chunk, made at first use; latent attention makes its own.
    fn rotary_table(&self, c: &Rank) {
        let attention = c.config.attention.as_ref().filter(|a| a.mla.is_none() && c.config.rotates);
        if let Some(attention) = attention {
            self.rope.borrow_mut().get_or_insert_with(|| rope::table(c, attention.head_dim));
        }
    }
}

/// Whether side tables stand beside a token table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sides {
    /// They do.
    Built,
    /// It is a copy, and they stand beside the first.
    Elsewhere,
}

fn build_tables(c: &Config, params: &mut Params, sides: Sides) -> Rc<Tables> {
    let tokens = params.matrix(Role::Embedding, c.vocab, c.hidden);
    let positions = c.positions.map(|count| params.whole_matrix(Role::Embedding, count, c.hidden));
    let built = c.sides.iter().filter(|_| sides == Sides::Built);
    let sides = built.map(|side| SideParams::build(side, c.hidden, params)).collect();
    Rc::new(Tables { tokens, positions, sides })
}

impl Layer {
    /// A layer whose blocks all stand at one place.
    pub fn build(c: &Config, origin: Origin, index: u32, mixers: &[Mixer], params: &mut Params) -> Layer {
        Layer::build_with(c, |_| origin, index, mixers, params)
    }

    fn build_with(
        c: &Config,
        origin: impl Fn(Mixer) -> Origin,
        index: u32,
        mixers: &[Mixer],
        params: &mut Params,
    ) -> Layer {
        let block =
            |&mixer: &Mixer| Block { origin: origin(mixer), params: BlockParams::build(mixer, index, c, params) };
        Layer { blocks: mixers.iter().map(block).collect() }
    }

    pub fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        for block in &self.blocks {
            c.tape.enter(block.origin);
            x = block.forward(c, &x);
        }
        x
    }
}

impl Block {
    fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let out = match &self.params {
            BlockParams::Attention(params) => attention::forward(c, params, x),
            BlockParams::Mla(params) => {
                params.rope.borrow_mut().get_or_insert_with(|| rope::table(c, params.latent.rope_dim));
                recompute::behind_norm(c, &params.norm, x, |y| match params.is_sparse {
                    true => absorbed::forward(c, params, y),
                    false => mla::forward(c, params, y),
                })
            }
            BlockParams::Moe(params) => recompute::behind_norm(c, &params.norm, x, |y| moe::forward(c, params, y)),
            BlockParams::Mlp(params) => mlp::forward(c, params, x),
            BlockParams::Mamba(params) => mamba::forward(c, params, x),
            BlockParams::Mamba3(params) => mamba3::forward(c, params, x),
            BlockParams::M2rnn(params) => m2rnn::forward(c, params, x),
            BlockParams::GatedDelta(params) => gated_delta::forward(c, params, x),
        };
        match self.params.late_bias() {
            Some(bias) => ops::add_with_bias(c, &out, x, bias),
            None => ops::add(c, &out, x),
        }
    }
}
