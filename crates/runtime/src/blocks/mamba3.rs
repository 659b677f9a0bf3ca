//! Mamba-3 with one input a head: no convolution; B and C are normed, biased per head and turned by
//! angles that add up over time; the step is trapezoidal, so a token's input enters at its own step
//! and at the next. Over the context axis state, angles and the last input are handed on.
//!
//! Step: state-spaces/mamba, `mamba_ssm/modules/mamba3.py` and
//! `mamba_ssm/ops/triton/mamba3/mamba3_siso_step.py`. Every head has angles of its own, for the
//! shared angle rates are multiplied by the head's step.

use super::act::silu;
use super::mamba2::gate_back;
use super::norm::Norm;
use super::scan::{ByToken, Scan, Times, Token};
use super::{Block, Cx, Linear, restore_input};
use crate::mat::{Mat, axpy, dot};
use crate::params::{Id, Shelf};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::tensor;
use crate::wide::map2;
use comm::Result;
use diag::{Blame, Finding};
use recipe::kinds::mamba3::Mamba3 as Kind;

const NAMES: [&str; 2] = ["into mamba", "out of mamba"];
/// The slowest decay, the reference's `A_floor`.
const FLOOR: f64 = 1e-4;

pub(crate) struct Mamba3 {
    in_proj: Linear,
    angle_proj: Linear,
    out_proj: Linear,
    dt_bias: Id,
    b_bias: Id,
    c_bias: Id,
    d: Id,
    b_norm: Norm,
    c_norm: Norm,
    /// Local widths of z x B C dt A trap.
    widths: Vec<usize>,
    angles: usize,
    head: usize,
    state: usize,
    scan: Scan,
}

impl Mamba3 {
    pub fn new(kind: &Kind, shelf: &mut Shelf, path: &str) -> std::result::Result<Mamba3, Finding> {
        if kind.mimo_rank > 1 {
            let message = format!("the runtime has no Mamba-3 with {} inputs a head", kind.mimo_rank);
            return Err(
                Finding::error("runtime/mimo", Blame::Engine, "mamba.mimo_rank", message).hint("mimo_rank may be 1")
            );
        }
        let at = |name: &str| format!("{path}.{name}");
        let in_proj = Linear::new(shelf, &at("in_proj"));
        let state = kind.state as usize;
        Ok(Mamba3 {
            widths: shelf.segments(in_proj.weight()),
            in_proj,
            angle_proj: Linear::of(shelf.id_of_heads(&at("angle_proj.weight"))),
            out_proj: Linear::new(shelf, &at("out_proj")),
            dt_bias: shelf.id(&at("dt_bias")),
            b_bias: shelf.id(&at("B_bias")),
            c_bias: shelf.id(&at("C_bias")),
            d: shelf.id(&at("D")),
            b_norm: Norm::of_heads(shelf, &at("B_norm"), state),
            c_norm: Norm::of_heads(shelf, &at("C_norm"), state),
            angles: kind.angles as usize,
            head: kind.head_dim as usize,
            state,
            scan: Scan { chunk: kind.chunk as usize, times: Times::Parts },
        })
    }

    fn cell<R: Real>(&self, cx: &Cx<R>, parts: &[Mat<R>], rates: &Mat<R>) -> Trapezoid<R> {
        let raw = {
            let mut raw = parts[4].clone();
            raw.add_row(&cx.weight(self.dt_bias).data);
            raw
        };
        let map = |m: &Mat<R>, f: fn(R) -> R| Mat { data: m.data.iter().map(|v| f(*v)).collect(), ..*m };
        let heads = raw.cols;
        let like = |m: &Mat<R>| Mat::zeros(m.rows, m.cols);
        let (b, c) = (self.b_norm.forward(cx, &parts[2]), self.c_norm.forward(cx, &parts[3]));
        Trapezoid {
            head: self.head,
            state: self.state,
            angles: self.angles,
            per_group: heads / (parts[2].cols / self.state),
            dx: like(&parts[1]),
            db: like(&b),
            dc: like(&c),
            drates: like(rates),
            dstep: like(&raw),
            ddecay: like(&raw),
            dtrap: like(&raw),
            b_bias: cx.weight(self.b_bias).clone(),
            c_bias: cx.weight(self.c_bias).clone(),
            db_bias: like(cx.weight(self.b_bias)),
            dc_bias: like(cx.weight(self.c_bias)),
            skip: cx.weight(self.d).data.clone(),
            dskip: vec![R::ZERO; heads],
            x: parts[1].clone(),
            b,
            c,
            rates: map(rates, |v| v.tanh() * R::of(std::f64::consts::PI)),
            step: map(&raw, Real::softplus),
            decay: map(&parts[5], |v| decay(v).0),
            trap: map(&parts[6], Real::sigmoid),
        }
    }

