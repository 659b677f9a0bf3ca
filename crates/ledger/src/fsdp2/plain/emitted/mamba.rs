//! Mamba-2 and Mamba-3 style blocks around the scan, in fp32 between their projections.

use super::super::config::Scan as Kind;
use super::super::ops::{add, cast, grad, grad_of, linear};
use super::super::params::{Linear, Unit};
use super::super::rank::Rank;
use super::super::{Config, Param};
use super::borders::{enter, leave};
use super::conv::Conv;
use super::scan::{Sizes, scan};
use super::steps::{Saves, by, gated, group_norm, map, repeated, softplus, split, times, wide};
use super::{projection, vector};
use replay::line::Line;
use replay::tape::{FP32, Tensor};
use std::rc::Rc;

/// What every scan has: sizes on this rank, projections, and one number a head.
pub(crate) struct Mamba {
    sizes: Sizes,
    groups: u64,
    in_proj: Linear,
    out_proj: Linear,
    dt_bias: Rc<Param>,
    d: Rc<Param>,
    kind: Parts,
}

enum Parts {
    Two { conv: Conv, a_log: Rc<Param>, norm: Option<Rc<Param>> },
    Three { angle_proj: Linear, biases: [Rc<Param>; 2], norms: [Rc<Param>; 2], angles: u64 },
}

impl Mamba {
    pub(super) fn new(c: &Config, unit: &mut Unit) -> Mamba {
        match c.scan() {
            Kind::One(_) => unreachable!("the emitted program has no Mamba-1"),
            Kind::Two(m) => {
                let (heads, groups) = (m.heads / c.tp, (m.groups / c.tp).max(1));
                let (inner, shared) = (heads * m.head_dim, 2 * groups * m.state);
                let in_proj = projection(c, unit, "mamba.in_proj", (2 * inner + shared + heads, c.hidden));
                let conv = Conv::new(unit, inner + shared, m.conv, m.conv_bias);
                let [dt_bias, a_log, d] = [(); 3].map(|()| vector(unit, heads));
                let norm = m.gated_norm.then(|| vector(unit, inner));
                let out_proj = projection(c, unit, "mamba.out_proj", (c.hidden, inner));
                let sizes = Sizes { heads, width: m.head_dim, state: m.state };
                let kind = Parts::Two { conv, a_log, norm };
                Mamba { sizes, groups, in_proj, out_proj, dt_bias, d, kind }
            }
            Kind::Three(m) => {
                let (heads, groups) = (m.heads / c.tp, (m.groups / c.tp).max(1));
                let (inner, shared) = (heads * m.head_dim, 2 * groups * m.state);
                let in_proj = projection(c, unit, "mamba.in_proj", (2 * inner + shared + 3 * heads, c.hidden));
                let angle_proj = projection(c, unit, "mamba.angle_proj", (m.angles, c.hidden));
                let [dt_bias, d] = [(); 2].map(|()| vector(unit, heads));
                let biases = [(); 2].map(|()| unit.add(Line::TpParams, heads, m.state));
                let norms = [(); 2].map(|()| unit.add(Line::ReplicatedParams, m.state, 1));
                let out_proj = projection(c, unit, "mamba.out_proj", (c.hidden, inner));
                let sizes = Sizes { heads, width: m.head_dim, state: m.state };
                let kind = Parts::Three { angle_proj, biases, norms, angles: m.angles };
                Mamba { sizes, groups, in_proj, out_proj, dt_bias, d, kind }
            }
        }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        match &self.kind {
            Parts::Two { .. } => self.forward_two(c, x),
            Parts::Three { .. } => self.forward_three(c, x),
        }
    }

