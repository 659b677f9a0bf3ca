//! A chunk of the model and its forward pass (`models/gpt/gpt_model.py`,
//! `models/hybrid/hybrid_model.py`, `transformer/transformer_layer.py`).

use super::config::{ChunkLayers, Config};
use super::params::{BlockParams, Param, Params};
use super::rank::Rank;
use super::{attention, embedding, loss, mamba, mla, mlp, moe, ops, recompute, rope};
use crate::line::Stand;
use crate::tape::{INT64, Storage, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// A block of a layer.
pub(super) struct Block {
    stand: Stand,
    params: BlockParams,
}

/// A layer: what full recompute wraps.
pub(super) struct Layer {
    blocks: Vec<Block>,
}

/// Final norm and output head.
pub(super) struct Head {
    pub norm: Rc<Param>,
    pub weight: Rc<Param>,
}

/// One chunk of the model.
pub(super) struct Chunk {
    pub params: Vec<Rc<Param>>,
    embedding: Option<Rc<Param>>,
    layers: Vec<Rc<Layer>>,
    head: Option<Head>,
    /// `decoder.input_tensor`: the last input received, kept until the next.
    pub input: RefCell<Option<Tensor>>,
    rope: RefCell<Option<Rc<Storage>>>,
}

impl Chunk {
    pub fn new(c: &Config, held: &ChunkLayers) -> Chunk {
        let mut params = Params::default();
        let table = c.vocab * c.hidden;
        let embedding = held.is_first.then(|| params.matrix(table));
        let layers = held.layers.iter().map(|(index, mixers)| {
            let blocks = mixers.iter().map(|&mixer| Block {
                stand: Stand::Layer { index: *index, mixer },
                params: BlockParams::build(mixer, *index, c, &mut params),
            });
            Rc::new(Layer { blocks: blocks.collect() })
        });
        let layers = layers.collect();
        let head = held.is_last.then(|| {
            let norm = params.norm(c.hidden);
            let tied = embedding.clone().filter(|_| c.is_tied);
            Head { norm, weight: tied.unwrap_or_else(|| params.matrix(table)) }
        });
        Chunk { params: params.all, embedding, layers, head, input: RefCell::default(), rope: RefCell::default() }
    }

    /// One microbatch through the chunk: hidden states, or the loss on the last chunk.
    pub fn forward(&self, c: &Rc<Rank>) -> Tensor {
        let config = &c.config;
        c.tape.stand_at(Stand::Embedding);
        let _tokens = c.act_of(config.tokens, INT64, "tokens");
        let _positions = c.act_of(config.sequence, INT64, "positions");
        let mut x = match (&self.embedding, &*self.input.borrow()) {
            (Some(table), _) => embedding::forward(c, table),
            (None, Some(input)) => input.clone(),
            (None, None) => unreachable!("a chunk without an embedding is given its input"),
        };
        // `decoder_input` is a local of the model's forward until it returns.
        let _decoder_input = x.clone();
        self.rotary_table(c);
        for layer in &self.layers {
            x = if config.recompute.whole_layers { recompute::whole_layer(c, layer, &x) } else { layer.forward(c, &x) };
        }
        c.tape.stand_at(Stand::Head);
        match &self.head {
            Some(head) => loss::forward(c, head, x),
            None => x,
        }
    }

    /// One table a chunk, made at first use; latent attention makes its own.
    fn rotary_table(&self, c: &Rank) {
        let attention = c.config.attention.as_ref().filter(|a| a.mla.is_none() && c.config.rotates);
        if let Some(attention) = attention {
            self.rope.borrow_mut().get_or_insert_with(|| rope::table(c, attention.head_dim));
        }
    }
}

impl Layer {
    pub fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let mut x = x.clone();
        for block in &self.blocks {
            c.tape.stand_at(block.stand);
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
                recompute::behind_norm(c, &params.norm, x, |y| mla::forward(c, params, y))
            }
            BlockParams::Moe(params) => recompute::behind_norm(c, &params.norm, x, |y| moe::forward(c, params, y)),
            BlockParams::Mlp(params) => mlp::forward(c, params, x),
            BlockParams::Mamba(params) => mamba::forward(c, params, x),
        };
        ops::add(c, &out, x)
    }
}
