//! Makes a recipe small enough to rehearse. The pattern, the ratios and whatever the layout divides stay
//! as they are; widths, depth, sequence and batch become smaller.
//!
//! Legality is not reasoned about here: each size takes the smallest value that [`layout::check`] still
//! accepts with units shared as before, or stays as it is. A size that no rule looks at goes straight to
//! its target.

mod dims;
mod follow;

pub use dims::{Dim, Dims};

use diag::{Finding, Severity};
use layout::legality::SHARED_KV_HEADS;
use layout::{Checked, LayoutRequest, check};
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::{Layer, Mixer, Positions, Recipe};
use std::collections::BTreeSet;

/// Sizes to aim at.
mod aim {
    pub const HIDDEN: u64 = 64;
    pub const VOCAB: u64 = 64;
    pub const SEQUENCE: u64 = 32;
    /// Tokens of each span of the sequence; a convolution's tail must lie within one.
    pub const PART: u64 = 4;
    pub const HEAD: u64 = 8;
    pub const STATE: u64 = 8;
    pub const LATENT: u64 = 16;
    pub const CHUNK: u64 = 8;
    /// Query heads per KV head (or heads per group) above which their ratio is reduced too.
    pub const SHARING: u64 = 8;
    pub const TOP_K: u64 = 4;
    pub const EXPERTS: u64 = 8;
    /// Microbatches, where the pipeline needs no more.
    pub const MICROBATCHES: u64 = 8;
    /// Models up to this many layers keep their depth.
    pub const DEPTH: usize = 16;
    /// Fewest layers of a deeper model.
    pub const LEAST_DEPTH: usize = 4;
}

/// One size that became smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the size, as `--dims` spells it where it can be set.
    pub what: &'static str,
    /// As the recipe and layout have it.
    pub from: u64,
    /// As it is rehearsed.
    pub to: u64,
}

/// A recipe and layout at rehearsal size.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The small recipe, under the name of the large one.
    pub recipe: Recipe,
    /// The request for the same split of the small recipe.
    pub request: LayoutRequest,
    /// Sizes that differ from the recipe's own.
    pub changes: Vec<Change>,
}

/// Shrinks a recipe for a layout that is legal for it; otherwise gives the findings that refuse it.
/// Sizes in `dims` are taken as they are, with their companions ([`follow`]), and may be refused.
pub fn shrink(recipe: &Recipe, request: &LayoutRequest, dims: &Dims) -> Result<Shrunk, Vec<Finding>> {
    let full = check(recipe, request);
    if !full.is_legal() {
        return Err(full.findings);
    }
    let mut small = Shrinker::new(recipe, request, &full);
    small.depth(request.boundaries.is_some());
    small.sequence();
    small.widths();
    small.attention();
    small.mixers();
    small.experts();
    small.sides();
    small.batch();
    for (dim, value) in &dims.0 {
        dim.check(recipe, *value)?;
    }
    follow::follow(&mut small.recipe, recipe, &small.request, dims);
    for (dim, value) in &dims.0 {
        dim.set(&mut small.recipe, recipe, &mut small.request, *value)?;
    }
    let shrunk = small.recipe.validated()?;
    let after = check(&shrunk, &small.request);
    if !after.is_legal() {
        return Err(after.findings);
    }
    let changes = changes(&sizes(recipe, &full), &sizes(&shrunk, &after));
    Ok(Shrunk { recipe: shrunk, request: small.request, changes })
}

struct Shrinker {
    recipe: Recipe,
    request: LayoutRequest,
    full: layout::Layout,
    /// How units are shared out, which the small model must keep ([`sharing`]).
    sharing: BTreeSet<&'static str>,
}

