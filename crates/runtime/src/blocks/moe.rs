//! Routed experts, with or without a shared one. Tokens enter and leave in the sequence-sharded view; in
//! between they are on the ranks that own their experts. Experts that work in a latent space get tokens
//! projected into it before they are sent, and the weighted sum of what came back is projected out
//! (Megatron-Core, `transformer/moe/moe_layer.py`: `fc1_latent_proj`, `fc2_latent_proj`); the router and
//! the shared expert read the token itself.

use super::mlp::{Mlp, Words};
use super::router::{Chosen, Router};
use super::{Block, Cx, Linear, act};
use crate::mat::{Mat, axpy, dot};
use crate::params::{Id, Shelf};
use crate::product::{View, Write, multiply};
use crate::real::Real;
use crate::saved::Saved;
use crate::split::experts::Plan;
use comm::Result;
use layout::Axis;
use layout::activations::Room;
use ledger::shardwright::routing_indices;
use recipe::kinds::moe::Moe as Kind;

const SHARED: Words =
    Words { into: "into moe.shared", out: "out of moe.shared", input: "shared input", packed: "shared packed" };

pub(crate) struct Moe {
    router: Router,
    fc1: Id,
    fc2: Id,
    /// Biases of the first and the second projection.
    biases: Option<[Id; 2]>,
    /// Projections into the latent space and out of it.
    latent: Option<[Linear; 2]>,
    shared: Option<(Mlp, Option<Id>)>,
    kind: Kind,
    hidden: usize,
    /// Width of an expert's input and output: hidden, or latent.
    width: usize,
    /// Local width of an expert's packed first projection.
    into: usize,
}

impl Moe {
    pub fn new(kind: &Kind, shelf: &Shelf, path: &str, hidden: u64, balance: usize) -> Moe {
        let at = |name: &str| format!("{path}.{name}");
        let (fc1, fc2) = (shelf.id(&at("experts.fc1.weight")), shelf.id(&at("experts.fc2.weight")));
        let shared = kind.shared.as_ref().map(|shared| {
            let mlp = Mlp::new(shelf, &at("shared"), shared.activation, SHARED);
            (mlp, shelf.find(&at("shared.gate.weight")))
        });
        let linear = |name: &str| Linear::new(shelf, &at(name));
        let bias = |name: &str| shelf.id(&at(name));
        Moe {
            router: Router {
                weight: shelf.id(&at("router.weight")),
                bias: shelf.find(&at("router.bias")),
                balance,
                kind: kind.clone(),
            },
            into: shelf.params[fc1.0].part.shape()[1] as usize,
            fc1,
            fc2,
            biases: kind.bias.then(|| [bias("experts.fc1.bias"), bias("experts.fc2.bias")]),
            latent: kind.latent.map(|_| [linear("latent_in"), linear("latent_out")]),
            shared,
            kind: kind.clone(),
            hidden: hidden as usize,
            width: kind.latent.unwrap_or(hidden) as usize,
        }
    }

    fn top_k(&self) -> usize {
        self.kind.top_k as usize
    }

    /// The row of `x` for every choice that is sent, sorted by expert; and how many each expert gets.
    fn rows<R: Real>(&self, x: &Mat<R>, chosen: &Chosen<R>) -> (Mat<R>, Vec<u64>) {
        let sent = chosen.sent(self.top_k());
        let mut counts = vec![0; self.kind.experts as usize];
        let mut data = Vec::with_capacity(sent.len() * x.cols);
        for s in &sent {
            counts[s.expert] += 1;
            data.extend_from_slice(x.row(s.token));
        }
        (Mat::of(x.cols, data), counts)
    }

    /// Calls `visit(expert, first row, rows)` for each local expert.
    fn each_expert(&self, plan: &Plan, mut visit: impl FnMut(usize, usize, usize)) {
        let mut first = 0;
        for (expert, &rows) in plan.per_expert.iter().enumerate() {
            visit(expert, first, rows);
            first += rows;
        }
    }

