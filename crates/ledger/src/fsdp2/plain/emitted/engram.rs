//! Engram branches, as `crates/launch/assets/fsdp2/engram.py` writes them. Models of one's own are taken to have them alike.

use super::super::Config;
use super::super::ops::{add, linear, makes, norm, product};
use super::super::params::{Linear, NormParams, Param, Step, Unit};
use super::super::rank::Rank;
use super::conv::Conv;
use super::steps::{Saves, map, times};
use replay::line::Line;
use replay::tape::{BF16, INT64, Tensor};
use std::rc::Rc;

/// `Engram`: the branch of one layer.
pub(in super::super) struct Branch {
    table: Rc<Param>,
    key: Linear,
    value: Linear,
    norms: [NormParams; 3],
    conv: Conv,
    lookups: u64,
}

impl Branch {
    /// The branch before a layer.
    pub fn new(c: &Config, unit: &mut Unit) -> Option<Branch> {
        let sizes = c.engram.as_ref()?;
        let line = Line::ReplicatedParams;
        let table = unit.add(line, sizes.rows, sizes.dim / sizes.heads);
        let [key, value] = [(); 2].map(|()| {
            let (rows, columns) = (c.hidden, sizes.found());
            let weight = unit.add_stepped(line, (rows, columns), Step::of(c.matrix_optimizer, (1, rows, columns)));
            Linear { weight, bias: Some(unit.add(line, rows, 1)), adapter: None }
        });
        let norms = [(); 3].map(|()| NormParams { weight: Some(unit.add(line, c.hidden, 1)), bias: None });
        let conv = Conv::spread(unit, c.hidden, sizes.conv, sizes.ngrams);
        Some(Branch { table, key, value, norms, conv, lookups: sizes.lookups() })
    }

    /// The stream with what the branch adds.
    pub fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let hidden = c.config.hidden;
        let [key_norm, stream_norm, value_norm] = &self.norms;
        let found = self.found(c);
        let key = norm(c, &linear(c, &found, &self.key), hidden, key_norm);
        let stream = norm(c, x, hidden, stream_norm);
        let near = summed(c, &product(c, &key, &stream));
        drop((key, stream));
        let gate = gate(c, near);
        let value = linear(c, &found, &self.value);
        drop(found);
        let value = times(c, &value, &gate, "gated value");
        drop(gate);
        let out = add(c, x, &value);
        let beside = self.conv.forward(c, &norm(c, &value, hidden, value_norm));
        drop(value);
        add(c, &out, &beside)
    }

    /// Rows of the table, by places that are listed one lookup after the other and then put together.
    fn found(&self, c: &Rank) -> Tensor {
        let count = c.config.tokens * self.lookups;
        let listed = c.act_of(count, INT64, "places of a lookup");
        let places = c.act_of(count, INT64, "places of n-grams");
        drop(listed);
        let found = c.act(count * self.table.columns, "rows of n-grams");
        let table = self.table.clone();
        c.tape.record(vec![table.edge()], &[&found], vec![places], move |t, _, _saved| vec![table.gradient(t)]);
        found
    }
}

/// A sum over the hidden width, over its root: backward spreads one number over a row, which takes no memory.
fn summed(c: &Rank, x: &Tensor) -> Tensor {
    let tokens = x.elements() / c.config.hidden;
    let out = c.act(tokens, "key by stream");
    makes(c, x, &out, Vec::new(), tokens, BF16);
    map(c, &out, Saves::Nothing, "key by stream over the root")
}

/// `(near.abs().clamp_min(1e-6).sqrt() * near.sign()).sigmoid()`.
fn gate(c: &Rank, near: Tensor) -> Tensor {
    let size = map(c, &near, Saves::Input, "size of a gate");
    let least = map(c, &size, Saves::Input, "least size of a gate");
    let root = map(c, &least, Saves::Output, "root of a gate");
    drop((size, least));
    let signed = product(c, &root, &near);
    drop((root, near));
    map(c, &signed, Saves::Output, "gate")
}