impl Shrinker {
    fn new(recipe: &Recipe, request: &LayoutRequest, full: &Checked) -> Shrinker {
        let layout = full.layout.clone().unwrap_or_else(|| unreachable!("a legal request is settled"));
        let request = LayoutRequest {
            world: Some(layout.world),
            dp: Some(layout.dp.get()),
            global_batch: None,
            micro_batch: Some(layout.micro_batch),
            microbatches: Some(layout.microbatches),
            sequence: Some(layout.sequence),
            ..request.clone()
        };
        Shrinker { recipe: recipe.clone(), request, full: layout, sharing: sharing(full) }
    }

    /// Takes the first of `values` that is legal, or changes nothing.
    fn first<T>(&mut self, values: impl IntoIterator<Item = T>, set: impl Fn(&mut Recipe, &mut LayoutRequest, T)) {
        for value in values {
            let (mut recipe, mut request) = (self.recipe.clone(), self.request.clone());
            set(&mut recipe, &mut request, value);
            let Ok(recipe) = recipe.validated() else { continue };
            let checked = check(&recipe, &request);
            if checked.is_legal() && sharing(&checked) == self.sharing {
                (self.recipe, self.request) = (recipe, request);
                return;
            }
        }
    }

    /// Depth: whole periods of the pattern, as many as the chunks need; of a long pattern without a
    /// period its beginning, twice as long as it takes for every kind of layer to occur. Explicit
    /// boundaries name layers, so with them the depth stays. Where state runs up the depth at least two
    /// R blocks stay.
    fn depth(&mut self, has_boundaries: bool) {
        let (layers, period) = (self.recipe.layers.clone(), self.recipe.pattern.period.len());
        let chunks = self.full.chunks() as usize;
        if layers.len() <= aim::DEPTH || has_boundaries {
            return;
        }
        let least = chunks.max(aim::LEAST_DEPTH);
        let depths: Vec<usize> = match period <= aim::DEPTH {
            true => (1..).map(|n| n * period).skip_while(|d| *d < least).take_while(|d| *d < layers.len()).collect(),
            false => (least.max(2 * seen_all(&layers))..layers.len()).collect(),
        };
        let carries = self.recipe.recurrent.as_ref().is_some_and(|r| r.depth_carry.is_some());
        let recurrent = |depth: usize| layers[..depth].iter().filter(|l| l.has(Mixer::Recurrent)).count();
        let meets = |depth: &usize| !carries || recurrent(*depth) >= recurrent(layers.len()).min(2);
        self.first(depths.into_iter().filter(meets), |recipe, _, depth| {
            recipe.layers.truncate(depth);
            keep_ordinals(recipe);
        });
    }

    /// Sequence: two spans a context rank, each divisible over the tensor axis.
    fn sequence(&mut self) {
        let (tp, cp) = (self.full.tp.get(), self.full.cp.get());
        let step = 2 * cp * tp;
        let least = aim::SEQUENCE.max(2 * cp * aim::PART).div_ceil(step) * step;
        let before = self.full.sequence;
        self.first((least..before).step_by(step as usize).take(8), |recipe, request, sequence| {
            request.sequence = Some(sequence);
            recipe.sequence = recipe.sequence.min(sequence);
            let share = |n: u64| (n * sequence / before).max(1);
            if let Some(window) = recipe.attention.as_mut().and_then(|a| a.window.as_mut()) {
                window.tokens = share(window.tokens);
            }
            if let Some(dsa) = &mut recipe.features.dsa {
                dsa.value.top_k = share(dsa.value.top_k);
            }
            // Borders at which state runs up the depth must fall inside every span.
            if let Some(every) = recipe.recurrent.as_mut().and_then(|r| r.depth_carry.as_mut()) {
                let fits = |d: &u64| *d <= aim::PART.min(*every);
                *every = units::divisors(sequence / (2 * cp)).into_iter().filter(fits).max().unwrap_or(1);
            }
            if let Positions::Learned { count } = &mut recipe.positions {
                *count = (*count).min(sequence);
            }
        });
        // A vocabulary that tp pads stays one that needs padding.
        let is_padded = self.full.padded_vocab(self.recipe.vocab) != self.recipe.vocab;
        let vocab = if is_padded { aim::VOCAB - 1 } else { aim::VOCAB.div_ceil(tp) * tp };
        let vocab = vocab.min(self.recipe.vocab);
        self.first([vocab], |recipe, request, vocab| {
            (recipe.vocab, request.vocab_multiple) = (vocab, Some(1));
        });
    }