    fn bank<'a, R: Real>(&self, weight: &'a Mat<R>, expert: usize, rows: usize) -> View<'a, R> {
        let size = rows * weight.cols;
        View::new(&weight.data[expert * size..(expert + 1) * size], rows, weight.cols, weight.cols)
    }

    fn project<R: Real>(&self, cx: &Cx<R>, plan: &Plan, rows: &Mat<R>) -> Mat<R> {
        let mut packed = Mat::zeros(rows.rows, self.into);
        self.each_expert(plan, |expert, first, len| {
            let x = View::new(&rows.data[first * rows.cols..], len, rows.cols, rows.cols);
            let weight = self.bank(cx.weight(self.fc1), expert, self.into).t();
            multiply(&mut packed.data[first * self.into..], self.into, Write::Replace, R::ONE, x, weight);
        });
        if let Some([bias, _]) = self.biases {
            self.add_biases(plan, cx.weight(bias), &mut packed);
        }
        packed
    }

    fn add_biases<R: Real>(&self, plan: &Plan, biases: &Mat<R>, to: &mut Mat<R>) {
        self.each_expert(plan, |expert, first, len| {
            (first..first + len).for_each(|row| axpy(to.row_mut(row), R::ONE, biases.row(expert)));
        });
    }

    /// Transpose of [`Moe::add_biases`].
    fn biases_back<R: Real>(&self, cx: &mut Cx<R>, plan: &Plan, which: usize, d: &Mat<R>) {
        let Some(bias) = self.biases.map(|biases| biases[which]) else { return };
        self.each_expert(plan, |expert, first, len| {
            (first..first + len).for_each(|row| axpy(cx.grad(bias).row_mut(expert), R::ONE, d.row(row)));
        });
    }

    fn unproject<R: Real>(&self, cx: &Cx<R>, plan: &Plan, inner: &Mat<R>) -> Mat<R> {
        let mut out = Mat::zeros(inner.rows, self.width);
        self.each_expert(plan, |expert, first, len| {
            let x = View::new(&inner.data[first * inner.cols..], len, inner.cols, inner.cols);
            let weight = self.bank(cx.weight(self.fc2), expert, self.width).t();
            multiply(&mut out.data[first * self.width..], self.width, Write::Replace, R::ONE, x, weight);
        });
        // Outputs are summed over the expert-tensor axis, so only its first rank adds the bias.
        if let Some([_, bias]) = self.biases.filter(|_| cx.rank.on(Axis::Etp) == 0) {
            self.add_biases(plan, cx.weight(bias), &mut out);
        }
        out
    }

    /// Backward of one projection of the bank: gives the gradient of the rows, adds that of the weights.
    fn bank_back<R: Real>(&self, cx: &mut Cx<R>, plan: &Plan, id: Id, x: &Mat<R>, dy: &Mat<R>) -> Mat<R> {
        let mut dx = Mat::zeros(x.rows, x.cols);
        self.each_expert(plan, |expert, first, len| {
            let d = View::new(&dy.data[first * dy.cols..], len, dy.cols, dy.cols);
            let rows = View::new(&x.data[first * x.cols..], len, x.cols, x.cols);
            let weight = self.bank(cx.weight(id), expert, dy.cols);
            multiply(&mut dx.data[first * x.cols..], x.cols, Write::Replace, R::ONE, d, weight);
            let size = dy.cols * x.cols;
            let gradient = &mut cx.grad(id).data[expert * size..(expert + 1) * size];
            multiply(gradient, x.cols, Write::Add, R::ONE, d.t(), rows);
        });
        dx
    }

    /// The shared expert's output, multiplied by its gate.
    fn shared<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, saved: &mut Saved<R>) -> Result<Option<Mat<R>>> {
        let Some((mlp, gate)) = &self.shared else { return Ok(None) };
        let mut y = mlp.run(cx, x.clone(), saved)?;
        if let Some(gate) = gate {
            saved.keep("shared output", y.clone());
            let weight = &cx.weight(*gate).data;
            for (row, x) in y.data.chunks_exact_mut(self.hidden).zip(x.data.chunks_exact(self.hidden)) {
                let open = dot(x, weight).sigmoid();
                row.iter_mut().for_each(|v| *v *= open);
            }
        }
        Ok(Some(y))
    }

    /// Transpose of [`Moe::shared`], added to `dx`.
    fn shared_back<R: Real>(
        &self,
        cx: &mut Cx<R>,
        x: &Mat<R>,
        saved: &mut Saved<R>,
        dy: &Mat<R>,
        dx: &mut Mat<R>,
    ) -> Result<()> {
        let Some((mlp, gate)) = &self.shared else { return Ok(()) };
        let mut dy = dy.clone();
        if let Some(gate) = gate {
            let (y, weight) = (saved.take("shared output"), cx.weight(*gate).data.clone());
            for i in 0..dy.rows {
                let open = dot(x.row(i), &weight).sigmoid();
                let dgate = dot(dy.row(i), y.row(i)) * open * (R::ONE - open);
                axpy(&mut cx.grad(*gate).data, dgate, x.row(i));
                axpy(dx.row_mut(i), dgate, &weight);
                dy.row_mut(i).iter_mut().for_each(|v| *v *= open);
            }
        }
        dx.add(&mlp.back(cx, saved, dy)?);
        Ok(())
    }
}