    fn forward_two(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let Parts::Two { conv, a_log, norm } = &self.kind else { unreachable!("a Mamba-2 block") };
        let (tokens, inner, shared) = (c.config.tokens, self.inner(), self.groups * self.sizes.state);
        let heads = tokens * self.sizes.heads;
        let factors = c.config.multipliers;
        let mut packed = linear(c, &enter(c, &by(c, x.clone(), factors.ssm_in)), &self.in_proj);
        if factors.ssm != [1.0; 5] {
            packed = map(c, &packed, Saves::Nothing, "multiplied parts");
        }
        let [z, xbc, dt] = split(c, &packed, [tokens * inner, tokens * (inner + 2 * shared), heads]);
        drop(packed);
        let mixed = conv.forward(c, &xbc);
        let [u, b, q] = split(c, &mixed, [tokens * inner, tokens * shared, tokens * shared]);
        drop(mixed);
        let u = cast(c, &u, FP32, "fp32 input");
        let of_heads = |x: Tensor| {
            let wide = cast(c, &x, FP32, "fp32 keys or queries");
            repeated(c, &wide, self.sizes.heads / self.groups, "keys or queries by head")
        };
        let (b, q) = (of_heads(b), of_heads(q));
        let dt = softplus(c, &dt, &self.dt_bias);
        let rate = map(c, &wide(c, a_log), Saves::Output, "decay rates");
        let negative = map(c, &dt, Saves::Nothing, "negative steps");
        let log = times(c, &negative, &rate, "log decays");
        let stepped = times(c, &dt, &u, "input by step");
        drop((negative, dt));
        let y = scan(c, [&log, &stepped, &b, &q], self.sizes);
        drop((log, stepped, b, q));
        let y = self.skipped(c, y, &u);
        drop(u);
        let y = gated(c, y, z);
        let y = match norm {
            Some(weight) => group_norm(c, y, tokens * self.groups, weight),
            None => y,
        };
        by(c, leave(c, linear(c, &y, &self.out_proj)), factors.ssm_out)
    }

    fn forward_three(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let Parts::Three { angle_proj, biases, norms, angles } = &self.kind else { unreachable!("a Mamba-3 block") };
        let (tokens, inner, shared) = (c.config.tokens, self.inner(), self.groups * self.sizes.state);
        let heads = tokens * self.sizes.heads;
        let h = enter(c, &by(c, x.clone(), c.config.multipliers.ssm_in));
        let packed = linear(c, &h, &self.in_proj);
        let wide_parts = [tokens * inner, tokens * inner, tokens * shared, tokens * shared, heads, heads, heads];
        let [z, u, b, q, dt, a, trap] = split(c, &packed, wide_parts);
        drop(packed);
        let u = cast(c, &u, FP32, "fp32 input");
        let dt = softplus(c, &dt, &self.dt_bias);
        let trap = map(c, &cast(c, &trap, FP32, "fp32 trapezoids"), Saves::Output, "trapezoids");
        let rate = map(c, &cast(c, &a, FP32, "fp32 rates"), Saves::Input, "decay rates");
        let rate = map(c, &rate, Saves::Input, "floored decay rates");
        let negative = map(c, &dt, Saves::Nothing, "negative steps");
        let log = times(c, &negative, &rate, "log decays");
        drop((negative, rate));
        let angle = self.angles(c, angle_proj, &h, &dt, *angles);
        let b = self.turned(c, self.of_heads(c, &b, &norms[0], &biases[0]), &angle);
        let q = self.turned(c, self.of_heads(c, &q, &norms[1], &biases[1]), &angle);
        drop(angle);
        let now = times(c, &times(c, &trap, &dt, "weight of now"), &u, "input now");
        let left = map(c, &trap, Saves::Nothing, "rest of trapezoid");
        let decay = map(c, &log, Saves::Output, "decays");
        let weight = times(c, &times(c, &left, &dt, "rest by step"), &decay, "weight of before");
        let last = shifted(c, &u, "input before");
        let before = times(c, &weight, &last, "weighed input before");
        drop((left, decay, weight, last, trap, dt));
        let first = scan(c, [&log, &now, &b, &q], self.sizes);
        let keys = shifted(c, &b, "keys before");
        let second = scan(c, [&log, &before, &keys, &q], self.sizes);
        drop((log, now, before, keys, b, q));
        let y = add(c, &first, &second);
        drop((first, second));
        let y = self.skipped(c, y, &u);
        drop(u);
        let y = gated(c, y, z);
        drop(h);
        by(c, leave(c, linear(c, &y, &self.out_proj)), c.config.multipliers.ssm_out)
    }

    fn inner(&self) -> u64 {
        self.sizes.heads * self.sizes.width
    }

    /// `y + D · u`.
    fn skipped(&self, c: &Rc<Rank>, y: Tensor, u: &Tensor) -> Tensor {
        let skip = times(c, &wide(c, &self.d), u, "skip");
        add(c, &y, &skip)
    }

