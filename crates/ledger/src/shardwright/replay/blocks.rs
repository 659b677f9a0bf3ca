//! Blocks of the runtime with their buffers, in the order its code makes and frees them
//! (`crates/runtime/src/blocks`, one function there a function here).

use super::heap::Buf;
use super::region::{Cx, Kept, cols, len};
use crate::shardwright::saves::Link;
use layout::activations::{Room, Routed, trades_heads};
use recipe::kinds::attention::{AttentionKind, QkNorm};
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};
use replay::line::Line;

/// Output of a mixer for its normed input, and what it kept.
pub(super) fn forward(cx: &Cx, mixer: Mixer, path: &str, x: Buf) -> (Buf, Kept) {
    match mixer {
        Mixer::Attention => attention(cx, path, x),
        Mixer::Mlp => feed_forward(cx, cx.local(path).cols("fc2.weight"), cx.local(path).rows("fc1.weight"), x),
        Mixer::Moe => experts(cx, path, x),
        Mixer::Mamba | Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear => scanned(cx, mixer, path, x),
        Mixer::Shared => unreachable!("shared blocks are refused (`choice.rs`)"),
    }
}

/// The gradient of a mixer's input. `carried` is the gradient of state on its way down the depth.
pub(super) fn backward(cx: &Cx, mixer: Mixer, path: &str, kept: Kept, dy: Buf, carried: &mut Option<Buf>) -> Buf {
    match mixer {
        Mixer::Attention => attention_back(cx, path, kept, dy),
        Mixer::Mlp => feed_forward_back(cx, cx.local(path).cols("fc2.weight"), kept, dy),
        Mixer::Moe => experts_back(cx, path, kept, dy),
        Mixer::Mamba | Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear => {
            scanned_back(cx, mixer, path, kept, dy, carried)
        }
        Mixer::Shared => unreachable!("shared blocks are refused (`choice.rs`)"),
    }
}

fn is_latent(recipe: &Recipe) -> bool {
    matches!(recipe.attention().map(|a| a.kind), Some(AttentionKind::Mla(_)))
}

/// Elements a token has of queries, keys and values on this rank, in this order.
fn head_widths(cx: &Cx, path: &str) -> [usize; 3] {
    let (local, Some(attention)) = (cx.local(path), cx.recipe.attention()) else { return [0; 3] };
    let out = local.cols("out.weight");
    match attention.kind {
        AttentionKind::Gqa { .. } => {
            let kv = (local.rows("qkv.weight") - out * (1 + usize::from(attention.output_gate))) / 2;
            [out, kv, kv]
        }
        AttentionKind::Mla(mla) => {
            let keys = out / mla.v_dim as usize * (mla.qk_dim + mla.rope_dim) as usize;
            [keys, keys, out]
        }
    }
}

/// Keys and values as they go round the ring: as they came, and cut apart again.
fn ring(cx: &Cx, kv: usize) -> Kept {
    if cx.sizes.cp == 1 {
        return Vec::new();
    }
    (0..2).map(|_| cx.heap.reals(Line::Communication, cx.sizes.tokens * kv)).collect()
}

/// Rows of a tile (`crates/runtime/src/blocks/attend.rs`).
const TILE: usize = 64;

/// A tile of the core: `copies` of its scores, and `keys` and `values` of its queries' widths. The
/// queries of all heads that share keys are one tile's.
fn tile(cx: &Cx, path: &str, copies: usize, keys: usize, values: usize) -> Buf {
    let [q, k, _] = head_widths(cx, path);
    let heads = (len(&cx.saves(Mixer::Attention, path), "statistics") / cx.sizes.tokens).max(1);
    let rows = cx.sizes.spans().into_iter().max().unwrap_or(0).min(TILE);
    let (key, value) = (q / heads, cx.local(path).cols("out.weight") / heads);
    cx.temp(rows * q / k.max(1) * (copies * rows + keys * key + values * value))
}

