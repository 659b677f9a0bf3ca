//! Choice of experts: scores, top-k, weights, capacity, and the balancing loss.
//!
//! Weights are the chosen scores, over their sum where the recipe says so, times a factor. The balancing loss and the capacity are taken
//! sequence by sequence (as DeepSeek-V3's complementary loss is), so that neither depends on how
//! sequences and tokens are dealt out to ranks: ranks that hold parts of a sequence gather the
//! number of tokens each expert gets from each part.

use super::{Balance, Cx};
use crate::mat::{Mat, dot};
use crate::params::Id;
use crate::real::Real;
use comm::{Call, Result};
use layout::activations::slots;
use recipe::kinds::moe::{GroupScore, Moe as Kind, ScoreFunction};

/// Contiguous runs of positions that a rank's own tokens form at most: an early and a late one under cp.
const RUNS: usize = 2;

/// The router of a block.
pub(crate) struct Router {
    pub weight: Id,
    pub bias: Option<Id>,
    /// Index of its [`Balance`] in the context.
    pub balance: usize,
    pub kind: Kind,
}

/// A token sent to an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub expert: usize,
    pub token: usize,
    /// Which of the token's `top_k` choices it is.
    pub slot: usize,
}

/// What was chosen for every token.
pub(crate) struct Chosen<R> {
    pub experts: Vec<usize>,
    /// Weights of the choices, a row a token.
    pub weights: Mat<R>,
    /// Whether a choice is within the expert's capacity.
    pub has_room: Vec<bool>,
    /// For each sequence and expert, tokens of the whole sequence that chose it.
    pub counts: Vec<u64>,
}

impl<R> Chosen<R> {
    /// Choices that are sent, sorted by expert and then by token.
    pub fn sent(&self, top_k: usize) -> Vec<Sent> {
        let all = self.experts.iter().enumerate().filter(|(i, _)| self.has_room[*i]);
        let mut sent: Vec<Sent> = all.map(|(i, &expert)| Sent { expert, token: i / top_k, slot: i % top_k }).collect();
        sent.sort_by_key(|s| (s.expert, s.token));
        sent
    }
}

impl Router {
    fn experts(&self) -> usize {
        self.kind.experts as usize
    }

    fn top_k(&self) -> usize {
        self.kind.top_k as usize
    }