    /// Cumulative angles by head: `tanh` of a projection, times steps.
    fn angles(&self, c: &Rc<Rank>, projection: &Linear, h: &Tensor, dt: &Tensor, angles: u64) -> Tensor {
        let raw = cast(c, &linear(c, h, projection), FP32, "fp32 angles");
        let bent = map(c, &map(c, &raw, Saves::Output, "bent angles"), Saves::Nothing, "angle rates");
        drop(raw);
        let elements = c.config.tokens * self.sizes.heads * angles;
        let sides = [bent.elements(), dt.elements()];
        let by_step = c.act_of(elements, FP32, "angles by step");
        c.tape.record(
            vec![bent.edge(), dt.edge()],
            &[&by_step],
            vec![bent.clone(), dt.clone()],
            move |t, _, _saved| {
                let gradient = |size| {
                    let _product = grad_of(t, elements, FP32, "angle product");
                    Some(grad_of(t, size, FP32, "angle gradient"))
                };
                sides.map(gradient).to_vec()
            },
        );
        map(c, &by_step, Saves::Nothing, "cumulative angles")
    }

    /// `heads_of`: normalised by group in bf16, copied to heads in fp32, biased.
    fn of_heads(&self, c: &Rc<Rank>, packed: &Tensor, norm: &Rc<Param>, bias: &Rc<Param>) -> Tensor {
        let elements = packed.elements();
        let normed = c.act(elements, "normed keys or queries");
        let statistics = c.act_of(elements / self.sizes.state, FP32, "norm rsigma");
        let weight = norm.clone();
        let saved = vec![packed.clone(), statistics];
        c.tape.record(vec![packed.edge(), norm.edge()], &[&normed], saved, move |t, _, _saved| {
            vec![Some(grad(t, elements, "norm gradient")), weight.gradient(t)]
        });
        let wide_ = cast(c, &normed, FP32, "fp32 keys or queries");
        let by_head = repeated(c, &wide_, self.sizes.heads / self.groups, "keys or queries by head");
        let biased = c.act_of(by_head.elements(), FP32, "biased keys or queries");
        let bias = wide(c, bias);
        let size = bias.edge().map(|_| bias.elements());
        c.tape.record(vec![by_head.edge(), bias.edge()], &[&biased], Vec::new(), move |t, grads, _| {
            vec![grads[0].clone(), size.map(|size| grad_of(t, size, FP32, "bias gradient"))]
        });
        biased
    }

    /// `turn` by angles that are learned: products keep both sides. Turned columns are stacked, and joined with the rest.
    fn turned(&self, c: &Rc<Rank>, x: Tensor, angle: &Tensor) -> Tensor {
        let (all, half) = (x.elements(), angle.elements());
        let cos = map(c, angle, Saves::Input, "cosines");
        let sin = map(c, angle, Saves::Input, "sines");
        let cut = |elements: u64| {
            let part = x.part(elements);
            c.tape.record(vec![x.edge()], &[&part], Vec::new(), move |t, _, _| {
                vec![Some(grad_of(t, all, FP32, "gradient of a slice"))]
            });
            part
        };
        let (even, odd) = (cut(half), cut(half));
        let rest = (all > 2 * half).then(|| cut(all - 2 * half));
        let side = |left: &Tensor, right: &Tensor| {
            let (left, right) = (times(c, &even, left, "turned product"), times(c, &odd, right, "turned product"));
            add(c, &left, &right)
        };
        let pairs = joined(c, [side(&cos, &sin), side(&sin, &cos)], "turned pairs");
        match rest {
            Some(rest) => joined(c, [pairs, rest], "rotated"),
            None => pairs,
        }
    }
}

/// `torch.stack` or `torch.cat` of two: a copy, whose gradient is handed on in views.
fn joined(c: &Rank, parts: [Tensor; 2], name: &'static str) -> Tensor {
    let sizes = parts.each_ref().map(Tensor::elements);
    let out = c.act_of(sizes.iter().sum(), FP32, name);
    c.tape.record(parts.iter().map(Tensor::edge).collect(), &[&out], Vec::new(), move |_, grads, _| {
        sizes.map(|size| grads[0].as_ref().map(|grad| grad.part(size))).to_vec()
    });
    out
}

/// A shifted copy: `F.pad`, whose gradient is a new tensor.
fn shifted(c: &Rank, x: &Tensor, name: &'static str) -> Tensor {
    map(c, x, Saves::Nothing, name)
}