/// An indexer's choice: its keys gathered over both axes, own queries, and positions.
fn choose(cx: &Cx, path: &str) -> Kept {
    let (saves, local) = (cx.saves(Mixer::Attention, path), cx.local(path));
    let mut kept = Vec::new();
    for save in saves.iter().filter(|s| s.name == "index keys") {
        let part = cx.enter(cx.temp(cx.sizes.shard * save.cols));
        kept.push(if cx.sizes.cp > 1 { cx.kept(save) } else { part });
        let _looking =
            cx.temp(cx.sizes.shard * (local.rows("indexer.wq.weight") + local.rows("indexer.weights.weight")));
        kept.extend(saves.iter().filter(|s| s.name == "chosen").map(|s| cx.kept(s)));
    }
    kept
}

/// What an indexer's loss needs: own input, queries, weights and keys, and the gradients of each.
fn learn(cx: &Cx, path: &str) {
    let (saves, local) = (cx.saves(Mixer::Attention, path), cx.local(path));
    for save in saves.iter().filter(|s| s.name == "index keys") {
        let own = local.rows("indexer.wq.weight") + local.rows("indexer.weights.weight");
        let _input = cx.temp(cx.sizes.shard * if is_latent(cx.recipe) { 0 } else { cx.hidden() });
        let _looking = cx.temp(2 * cx.sizes.shard * own);
        let dkeys = cx.kept(save);
        let _own = cx.temp(3 * cx.sizes.shard * save.cols);
        drop(dkeys);
    }
}

fn attention(cx: &Cx, path: &str, x: Buf) -> (Buf, Kept) {
    let (tokens, saves) = (cx.sizes.tokens, cx.saves(Mixer::Attention, path));
    let [q, k, v] = head_widths(cx, path);
    let mut kept = choose(cx, path);
    let _latents = if is_latent(cx.recipe) {
        kept.extend(["kv latent", "q latent"].map(|name| cx.temp(len(&saves, name))));
        let joined = cx.temp(cx.sizes.shard * cols(&saves, "whole latents"));
        let whole = cx.enter(joined);
        let parts = whole.like(Line::ActivationGradients);
        let packed = cx.temp(tokens * (k + v));
        kept.extend([x, whole]);
        drop((parts, packed));
        None
    } else {
        let x = cx.enter(x);
        let projected = cx.temp(len(&saves, "projected"));
        kept.extend([x, projected]);
        kept.push(cx.temp(len(&saves, "norm sums")));
        let is_normed = cx.recipe.attention().is_some_and(|a| a.qk_norm == QkNorm::Head);
        is_normed.then(|| cx.temp(tokens * (q + k)))
    };
    let heads = [q, k, v].map(|width| cx.temp(tokens * width));
    drop(_latents);
    let gate = gate(cx, q);
    let out = cx.temp(len(&saves, "heads out"));
    let statistics = [0; 2].map(|_| cx.temp(len(&saves, "statistics")));
    let round = ring(cx, k + v);
    let core = tile(cx, path, 1, 1, 1);
    drop((round, core));
    let [log, sum] = statistics;
    drop(sum);
    let open = cx.temp(gate.len);
    drop(gate);
    let partial = cx.temp(tokens * cx.hidden());
    let y = cx.leave(partial);
    drop((heads, open));
    kept.extend([out, log]);
    (y, kept)
}

