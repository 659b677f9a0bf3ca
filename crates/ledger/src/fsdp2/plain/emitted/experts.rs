//! Routed experts: rows sorted by expert, two grouped products, outputs weighed in bf16 and added
//! up by token. The bank is always a unit of its own. Routing is balanced: every rank receives as
//! many rows as it sends.

use super::super::Config;
use super::super::config::Feed as Sizes;
use super::super::model::behind;
use super::super::ops::{adapted, add, cast, grad, grad_of, linear, makes};
use super::super::params::{Linear, Step, Unit};
use super::super::rank::Rank;
use super::adapter;
use super::borders::{enter, leave};
use super::feed::{Feed, activated, packed_rows};
use super::steps::{Saves, map};
use recipe::kinds::moe::ScoreFunction;
use replay::line::{Line, Origin};
use replay::tape::{BF16, FP32, INT64, Tensor};
use std::rc::Rc;

pub(crate) struct Experts {
    router: Linear,
    shared: Option<Feed>,
    fc1: Linear,
    fc2: Linear,
    feed: Sizes,
    unit: usize,
}

impl Experts {
    pub(super) fn new(c: &Config, own: usize, origin: Origin, units: &mut Vec<Unit>) -> Experts {
        let moe = c.moe();
        let weight = units[own].add(Line::ReplicatedParams, moe.experts, c.hidden);
        let router = Linear { weight, bias: None, adapter: None };
        let shared = moe.shared.map(|sizes| Feed::new(c, sizes, "moe.shared", &mut units[own]));
        let unit = units.len();
        units.push(Unit::at(origin));
        let width = moe.feed.ffn / c.etp;
        let mut bank = |path, rows, columns| {
            let sizes = (moe.local_experts, rows, columns);
            let step = Step::of(c.expert_optimizer, sizes);
            let weight = units[unit].add_stepped(Line::ExpertParams, (moe.local_experts, rows * columns), step);
            Linear { weight, bias: None, adapter: adapter(c, &mut units[unit], path, sizes, [Line::ExpertParams; 2]) }
        };
        let fc1 = bank("moe.experts.fc1", packed_rows(moe.feed) * width, c.hidden);
        let fc2 = bank("moe.experts.fc2", c.hidden, width);
        Experts { router, shared, fc1, fc2, feed: moe.feed, unit }
    }

    pub(super) fn forward(&self, c: &Rc<Rank>, x: &Tensor) -> Tensor {
        let (chosen, share) = self.route(c, x);
        let out = self.wrapped(c, x, &share, &chosen);
        drop((chosen, share));
        match &self.shared {
            Some(shared) => add(c, &out, &shared.forward(c, x)),
            None => out,
        }
    }

    /// `Router.forward`: chosen experts and their shares, in fp32.
    fn route(&self, c: &Rc<Rank>, x: &Tensor) -> (Tensor, Tensor) {
        let moe = c.config.moe();
        let tokens = x.elements() / c.config.hidden;
        let (all, count) = (tokens * moe.experts, tokens * moe.top_k);
        let logits = linear(c, x, &self.router);
        let wide = cast(c, &logits, FP32, "fp32 router logits");
        drop(logits);
        let scores = c.scratch(all, FP32, "router scores");
        makes(c, &wide, &scores, vec![scores.alias()], all, FP32);
        let biased = moe.has_expert_bias.then(|| c.scratch(all, FP32, "biased scores"));
        let masked = moe.has_groups.then(|| c.scratch(all, FP32, "scores of the best groups"));
        let is_tilted = biased.is_some() || masked.is_some();
        let best_tilted = is_tilted.then(|| c.scratch(count, FP32, "best tilted scores"));
        let chosen = c.scratch(count, INT64, "chosen experts");
        drop((biased, masked, best_tilted));
        let best = c.scratch(count, FP32, "chosen scores");
        makes(c, &scores, &best, vec![chosen.clone()], all, FP32);
        let mut share = if moe.normalizes { normalized(c, &best, tokens) } else { best };
        if moe.is_scaled {
            share = map(c, &share, Saves::Nothing, "scaled shares");
        }
        if moe.has_balance_loss {
            share = with_loss(c, &share, &balance(c, &scores, count));
        }
        if moe.has_z_loss {
            share = with_loss(c, &share, &smallness(c, &wide, tokens));
        }
        (chosen, share)
    }