    /// The residual stream, and feed-forward widths at their ratio to it.
    fn widths(&mut self) {
        let before = self.recipe.hidden;
        self.first(up_from(aim::HIDDEN, before), |recipe, _, hidden| recipe.hidden = hidden);
        let hidden = self.recipe.hidden;
        let share = |width: u64| (width * hidden / before).max(8).next_multiple_of(8).min(width);
        if let Some(width) = self.recipe.mlp.as_ref().map(|m| m.ffn) {
            self.first(up_from(share(width), width), |recipe, _, ffn| {
                recipe.mlp.iter_mut().for_each(|m| m.ffn = ffn);
            });
        }
        let Some(moe) = self.recipe.moe.clone() else { return };
        self.first(up_from(share(moe.ffn), moe.ffn), |recipe, _, ffn| {
            recipe.moe.iter_mut().for_each(|m| m.ffn = ffn);
        });
        if let Some(shared) = &moe.shared {
            self.first(up_from(share(shared.ffn), shared.ffn), |recipe, _, ffn| {
                recipe.moe.iter_mut().filter_map(|m| m.shared.as_mut()).for_each(|s| s.ffn = ffn);
            });
        }
        if let Some(latent) = moe.latent {
            self.first(up_from(share(latent), latent), |recipe, _, width| {
                recipe.moe.iter_mut().for_each(|m| m.latent = Some(width));
            });
        }
    }

