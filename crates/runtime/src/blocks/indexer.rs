//! The sparse indexer: small queries and keys score every pair a query may see, attention reads the
//! best, and a loss of its own teaches the indexer what attention reads.
//!
//! DeepSeek-V3.2's report, section 2, and Megatron-Core's
//! `transformer/experimental_attention_variant/dsa.py`: the score of a pair is the sum over index
//! heads of `w · relu(q · k)`, with `w` scaled by the roots of heads and width; keys pass a LayerNorm,
//! and queries and keys turn with position. Both read the block's input (queries the query latent,
//! where there is one) as a constant. The loss is the divergence of the scores' softmax over the
//! chosen keys from what all heads of attention give them, a mean over the step's tokens; nothing
//! else reaches the indexer, so that a factor on it would matter to clipping only, and there is none.
//! The Hadamard rotation of the references turns queries and keys alike, and so changes no score.
//!
//! Every rank scores its own tokens against all keys, which are gathered along the sequence; the
//! choice is gathered for the heads of a tensor-parallel rank, and what heads read is summed back.

use super::attend::{Chosen, NONE};
use super::norm::Norm;
use super::rotary::{Rotary, Turn};
use super::{Cx, Linear};
use crate::mat::{Mat, axpy, dot};
use crate::params::Shelf;
use crate::rank::Rank;
use crate::real::Real;
use crate::saved::Saved;
use crate::split::tensor;
use comm::{Call, Result};
use layout::Axis;
use recipe::Recipe;
use std::cmp::Ordering;

const KEYS: &str = "index keys made whole";
const CHOICE: Call = Call::new("sp", "chosen keys of every query");
const TARGET: &str = "what all heads read";
const OVER_TIME: Call = Call::new("cp", "index keys of the whole timeline");

/// The indexer of one attention block.
pub(crate) struct Indexer {
    query: Linear,
    key: Linear,
    key_norm: Norm,
    weights: Linear,
    heads: usize,
    width: usize,
    top_k: usize,
    rotary: Option<Rotary>,
    window: Option<usize>,
}

/// Index queries of a rank's own tokens.
struct Looking<R> {
    queries: Mat<R>,
    /// One a head, scaled.
    weights: Mat<R>,
}

/// What backward knows of a choice.
pub(crate) struct Read<'a, R> {
    pub chosen: &'a Chosen,
    pub keys: &'a Mat<R>,
    /// How much attention the heads of this rank gave each chosen key.
    pub target: Mat<R>,
}

impl Indexer {
    /// The indexer of the attention at `path`, if it has one. At most `turning` columns of a head are
    /// rotated with position.
    pub fn new(
        recipe: &Recipe,
        shelf: &Shelf,
        path: &str,
        turning: Option<usize>,
        window: Option<usize>,
    ) -> Option<Indexer> {
        let dsa = recipe.features.dsa().filter(|_| shelf.find(&format!("{path}.indexer.wq.weight")).is_some())?;
        let linear = |name: &str| Linear::new(shelf, &format!("{path}.indexer.{name}"));
        let width = dsa.head_dim as usize;
        Some(Indexer {
            query: linear("wq"),
            key: linear("wk"),
            key_norm: Norm::new(shelf, &format!("{path}.indexer.k_norm"), width),
            weights: linear("weights"),
            heads: dsa.heads as usize,
            width,
            top_k: dsa.top_k as usize,
            rotary: Rotary::new(recipe, 0, turning.map_or(width, |most| most.min(width))),
            window,
        })
    }

    fn turn<R: Real>(&self, rank: &Rank, x: &mut Mat<R>, turn: Turn) {
        if let Some(rotary) = &self.rotary {
            rotary.turn(&rank.shard_positions(), x, self.width, turn);
        }
    }