    /// `fully_shard` around the bank: its backward ends when both inputs have their gradients.
    fn wrapped(&self, c: &Rc<Rank>, x: &Tensor, share: &Tensor, chosen: &Tensor) -> Tensor {
        c.engine.pre_forward(self.unit);
        let (inside, inside_share) = (x.alias(), share.alias());
        let (engine, unit) = (c.engine.clone(), self.unit);
        let edges = vec![x.edge(), share.edge()];
        c.tape.record(edges, &[&inside, &inside_share], Vec::new(), move |_, grads, _| {
            engine.post_backward(unit);
            grads
        });
        let out = self.bank(c, inside, inside_share, chosen);
        behind(c, self.unit, out)
    }

    fn bank(&self, c: &Rc<Rank>, x: Tensor, share: Tensor, chosen: &Tensor) -> Tensor {
        let is_cut = c.config.etp > 1;
        let (x, share, chosen) = match is_cut {
            true => (enter(c, &x), enter(c, &share), enter(c, chosen)),
            false => (x, share, chosen.clone()),
        };
        let (hidden, count) = (c.config.hidden, chosen.elements());
        let order = c.scratch(count, INT64, "sort order");
        let token = c.scratch(count, INT64, "token order");
        let rows = moved(c, &x, vec![token.clone()], count * hidden, "sorted tokens");
        let done = if c.config.ep > 1 { self.exchanged(c, &rows) } else { self.run(c, &rows) };
        let done = weighed(c, done, &share, &order);
        // Rows are added up in a tensor of zeros, which is copied because hooks want no view.
        let out = c.act(x.elements(), "sums by token");
        c.tape.record(vec![done.edge()], &[&out], vec![token.clone()], move |t, _, _saved| {
            vec![Some(grad(t, count * hidden, "gradient of rows"))]
        });
        let out = super::steps::copied(c, &out, "combined tokens");
        drop((rows, done));
        if is_cut { leave(c, out) } else { out }
    }

    /// `AllToAll`: rows arrive by sender, are sorted by expert, and go home the same way.
    fn exchanged(&self, c: &Rc<Rank>, rows: &Tensor) -> Tensor {
        let elements = rows.elements();
        let count = elements / c.config.hidden;
        let arrived = moved(c, rows, Vec::new(), elements, "arrived rows");
        let _expert = c.scratch(count, INT64, "experts of rows");
        let order = c.scratch(count, INT64, "order of rows");
        let grouped = moved(c, &arrived, vec![order], elements, "grouped rows");
        let done = self.run(c, &grouped);
        drop(grouped);
        let home = c.scratch(count, INT64, "places of rows");
        let ordered = moved(c, &done, vec![home], elements, "rows by sender");
        moved(c, &ordered, Vec::new(), elements, "returned rows")
    }

    fn run(&self, c: &Rc<Rank>, rows: &Tensor) -> Tensor {
        let count = rows.elements() / c.config.hidden;
        let width = self.feed.ffn / c.config.etp;
        if c.tape.records() {
            rows.onto(Line::ExpertInputs);
        }
        let wide = grouped(c, rows, count * packed_rows(self.feed) * width, &self.fc1);
        let narrow = activated(c, wide, self.feed.function, 1.0);
        grouped(c, &narrow, count * c.config.hidden, &self.fc2)
    }
}

