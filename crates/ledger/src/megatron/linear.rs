//! Transformer Engine's linear modules (`transformer_engine/pytorch/module/layernorm_linear.py`,
//! `linear.py`, `grouped_linear.py`).

use super::fp8;
use super::ops::{WeightProduct, grad, norm_partials, weight_grad};
use super::options::Fp8Recipe;
use super::params::{Norm, NormLinear, Param};
use super::rank::Rank;
use replay::line::Line;
use replay::tape::{Edge, FP32, Grads, Tape, Tensor};
use std::rc::Rc;

/// How a projection's tokens move.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Output cut over tensor-parallel ranks; sequence-sharded input is gathered.
    Column,
    /// Input cut; the output is summed, and sequence-sharded again.
    Row,
    /// Every rank does all of its own tokens.
    Plain,
    /// Every tensor-parallel rank does all tokens.
    Whole,
}

/// What a projection keeps under fp8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Keeps {
    /// The fp8 copy of its input.
    Quantized,
    /// The bf16 input itself, which somebody else keeps too.
    Original,
}

/// Sizes of one projection.
#[derive(Clone, Copy)]
struct Shape {
    local_tokens: u64,
    tokens: u64,
    input: u64,
    output: u64,
    gathers: bool,
    scatters: bool,
    tp: u64,
}

impl Shape {
    fn new(c: &Rank, mode: Mode, input: u64, output: u64) -> Shape {
        let config = &c.config;
        let (local_tokens, tokens) = match mode {
            Mode::Column => (config.local_tokens, config.tokens),
            Mode::Row | Mode::Whole => (config.tokens, config.tokens),
            Mode::Plain => (config.local_tokens, config.local_tokens),
        };
        Shape {
            local_tokens,
            tokens,
            input,
            output,
            gathers: mode == Mode::Column && config.sp,
            scatters: mode == Mode::Row && config.sp,
            tp: config.tp,
        }
    }

    /// Floating-point operations of forward; backward has twice as many. No size bounds their product,
    /// so it is a float.
    fn flops(&self) -> f64 {
        2.0 * self.tokens as f64 * self.input as f64 * self.output as f64
    }

    /// Gradient of the input, reduced to this rank's tokens where they were gathered. Both stay
    /// until backward returns.
    fn input_grads(&self, t: &Tape) -> (Tensor, Option<Tensor>) {
        t.work(2.0 * self.flops());
        let whole = grad(t, self.tokens * self.input, "input gradient");
        let reduced = self.gathers.then(|| grad(t, self.local_tokens * self.input, "scattered input gradient"));
        (whole, reduced)
    }
}

fn gathered(t: &Tape, elements: u64) -> Tensor {
    t.tensor(Line::Communication, elements, replay::tape::BF16, "gathered input")
}

/// A norm and the projection behind it in one module: saves the input, the norm's output and one
/// fp32 a token. Under sequence parallelism the norm's output is gathered for the product, and
/// again in backward.
pub(super) fn norm_linear(c: &Rank, x: &Tensor, input: u64, output: u64, params: &NormLinear) -> Tensor {
    let fused = Fused { norm: &params.norm, weight: &params.weight, bias: params.bias.as_deref() };
    norm_linear_of(c, x, input, output, fused)
}

/// A norm, and the weight and bias behind it, that may stand elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Fused<'a> {
    pub norm: &'a Norm,
    pub weight: &'a Param,
    pub bias: Option<&'a Param>,
}

/// Elements of a fused module's parameters: scale, shift and bias.
#[derive(Clone, Copy)]
struct Sizes {
    norm: u64,
    shift: Option<u64>,
    bias: Option<u64>,
}

