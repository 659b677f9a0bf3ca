//! The weights of the first stage, and one microbatch's way through them (`models/llama.py`).

use super::rank::Rank;
use super::{attention, edges, mlp, ops};
use recipe::Mixer;
use replay::line::{Line, Origin};
use replay::tape::{BF16, BYTE, INT64, Storage, Tensor};
use std::rc::Rc;

/// A bf16 weight.
pub(super) struct Weight {
    storage: Rc<Storage>,
    pub elements: u64,
}

impl Weight {
    fn new(c: &Rank, line: Line, elements: u64) -> Weight {
        Weight { storage: c.tape.storage(line, elements * BF16, "weight"), elements }
    }

    /// The weight as one microbatch's graph sees it. The gradient lies on this leaf and dies with
    /// the graph: `FP32GradientAccumulator.backward` adds it to the buffer and sets it to none
    /// when the microbatch's backward has ended.
    pub fn leaf(&self) -> Tensor {
        Tensor::of_storage(self.storage.clone(), self.elements, BF16).requiring_grad()
    }
}

/// Weights of one layer.
pub(super) struct LayerWeights {
    norm1: Weight,
    pub qkv: Weight,
    pub out: Weight,
    norm2: Weight,
    pub gate_up: Weight,
    pub down: Weight,
}

/// Final norm and head; a tied head has no weight of its own.
pub(super) struct Head {
    pub norm: Weight,
    pub weight: Option<Weight>,
}

/// The first stage.
pub(super) struct Model {
    table: Weight,
    layers: Vec<LayerWeights>,
    head: Option<Head>,
}

impl Model {
    pub fn new(c: &Rank) -> Model {
        let config = &c.config;
        let hidden = config.hidden;
        let matrix = |width: u64| Weight::new(c, Line::TpParams, width * hidden);
        let norm = || Weight::new(c, Line::ReplicatedParams, hidden);
        let table = matrix(config.vocab);
        let layer = |_| LayerWeights {
            norm1: norm(),
            qkv: matrix(config.heads_width + 2 * config.kv_width),
            out: matrix(config.heads_width),
            norm2: norm(),
            gate_up: matrix(2 * config.ffn),
            down: matrix(config.ffn),
        };
        let layers = (0..config.num_layers).map(layer).collect();
        let head =
            config.is_whole().then(|| Head { norm: norm(), weight: (!config.is_tied).then(|| matrix(config.vocab)) });
        Model { table, layers, head }
    }

    /// Weights in the order they were built.
    pub fn weights(&self) -> Vec<&Weight> {
        let mut all = vec![&self.table];
        for layer in &self.layers {
            all.extend([&layer.norm1, &layer.qkv, &layer.out, &layer.norm2, &layer.gate_up, &layer.down]);
        }
        if let Some(head) = &self.head {
            all.push(&head.norm);
            all.extend(&head.weight);
        }
        all
    }

    /// Elements of all weights; a tied head counts once.
    pub fn params(&self) -> u64 {
        self.weights().iter().map(|weight| weight.elements).sum()
    }

    /// One microbatch through the stage: hidden states, or the loss.
    pub fn forward(&self, c: &Rc<Rank>) -> Tensor {
        let tokens = c.config.tokens;
        c.tape.enter(Origin::Embedding);
        let _ids = c.act_of(tokens, INT64, "tokens");
        let _mask = c.act_of(tokens, BYTE, "token mask");
        let _labels = self.head.as_ref().map(|_| c.act_of(tokens, INT64, "labels"));
        let table = self.table.leaf();
        let mut x = edges::embed(c, &table);
        for (index, layer) in (0..).zip(&self.layers) {
            x = layer.forward(c, index, &x);
        }
        let Some(head) = &self.head else { return x };
        c.tape.enter(Origin::Head);
        edges::head(c, head, &table, &x)
    }
}

impl LayerWeights {
    /// `LlamaDecoderLayer._core_forward`: the dict that attention returns keeps its output until
    /// the layer returns.
    fn forward(&self, c: &Rc<Rank>, index: u32, x: &Tensor) -> Tensor {
        c.tape.enter(Origin::Layer { index, mixer: Mixer::Attention });
        let normed = ops::rmsnorm(c, x, &self.norm1.leaf());
        let attended = attention::forward(c, self, &normed);
        drop(normed);
        let x = ops::add(c, &attended, x);
        c.tape.enter(Origin::Layer { index, mixer: Mixer::Mlp });
        let normed = ops::rmsnorm(c, &x, &self.norm2.leaf());
        let fed = mlp::forward(c, self, &normed);
        drop(normed);
        ops::add(c, &fed, &x)
    }
}
