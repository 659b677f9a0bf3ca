//! Grouped-query and latent attention: projections, norms, rotary positions around the core.

use super::attend::{Back, Chosen, Core, Kept};
use super::heads::{Sinks, WholeNorms, gated, gated_back};
use super::indexer::{self, Indexer, Read};
use super::norm::Norm;
use super::rotary::{Rotary, Turn};
use super::{Block, Cx, Linear, restore_input};
use crate::mat::Mat;
use crate::params::Shelf;
use crate::real::Real;
use crate::saved::Saved;
use crate::split::tensor;
use comm::Result;
use diag::{Blame, Finding};
use recipe::kinds::attention::{Attention as Kind, AttentionKind, QkNorm};
use recipe::kinds::mla::Mla as Latent;
use recipe::{Recipe, Scaling};

const NAMES: [&str; 2] = ["into attention", "out of attention"];

fn window(attention: &Kind, ordinal: Option<u64>) -> Option<usize> {
    let window = attention.window.as_ref()?;
    let is_full = ordinal.is_some_and(|o| window.full_layers.contains(&o));
    (!is_full).then_some(window.tokens as usize)
}

/// The attention at `path`; `ordinal` counts attention layers, and a suffix has none.
pub(crate) fn new<R: Real>(
    recipe: &Recipe,
    shelf: &mut Shelf,
    path: &str,
    ordinal: Option<u64>,
) -> std::result::Result<Box<dyn Block<R>>, Finding> {
    let missing = || Finding::error("runtime/attention", Blame::Engine, "attention", "there is no `[attention]` table");
    let attention = recipe.attention().ok_or_else(missing)?;
    let window = window(&attention, ordinal);
    Ok(match &attention.kind {
        AttentionKind::Gqa { head_dim, .. } => Box::new(Gqa::new(recipe, &attention, shelf, path, *head_dim, window)),
        AttentionKind::Mla(latent) => Box::new(Mla::new(recipe, latent, shelf, path, window)),
    })
}

/// Grouped-query attention.
struct Gqa {
    qkv: Linear,
    out: Linear,
    norms: Norms,
    rotary: Option<Rotary>,
    core: Core,
    sinks: Option<Sinks>,
    indexer: Option<Indexer>,
    /// Local widths of q k v, and of the gate behind q where there is one.
    widths: Vec<usize>,
}

/// Norms of queries and keys.
enum Norms {
    None,
    /// Each head by itself.
    Head([Norm; 2]),
    /// All heads together, over all ranks.
    Whole(WholeNorms),
}

/// A token's projections.
struct Projected<R> {
    q: Mat<R>,
    gate: Option<Mat<R>>,
    k: Mat<R>,
    v: Mat<R>,
}

impl Gqa {
    fn new(
        recipe: &Recipe,
        attention: &Kind,
        shelf: &mut Shelf,
        path: &str,
        head_dim: u64,
        window: Option<usize>,
    ) -> Gqa {
        let width = head_dim as usize;
        let qkv = Linear::new(shelf, &format!("{path}.qkv"));
        let widths = shelf.segments(qkv.weight());
        let (heads, kv_heads) = (widths[0] / width, widths[widths.len() - 1] / width);
        let mut norm = |name: &str| Norm::of_heads(shelf, &format!("{path}.{name}"), width);
        let norms = match attention.qk_norm {
            QkNorm::None => Norms::None,
            QkNorm::Head => Norms::Head([norm("q_norm"), norm("k_norm")]),
            QkNorm::Full => Norms::Whole(WholeNorms::new(shelf, path, attention.heads as usize / heads)),
        };
        let out = Linear::new(shelf, &format!("{path}.out"));
        let score = recipe.multipliers.attention.unwrap_or(1.0 / (width as f64).sqrt());
        let core = Core { heads, kv_heads, key: width, value: width, window, score };
        let indexer = Indexer::new(recipe, shelf, path, None, window);
        let sinks = Sinks::new(shelf, path);
        Gqa { qkv, out, norms, rotary: Rotary::new(recipe, 0, width), core, sinks, indexer, widths }
    }