impl Fused<'_> {
    fn sizes(&self) -> Sizes {
        let of = |param: &Param| param.elements;
        let shift = self.norm.bias.as_deref().map(of);
        Sizes { norm: self.norm.weight.elements, shift, bias: self.bias.map(of) }
    }

    fn edges(&self, x: &Tensor) -> Vec<Option<Edge>> {
        let mut edges = vec![x.edge(), self.norm.weight.edge(), self.weight.edge()];
        edges.extend([self.norm.bias.as_deref(), self.bias].into_iter().flatten().map(Param::edge));
        edges
    }
}

/// The same, of parameters that stand elsewhere.
pub(super) fn norm_linear_of(c: &Rank, x: &Tensor, input: u64, output: u64, params: Fused) -> Tensor {
    c.te_product();
    let shape = Shape::new(c, Mode::Column, input, output);
    c.tape.work(shape.flops());
    if let Some(recipe) = c.config.fp8 {
        return norm_linear_fp8(c, x, shape, params, recipe);
    }
    let norm = c.act(shape.local_tokens * input, "norm output");
    let (sizes, product) = (params.sizes(), WeightProduct::of(c, params.weight));
    let inverse = c.act_of(shape.local_tokens, FP32, "norm rsigma");
    let total = shape.gathers.then(|| gathered(&c.tape, shape.tokens * input));
    let out = c.act(shape.tokens * output, "projection output");
    drop(total);
    let mut saved = vec![x.clone(), norm, inverse];
    saved.extend(sizes.shift.map(|_| c.act_of(shape.local_tokens, FP32, "norm mean")));
    c.tape.record(params.edges(x), &[&out], saved, move |t, grads, mut saved| {
        let norm = saved.remove(1);
        let total = shape.gathers.then(|| gathered(t, shape.tokens * shape.input));
        let (_whole, _reduced) = shape.input_grads(t);
        let input = total.unwrap_or_else(|| norm.clone());
        let dw = product.grad(t, operands(input, &grads));
        // `clear_tensor_data(ln_out, ln_out_total)` before the norm's backward.
        drop(norm);
        norm_grads(t, shape, sizes, dw)
    });
    out
}

/// What a weight's gradient is made of: the input and the gradient of the output.
fn operands(input: Tensor, grads: &Grads) -> Vec<Tensor> {
    [input].into_iter().chain(grads[0].clone()).collect()
}

/// The norm's part of backward: gradients of input, scale, weight, shift and bias.
fn norm_grads(t: &Tape, shape: Shape, sizes: Sizes, dw: Option<Tensor>) -> Grads {
    let dx = grad(t, shape.local_tokens * shape.input, "norm input gradient");
    let partials = (norm_partials(t, shape.input), sizes.shift.map(|_| norm_partials(t, shape.input)));
    let dnorm = weight_grad(t, sizes.norm);
    drop(partials);
    let vectors = [sizes.shift, sizes.bias].into_iter().flatten();
    [Some(dx), Some(dnorm), dw].into_iter().chain(vectors.map(|elements| Some(weight_grad(t, elements)))).collect()
}