    fn attention(&mut self) {
        let Some(own) = self.recipe.attention.clone() else { return };
        match own.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => {
                self.first(counts(kv_heads, own.heads / kv_heads), |recipe, _, (kv, sharing)| {
                    let Some(attention) = &mut recipe.attention else { return };
                    attention.heads = kv * sharing;
                    attention.kind = AttentionKind::Gqa { kv_heads: kv, head_dim: head_dim.min(aim::HEAD) };
                });
            }
            AttentionKind::Mla(_) => self.first(counts(own.heads, 1), |recipe, _, (heads, _)| {
                recipe.attention.iter_mut().for_each(|a| a.heads = heads);
            }),
        }
        self.first([()], |recipe, _, ()| {
            let own = recipe.attention.as_mut().and_then(|a| match &mut a.kind {
                AttentionKind::Mla(mla) => Some(mla),
                AttentionKind::Gqa { .. } => None,
            });
            for mla in own.into_iter().chain(recipe.features.mla.as_mut().map(|s| &mut s.value)) {
                mla.q_rank = mla.q_rank.map(|r| r.min(aim::LATENT));
                mla.kv_rank = mla.kv_rank.min(aim::LATENT);
                mla.qk_dim = mla.qk_dim.min(aim::HEAD);
                mla.rope_dim = mla.rope_dim.min(aim::HEAD / 2);
                mla.v_dim = mla.v_dim.min(aim::HEAD);
            }
            if let Some(dsa) = &mut recipe.features.dsa {
                dsa.value.heads = dsa.value.heads.min(2);
                dsa.value.head_dim = dsa.value.head_dim.min(aim::HEAD);
            }
        });
    }

    fn mixers(&mut self) {
        match self.recipe.mamba.clone() {
            Some(Mamba::One(m)) => self.first(up_from(aim::HIDDEN, m.inner), |recipe, _, inner| {
                let small = recipe::kinds::mamba1::Mamba1 {
                    inner,
                    state: m.state.min(aim::STATE),
                    dt_rank: m.dt_rank.min(aim::HEAD),
                    ..m.clone()
                };
                recipe.mamba = Some(Mamba::One(small));
            }),
            Some(Mamba::Two(m)) => self.first(counts(m.groups, m.heads / m.groups), |recipe, _, (groups, sharing)| {
                let small = recipe::kinds::mamba2::Mamba2 {
                    heads: groups * sharing,
                    groups,
                    head_dim: m.head_dim.min(aim::HEAD),
                    state: m.state.min(aim::STATE),
                    chunk: m.chunk.min(aim::CHUNK),
                    ..m.clone()
                };
                recipe.mamba = Some(Mamba::Two(small));
            }),
            Some(Mamba::Three(m)) => {
                self.first(counts(m.groups, m.heads / m.groups), |recipe, _, (groups, sharing)| {
                    let state = m.state.min(aim::STATE);
                    let small = recipe::kinds::mamba3::Mamba3 {
                        heads: groups * sharing,
                        groups,
                        head_dim: m.head_dim.min(aim::HEAD),
                        state,
                        angles: (m.angles * state / m.state).max(1),
                        chunk: m.chunk.min(aim::CHUNK),
                        ..m.clone()
                    };
                    recipe.mamba = Some(Mamba::Three(small));
                });
            }
            None => {}
        }
        if let Some(m) = self.recipe.recurrent.clone() {
            self.first(counts(m.qk_heads, m.heads / m.qk_heads), |recipe, _, (qk_heads, sharing)| {
                let (key_dim, value_dim) = (m.key_dim.min(aim::HEAD), m.value_dim.min(aim::HEAD));
                let heads = qk_heads * sharing;
                recipe.recurrent =
                    Some(recipe::kinds::m2rnn::M2rnn { heads, qk_heads, key_dim, value_dim, ..m.clone() });
            });
        }
        if let Some(g) = self.recipe.gated_delta.clone() {
            self.first(counts(g.key_heads, g.value_heads / g.key_heads), |recipe, _, (key_heads, sharing)| {
                let (key_dim, value_dim) = (g.key_dim.min(aim::HEAD), g.value_dim.min(aim::HEAD));
                let value_heads = key_heads * sharing;
                recipe.gated_delta = Some(recipe::kinds::gated_delta::GatedDelta {
                    key_heads,
                    value_heads,
                    key_dim,
                    value_dim,
                    ..g.clone()
                });
            });
        }
    }

    /// Fewer experts, but at least `top_k`, and several a rank where there were several.
    fn experts(&mut self) {
        let Some(moe) = self.recipe.moe.clone() else { return };
        let top_k = moe.top_k.min(aim::TOP_K);
        let least = (2 * top_k).max(aim::EXPERTS).max(2 * self.full.ep.get()).min(moe.experts);
        let counts = units::divisors(moe.experts).into_iter().filter(|e| *e >= least);
        self.first(counts, |recipe, _, experts| {
            recipe.moe.iter_mut().for_each(|m| (m.experts, m.top_k) = (experts, top_k));
        });
    }

    /// Fewer rows in side tables, but at least one for each lookup.
    fn sides(&mut self) {
        self.first([()], |recipe, _, ()| {
            let sides = [&mut recipe.features.ngram_hash, &mut recipe.features.structure];
            for side in sides.into_iter().flatten().map(|switch| &mut switch.value) {
                let rows = aim::VOCAB.max(2 * side.lookups());
                if side.rows > rows {
                    side.rows = rows;
                    side.sizes.clear();
                }
                side.dim = side.dim.min(aim::HEAD);
            }
        });
    }

    /// Enough microbatches to fill and drain the pipeline once, each of at most two sequences.
    fn batch(&mut self) {
        let (pp, before) = (self.full.pp.get(), self.full.microbatches);
        self.first([self.full.micro_batch.min(2)], |_, request, mbs| request.micro_batch = Some(mbs));
        let least = before.min((2 * pp).max(aim::MICROBATCHES));
        self.first(least..before, |_, request, count| request.microbatches = Some(count));
    }
}

