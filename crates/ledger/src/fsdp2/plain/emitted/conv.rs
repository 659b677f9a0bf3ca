//! A short causal convolution and SiLU (`model.py` Conv): a padded copy is kept for the weight, and
//! the convolution's output for SiLU.

use super::super::ops::{grad, pointwise};
use super::super::params::{Param, Unit};
use super::super::rank::Rank;
use super::vector;
use replay::line::Line;
use replay::tape::Tensor;
use std::rc::Rc;

pub(crate) struct Conv {
    weight: Rc<Param>,
    bias: Option<Rc<Param>>,
    /// Positions before a sequence that the first token's taps reach.
    reach: u64,
}

impl Conv {
    pub(super) fn new(unit: &mut Unit, channels: u64, taps: u64, has_bias: bool) -> Conv {
        let weight = unit.add(Line::TpParams, channels, taps);
        Conv { weight, bias: has_bias.then(|| vector(unit, channels)), reach: taps - 1 }
    }

    /// One without a bias and with steps between its taps, on every rank whole (`engram.py` Spread).
    pub(super) fn spread(unit: &mut Unit, channels: u64, taps: u64, step: u64) -> Conv {
        Conv { weight: unit.add(Line::ReplicatedParams, channels, taps), bias: None, reach: (taps - 1) * step }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (elements, channels) = (x.elements(), self.weight.rows);
        let padded = c.act(elements + c.config.micro_batch * channels * self.reach, "padded conv input");
        c.tape.record(vec![x.edge()], &[&padded], Vec::new(), move |t, _, _| {
            vec![Some(grad(t, elements, "conv input gradient"))]
        });
        let out = c.act(elements, "conv output");
        let (size, weight, bias) = (padded.elements(), self.weight.clone(), self.bias.clone());
        let edges = vec![padded.edge(), self.weight.edge(), self.bias.as_ref().and_then(|bias| bias.edge())];
        c.tape.record(edges, &[&out], vec![padded], move |t, _, _saved| {
            let dx = grad(t, size, "padded gradient");
            vec![Some(dx), weight.gradient(t), bias.and_then(|bias| bias.gradient(t))]
        });
        pointwise(c, out, "conv activation")
    }
}
