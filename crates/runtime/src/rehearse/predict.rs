//! What a rehearsal will take of this machine, before any of it is allocated. Shapes and counts alone decide, as
//! sums over the recipe's tensors: the ledger's replay is exact, and takes longer than the run it is about
//! where a recipe is far too large. Figures are floats, which do not overflow.

use super::Ranks;
use layout::{Layout, Schedule, ZeroStage};
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Optimizer, Place, Recipe, Role, Tensor};
use work::Work;

/// Sums over a recipe's tensors.
#[derive(Default)]
struct Sums {
    /// Numbers of all tensors outside expert banks.
    dense: f64,
    /// Numbers of expert banks.
    experts: f64,
    /// Numbers that Muon steps, each times the shorter side of its matrix.
    orthogonalised: f64,
    /// Products of a token in one forward pass.
    products: f64,
    /// Numbers a token has on the way into matrices of the layers, which tensor ranks all have, and out of them.
    into: f64,
    out: f64,
    /// Numbers of the widest tensor.
    widest: f64,
    /// Blocks that run one after another.
    blocks: f64,
}

impl Sums {
    fn of(recipe: &Recipe) -> Sums {
        let mut sums = Sums::default();
        let (small, counts) = one_of_each(recipe);
        for tensor in small.tensors() {
            let times = if let Place::Layer(at) = tensor.place { counts[at] } else { 1.0 };
            sums.add(recipe, &tensor, times);
        }
        let suffix = recipe.features.mtp().map_or(0, |mtp| mtp.depth) as f64;
        let blocks = |layer: &recipe::Layer| layer.mixers().count() as f64;
        sums.blocks = recipe.layers.iter().map(blocks).sum();
        sums.blocks += recipe.features.mtp().map_or(0.0, |mtp| suffix * blocks(&mtp.layer));
        // Every depth of prediction has the head once more.
        let head = (recipe.vocab as f64) * (recipe.hidden as f64);
        sums.products += head * (suffix + if recipe.tied { 1.0 } else { 0.0 });
        sums
    }

    /// Adds a tensor that so many layers have.
    fn add(&mut self, recipe: &Recipe, tensor: &Tensor, layers: f64) {
        let sides: Vec<f64> = tensor.dims.iter().map(|dim| dim.len() as f64).collect();
        let each: f64 = sides.iter().product();
        let elements = each * layers;
        match tensor.acting {
            Some(_) => self.experts += elements,
            None => self.dense += elements,
        }
        self.widest = self.widest.max(each);
        let (Some(&cols), Some(&rows)) = (sides.last(), sides.iter().rev().nth(1)) else { return };
        if tensor.optimizer == Optimizer::Muon {
            self.orthogonalised += elements * rows.min(cols);
        }
        if !matches!(tensor.role, Role::Matrix | Role::Expert | Role::Router | Role::Head) {
            return;
        }
        // Of a bank, a token meets as many matrices as it is sent to.
        let times = layers * tensor.acting.map_or(1.0, |(acting, _)| acting as f64);
        self.products += times * rows * cols;
        if matches!(tensor.place, Place::Layer(_) | Place::Mtp(_)) {
            self.into += times * cols.min(recipe.hidden as f64 * 2.0);
            self.out += times * (rows + (cols - recipe.hidden as f64).max(0.0));
        }
    }

    fn all(&self) -> f64 {
        self.dense + self.experts
    }
}

/// A recipe with every kind of layer once, and how many layers are like each. Where a sparse indexer stands on
/// some attention layers, it is taken to stand on all.
fn one_of_each(recipe: &Recipe) -> (Recipe, Vec<f64>) {
    let mut kinds: Vec<(&recipe::Layer, f64)> = Vec::new();
    for layer in &recipe.layers {
        match kinds.iter_mut().find(|(kind, _)| *kind == layer) {
            Some((_, count)) => *count += 1.0,
            None => kinds.push((layer, 1.0)),
        }
    }
    let layers = kinds.iter().map(|(layer, _)| (*layer).clone()).collect();
    let mut small = Recipe { layers, ..recipe.clone() };
    small.features.dsa.iter_mut().for_each(|dsa| dsa.value.layers.clear());
    (small, kinds.into_iter().map(|(_, count)| count).collect())
}