    fn looking<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>, query: &Mat<R>) -> Looking<R> {
        let mut queries = self.query.forward(cx, query);
        self.turn(cx.rank, &mut queries, Turn::Forward);
        let mut weights = self.weights.forward(cx, x);
        weights.data.iter_mut().for_each(|w| *w *= self.scale());
        Looking { queries, weights }
    }

    fn scale<R: Real>(&self) -> R {
        R::of(1.0 / ((self.heads * self.width) as f64).sqrt())
    }

    /// The keys chosen for every query inside the tensor-parallel region, and the index keys of all
    /// tokens. `x` and `query` are those of the rank's own tokens.
    pub fn choose<R: Real>(&self, cx: &Cx<R>, x: &Mat<R>, query: &Mat<R>) -> Result<(Chosen, Mat<R>)> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let mut keys = self.key_norm.forward(cx, &self.key.forward(cx, x));
        self.turn(rank, &mut keys, Turn::Forward);
        let keys = gather(rank, keys)?;
        let (looking, places) = (self.looking(cx, x, query), places(rank));
        let top_k = self.top_k.min(cx.sizes.sequence);
        let mut positions = Vec::with_capacity(cx.sizes.shard * top_k);
        for (s, position) in rank.shard_positions().into_iter().enumerate() {
            let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
            for b in 0..batch {
                let score = |at: usize| self.score(&looking, s * batch + b, keys.row(places[at] * batch + b));
                let best = best((first..=position).map(|at| (score(at), at)).collect(), top_k);
                positions.extend(best.into_iter().map(|at| at as u64));
                positions.resize(positions.len().next_multiple_of(top_k), NONE);
            }
        }
        if rank.layout.sp {
            positions = rank.comm.all_gather(&rank.tp, CHOICE, positions)?;
        }
        Ok((Chosen { top_k, positions }, keys))
    }

    /// Keeps a choice for backward, if there is one.
    pub fn keep<R: Real>(saved: &mut Saved<R>, choice: Option<(Chosen, Mat<R>)>) {
        if let Some((chosen, keys)) = choice {
            let elements = chosen.positions.len();
            saved.keep("index keys", keys);
            saved.keep_indices("chosen", chosen, elements);
        }
    }

    fn score<R: Real>(&self, looking: &Looking<R>, row: usize, key: &[R]) -> R {
        let heads = looking.queries.row(row).chunks_exact(self.width).zip(looking.weights.row(row));
        let scored = heads.map(|(query, weight)| (dot(query, key), *weight));
        scored.filter(|(s, _)| *s > R::ZERO).fold(R::ZERO, |sum, (s, weight)| sum + s * weight)
    }

    /// Computes the indexer's own loss and adds its gradients. `x` and `query` are those of the rank's
    /// own tokens.
    pub fn learn<R: Real>(&self, cx: &mut Cx<R>, x: &Mat<R>, query: &Mat<R>, read: Read<R>) -> Result<()> {
        let (rank, batch) = (cx.rank, cx.sizes.sequences);
        let Read { chosen, keys, target } = read;
        let target = tensor::leave(rank, TARGET, target)?;
        let (looking, places) = (self.looking(cx, x, query), places(rank));
        let own = if rank.layout.sp { rank.on(Axis::Tp) * target.rows } else { 0 };
        let mut grads = Looking {
            queries: Mat::zeros(x.rows, looking.queries.cols),
            weights: Mat::zeros(x.rows, looking.weights.cols),
        };
        let mut dkeys = Mat::zeros(keys.rows, keys.cols);
        let share = 1.0 / (rank.layout.global_batch * rank.layout.sequence) as f64;
        let mut loss = 0.0;
        for row in 0..x.rows {
            let at: Vec<usize> =
                chosen.row(own + row).iter().take_while(|p| **p != NONE).map(|p| *p as usize).collect();
            let at: Vec<usize> = at.into_iter().map(|p| places[p] * batch + row % batch).collect();
            let scores: Vec<R> = at.iter().map(|at| self.score(&looking, row, keys.row(*at))).collect();
            let (apart, dscores) = divergence(&scores, &target.row(row)[..at.len()]);
            loss += apart;
            for (at, d) in at.into_iter().zip(dscores) {
                self.pair_back(&looking, &mut grads, row, keys.row(at), d * R::of(share), dkeys.row_mut(at));
            }
        }
        // Without sequence parallelism tensor neighbours have the same tokens, and one of them counts.
        if rank.layout.sp || rank.on(Axis::Tp) == 0 {
            cx.auxiliary += loss * share;
        }
        let dkeys = gather_back(rank, dkeys)?;
        self.project_back(cx, [x, query], grads, dkeys);
        Ok(())
    }

    /// Adds the gradients of one pair's query, key and weight from that of its score.
    fn pair_back<R: Real>(
        &self,
        looking: &Looking<R>,
        grads: &mut Looking<R>,
        row: usize,
        key: &[R],
        d: R,
        dkey: &mut [R],
    ) {
        let queries = looking.queries.row(row).chunks_exact(self.width);
        let dqueries = grads.queries.row_mut(row).chunks_exact_mut(self.width);
        let weights = looking.weights.row(row).iter().zip(grads.weights.row_mut(row));
        for ((query, dquery), (weight, dweight)) in queries.zip(dqueries).zip(weights) {
            let score = dot(query, key);
            if score > R::ZERO {
                *dweight += d * score;
                axpy(dquery, d * *weight, key);
                axpy(dkey, d * *weight, query);
            }
        }
    }

    /// Adds the gradients of the projections. Their inputs count as constants, so none flows further
    /// down.
    fn project_back<R: Real>(&self, cx: &mut Cx<R>, [x, query]: [&Mat<R>; 2], grads: Looking<R>, mut dkeys: Mat<R>) {
        let Looking { mut queries, mut weights } = grads;
        self.turn(cx.rank, &mut queries, Turn::Back);
        self.query.weight_back(cx, query, &queries);
        weights.data.iter_mut().for_each(|w| *w *= self.scale());
        self.weights.weight_back(cx, x, &weights);
        self.turn(cx.rank, &mut dkeys, Turn::Back);
        let keys = self.key.forward(cx, x);
        let dkeys = self.key_norm.backward(cx, &keys, &dkeys);
        self.key.weight_back(cx, x, &dkeys);
    }
}