    fn gated<R: Real>(&self, y: &Mat<R>, z: &Mat<R>) -> Mat<R> {
        Mat { data: map2(&y.data, &z.data, |y, z| y * silu(z).0), ..*y }
    }

    /// Gradients of the packed projection and of the raw angle rates, from those of the cell.
    fn inputs_back<R: Real>(
        &self,
        cx: &mut Cx<R>,
        cell: &Trapezoid<R>,
        parts: &[Mat<R>],
        rates: &Mat<R>,
        dz: &Mat<R>,
    ) -> (Mat<R>, Mat<R>) {
        let zip = |d: &Mat<R>, raw: &Mat<R>, f: &dyn Fn(R) -> R| Mat {
            data: d.data.iter().zip(&raw.data).map(|(d, v)| *d * f(*v)).collect(),
            ..*d
        };
        let db = self.b_norm.backward(cx, &parts[2], &cell.db);
        let dc = self.c_norm.backward(cx, &parts[3], &cell.dc);
        let mut raw = parts[4].clone();
        raw.add_row(&cx.weight(self.dt_bias).data);
        let ddt = zip(&cell.dstep, &raw, &Real::sigmoid);
        let da = zip(&cell.ddecay, &parts[5], &|v| decay(v).1);
        let dtrap = zip(&cell.dtrap, &parts[6], &|v| v.sigmoid() * (R::ONE - v.sigmoid()));
        let pi = R::of(std::f64::consts::PI);
        let drates = zip(&cell.drates, rates, &|v| pi * (R::ONE - v.tanh() * v.tanh()));
        ddt.sum_rows(&mut cx.grad(self.dt_bias).data);
        cx.add_grad(self.b_bias, &cell.db_bias.data);
        cx.add_grad(self.c_bias, &cell.dc_bias.data);
        cx.add_grad(self.d, &cell.dskip);
        (Mat::join(&[dz, &cell.dx, &db, &dc, &ddt, &da, &dtrap]), drates)
    }
}

/// The decay rate of a raw value, `-softplus`, and its slope; at most `-FLOOR`, where it is flat.
fn decay<R: Real>(x: R) -> (R, R) {
    let value = x.softplus();
    if value < R::of(FLOOR) { (-R::of(FLOOR), R::ZERO) } else { (-value, -x.sigmoid()) }
}

impl<R: Real> Block<R> for Mamba3 {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let x = tensor::enter(cx.rank, NAMES[0], x)?;
        let (projected, rates) = (self.in_proj.forward(cx, &x), self.angle_proj.forward(cx, &x));
        let parts = projected.split(&self.widths);
        let cell = self.cell(cx, &parts, &rates);
        let (scanned, states) = self.scan.forward(cx, &ByToken(cell))?;
        let gated = self.gated(&scanned, &parts[0]);
        let y = tensor::leave(cx.rank, NAMES[1], self.out_proj.partial(cx, &gated))?;
        let kept = [("input", x), ("projected", projected), ("angle rates", rates), ("states", states)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        saved.keep("scanned", scanned);
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let (scanned, rates) = (saved.take("scanned"), saved.take("angle rates"));
        let parts = saved.take("projected").split(&self.widths);
        let dgated = self.out_proj.partial_back(cx, &self.gated(&scanned, &parts[0]), &dy);
        let (dscanned, dz) = gate_back(&scanned, &parts[0], &dgated);
        let mut cell = ByToken(self.cell(cx, &parts, &rates));
        self.scan.backward(cx, &mut cell, &saved.take("states"), &dscanned)?;
        let cell = cell.0;
        let (dprojected, drates) = self.inputs_back(cx, &cell, &parts, &rates, &dz);
        let x = saved.take("input");
        let mut dx = self.in_proj.backward(cx, &x, &dprojected);
        dx.add(&self.angle_proj.backward(cx, &x, &drates));
        tensor::enter_back(cx.rank, NAMES[0], dx)
    }
}