fn norm_linear_fp8(c: &Rank, x: &Tensor, shape: Shape, params: Fused, recipe: Fp8Recipe) -> Tensor {
    let (sizes, product) = (params.sizes(), WeightProduct::of(c, params.weight));
    let local = shape.local_tokens * shape.input;
    let inverse = c.act_of(shape.local_tokens, FP32, "norm rsigma");
    let rows = recipe.one(&c.tape, Line::Activations, local);
    let by_rows = shape.gathers && recipe.gathers_rows();
    let columns = (!by_rows && c.tape.records()).then(|| recipe.one(&c.tape, Line::Activations, local));
    // Scales that depend on the tensor itself need the norm's output in bf16 first
    // (`transformer_engine/pytorch/csrc/extensions/normalization.cpp`).
    drop(recipe.may_save_original().then(|| c.act(local, "norm output")));
    let total = shape.gathers.then(|| recipe.one(&c.tape, Line::Communication, shape.tokens * shape.input));
    fp8::keep_weight(c, params.weight, recipe);
    let out = c.act(shape.tokens * shape.output, "projection output");
    drop(total);
    let mut saved = vec![x.clone(), inverse];
    let before = 2 + usize::from(sizes.shift.is_some());
    saved.extend(sizes.shift.map(|_| c.act_of(shape.local_tokens, FP32, "norm mean")));
    saved.extend(columns.unwrap_or_default());
    if by_rows || shape.gathers && recipe.keeps_gathered_rows() {
        saved.extend(rows);
    }
    c.tape.record(params.edges(x), &[&out], saved, move |t, _, mut saved| {
        let kept = saved.split_off(before);
        let grads = recipe.both(t, shape.tokens * shape.output);
        let full = shape.tokens * shape.input;
        let total = shape.gathers.then(|| recipe.one(t, Line::Communication, full));
        let (_whole, _reduced) = shape.input_grads(t);
        let transposed = by_rows.then(|| recipe.one(t, Line::Communication, full));
        let operands = grads.iter().chain(transposed.as_ref().or(total.as_ref()).unwrap_or(&kept)).cloned().collect();
        let dw = product.grad(t, operands);
        drop((kept, total, transposed));
        norm_grads(t, shape, sizes, dw)
    });
    out
}

/// A projection: saves its input.
pub(super) fn linear(c: &Rank, x: &Tensor, mode: Mode, sizes: (u64, u64), weight: &Param, keeps: Keeps) -> Tensor {
    c.te_product();
    let shape = Shape::new(c, mode, sizes.0, sizes.1);
    c.tape.work(shape.flops());
    if let Some(recipe) = c.config.fp8 {
        return linear_fp8(c, x, shape, weight, recipe, keeps);
    }
    let total = shape.gathers.then(|| gathered(&c.tape, shape.tokens * shape.input));
    let out = c.act(shape.tokens * shape.output, "projection output");
    drop(total);
    let out = scattered(c, out, shape);
    let product = WeightProduct::of(c, weight);
    let edge = x.edge();
    // Of an input that was detached there is no gradient.
    let reaches = edge.is_some();
    c.tape.record(vec![edge, weight.edge()], &[&out], vec![x.clone()], move |t, grads, saved| {
        let output = shape.scatters.then(|| gathered(t, shape.tokens * shape.output));
        let input = shape.gathers.then(|| gathered(t, shape.tokens * shape.input));
        let inputs = reaches.then(|| shape.input_grads(t));
        let of_output = output.or_else(|| grads[0].clone());
        let operands = [input.unwrap_or_else(|| saved[0].clone())].into_iter().chain(of_output).collect();
        let dw = product.grad(t, operands);
        vec![inputs.map(|(whole, reduced)| reduced.unwrap_or(whole)), dw]
    });
    out
}

/// Reduce-scatter of a row-parallel output; the product's own output dies with it.
fn scattered(c: &Rank, out: Tensor, shape: Shape) -> Tensor {
    if !shape.scatters {
        return out;
    }
    c.act(c.config.local_tokens * shape.output, "projection output")
}

fn linear_fp8(c: &Rank, x: &Tensor, shape: Shape, weight: &Param, recipe: Fp8Recipe, keeps: Keeps) -> Tensor {
    let keeps_original = keeps == Keeps::Original && recipe.may_save_original();
    let by_rows = shape.gathers && recipe.gathers_rows();
    let (local, full) = (shape.local_tokens * shape.input, shape.tokens * shape.input);
    let rows = recipe.one(&c.tape, Line::Activations, local);
    let needs_columns = !keeps_original && !by_rows && c.tape.records();
    let columns = needs_columns.then(|| recipe.one(&c.tape, Line::Activations, local));
    let total = shape.gathers.then(|| recipe.one(&c.tape, Line::Communication, full));
    fp8::keep_weight(c, weight, recipe);
    let saved = match (keeps_original, by_rows) {
        (true, _) => vec![x.clone()],
        (false, true) => rows.clone(),
        (false, false) => columns.unwrap_or_default(),
    };
    let out = c.act(shape.tokens * shape.output, "projection output");
    drop((total, rows));
    let out = scattered(c, out, shape);
    let product = WeightProduct::of(c, weight);
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], saved, move |t, _, saved| {
        let grads = output_grad_fp8(t, shape, recipe);
        let mut inputs = Vec::new();
        for _ in 0..usize::from(shape.gathers) + usize::from(by_rows) {
            recipe.quantized(t, Line::Communication, full, &mut inputs);
        }
        let _again = keeps_original.then(|| recipe.both(t, local));
        let (whole, reduced) = shape.input_grads(t);
        let input = if inputs.is_empty() { &saved } else { &inputs };
        let dw = product.grad(t, grads.iter().chain(input).cloned().collect());
        vec![Some(reduced.unwrap_or(whole)), dw]
    });
    out
}