/// Numbers of recurrent state of all blocks, and the share of them that is kept of every token: states are
/// kept at the borders of chunks.
fn states(recipe: &Recipe) -> (f64, f64) {
    let count = |mixer| recipe.count_with_suffix(mixer) as f64;
    let of = |n: &[u64]| n.iter().map(|n| *n as f64).product::<f64>();
    let mut all = Vec::new();
    match &recipe.mamba {
        Some(Mamba::One(m)) => all.push((count(Mixer::Mamba) * of(&[m.inner, m.state]), 64.0)),
        Some(Mamba::Two(m)) => all.push((count(Mixer::Mamba) * of(&[m.heads, m.head_dim, m.state]), m.chunk as f64)),
        Some(Mamba::Three(m)) => all.push((count(Mixer::Mamba) * of(&[m.heads, m.head_dim, m.state]), m.chunk as f64)),
        None => {}
    }
    if let Some(m) = &recipe.recurrent {
        // A step multiplies the state by a matrix.
        let chunk = m.depth_carry.unwrap_or(64) as f64;
        all.push((count(Mixer::Recurrent) * of(&[m.heads, m.key_dim, m.value_dim]), chunk));
    }
    if let Some(g) = &recipe.gated_delta {
        all.push((count(Mixer::GatedDelta) * of(&[g.value_heads, g.key_dim, g.value_dim]), 64.0));
    }
    (all.iter().map(|(n, _)| n).sum(), all.iter().map(|(n, chunk)| n / chunk).sum())
}

/// Bytes that all ranks of a layout hold at the highest point of a step, together.
fn held(recipe: &Recipe, sums: &Sums, layout: &Layout, bytes_each: f64) -> f64 {
    let degree = |degree: units::Degree| degree.get() as f64;
    let copies = if layout.schedule == Schedule::DualPipe && layout.pp.splits() { 2.0 } else { 1.0 };
    let replicas = degree(layout.dp) * degree(layout.cp) * copies;
    let whole = sums.dense * replicas + sums.experts * degree(layout.edp) * copies;
    let shared = |from: ZeroStage| if layout.zero >= from { sums.all() * copies } else { whole };
    let state = shared(ZeroStage::Three) + whole + shared(ZeroStage::One) + 2.0 * shared(ZeroStage::One);
    let tokens = layout.micro_batch as f64 * layout.sequence as f64;
    let (pp, tp) = (degree(layout.pp), degree(layout.tp));
    let in_flight = match layout.schedule {
        Schedule::GPipe => layout.microbatches as f64,
        _ => (layout.microbatches as f64).min(if layout.vpp.splits() { pp } else { (pp + 1.0) / 2.0 * copies }),
    };
    let heads = 1.0 + recipe.features.mtp().map_or(0, |mtp| mtp.depth) as f64;
    let logits = recipe.vocab as f64 + recipe.hidden as f64 * tp;
    let chosen = recipe
        .features
        .dsa()
        .map_or(0.0, |dsa| recipe.count(Mixer::Attention) as f64 * dsa.top_k.min(layout.sequence) as f64 * tp);
    let block_inputs = sums.blocks * recipe.hidden as f64;
    let (_, kept_states) = states(recipe);
    let kept = sums.into * tp + sums.out + block_inputs + kept_states + chosen;
    // Logits once more as gradients, and the widest block's temporaries.
    let passing = heads.min(1.0) * 2.0 * logits + 3.0 * kept / sums.blocks.max(1.0);
    let activations = tokens * degree(layout.dp) * (kept * in_flight + heads * logits + passing * pp);
    bytes_each * (state + activations)
}

/// Operations of one step, all ranks together. An operation takes a core about a nanosecond.
fn operations(recipe: &Recipe, sums: &Sums, layout: &Layout) -> f64 {
    let tokens = layout.global_batch as f64 * layout.sequence as f64;
    let heads = recipe.attention().map_or(0.0, |a| {
        let width = match a.kind {
            recipe::kinds::attention::AttentionKind::Gqa { head_dim, .. } => head_dim,
            recipe::kinds::attention::AttentionKind::Mla(mla) => mla.qk_dim + mla.rope_dim + mla.v_dim,
        };
        (a.heads as f64) * (width as f64) * recipe.count_with_suffix(Mixer::Attention) as f64
    });
    let indexed = recipe
        .features
        .dsa()
        .map_or(0.0, |dsa| (dsa.heads as f64) * (dsa.head_dim as f64) * recipe.count(Mixer::Attention) as f64);
    let (states, _) = states(recipe);
    let scores = layout.sequence as f64 / 2.0 * (heads + indexed);
    let a_token = PRODUCT * 6.0 * sums.products + SCORE * 12.0 * scores + STATE * states;
    let calls = sums.blocks * layout.microbatches as f64 * (layout.world / layout.pp.get()) as f64;
    let copies = (layout.dp.get() * layout.cp.get()) as f64;
    // Five iterations of three products.
    let update = UPDATE * sums.all() * copies + PRODUCT * 30.0 * sums.orthogonalised * copies;
    tokens * (a_token + ELEMENT * (sums.into + sums.out)) + CALL * calls + update
}

/// Operations of a multiplication or an addition inside a matrix product, of a score, of a number of
/// recurrent state and token, of a number that is activated or normed, of a number that an optimizer steps and
/// of a call of a block. Set by hand, all together, so that sixteen runs of three steps in f64 come within a
/// factor of two of the seconds they used (November 2026, two shared x86 cores); none was timed by itself.
const PRODUCT: f64 = 0.025;
const SCORE: f64 = 0.12;
const STATE: f64 = 8.0;
const ELEMENT: f64 = 5.0;
const UPDATE: f64 = 12.0;
const CALL: f64 = 10_000.0;