/// The cell. Its state is, one after another: the matrix `h`, the angles, the last turned B, the
/// last x.
struct Trapezoid<R> {
    head: usize,
    state: usize,
    angles: usize,
    per_group: usize,
    x: Mat<R>,
    b: Mat<R>,
    c: Mat<R>,
    rates: Mat<R>,
    step: Mat<R>,
    decay: Mat<R>,
    trap: Mat<R>,
    b_bias: Mat<R>,
    c_bias: Mat<R>,
    skip: Vec<R>,
    dx: Mat<R>,
    db: Mat<R>,
    dc: Mat<R>,
    drates: Mat<R>,
    dstep: Mat<R>,
    ddecay: Mat<R>,
    dtrap: Mat<R>,
    db_bias: Mat<R>,
    dc_bias: Mat<R>,
    dskip: Vec<R>,
}

/// Factors of one step: what the state keeps, the weight of the last input and of this one.
struct Factors<R> {
    keep: R,
    last: R,
    this: R,
}

impl<R: Real> Trapezoid<R> {
    fn factors(&self, row: usize, head: usize) -> Factors<R> {
        let (dt, trap) = (self.step.row(row)[head], self.trap.row(row)[head]);
        let keep = (self.decay.row(row)[head] * dt).exp();
        Factors { keep, last: keep * dt * (R::ONE - trap), this: trap * dt }
    }

    /// B or C of a head with its bias added, before the rotation.
    fn biased(&self, from: &Mat<R>, bias: &Mat<R>, row: usize, head: usize) -> Vec<R> {
        let group = head / self.per_group * self.state;
        from.row(row)[group..group + self.state].iter().zip(bias.row(head)).map(|(a, b)| *a + *b).collect()
    }

    /// Rotates pairs of neighbouring elements; `sign` is −1 for the transpose.
    fn turn(&self, v: &mut [R], angles: &[R], sign: R) {
        for (pair, angle) in v.chunks_exact_mut(2).zip(angles) {
            let (sin, cos) = angle.sin_cos();
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * cos - sign * b * sin;
            pair[1] = sign * a * sin + b * cos;
        }
    }

    /// Offsets of the angles, the last B and the last x in the state.
    fn places(&self) -> (usize, usize, usize) {
        let angles = self.head * self.state;
        (angles, angles + self.angles, angles + self.angles + self.state)
    }
}

impl<R: Real> Token<R> for Trapezoid<R> {
    fn heads(&self) -> usize {
        self.step.cols
    }

    fn state(&self) -> usize {
        self.head * self.state + self.angles + self.state + self.head
    }

    fn width(&self) -> usize {
        self.head
    }

    fn step(&self, row: usize, head: usize, state: &mut [R], out: &mut [R]) {
        let (n, f) = (self.state, self.factors(row, head));
        let (angles, last_b, last_x) = self.places();
        axpy(&mut state[angles..last_b], self.step.row(row)[head], self.rates.row(row));
        let (mut b, mut c) =
            (self.biased(&self.b, &self.b_bias, row, head), self.biased(&self.c, &self.c_bias, row, head));
        self.turn(&mut b, &state[angles..last_b], R::ONE);
        self.turn(&mut c, &state[angles..last_b], R::ONE);
        let x = &self.x.row(row)[head * self.head..(head + 1) * self.head];
        let (matrix, rest) = state.split_at_mut(angles);
        let (old_b, old_x) = rest[self.angles..].split_at(n);
        for (p, h) in matrix.chunks_exact_mut(n).enumerate() {
            let (last, this) = (f.last * old_x[p], f.this * x[p]);
            h.iter_mut().zip(old_b.iter().zip(&b)).for_each(|(h, (o, b))| *h = f.keep * *h + last * *o + this * *b);
            out[p] = dot(h, &c) + self.skip[head] * x[p];
        }
        state[last_b..last_x].copy_from_slice(&b);
        state[last_x..].copy_from_slice(x);
    }