/// The output's gradient in both orientations, gathered in fp8 where it was scattered.
fn output_grad_fp8(t: &Tape, shape: Shape, recipe: Fp8Recipe) -> Vec<Tensor> {
    let full = shape.tokens * shape.output;
    if !shape.scatters {
        return recipe.both(t, full);
    }
    let local = recipe.one(t, Line::ActivationGradients, full / shape.tp);
    let mut grads = recipe.one(t, Line::Communication, full);
    drop(local);
    recipe.quantized(t, Line::Communication, full, &mut grads);
    grads
}

/// One projection an expert over the rows it received: saves its input, booked on `line` in whatever
/// format it is kept, and backward makes every local expert's weight gradient at once.
pub(super) fn grouped_linear(
    c: &Rank,
    x: &Tensor,
    rows: u64,
    sizes: (u64, u64),
    (weights, biases): (&[Rc<Param>], &[Rc<Param>]),
    keeps: Keeps,
    line: Line,
) -> Tensor {
    let (input, output) = sizes;
    let fp8 = c.config.fp8;
    let keeps_original = fp8.is_some_and(|recipe| keeps == Keeps::Original && recipe.may_save_original());
    let quantized = fp8.map(|recipe| {
        let by_rows = recipe.one(&c.tape, line, rows * input);
        let needs_columns = c.tape.records() && !keeps_original;
        let columns = needs_columns.then(|| recipe.one(&c.tape, line, rows * input));
        weights.iter().for_each(|weight| fp8::keep_weight(c, weight, recipe));
        (by_rows, columns.unwrap_or_default())
    });
    if c.tape.records() && (fp8.is_none() || keeps_original) {
        x.onto(line);
    }
    c.grouped_product();
    let flops = 2.0 * rows as f64 * input as f64 * output as f64;
    c.tape.work(flops);
    let out = c.act(rows * output, "expert projection output");
    let saved = match quantized {
        Some((_, columns)) if !keeps_original => columns,
        _ => vec![x.clone()],
    };
    let edges = [x.edge()].into_iter().chain(weights.iter().chain(biases).map(|weight| weight.edge())).collect();
    let (product, added) = (WeightProduct::of_all(c, weights), elements_of(biases));
    c.tape.record(edges, &[&out], saved, move |t, grads, saved| {
        let _grad = fp8.map(|recipe| recipe.both(t, rows * output));
        t.work(2.0 * flops);
        let dx = grad(t, rows * input, "expert input gradient");
        let dws = product.grads(t, saved.iter().cloned().chain(grads[0].clone()).collect());
        let again = fp8.filter(|_| keeps_original);
        let _again = again.map(|recipe| recipe.one(t, Line::Activations, rows * input));
        [Some(dx)].into_iter().chain(dws).chain(added.iter().map(|bias| Some(weight_grad(t, *bias)))).collect()
    });
    out
}

/// Elements of each.
pub(super) fn elements_of(params: &[Rc<Param>]) -> Vec<u64> {
    params.iter().map(|param| param.elements).collect()
}
