//! Layers that take some tokens only, as `crates/launch/assets/fsdp2/depths.py` chooses them. Models of one's own are
//! taken to choose alike.

use super::super::Config;
use super::super::ops::{grad, linear, makes};
use super::super::params::{Linear, Unit};
use super::super::rank::Rank;
use super::steps::times;
use recipe::kinds::depths::Depths;
use replay::line::Line;
use replay::tape::{BF16, INT64, Tensor};
use std::rc::Rc;

/// `Depth`: the router of one layer.
pub(in super::super) struct Depth {
    sizes: Depths,
    router: Linear,
}

impl Depth {
    /// The router of a layer that takes some tokens only.
    pub fn new(c: &Config, unit: &mut Unit) -> Option<Depth> {
        let sizes = c.depths.clone()?;
        let weight = unit.add(Line::ReplicatedParams, 1, c.hidden);
        Some(Depth { sizes, router: Linear { weight, bias: None, adapter: None } })
    }

    /// Runs a layer's blocks over the tokens that are taken.
    pub fn forward(&self, c: &Rc<Rank>, x: &Tensor, run: impl FnOnce(&Rc<Rank>, &Tensor) -> Tensor) -> Tensor {
        let (all, hidden) = (x.elements(), c.config.hidden);
        let count = self.sizes.tokens(c.config.sequence);
        let rows = count * c.config.micro_batch;
        let scores = linear(c, x, &self.router);
        let chosen = chosen(c, rows);
        let taken = gathered(c, x, &chosen, rows * hidden);
        let some = c.of_some(count);
        let done = run(&some, &taken);
        let added = difference(c, &done, &taken);
        drop((done, taken));
        let share = gathered(c, &scores, &chosen, rows);
        drop(scores);
        let weighed = times(c, &added, &share, "weighed additions");
        drop((added, share));
        // `scatter_add` copies the stream and keeps where the rows go; their gradient is gathered.
        let out = c.act(all, "residual stream");
        let size = weighed.elements();
        c.tape.record(vec![x.edge(), weighed.edge()], &[&out], vec![chosen], move |t, grads, _saved| {
            vec![grads[0].clone(), Some(grad(t, size, "gradient of additions"))]
        });
        out
    }
}

/// Positions in order: the best scores with their places, which are sorted.
fn chosen(c: &Rank, rows: u64) -> Tensor {
    let best = (c.act(rows, "best scores"), c.act_of(rows, INT64, "places of the best scores"));
    let sorted = [(); 2].map(|()| c.act_of(rows, INT64, "taken positions"));
    drop(best);
    let [positions, _order] = sorted;
    positions
}

/// `gather`: keeps what it reads of, whose sizes its backward asks for, and the places; backward adds rows into zeros.
fn gathered(c: &Rank, x: &Tensor, places: &Tensor, elements: u64) -> Tensor {
    let out = c.act(elements, "taken tokens");
    makes(c, x, &out, vec![x.clone(), places.clone()], x.elements(), BF16);
    out
}

/// `done - taken`: the gradient of what is taken away is negated.
fn difference(c: &Rank, done: &Tensor, taken: &Tensor) -> Tensor {
    let elements = taken.elements();
    let out = c.act(elements, "what the layer adds");
    c.tape.record(vec![done.edge(), taken.edge()], &[&out], Vec::new(), move |t, grads, _| {
        vec![grads[0].clone(), Some(grad(t, elements, "negated gradient"))]
    });
    out
}