    fn parts<R: Real>(&self, projected: &Mat<R>) -> Projected<R> {
        let mut parts = projected.split(&self.widths);
        let gate = (parts.len() == 4).then(|| parts.remove(1));
        let [q, k, v] = three(parts);
        Projected { q, gate, k, v }
    }

    /// Row sums for norms over all heads, which backward reads again; `None` where heads are normed one
    /// by one.
    fn sums<R: Real>(&self, cx: &Cx<R>, of: &Projected<R>) -> Result<Option<Mat<R>>> {
        match &self.norms {
            Norms::Whole(norms) => norms.sums(cx, [&of.q, &of.k]).map(Some),
            _ => Ok(None),
        }
    }

    /// Norms and rotates projected queries and keys, which is what the core reads.
    fn prepare<R: Real>(&self, cx: &Cx<R>, mut q: Mat<R>, mut k: Mat<R>, sums: Option<&Mat<R>>) -> (Mat<R>, Mat<R>) {
        match (&self.norms, sums) {
            (Norms::Head([q_norm, k_norm]), _) => (q, k) = (q_norm.forward(cx, &q), k_norm.forward(cx, &k)),
            (Norms::Whole(norms), Some(sums)) => norms.forward(cx, sums, [&mut q, &mut k]),
            _ => {}
        }
        if let Some(rotary) = &self.rotary {
            for x in [&mut q, &mut k] {
                rotary.turn(&cx.rank.positions(), x, self.core.key, Turn::Forward);
            }
        }
        (q, k)
    }
}

impl<R: Real> Block<R> for Gqa {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let choice = self.indexer.as_ref().map(|indexer| indexer.choose(cx, &x, &x)).transpose()?;
        let x = tensor::enter(cx.rank, NAMES[0], x)?;
        let projected = self.qkv.forward(cx, &x);
        let parts = self.parts(&projected);
        let sums = self.sums(cx, &parts)?;
        let Projected { q, gate, k, v } = parts;
        let (q, k) = self.prepare(cx, q, k, sums.as_ref());
        let (heads, log) = attend(cx, &self.core, &self.sinks, [&q, &k, &v], choice.as_ref().map(|c| &c.0))?;
        let open = gate.map(|gate| gated(&heads, &gate));
        let mut y = tensor::leave(cx.rank, NAMES[1], self.out.partial(cx, open.as_ref().unwrap_or(&heads)))?;
        self.out.add_bias(cx, &mut y);
        Indexer::keep(&mut saved, choice);
        sums.into_iter().for_each(|sums| saved.keep("norm sums", sums));
        for (name, value) in [("input", x), ("projected", projected), ("heads out", heads), ("statistics", log)] {
            saved.keep(name, value);
        }
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        restore_input(cx, saved, NAMES[0], normed)?;
        if saved.lacks("heads out") {
            let Projected { q, k, v, .. } = self.parts(saved.get("projected"));
            let sums = matches!(self.norms, Norms::Whole(_)).then(|| saved.get("norm sums"));
            let (q, k) = self.prepare(cx, q, k, sums);
            let core = attend(cx, &self.core, &self.sinks, [&q, &k, &v], saved.indices())?;
            keep_core(saved, core);
        }
        Ok(())
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.out.bias_back(cx, &dy);
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let out = saved.take("heads out");
        let Projected { q: q_in, gate, k: k_in, v } = self.parts(&saved.take("projected"));
        let open = gate.as_ref().map(|gate| gated(&out, gate));
        let mut dheads = self.out.partial_back(cx, open.as_ref().unwrap_or(&out), &dy);
        let dgate = gate.map(|gate| gated_back(&out, &gate, &mut dheads));
        let sums = matches!(self.norms, Norms::Whole(_)).then(|| saved.take("norm sums"));
        let (q, k) = self.prepare(cx, q_in.clone(), k_in.clone(), sums.as_ref());
        let log = saved.take("statistics");
        self.sinks.iter().for_each(|sinks| sinks.backward(cx, &out, &log, &dheads));
        let chosen: Option<Chosen> = self.indexer.as_ref().map(|_| saved.take_indices());
        let kept = Kept { q: &q, k: &k, v: &v, out: &out, log: &log, chosen: chosen.as_ref() };
        let Back { heads: [mut dq, mut dk, dv], read } = self.core.backward(cx, kept, &dheads)?;
        if let (Some(indexer), Some(chosen), Some(target)) = (&self.indexer, &chosen, read) {
            let x = indexer::own(cx.rank, saved.get("input"));
            indexer.learn(cx, &x, &x, Read { chosen, keys: &saved.take("index keys"), target })?;
        }
        if let Some(rotary) = &self.rotary {
            for x in [&mut dq, &mut dk] {
                rotary.turn(&cx.rank.positions(), x, self.core.key, Turn::Back);
            }
        }
        match (&self.norms, &sums) {
            (Norms::Head([q_norm, k_norm]), _) => {
                (dq, dk) = (q_norm.backward(cx, &q_in, &dq), k_norm.backward(cx, &k_in, &dk));
            }
            (Norms::Whole(norms), Some(sums)) => norms.backward(cx, sums, [&q_in, &k_in], [&mut dq, &mut dk])?,
            _ => {}
        }
        let parts: Vec<&Mat<R>> = [Some(&dq), dgate.as_ref(), Some(&dk), Some(&dv)].into_iter().flatten().collect();
        let dx = self.qkv.backward(cx, &saved.take("input"), &Mat::join(&parts));
        tensor::enter_back(cx.rank, NAMES[0], dx)
    }
}