fn attention_back(cx: &Cx, path: &str, mut kept: Kept, dy: Buf) -> Buf {
    let (tokens, saves) = (cx.sizes.tokens, cx.saves(Mixer::Attention, path));
    let [q, k, v] = head_widths(cx, path);
    let dy = cx.enter(dy);
    let dheads = cx.temp(len(&saves, "heads out"));
    let gates = [0; 2].map(|_| gate(cx, q));
    let width = q + k + v;
    let heads = cx.temp(tokens * width);
    // Cut apart, the projection goes; queries and keys are there once more as the core reads them.
    let turned = (!is_latent(cx.recipe)).then(|| {
        drop(kept.remove(kept.len() - 1 - BEHIND_PROJECTED));
        cx.temp(tokens * (q + k))
    });
    let along = cx.temp(len(&saves, "statistics"));
    let grads = cx.temp(tokens * width);
    let theirs = cx.temp(tokens * (k + v));
    let round = ring(cx, k + v);
    let core = tile(cx, path, 2, 2, 1);
    let read = cx.temp(len(&saves, "chosen"));
    // Their gradients go home side by side.
    let home = cx.heap.reals(Line::Communication, if cx.sizes.cp > 1 { tokens * (k + v) } else { 0 });
    drop((round, core, home, theirs, along));
    drop(cx.leave(read));
    learn(cx, path);
    let joined = cx.temp(tokens * width);
    let dx = if is_latent(cx.recipe) {
        let latents = cx.temp(2 * tokens * cols(&saves, "whole latents"));
        let dlatents = cx.leave(latents);
        drop(dlatents);
        cx.stream()
    } else {
        let dx = cx.temp(tokens * cx.hidden());
        drop(joined);
        cx.leave(dx)
    };
    drop((kept, dy, dheads, gates, heads, turned, grads));
    dx
}

/// The gate on heads' outputs, where there is one: as wide as queries.
fn gate(cx: &Cx, q: usize) -> Buf {
    let is_gated = cx.recipe.attention().is_some_and(|a| a.output_gate);
    cx.temp(if is_gated { cx.sizes.tokens * q } else { 0 })
}

/// How many buffers [`attention`] keeps behind the projection.
const BEHIND_PROJECTED: usize = 3;

fn feed_forward(cx: &Cx, inner: usize, width: usize, x: Buf) -> (Buf, Kept) {
    let tokens = cx.sizes.tokens;
    let x = cx.enter(x);
    let packed = cx.temp(tokens * width);
    let activated = cx.temp(tokens * inner);
    let partial = cx.temp(tokens * cx.hidden());
    drop(activated);
    let y = cx.leave(partial);
    (y, vec![x, packed])
}

fn feed_forward_back(cx: &Cx, inner: usize, kept: Kept, dy: Buf) -> Buf {
    let tokens = cx.sizes.tokens;
    let dy = cx.enter(dy);
    let activated = [0; 2].map(|_| cx.temp(tokens * inner));
    let dpacked = kept.last().map(|packed| packed.like(Line::ActivationGradients));
    let dx = cx.temp(tokens * cx.hidden());
    let dx = cx.leave(dx);
    drop((kept, dy, activated, dpacked));
    dx
}

/// Elements of rows as routing sent and dealt them.
struct Dealt {
    sent: usize,
    arrived: usize,
    came: usize,
    /// Elements of a row.
    width: usize,
    /// Elements of the combine and the receive buffer, where a capacity factor sizes them.
    room: Option<[usize; 2]>,
}

impl Dealt {
    fn of(cx: &Cx, path: &str) -> Dealt {
        let Routed { sent, arrived, came } = cx.rows.of(path);
        let width = cols(&cx.saves(Mixer::Moe, path), "dispatched").max(1);
        let [sent, arrived, came] = [sent, arrived, came].map(|rows| rows as usize * width);
        let room = cx.recipe.moe.as_ref().and_then(|moe| Room::new(moe, cx.layout));
        let room = room.map(|room| [room.sent, room.came].map(|rows| rows as usize * width));
        Dealt { sent, arrived, came, width, room }
    }

    /// Rows to the owners of their experts: as they came, over both axes, and in order. A receive
    /// buffer that capacity sizes is there before the exchange.
    fn dispatch(&self, cx: &Cx, rows: Buf) -> Buf {
        let routing = |len| cx.heap.reals(Line::RoutingScratch, len);
        let room = self.room.map(|[_, receive]| routing(receive));
        let arrived = exchanged(rows, cx.layout.ep.splits(), || routing(self.arrived));
        let came = exchanged(arrived, cx.layout.etp.splits(), || routing(self.came));
        let ordered = room.unwrap_or_else(|| routing(self.came));
        drop(came);
        ordered
    }