/// Positions of the best scores, in the order of time. Of equal scores the later is better.
fn best<R: Real>(mut scored: Vec<(R, usize)>, top_k: usize) -> Vec<usize> {
    let by_score =
        |a: &(R, usize), b: &(R, usize)| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then_with(|| b.1.cmp(&a.1));
    scored.sort_by(by_score);
    let mut best: Vec<usize> = scored.into_iter().take(top_k).map(|(_, at)| at).collect();
    best.sort_unstable();
    best
}

/// Divergence of the scores' softmax from a target that need not be normalised, and its gradient.
fn divergence<R: Real>(scores: &[R], target: &[R]) -> (f64, Vec<R>) {
    let most = scores.iter().copied().fold(R::of(f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
    let sum: R = scores.iter().map(|s| (*s - most).exp()).sum();
    let whole: R = target.iter().copied().sum();
    let mut apart = 0.0;
    let mut d = Vec::with_capacity(scores.len());
    for (score, target) in scores.iter().zip(target) {
        let (log, share) = (*score - most - sum.ln(), *target / whole);
        if share > R::ZERO {
            apart += (share * (share.ln() - log)).f64();
        }
        d.push(log.exp() - share);
    }
    (apart, d)
}

/// For every position, its row in a buffer gathered over the context axis.
fn places(rank: &Rank) -> Vec<usize> {
    let mut places = vec![0; rank.layout.sequence as usize];
    let owned = (0..rank.cp.len()).flat_map(|owner| rank.timeline.spans(owner)).flatten();
    owned.enumerate().for_each(|(place, position)| places[position] = place);
    places
}

/// Index keys of every token, from each rank's own.
fn gather<R: Real>(rank: &Rank, keys: Mat<R>) -> Result<Mat<R>> {
    let cols = keys.cols;
    let keys = tensor::enter(rank, KEYS, keys)?;
    Ok(if rank.cp.splits() { Mat::of(cols, rank.comm.all_gather(&rank.cp, OVER_TIME, keys.data)?) } else { keys })
}

/// Transpose of [`gather`]. Without sequence parallelism tensor neighbours compute the same gradient,
/// and it is not summed.
fn gather_back<R: Real>(rank: &Rank, dkeys: Mat<R>) -> Result<Mat<R>> {
    let cols = dkeys.cols;
    let dkeys = if rank.cp.splits() {
        Mat::of(cols, rank.comm.reduce_scatter(&rank.cp, OVER_TIME, dkeys.data)?)
    } else {
        dkeys
    };
    if rank.layout.sp { tensor::enter_back(rank, KEYS, dkeys) } else { Ok(dkeys) }
}

/// The rank's own tokens among those of its tensor-parallel region.
pub(crate) fn own<R: Real>(rank: &Rank, x: &Mat<R>) -> Mat<R> {
    if !rank.layout.sp {
        return x.clone();
    }
    let len = x.data.len() / rank.tp.len();
    Mat::of(x.cols, x.data[rank.on(Axis::Tp) * len..][..len].to_vec())
}