    /// Scores of every expert for every token.
    pub fn scores<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>) -> Mat<R> {
        let mut scores = x.linear(cx.weight(self.weight));
        if let Some(bias) = self.bias {
            scores.add_row(&cx.weight(bias).data);
        }
        for row in scores.data.chunks_exact_mut(self.kind.experts as usize) {
            match self.kind.router.score {
                ScoreFunction::Sigmoid => row.iter_mut().for_each(|s| *s = s.sigmoid()),
                ScoreFunction::Softmax => {
                    let top = row.iter().copied().fold(row[0], |a, b| if b > a { b } else { a });
                    row.iter_mut().for_each(|s| *s = (*s - top).exp());
                    let sum: R = row.iter().copied().sum();
                    row.iter_mut().for_each(|s| *s = *s / sum);
                }
            }
        }
        scores
    }

    /// The choice for every token, and the balancing loss added to the context's.
    pub fn choose<R: Real>(&self, cx: &mut Cx<R>, scores: &Mat<R>) -> Result<Chosen<R>> {
        let experts = self.ranked(cx, scores);
        experts.iter().for_each(|e| cx.balances[self.balance].counts[*e] += 1);
        let mut weights = Mat::zeros(scores.rows, self.top_k());
        for (token, chosen) in experts.chunks_exact(self.top_k()).enumerate() {
            let factor = R::of(self.kind.router.scaling) / self.sum(scores.row(token), chosen);
            let row = weights.row_mut(token).iter_mut().zip(chosen);
            row.for_each(|(w, e)| *w = scores.row(token)[*e] * factor);
        }
        let has_room = vec![true; experts.len()];
        let mut chosen = Chosen { experts, weights, has_room, counts: Vec::new() };
        if self.kind.router.aux_loss.is_some() || self.kind.capacity_factor.is_some() {
            self.count(cx, &mut chosen)?;
            cx.auxiliary += self.balance(cx, scores, &chosen);
        }
        Ok(chosen)
    }

    /// The best experts of every token by score, bias and tilt.
    fn ranked<R: Real>(&self, cx: &Cx<R>, scores: &Mat<R>) -> Vec<usize> {
        let Balance { bias, tilt, .. } = &cx.balances[self.balance];
        let Some(tilt) = tilt else { return self.best(scores, bias) };
        let mut tilted = scores.clone();
        for (time, position) in cx.rank.shard_positions().into_iter().enumerate() {
            for sequence in 0..cx.sizes.sequences {
                tilt.apply(position, tilted.row_mut(time * cx.sizes.sequences + sequence));
            }
        }
        self.best(&tilted, bias)
    }

    /// What chosen scores are divided by.
    fn sum<R: Real>(&self, scores: &[R], chosen: &[usize]) -> R {
        match self.kind.router.normalize {
            true => chosen.iter().map(|e| scores[*e]).sum(),
            false => R::ONE,
        }
    }

    /// The `top_k` best experts of every token by score and bias, best first, out of the best groups; the lower
    /// number wins a tie.
    fn best<R: Real>(&self, scores: &Mat<R>, bias: &[f64]) -> Vec<usize> {
        let mut out = Vec::with_capacity(scores.rows * self.top_k());
        for row in scores.data.chunks_exact(scores.cols) {
            let biased: Vec<R> =
                row.iter().enumerate().map(|(e, s)| *s + R::of(bias.get(e).copied().unwrap_or(0.0))).collect();
            let mut experts = self.open(&biased);
            experts.sort_by(|a, b| descending(biased[*a], biased[*b]).then(a.cmp(b)));
            out.extend_from_slice(&experts[..self.top_k()]);
        }
        out
    }

    /// Experts of the groups that a token may choose from.
    fn open<R: Real>(&self, biased: &[R]) -> Vec<usize> {
        let router = &self.kind.router;
        let (count, each) = (router.groups as usize, biased.len() / router.groups as usize);
        if count == 1 {
            return (0..biased.len()).collect();
        }
        let score = |group: usize| {
            let mut own = biased[group * each..(group + 1) * each].to_vec();
            own.sort_by(|a, b| descending(*a, *b));
            match router.group_score {
                GroupScore::Max => own[0],
                GroupScore::TopTwo => own[0] + own[1],
            }
        };
        let scored: Vec<R> = (0..count).map(score).collect();
        let mut groups: Vec<usize> = (0..count).collect();
        groups.sort_by(|a, b| descending(scored[*a], scored[*b]).then(a.cmp(b)));
        groups[..router.group_top_k as usize].iter().flat_map(|g| g * each..(g + 1) * each).collect()
    }

    /// Counts choices over whole sequences, and drops those beyond an expert's capacity, latest tokens
    /// first.
    fn count<R: Real>(&self, cx: &Cx<R>, chosen: &mut Chosen<R>) -> Result<()> {
        let (rank, batch, experts) = (cx.rank, cx.sizes.sequences, self.experts());
        let positions = rank.shard_positions();
        let runs = runs(&positions);
        let mut mine = vec![0u64; RUNS * batch * experts];
        let place = |time: usize, sequence: usize, expert: usize| {
            let run = runs.iter().filter(|start| **start <= time).count() - 1;
            (run * batch + sequence) * experts + expert
        };
        for (i, &expert) in chosen.experts.iter().enumerate() {
            let token = i / self.top_k();
            mine[place(token / batch, token % batch, expert)] += 1;
        }
        let name = "tokens of each expert";
        let over_tp = rank.comm.all_gather(&rank.tp, Call::new("tp", name), mine)?;
        let all = rank.comm.all_gather(&rank.cp, Call::new("cp", name), over_tp)?;
        let starts = self.starts(cx);
        let each = batch * experts;
        chosen.counts = vec![0; each];
        let mut before = vec![0u64; RUNS * each];
        for (counts, start) in all.chunks_exact(each).zip(&starts) {
            chosen.counts.iter_mut().zip(counts).for_each(|(sum, c)| *sum += c);
            for (run, first) in runs.iter().enumerate() {
                if start.is_some_and(|s| s < positions[*first]) {
                    before[run * each..(run + 1) * each].iter_mut().zip(counts).for_each(|(b, c)| *b += c);
                }
            }
        }
        if let Some(capacity) = slots(&self.kind, cx.sizes.sequence as u64) {
            for (i, &expert) in chosen.experts.iter().enumerate() {
                let token = i / self.top_k();
                let ahead = &mut before[place(token / batch, token % batch, expert)];
                chosen.has_room[i] = *ahead < capacity;
                *ahead += 1;
            }
        }
        Ok(())
    }

    /// First position of every run of every rank that holds a part of our sequences, in the order the
    /// gathered counts come in; `None` for a run that a rank does not have.
    fn starts<R: Real>(&self, cx: &Cx<R>) -> Vec<Option<usize>> {
        let rank = cx.rank;
        let shards = rank.tp.len();
        let mut starts = Vec::new();
        for cp in 0..rank.cp.len() {
            let all: Vec<usize> = rank.timeline.spans(cp).into_iter().flatten().collect();
            for shard in all.chunks_exact(all.len() / shards) {
                let runs = runs(shard);
                starts.extend((0..RUNS).map(|i| runs.get(i).map(|r| shard[*r])));
            }
        }
        starts
    }

    /// Factor of `count · score` in the step's loss: for each sequence, experts / top_k times the mean
    /// share of tokens times the mean score; then the mean over sequences.
    fn pull<R: Real>(&self, cx: &Cx<R>) -> f64 {
        let (coefficient, sequence) = (self.kind.router.aux_loss.unwrap_or(0.0), cx.sizes.sequence as f64);
        let balanced = self.experts() as f64 / self.top_k() as f64;
        coefficient * balanced / (sequence * sequence) / cx.rank.layout.global_batch as f64
    }

    /// This rank's tokens' contribution to the balancing loss.
    fn balance<R: Real>(&self, cx: &Cx<R>, scores: &Mat<R>, chosen: &Chosen<R>) -> f64 {
        let (batch, experts) = (cx.sizes.sequences, self.experts());
        let one = |(token, row): (usize, &[R])| {
            let counts = &chosen.counts[token % batch * experts..][..experts];
            let sum: f64 = self.total(row).f64();
            row.iter().zip(counts).map(|(s, c)| s.f64() / sum * *c as f64).sum::<f64>()
        };
        self.pull(cx) * scores.data.chunks_exact(experts).enumerate().map(one).sum::<f64>()
    }

    /// What a row of scores is divided by to become shares: one under softmax, its sum under sigmoid.
    fn total<R: Real>(&self, row: &[R]) -> R {
        match self.kind.router.score {
            ScoreFunction::Sigmoid => row.iter().copied().sum(),
            ScoreFunction::Softmax => R::ONE,
        }
    }

    /// Backward of scores, choice and balancing loss: the gradient of `x`; adds those of the router's
    /// weights.
    pub fn backward<R: Real>(
        &self,
        cx: &mut Cx<R>,
        x: &Mat<R>,
        scores: &Mat<R>,
        chosen: &Chosen<R>,
        dweights: &Mat<R>,
    ) -> Mat<R> {
        let experts = self.experts();
        let mut d = Mat::zeros(scores.rows, experts);
        for token in 0..scores.rows {
            let picks = &chosen.experts[token * self.top_k()..(token + 1) * self.top_k()];
            let (weights, dw) = (chosen.weights.row(token), dweights.row(token));
            let (factor, sum) = (R::of(self.kind.router.scaling), self.sum(scores.row(token), picks));
            let along = if self.kind.router.normalize { dot(weights, dw) } else { R::ZERO };
            picks.iter().zip(dw).for_each(|(e, dw)| d.row_mut(token)[*e] += (*dw * factor - along) / sum);
        }
        if !chosen.counts.is_empty() {
            self.balance_back(cx, scores, chosen, &mut d);
        }
        for (d, s) in d.data.chunks_exact_mut(experts).zip(scores.data.chunks_exact(experts)) {
            match self.kind.router.score {
                ScoreFunction::Sigmoid => d.iter_mut().zip(s).for_each(|(d, s)| *d *= *s * (R::ONE - *s)),
                ScoreFunction::Softmax => {
                    let along = dot(d, s);
                    d.iter_mut().zip(s).for_each(|(d, s)| *d = (*d - along) * *s);
                }
            }
        }
        if let Some(bias) = self.bias {
            d.sum_rows(&mut cx.grad(bias).data);
        }
        d.linear_weight(x, cx.grad(self.weight));
        d.linear_input(cx.weight(self.weight))
    }

    fn balance_back<R: Real>(&self, cx: &Cx<R>, scores: &Mat<R>, chosen: &Chosen<R>, d: &mut Mat<R>) {
        let (batch, experts) = (cx.sizes.sequences, self.experts());
        let pull = R::of(self.pull(cx));
        for token in 0..scores.rows {
            let counts = &chosen.counts[token % batch * experts..][..experts];
            let row = scores.row(token);
            let total = self.total(row);
            let mean = match self.kind.router.score {
                ScoreFunction::Sigmoid => row.iter().zip(counts).map(|(s, c)| *s * R::of(*c as f64)).sum::<R>() / total,
                ScoreFunction::Softmax => R::ZERO,
            };
            let to = d.row_mut(token).iter_mut().zip(counts);
            to.for_each(|(d, c)| *d += pull * (R::of(*c as f64) - mean) / total);
        }
    }
}

/// Larger first.
fn descending<R: Real>(a: R, b: R) -> std::cmp::Ordering {
    b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal)
}

/// Where contiguous runs of positions begin.
fn runs(positions: &[usize]) -> Vec<usize> {
    (0..positions.len()).filter(|&i| i == 0 || positions[i] != positions[i - 1] + 1).collect()
}