    /// The way back.
    fn combine(&self, cx: &Cx) -> Buf {
        let routing = |len| cx.heap.reals(Line::RoutingScratch, len);
        let room = self.room.map(|[combine, _]| routing(combine));
        let arrived = exchanged(routing(self.came), cx.layout.etp.splits(), || routing(self.arrived));
        let came = exchanged(arrived, cx.layout.ep.splits(), || routing(self.sent));
        room.unwrap_or(came)
    }
}

/// What comes of an exchange, if there is one: it is there before what was brought is freed.
fn exchanged(brought: Buf, is_split: bool, came: impl FnOnce() -> Buf) -> Buf {
    if is_split { came() } else { brought }
}

fn experts(cx: &Cx, path: &str, x: Buf) -> (Buf, Kept) {
    let saves = cx.saves(Mixer::Moe, path);
    let dealt = Dealt::of(cx, path);
    let (sent, came) = (dealt.sent, dealt.came);
    let inner = cx.local(path).dim("experts.fc2.weight", 2) * (came / dealt.width);
    let scores = cx.temp(len(&saves, "scores"));
    let weights = cx.temp(len(&saves, "weights"));
    let narrow = cx.temp(len(&saves, "latent mixed"));
    let rows = cx.temp(sent);
    drop(narrow);
    let dispatched = dealt.dispatch(cx, rows).onto(Line::ExpertInputs);
    let indices = saves.iter().filter(|s| s.name == "routing").map(|s| cx.kept(s)).collect::<Vec<_>>();
    let packed = cx.temp(len(&saves, "dispatched packed"));
    let activated = cx.temp(inner);
    let out = cx.temp(came);
    drop(activated);
    let outputs = dealt.combine(cx);
    let y = cx.stream();
    let mut kept = vec![scores, weights, dispatched, packed, outputs, cx.temp(len(&saves, "latent mixed"))];
    kept.extend(indices);
    if let Some((inner, width)) = shared(cx, path) {
        let copy = x.like(Line::ActivationGradients);
        let (shared, more) = feed_forward(cx, inner, width, copy);
        if len(&saves, "shared output") > 0 {
            kept.push(shared);
        }
        kept.extend(more);
    }
    drop(out);
    kept.insert(0, x);
    (y, kept)
}

/// Widths of the shared expert, where there is one.
fn shared(cx: &Cx, path: &str) -> Option<(usize, usize)> {
    let local = cx.local(path);
    let has_one = cx.recipe.moe.as_ref().is_some_and(|moe| moe.shared.is_some());
    has_one.then(|| (local.cols("shared.fc2.weight"), local.rows("shared.fc1.weight")))
}

fn experts_back(cx: &Cx, path: &str, mut kept: Kept, dy: Buf) -> Buf {
    let saves = cx.saves(Mixer::Moe, path);
    let dealt = Dealt::of(cx, path);
    let (sent, came, width) = (dealt.sent, dealt.came, dealt.width);
    let inner = cx.local(path).dim("experts.fc2.weight", 2) * (came / width);
    let dmixed = cx.temp(len(&saves, "latent mixed"));
    // Three words for every choice: expert, token, slot.
    let choices = cx.heap.bytes(Line::RoutingScratch, (sent / width) as u64 * 24);
    let dweights = cx.temp(len(&saves, "weights"));
    let doutputs = cx.temp(sent);
    let dout = dealt.dispatch(cx, doutputs);
    let activated = cx.temp(inner);
    let dinner = cx.temp(inner);
    drop(activated);
    let dpacked = cx.temp(len(&saves, "dispatched packed"));
    let came_back = cx.temp(came);
    // What the experts read goes with their weights' gradients.
    drop(kept.remove(DISPATCHED));
    let drows = dealt.combine(cx);
    let dscores = cx.temp(len(&saves, "scores"));
    let dx = cx.stream();
    drop(dscores);
    if let Some((inner, _)) = shared(cx, path) {
        let copy = dy.like(Line::ActivationGradients);
        let theirs = kept.split_off(kept.len() - 2);
        drop(feed_forward_back(cx, inner, theirs, copy));
    }
    drop((kept, dy, dmixed, choices, dweights, dout, dinner, dpacked, came_back, drows));
    dx
}