/// For every tensor with fewer units than ranks, how its units are shared.
fn sharing(checked: &Checked) -> BTreeSet<&'static str> {
    let is_kept = |f: &&Finding| f.severity == Severity::Note && SHARED_KV_HEADS.found(f);
    let mut all: BTreeSet<&'static str> = checked.findings.iter().filter(is_kept).map(|f| f.rule).collect();
    if let (Some(Mamba::Two(m)), Some(layout)) = (&checked.recipe.mamba, &checked.layout)
        && !(m.groups / layout.tp.get()).is_multiple_of(layout.cp.get())
    {
        all.insert("groups of the scan are copied over cp");
    }
    all
}

/// The first layers of a recipe, or as many as its pattern goes on to. What became of a letter, such as E
/// without experts, becomes of it everywhere.
fn layers(full: &Recipe, depth: usize) -> Vec<Layer> {
    let period = full.pattern.period.len();
    let is_whole = full.layers.len() >= period;
    let more = full.pattern.tile(depth).into_iter().enumerate().skip(full.layers.len());
    let more = more.map(|(i, layer)| if is_whole { full.layers[i % period].clone() } else { layer });
    full.layers.iter().take(depth).cloned().chain(more).collect()
}

/// Layers from the first until every kind of layer has occurred.
fn seen_all(layers: &[Layer]) -> usize {
    let first = |i: usize| layers[..i].iter().all(|l| *l != layers[i]);
    (0..layers.len()).filter(|i| first(*i)).max().map_or(0, |i| i + 1)
}

/// Removes attention layers that no longer exist from lists that name layers.
fn keep_ordinals(recipe: &mut Recipe) {
    let count = recipe.count(Mixer::Attention);
    if let Some(window) = recipe.attention.as_mut().and_then(|a| a.window.as_mut()) {
        window.full_layers.retain(|o| *o < count);
    }
    if let Some(dsa) = &mut recipe.features.dsa {
        let named = !dsa.value.layers.is_empty();
        dsa.value.layers.retain(|o| *o < count);
        // An empty list means all layers, so one name is kept.
        if named && dsa.value.layers.is_empty() {
            dsa.value.layers.extend(count.checked_sub(1));
        }
    }
}

/// Widths from a target up to the original, in steps that keep vectors whole.
fn up_from(target: u64, before: u64) -> impl Iterator<Item = u64> {
    (target..before).step_by(8).take(64)
}

/// Candidates for (shared units, units that share one), smallest first: divisors of the originals, at
/// least two where there were two. The ratio stays unless it is far larger than needed.
fn counts(shared: u64, sharing: u64) -> Vec<(u64, u64)> {
    let least = |n: u64| units::divisors(n).into_iter().filter(move |d| *d >= n.min(2)).collect::<Vec<_>>();
    let sharings = if sharing > aim::SHARING { least(sharing) } else { vec![sharing] };
    let mut all: Vec<(u64, u64)> =
        least(shared).into_iter().flat_map(|units| sharings.iter().map(move |s| (units, *s))).collect();
    all.sort_by_key(|(units, sharing)| units * sharing);
    all
}

/// Every size that a change is reported of.
fn sizes(recipe: &Recipe, checked: &Checked) -> Vec<(&'static str, u64)> {
    let mut all: Vec<(&'static str, u64)> =
        Dim::ALL.iter().filter_map(|(name, dim)| dim.get(recipe, checked).map(|value| (*name, value))).collect();
    let Some(layout) = &checked.layout else { return all };
    all.push(("mbs", layout.micro_batch));
    all.push(("microbatches", layout.microbatches));
    all
}

fn changes(before: &[(&'static str, u64)], after: &[(&'static str, u64)]) -> Vec<Change> {
    let pairs = before.iter().filter_map(|(what, from)| Some((what, from, after.iter().find(|(w, _)| w == what)?.1)));
    pairs.filter(|(_, from, to)| *from != to).map(|(what, from, to)| Change { what, from: *from, to }).collect()
}

#[cfg(test)]
mod tests;