/// The core's output less what the sinks take, and the logarithm of each query's sum of exponentials.
fn attend<R: Real>(
    cx: &Cx<R>,
    core: &Core,
    sinks: &Option<Sinks>,
    heads: [&Mat<R>; 3],
    chosen: Option<&Chosen>,
) -> Result<(Mat<R>, Mat<R>)> {
    let (mut out, mut log) = core.forward(cx, heads, chosen)?;
    sinks.iter().for_each(|sinks| sinks.forward(cx, &mut out, &mut log));
    Ok((out, log))
}

fn keep_core<R: Real>(saved: &mut Saved<R>, (heads, log): (Mat<R>, Mat<R>)) {
    saved.keep("heads out", heads);
    saved.keep("statistics", log);
}

fn three<T>(parts: Vec<T>) -> [T; 3] {
    parts.try_into().unwrap_or_else(|_| unreachable!("split into three"))
}

/// Latent attention. The down-projections serve every head and run on a rank's own tokens; latents are
/// gathered over the tensor axis before the up-projections.
struct Mla {
    q_down: Option<(Linear, Option<Norm>)>,
    q_up: Linear,
    kv_down: Linear,
    kv_norm: Option<Norm>,
    kv_up: Linear,
    out: Linear,
    rotary: Option<Rotary>,
    core: Core,
    /// Widths of what is gathered: the query's input, the key/value latent, the rotary key.
    gathered: [usize; 3],
    /// Width of a head's query and key without position.
    plain: usize,
    sinks: Option<Sinks>,
    indexer: Option<Indexer>,
}

impl Mla {
    fn new(recipe: &Recipe, latent: &Latent, shelf: &Shelf, path: &str, window: Option<usize>) -> Mla {
        let linear = |name: &str| Linear::new(shelf, &format!("{path}.{name}"));
        let norm = |name: &str, width: u64| {
            latent.latent_norm.then(|| Norm::new(shelf, &format!("{path}.{name}"), width as usize))
        };
        let (plain, rope, value) = (latent.qk_dim as usize, latent.rope_dim as usize, latent.v_dim as usize);
        let key = plain + rope;
        let q_down = latent.q_rank.map(|rank| (linear("q_down"), norm("q_norm", rank)));
        let q_up = linear(if q_down.is_some() { "q_up" } else { "q_proj" });
        let heads = shelf.params[q_up.weight().0].shape().0 / key;
        let query = latent.q_rank.unwrap_or(recipe.hidden) as usize;
        let stretched = match recipe.positions.rope().and_then(|rope| rope.scaling) {
            Some(Scaling::Yarn(yarn)) => yarn.latent_score(),
            _ => 1.0,
        };
        let score = stretched * recipe.multipliers.attention.unwrap_or(1.0 / (key as f64).sqrt());
        Mla {
            q_down,
            q_up,
            kv_down: linear("kv_down"),
            kv_norm: norm("kv_norm", latent.kv_rank),
            kv_up: linear("kv_up"),
            out: linear("out"),
            rotary: Rotary::new(recipe, plain, rope),
            core: Core { heads, kv_heads: heads, key, value, window, score },
            gathered: [query, latent.kv_rank as usize, rope],
            plain,
            sinks: Sinks::new(shelf, path),
            indexer: Indexer::new(recipe, shelf, path, Some(rope), window),
        }
    }