/// What the whole rehearsal takes: the run on one rank, then all ranks beside its results.
pub(super) fn work(recipe: &Recipe, layout: &Layout, one: &Layout, how: How) -> Work {
    let sums = Sums::of(recipe);
    let bytes_each = how.bytes_each as f64;
    // Gradients and weights of the first run are kept to compare with, as f64, and of whoever is compared.
    let results = 16.0 * sums.all();
    let copied = |layout: &Layout| {
        let replicas = (layout.dp.get() * layout.cp.get()) as f64;
        bytes_each * (sums.dense * replicas + sums.experts * layout.edp.get() as f64) + 8.0 * sums.widest
    };
    let batch = layout.global_batch as f64 * (layout.sequence as f64 + 1.0) * 4.0;
    let alone = held(recipe, &sums, one, bytes_each) + 2.0 * copied(one) + batch;
    let together = held(recipe, &sums, layout, bytes_each) + copied(layout) + batch * layout.world as f64;
    let bytes = match how.ranks {
        Ranks::Threads => results + alone.max(together),
        // Every process runs the comparison for itself.
        Ranks::Mpi => (results + alone) * layout.world as f64 + together,
    };
    // Gradients are looked at once before the first step.
    let steps = how.steps as f64 + 1.0;
    let runs = if how.ranks == Ranks::Mpi { layout.world as f64 } else { 1.0 };
    let operations = steps * (operations(recipe, &sums, one) * runs + operations(recipe, &sums, layout));
    let work = Work { bytes: (ALLOCATED * bytes) as u64, operations: operations as u64 };
    work + Work { bytes: 0, operations: (START * sums.all() * (1.0 + layout.world as f64)) as u64 }
}

/// What the system's allocator, names and tables add: chosen by eye over the same runs' resident sizes.
const ALLOCATED: f64 = 1.2;

/// Operations of a weight that is drawn, compared and laid out.
const START: f64 = 25.0;

/// What a rehearsal's work depends on besides recipe and layouts.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub bytes_each: u64,
    pub steps: u64,
    pub ranks: Ranks,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shrink::{Dims, shrink};
    use layout::activations::Routing;
    use layout::{Engine, LayoutRequest, OwnershipTable, check};
    use recipe::builtin;

    /// Bytes of all ranks at the highest point of a step, by the ledger's replay.
    fn replayed(recipe: &Recipe, layout: &Layout) -> f64 {
        let table = OwnershipTable::new(recipe, layout).unwrap();
        let of = |rank: u64| {
            let phases = ledger::shardwright::phases(recipe, layout, &table, rank, 8, Routing::Balanced).unwrap();
            phases.iter().map(|phase| phase.peak_bytes()).max().unwrap_or(0) as f64
        };
        (0..layout.world).map(of).sum()
    }

    /// A refusal is about twice as early as it had to be at the most, and never twice too late.
    #[test]
    fn sums_come_near_the_replay() {
        let some = || LayoutRequest { engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
        let requests = [
            some(),
            LayoutRequest { tp: Some(2), cp: Some(2), ..some() },
            LayoutRequest { dp: Some(4), zero: Some(ZeroStage::Three), ..some() },
            LayoutRequest { dp: Some(2), pp: Some(2), schedule: Some(Schedule::GPipe), ..some() },
            LayoutRequest { pp: Some(4), tp: Some(2), ..some() },
            LayoutRequest { pp: Some(2), schedule: Some(Schedule::DualPipe), ..some() },
            LayoutRequest { ep: Some(2), pp: Some(2), vpp: Some(2), ..some() },
        ];
        let sizes = ["", "hidden=256", "seq=512", "vocab=4096", "state=64,seq=256"];
        let (mut judged, mut wrong) = (0, Vec::new());
        for (name, _) in builtin::RECIPES {
            let recipe = builtin::find(name).unwrap();
            for (at, request) in requests.iter().enumerate() {
                let dims = Dims::parse(sizes[(at + name.len()) % sizes.len()]).unwrap();
                let Ok(small) = shrink(&recipe, request, &dims) else { continue };
                let Some(layout) = check(&small.recipe, &small.request).layout else { continue };
                let (predicted, real) =
                    (held(&small.recipe, &Sums::of(&small.recipe), &layout, 8.0), replayed(&small.recipe, &layout));
                judged += 1;
                if !(0.5..2.0).contains(&(predicted / real)) {
                    wrong.push(format!("{name} {request:?} {dims:?}: {:.2}", predicted / real));
                }
            }
        }
        assert!(judged > 40, "{judged}");
        assert!(wrong.is_empty(), "{} of {judged}: {wrong:#?}", wrong.len());
    }
}