/// `Router.balance`: counts by sequence, and scores as shares summed over it. The gradient of a sum is
/// one row seen by every token.
fn balance(c: &Rc<Rank>, scores: &Tensor, count: u64) -> Tensor {
    let (moe, all) = (c.config.moe(), scores.elements());
    let rows = c.config.micro_batch * moe.experts;
    if moe.has_expert_bias {
        // Choices by score alone, until they are counted.
        drop((c.scratch(count, FP32, "best scores"), c.scratch(count, INT64, "experts by score")));
    }
    let counts = c.scratch(rows, FP32, "counts by sequence");
    let shares = match moe.score {
        ScoreFunction::Softmax => scores.clone(),
        ScoreFunction::Sigmoid => {
            let sums = c.scratch(all / moe.experts, FP32, "sums of all scores");
            let shares = c.scratch(all, FP32, "scores as shares");
            c.tape.record(vec![scores.edge()], &[&shares], vec![scores.clone(), sums], move |t, _, _saved| {
                let _quotients = (grad_of(t, all, FP32, "quotient"), grad_of(t, all, FP32, "quotient"));
                vec![Some(grad_of(t, all, FP32, "gradient of scores"))]
            });
            shares
        }
    };
    let loss = c.scratch(1, FP32, "balancing loss");
    c.tape.record(vec![shares.edge()], &[&loss], vec![counts], move |t, _, _saved| {
        vec![Some(grad_of(t, rows, FP32, "gradient of sums").part(all))]
    });
    loss
}

/// Chosen scores over their sum.
fn normalized(c: &Rc<Rank>, best: &Tensor, tokens: u64) -> Tensor {
    let sums = c.scratch(tokens, FP32, "sums of scores");
    let share = c.scratch(best.elements(), FP32, "shares");
    makes(c, best, &share, vec![best.clone(), sums], best.elements(), FP32);
    share
}

/// `Router.smallness`: the sums of exponentials keep the logits.
fn smallness(c: &Rc<Rank>, logits: &Tensor, tokens: u64) -> Tensor {
    let all = logits.elements();
    let sums = c.scratch(tokens, FP32, "logs of summed exponentials");
    let loss = c.scratch(1, FP32, "z loss");
    c.tape.record(vec![logits.edge()], &[&loss], vec![logits.clone(), sums], move |t, _, _saved| {
        let _exponentials = grad_of(t, all, FP32, "exponentials");
        vec![Some(grad_of(t, all, FP32, "gradient of logits"))]
    });
    loss
}

/// `_WithLoss`: the shares, and a loss that takes part in their backward.
fn with_loss(c: &Rank, share: &Tensor, loss: &Tensor) -> Tensor {
    let out = share.alias();
    c.tape.record(vec![share.edge(), loss.edge()], &[&out], Vec::new(), |t, grads, _| {
        vec![grads[0].clone(), Some(grad_of(t, 1, FP32, "loss gradient"))]
    });
    out
}

/// Rows gathered, sent or sorted: backward makes a tensor as large as the input.
fn moved(c: &Rank, x: &Tensor, saved: Vec<Tensor>, elements: u64, name: &'static str) -> Tensor {
    let out = c.scratch(elements, BF16, name);
    makes(c, x, &out, saved, x.elements(), BF16);
    out
}

/// `torch._grouped_mm`: saves its input for the weight's gradient.
fn grouped(c: &Rc<Rank>, x: &Tensor, elements: u64, bank: &Linear) -> Tensor {
    let weight = &bank.weight;
    let out = c.act(elements, "expert projection");
    let (inputs, held) = (x.elements(), weight.clone());
    let saved = if weight.edge().is_some() { vec![x.clone()] } else { Vec::new() };
    c.tape.record(vec![x.edge(), weight.edge()], &[&out], saved, move |t, _, _saved| {
        let dx = grad(t, inputs, "expert input gradient");
        vec![Some(dx), held.gradient(t)]
    });
    match &bank.adapter {
        Some(adapter) => adapted(c, x, out, adapter),
        None => out,
    }
}

/// Outputs times the shares of their tokens, in bf16.
fn weighed(c: &Rank, done: Tensor, share: &Tensor, order: &Tensor) -> Tensor {
    let (elements, count) = (done.elements(), order.elements());
    let sorted = c.scratch(count, FP32, "sorted shares");
    makes(c, share, &sorted, vec![order.clone()], share.elements(), FP32);
    let narrow = cast(c, &sorted, BF16, "shares in bf16");
    let out = c.act(elements, "weighed rows");
    let saved = vec![done.clone(), narrow.clone()];
    c.tape.record(vec![done.edge(), narrow.edge()], &[&out], saved, move |t, _, _saved| {
        let rows = grad(t, elements, "gradient of outputs");
        let _product = grad(t, elements, "product with outputs");
        vec![Some(rows), Some(grad_of(t, count, BF16, "gradient of shares"))]
    });
    out
}