/// Where what the experts read stands in what [`experts`] keeps.
const DISPATCHED: usize = 3;

/// Widths of a recurrent block on this rank, over the times it scans.
struct Scan {
    kind: Kind,
    /// Elements of the packed projection, of what enters the convolution or the cell, of one number
    /// a head, of the output, of the angles.
    projected: usize,
    convolved: usize,
    heads: usize,
    inner: usize,
    angles: usize,
    /// Of what Mamba-1 selects for every token, and of B and C in it.
    selected: usize,
    shared: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mamba1,
    Mamba2,
    /// Mamba-2 that hands its state from part to part.
    Mamba2Parts,
    Mamba3,
    M2rnn,
    Delta,
}

impl Kind {
    /// Whether time is traded for heads over the context axis.
    fn trades(self) -> bool {
        matches!(self, Kind::Mamba2 | Kind::Delta)
    }

    /// Whether the norm's output is kept.
    fn keeps_normed(self) -> bool {
        matches!(self, Kind::Mamba2 | Kind::Mamba2Parts | Kind::Delta)
    }
}

fn scan(cx: &Cx, mixer: Mixer, path: &str) -> Scan {
    let (saves, local, recipe) = (cx.saves(mixer, path), cx.local(path), cx.recipe);
    let (kind, head) = match (mixer, &recipe.mamba, &recipe.recurrent, &recipe.gated_delta) {
        (Mixer::Mamba, Some(Mamba::One(_)), ..) => (Kind::Mamba1, 1),
        (Mixer::Mamba, Some(Mamba::Three(m)), ..) => (Kind::Mamba3, m.head_dim),
        (Mixer::Recurrent, _, Some(m), _) => (Kind::M2rnn, m.value_dim),
        (Mixer::GatedDelta, _, _, Some(m)) => (Kind::Delta, m.value_dim),
        (_, Some(Mamba::Two(m)), ..) if !trades_heads(m, cx.layout) => (Kind::Mamba2Parts, m.head_dim),
        (_, Some(Mamba::Two(m)), ..) => (Kind::Mamba2, m.head_dim),
        _ => (Kind::Mamba2, 1),
    };
    let (inner, projected) = (len(&saves, "scanned"), len(&saves, "projected"));
    let heads = inner / head.max(1) as usize;
    // Mamba-3 has no convolution; its cell reads x, B and C.
    let convolved = match kind {
        Kind::Mamba3 => projected - inner - 3 * heads,
        _ => cx.sizes.tokens * local.rows("conv.weight"),
    };
    let shared = match &recipe.mamba {
        Some(Mamba::One(m)) if kind == Kind::Mamba1 => cx.sizes.tokens * 2 * m.state as usize,
        _ => 0,
    };
    let (angles, selected) = (len(&saves, "angle rates"), len(&saves, "selected"));
    Scan { kind, projected, convolved, heads, inner, angles, selected, shared }
}

impl Scan {
    /// The cell: its input and that input's gradient, and numbers of every head.
    fn cell(&self, cx: &Cx) -> Kept {
        let by_head = match self.kind {
            Kind::Mamba1 | Kind::Mamba2 | Kind::Mamba2Parts | Kind::M2rnn => 3,
            Kind::Delta => 5,
            Kind::Mamba3 => return vec![cx.temp(2 * self.convolved + 2 * self.angles + 7 * self.heads)],
        };
        // One part of the timeline behind its tail, convolved, and activated.
        let convolved = cx.temp(self.convolved);
        let padded = cx.temp(2 * self.convolved / self.parts(cx));
        drop(padded);
        vec![convolved, cx.temp(self.convolved), cx.temp(by_head * self.heads + 2 * self.shared)]
    }