    fn back(&mut self, row: usize, head: usize, [before, after]: [&[R]; 2], dout: &[R], dstate: &mut [R]) {
        let (n, f) = (self.state, self.factors(row, head));
        let (at, last_b, last_x) = self.places();
        let angles = &after[at..last_b];
        let (old_b, old_x) = (&before[last_b..last_x], &before[last_x..]);
        let (b, x) = (&after[last_b..last_x], &after[last_x..]);
        let mut c = self.biased(&self.c, &self.c_bias, row, head);
        self.turn(&mut c, angles, R::ONE);
        // Gradients of the rotated B and of x start with what the next step has for them.
        let mut db = dstate[last_b..last_x].to_vec();
        let mut dx = dstate[last_x..].to_vec();
        let (mut dc, mut dold_b, mut dold_x) = (vec![R::ZERO; n], vec![R::ZERO; n], vec![R::ZERO; self.head]);
        let (mut dkeep, mut dlast, mut dthis) = (R::ZERO, R::ZERO, R::ZERO);
        for (p, dh) in dstate[..at].chunks_exact_mut(n).enumerate() {
            axpy(&mut dc, dout[p], &after[p * n..(p + 1) * n]);
            axpy(dh, dout[p], &c);
            dx[p] += self.skip[head] * dout[p];
            self.dskip[head] += dout[p] * x[p];
            dkeep += dot(dh, &before[p * n..(p + 1) * n]);
            let (of_old, of_this) = (dot(dh, old_b), dot(dh, b));
            dlast += of_old * old_x[p];
            dthis += of_this * x[p];
            dold_x[p] = f.last * of_old;
            dx[p] += f.this * of_this;
            axpy(&mut dold_b, f.last * old_x[p], dh);
            axpy(&mut db, f.this * x[p], dh);
            dh.iter_mut().for_each(|d| *d *= f.keep);
        }
        // An angle's gradient is the torque on what it turned.
        let torque = |turned: &[R], d: &[R], i: usize| turned[2 * i] * d[2 * i + 1] - turned[2 * i + 1] * d[2 * i];
        let dangles = &mut dstate[at..last_b];
        dangles.iter_mut().enumerate().for_each(|(i, d)| *d += torque(b, &db, i) + torque(&c, &dc, i));
        self.turn(&mut db, angles, -R::ONE);
        self.turn(&mut dc, angles, -R::ONE);
        let (dt, trap) = (self.step.row(row)[head], self.trap.row(row)[head]);
        let ddt = dot(dangles, self.rates.row(row));
        axpy(self.drates.row_mut(row), dt, dangles);
        let group = head / self.per_group * n;
        axpy(&mut self.db.row_mut(row)[group..group + n], R::ONE, &db);
        axpy(&mut self.dc.row_mut(row)[group..group + n], R::ONE, &dc);
        axpy(self.db_bias.row_mut(head), R::ONE, &db);
        axpy(self.dc_bias.row_mut(head), R::ONE, &dc);
        axpy(&mut self.dx.row_mut(row)[head * self.head..(head + 1) * self.head], R::ONE, &dx);
        // last = keep · dt · (1 − trap), this = trap · dt, keep = exp(decay · dt)
        let dkeep = dkeep + dlast * dt * (R::ONE - trap);
        let a = self.decay.row(row)[head];
        self.dtrap.row_mut(row)[head] += dthis * dt - dlast * f.keep * dt;
        self.ddecay.row_mut(row)[head] += dkeep * f.keep * dt;
        self.dstep.row_mut(row)[head] += ddt + dlast * f.keep * (R::ONE - trap) + dthis * trap + dkeep * f.keep * a;
        dstate[last_b..last_x].copy_from_slice(&dold_b);
        dstate[last_x..].copy_from_slice(&dold_x);
    }
}