/// Where tokens went, kept from forward to backward.
struct Routing<R> {
    chosen: Chosen<R>,
    plan: Plan,
}

impl<R: Real> Block<R> for Moe {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let scores = self.router.scores(cx, &x);
        let mut chosen = self.router.choose(cx, &scores)?;
        let narrow = self.latent.map(|[into, _]| into.forward(cx, &x));
        let (rows, counts) = self.rows(narrow.as_ref().unwrap_or(&x), &chosen);
        drop(narrow);
        let plan = Plan::new(cx.rank, &counts, Room::new(&self.kind, cx.rank.layout))?;
        cx.routed.push(plan.rows());
        let dispatched = plan.dispatch(cx.rank, rows)?;
        let packed = self.project(cx, &plan, &dispatched);
        let out = self.unproject(cx, &plan, &act::forward(self.kind.activation, &packed));
        let outputs = plan.combine(cx.rank, &out)?;
        let mut y = Mat::zeros(x.rows, self.width);
        for (row, s) in chosen.sent(self.top_k()).iter().enumerate() {
            axpy(y.row_mut(s.token), chosen.weights.row(s.token)[s.slot], outputs.row(row));
        }
        if let Some([_, out]) = self.latent {
            let mixed = std::mem::replace(&mut y, Mat::zeros(0, self.hidden));
            y = out.forward(cx, &mixed);
            saved.keep("latent mixed", mixed);
        }
        if let Some(shared) = self.shared(cx, &x, &mut saved)? {
            y.add(&shared);
        }
        let kept = [("input", x), ("scores", scores), ("expert outputs", outputs), ("dispatched", dispatched)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        saved.keep("dispatched packed", packed);
        saved.keep("weights", std::mem::take(&mut chosen.weights));
        let indices = routing_indices(&self.kind, &cx.sizes, plan.per_expert.iter().sum());
        saved.keep_indices("routing", Routing { chosen, plan }, indices);
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        if let Some(x) = normed {
            saved.keep("input", x);
        }
        let Some((mlp, _)) = &self.shared else { return Ok(()) };
        let x = || saved.get("input").clone();
        match (saved.lacks("shared output"), saved.lacks(SHARED.packed), saved.lacks(SHARED.input)) {
            (true, ..) => {
                let y = mlp.run(cx, x(), saved)?;
                saved.keep("shared output", y);
                Ok(())
            }
            (_, true, _) => mlp.restore_all(cx, x(), saved),
            (_, _, true) => mlp.restore_input(cx, x(), saved),
            _ => Ok(()),
        }
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        let (x, scores) = (saved.take("input"), saved.take("scores"));
        let Routing { mut chosen, plan } = saved.take_indices::<Routing<R>>();
        chosen.weights = saved.take("weights");
        let outputs = saved.take("expert outputs");
        let sent = chosen.sent(self.top_k());
        let mut dweights = Mat::zeros(x.rows, self.top_k());
        let mut doutputs = Mat::zeros(outputs.rows, self.width);
        let dmixed = self.latent.map(|[_, out]| out.backward(cx, &saved.take("latent mixed"), &dy));
        let dmixed = dmixed.as_ref().unwrap_or(&dy);
        for (row, s) in sent.iter().enumerate() {
            dweights.row_mut(s.token)[s.slot] = dot(dmixed.row(s.token), outputs.row(row));
            axpy(doutputs.row_mut(row), chosen.weights.row(s.token)[s.slot], dmixed.row(s.token));
        }
        let dout = plan.dispatch(cx.rank, doutputs)?;
        let packed = saved.take("dispatched packed");
        self.biases_back(cx, &plan, 1, &dout);
        let dinner = self.bank_back(cx, &plan, self.fc2, &act::forward(self.kind.activation, &packed), &dout);
        let dpacked = act::backward(self.kind.activation, &packed, &dinner);
        self.biases_back(cx, &plan, 0, &dpacked);
        let drows = self.bank_back(cx, &plan, self.fc1, &saved.take("dispatched"), &dpacked);
        let drows = plan.combine(cx.rank, &drows)?;
        let mut dx = self.router.backward(cx, &x, &scores, &chosen, &dweights);
        let mut dnarrow = self.latent.map(|_| Mat::zeros(x.rows, self.width));
        let sum = dnarrow.as_mut().unwrap_or(&mut dx);
        for (row, s) in sent.iter().enumerate() {
            axpy(sum.row_mut(s.token), R::ONE, drows.row(row));
        }
        if let (Some([into, _]), Some(dnarrow)) = (self.latent, dnarrow) {
            dx.add(&into.backward(cx, &x, &dnarrow));
        }
        self.shared_back(cx, &x, &mut saved, &dy, &mut dx)?;
        Ok(dx)
    }
}