    fn kv_norm<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        self.kv_norm.map_or_else(|| x.clone(), |norm| norm.forward(cx, x))
    }

    /// What queries are projected from: the normed latent, or the block's input.
    fn query<R: Real>(&self, cx: &Cx<R>, q: &Mat<R>) -> Mat<R> {
        match &self.q_down {
            Some((_, Some(norm))) => norm.forward(cx, q),
            _ => q.clone(),
        }
    }

    /// The query's input, the normed key/value latent and the rotary key of this rank's own tokens, side
    /// by side, before they are gathered.
    fn latents<R: Real>(&self, cx: &Cx<R>, query: &Mat<R>, kv: &Mat<R>) -> Mat<R> {
        let parts = kv.split(&self.gathered[1..]);
        Mat::join(&[query, &self.kv_norm(cx, &parts[0]), &parts[1]])
    }

    /// Queries, keys and values of every local head from gathered latents.
    fn heads<R: Real>(&self, cx: &Cx<R>, whole: &Mat<R>) -> [Mat<R>; 3] {
        let [query, latent, position] = three(whole.split(&self.gathered));
        let Core { heads, key, value, .. } = self.core;
        let mut q = self.q_up.forward(cx, &query);
        let packed = self.kv_up.forward(cx, &latent);
        let (mut k, mut v) = (Mat::zeros(q.rows, heads * key), Mat::zeros(q.rows, heads * value));
        for row in 0..q.rows {
            for head in 0..heads {
                let from = &packed.row(row)[head * (self.plain + value)..];
                let to = &mut k.row_mut(row)[head * key..(head + 1) * key];
                to[..self.plain].copy_from_slice(&from[..self.plain]);
                to[self.plain..].copy_from_slice(position.row(row));
                v.row_mut(row)[head * value..(head + 1) * value].copy_from_slice(&from[self.plain..self.plain + value]);
            }
        }
        if let Some(rotary) = &self.rotary {
            for x in [&mut q, &mut k] {
                rotary.turn(&cx.rank.positions(), x, key, Turn::Forward);
            }
        }
        [q, k, v]
    }

    /// Transpose of [`Mla::heads`].
    fn heads_back<R: Real>(&self, cx: &mut Cx<R>, whole: &Mat<R>, grads: [Mat<R>; 3]) -> Mat<R> {
        let [mut dq, mut dk, dv] = grads;
        let Core { heads, key, value, .. } = self.core;
        if let Some(rotary) = &self.rotary {
            for x in [&mut dq, &mut dk] {
                rotary.turn(&cx.rank.positions(), x, key, Turn::Back);
            }
        }
        let mut dpacked = Mat::zeros(dq.rows, heads * (self.plain + value));
        let mut dposition = Mat::zeros(dq.rows, self.gathered[2]);
        for row in 0..dq.rows {
            for head in 0..heads {
                let from = &dk.row(row)[head * key..(head + 1) * key];
                let to = &mut dpacked.row_mut(row)[head * (self.plain + value)..(head + 1) * (self.plain + value)];
                to[..self.plain].copy_from_slice(&from[..self.plain]);
                to[self.plain..].copy_from_slice(&dv.row(row)[head * value..(head + 1) * value]);
                crate::mat::axpy(dposition.row_mut(row), R::ONE, &from[self.plain..]);
            }
        }
        let [query, latent, _] = three(whole.split(&self.gathered));
        let dquery = self.q_up.backward(cx, &query, &dq);
        let dlatent = self.kv_up.backward(cx, &latent, &dpacked);
        Mat::join(&[&dquery, &dlatent, &dposition])
    }
}