    /// Stretches of time convolved one after another.
    fn parts(&self, cx: &Cx) -> usize {
        if self.kind.trades() { 1 } else { cx.sizes.spans().len() }
    }

    fn trade(&self, cx: &Cx, x: Buf) -> Buf {
        if self.kind.trades() { cx.trade(x) } else { x }
    }

    /// From the cell's gradients to those of what it and the convolution read.
    fn inputs_back(&self, cx: &Cx) -> Kept {
        if self.kind == Kind::Mamba3 {
            return vec![cx.temp(self.convolved / 2 + self.angles + 4 * self.heads)];
        }
        let again = cx.temp(if self.kind == Kind::Delta { 2 * self.convolved } else { 0 });
        let scalars = cx.temp(self.heads);
        // Parts, and all of them side by side to be summed over ranks.
        let parts = cx.temp(self.selected);
        let selected = cx.temp(self.selected);
        drop(parts);
        let input = cx.temp(self.convolved);
        let padded = cx.temp(3 * self.convolved / self.parts(cx));
        drop((padded, again));
        vec![scalars, selected, input]
    }
}

fn scanned(cx: &Cx, mixer: Mixer, path: &str, x: Buf) -> (Buf, Kept) {
    let (saves, s) = (cx.saves(mixer, path), scan(cx, mixer, path));
    let x = cx.enter(x);
    let projected = s.trade(cx, cx.temp(s.projected));
    let mut kept = vec![x, projected];
    kept.extend(["selected", "angle rates", "tails", "inverse"].map(|name| cx.temp(len(&saves, name))));
    let parts = cx.temp(s.projected);
    let cell = s.cell(cx);
    kept.extend([cx.temp(s.inner), cx.temp(len(&saves, "states"))]);
    let gated = cx.temp(s.inner);
    let normed = (!matches!(s.kind, Kind::Mamba1 | Kind::Mamba3)).then(|| cx.temp(s.inner));
    let y = if s.kind.keeps_normed() {
        drop(gated);
        kept.extend(normed.map(|normed| s.trade(cx, normed)));
        cx.leave(cx.temp(cx.sizes.tokens * cx.hidden()))
    } else {
        let partial = cx.temp(cx.sizes.tokens * cx.hidden());
        let y = cx.leave(partial);
        drop((gated, normed));
        y
    };
    drop((parts, cell));
    (y, kept)
}

fn scanned_back(cx: &Cx, mixer: Mixer, path: &str, mut kept: Kept, dy: Buf, carried: &mut Option<Buf>) -> Buf {
    let s = scan(cx, mixer, path);
    let dy = cx.enter(dy);
    let dout = s.trade(cx, cx.temp(s.inner));
    if s.kind.keeps_normed() {
        // What the projection out read is not needed further.
        kept.pop();
    }
    // Beside the gradient that came: those of the scan's output and of the gate, and what the norm
    // and the gate are computed from again.
    let gates = cx.temp(match s.kind {
        Kind::Mamba1 | Kind::Mamba2 | Kind::Mamba2Parts | Kind::Mamba3 => 2 * s.inner,
        Kind::M2rnn => 3 * s.inner,
        Kind::Delta => 4 * s.inner,
    });
    let cell = s.cell(cx);
    let link = Link::of(cx.recipe, path);
    let below = link.takes.then(|| cx.temp(len(&cx.saves(mixer, path), "states")));
    // The states at the borders go with the scan, and what the block above said of them.
    kept.pop();
    if link.takes || link.gives {
        *carried = below;
    }
    let inputs = s.inputs_back(cx);
    let dprojected = s.trade(cx, cx.temp(s.projected));
    let dx = cx.temp(cx.sizes.tokens * cx.hidden());
    let dx = cx.leave(dx);
    drop((kept, dy, dout, gates, cell, inputs, dprojected));
    dx
}