impl<R: Real> Block<R> for Mla {
    fn forward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, x: Mat<R>) -> Result<(Mat<R>, Saved<R>)> {
        let q_latent = self.q_down.as_ref().map(|(down, _)| down.forward(cx, &x));
        let kv_latent = self.kv_down.forward(cx, &x);
        let query = self.query(cx, q_latent.as_ref().unwrap_or(&x));
        let choice = self.indexer.as_ref().map(|indexer| indexer.choose(cx, &x, &query)).transpose()?;
        let latents = self.latents(cx, &query, &kv_latent);
        let whole = tensor::enter(cx.rank, NAMES[0], latents)?;
        let [q, k, v] = self.heads(cx, &whole);
        let (heads, log) = attend(cx, &self.core, &self.sinks, [&q, &k, &v], choice.as_ref().map(|c| &c.0))?;
        let mut y = tensor::leave(cx.rank, NAMES[1], self.out.partial(cx, &heads))?;
        self.out.add_bias(cx, &mut y);
        Indexer::keep(&mut saved, choice);
        let kept = [("input", x), ("kv latent", kv_latent), ("whole latents", whole), ("heads out", heads)];
        kept.into_iter().for_each(|(name, value)| saved.keep(name, value));
        saved.keep("statistics", log);
        q_latent.into_iter().for_each(|q| saved.keep("q latent", q));
        Ok((y, saved))
    }

    fn restore(&self, cx: &mut Cx<R>, saved: &mut Saved<R>, normed: Option<Mat<R>>) -> Result<()> {
        if let Some(x) = normed {
            saved.keep("input", x);
        }
        if saved.lacks("heads out") {
            let [q, k, v] = self.heads(cx, saved.get("whole latents"));
            let core = attend(cx, &self.core, &self.sinks, [&q, &k, &v], saved.indices())?;
            keep_core(saved, core);
        }
        Ok(())
    }

    fn backward(&self, cx: &mut Cx<R>, mut saved: Saved<R>, dy: Mat<R>) -> Result<Mat<R>> {
        self.out.bias_back(cx, &dy);
        let dy = tensor::leave_back(cx.rank, NAMES[1], dy)?;
        let (out, log) = (saved.take("heads out"), saved.take("statistics"));
        let dheads = self.out.partial_back(cx, &out, &dy);
        self.sinks.iter().for_each(|sinks| sinks.backward(cx, &out, &log, &dheads));
        let whole = saved.take("whole latents");
        let [q, k, v] = self.heads(cx, &whole);
        let chosen: Option<Chosen> = self.indexer.as_ref().map(|_| saved.take_indices());
        let kept = Kept { q: &q, k: &k, v: &v, out: &out, log: &log, chosen: chosen.as_ref() };
        let Back { heads: grads, read } = self.core.backward(cx, kept, &dheads)?;
        if let (Some(indexer), Some(chosen), Some(target)) = (&self.indexer, &chosen, read) {
            let query = self.query(cx, saved.get(if self.q_down.is_some() { "q latent" } else { "input" }));
            let keys = saved.take("index keys");
            indexer.learn(cx, saved.get("input"), &query, Read { chosen, keys: &keys, target })?;
        }
        let dwhole = self.heads_back(cx, &whole, grads);
        let dlatents = tensor::enter_back(cx.rank, NAMES[0], dwhole)?;
        let [dquery, dlatent, dposition] = three(dlatents.split(&self.gathered));
        let (x, kv) = (saved.take("input"), saved.take("kv latent"));
        let dlatent = match self.kv_norm {
            Some(norm) => norm.backward(cx, &kv.columns(0, self.gathered[1]), &dlatent),
            None => dlatent,
        };
        let mut dx = self.kv_down.backward(cx, &x, &Mat::join(&[&dlatent, &dposition]));
        match &self.q_down {
            None => dx.add(&dquery),
            Some((down, norm)) => {
                let q = saved.take("q latent");
                let dq = norm.map_or_else(|| dquery.clone(), |norm| norm.backward(cx, &q, &dquery));
                dx.add(&down.backward(cx, &x, &dq));
            }
        }
        Ok(dx)
    }
}
