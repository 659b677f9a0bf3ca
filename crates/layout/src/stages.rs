//! Pipeline stages: which layers each chunk of depth holds, which stage holds which chunk, and
//! what a stage owns besides layers. A stage owns depth and nothing else: no matrix is smaller
//! because there are more stages.

mod balance;
mod by_stage;

pub use balance::{climb, even, every, one_layer_moved, weighted, weighted_by};
pub use by_stage::by_stage;

use crate::layout::Layout;
use crate::legality::depth::{boundaries, stages, unpriced_balance};
use crate::request::{Balance, Schedule};
use diag::Finding;
use recipe::kinds::side::OwnerStage;
use recipe::{Family, Layer, Mixer, Place, Recipe, Surface, Tensor};
use std::ops::Range;

/// Something a chunk owns besides its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extra {
    /// The token table (and learned positions).
    Embedding,
    /// A copy of the token table that serves as the tied output head.
    TiedHeadCopy,
    /// A copy of the token table that feeds prediction heads.
    MtpEmbeddingCopy,
    /// Side tables that belong where tokens enter.
    SideEmbeddings,
    /// Side tables that belong where the loss is taken.
    SideEmbeddingsLast,
    /// Rotary tables.
    RopeTables,
    /// The norm behind the last layer.
    FinalNorm,
    /// The output head.
    Head,
    /// The loss.
    Loss,
    /// Prediction heads.
    Mtp,
    /// Balancing losses of the expert layers it holds.
    AuxiliaryLosses,
}

impl Extra {
    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Extra::Embedding => "embedding",
            Extra::TiedHeadCopy => "tied-head copy",
            Extra::MtpEmbeddingCopy => "embedding copy (mtp)",
            Extra::SideEmbeddings | Extra::SideEmbeddingsLast => "side embeddings",
            Extra::RopeTables => "rope tables",
            Extra::FinalNorm => "final norm",
            Extra::Head => "head",
            Extra::Loss => "loss",
            Extra::Mtp => "mtp",
            Extra::AuxiliaryLosses => "auxiliary losses",
        }
    }
}

/// A contiguous run of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// Position along the depth.
    pub index: usize,
    /// Its layers.
    pub layers: Range<usize>,
    /// What it owns besides.
    pub extras: Vec<Extra>,
    /// Parameters, all of it, before any other axis.
    pub params: u64,
}

/// A cut between two layers that is more than a cut between two layers.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSeam {
    /// The layer behind the cut.
    pub before: usize,
    /// Families that touch it: experts or recurrent blocks.
    pub families: Vec<Family>,
    /// What crosses besides the activations, or what to look at.
    pub contract: String,
    /// State elements a sequence carries across, when a recurrence runs up the depth.
    pub state_elements: u64,
}

/// The partition of depth.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// Chunks in the order of depth.
    pub chunks: Vec<Chunk>,
    /// For each stage, the chunks it holds, in the order of depth.
    pub by_stage: Vec<Vec<usize>>,
    /// Cuts to look at.
    pub seams: Vec<StageSeam>,
}

impl StagePlan {
    /// Partitions a recipe's layers. `weights`, one a layer, override the balance when given.
    pub fn new(recipe: &Recipe, layout: &Layout, weights: Option<&[u64]>) -> Result<StagePlan, Finding> {
        let ranges = ranges(recipe, layout, weights)?;
        let params = LayerParams::of(recipe);
        let last = ranges.len() - 1;
        let by_stage = deal(layout);
        // Where first and last chunk share a stage, the last needs no copy of the embedding.
        let shares_embedding = by_stage.iter().any(|held| held.contains(&0) && held.contains(&last));
        let chunk = |(index, layers): (usize, Range<usize>)| {
            let edges = Edges { is_first: index == 0, is_last: index == last, shares_embedding };
            let extras = extras(recipe, &layers, edges);
            let held: u64 = params.layers[layers.clone()].iter().sum();
            Chunk { index, params: held + params.of_extras(&extras), layers, extras }
        };
        let chunks: Vec<Chunk> = ranges.into_iter().enumerate().map(chunk).collect();
        let seams =
            chunks.iter().skip(1).filter_map(|c| StageSeam::at(recipe, c.layers.start, layout.sequence)).collect();
        Ok(StagePlan { chunks, by_stage, seams })
    }

    /// Chunks that own a tensor, once for every copy it has.
    pub fn owners(&self, tensor: &Tensor) -> Vec<usize> {
        let last = self.chunks.len() - 1;
        match tensor.place {
            Place::Layer(layer) => self.chunks.iter().filter(|c| c.layers.contains(&layer)).map(|c| c.index).collect(),
            Place::Embedding => {
                // A tied head copies the token table alone; prediction heads the whole embedding.
                let is_tokens = tensor.surface == Surface::TokenEmbedding;
                let extras = &self.chunks[last].extras;
                let tied = is_tokens && extras.contains(&Extra::TiedHeadCopy);
                let copies = usize::from(tied) + usize::from(extras.contains(&Extra::MtpEmbeddingCopy));
                std::iter::once(0).chain(std::iter::repeat_n(last, copies)).collect()
            }
            Place::Side(OwnerStage::First) => vec![0],
            Place::Side(OwnerStage::Last) => vec![last],
            Place::FinalNorm | Place::Head | Place::Mtp(_) => vec![last],
        }
    }

    /// Layers a stage holds, over all its chunks.
    pub fn layers_of_stage(&self, stage: usize) -> impl Iterator<Item = usize> + '_ {
        self.by_stage[stage].iter().flat_map(|&c| self.chunks[c].layers.clone())
    }

    /// Layer counts of the chunks, in the order of depth.
    pub fn layer_counts(&self) -> Vec<usize> {
        self.chunks.iter().map(|c| c.layers.len()).collect()
    }
}

/// The layers of every chunk, in the order of depth, and nothing else: what a plan starts from.
pub fn ranges(recipe: &Recipe, layout: &Layout, weights: Option<&[u64]>) -> Result<Vec<Range<usize>>, Finding> {
    let (num_chunks, depth) = (layout.chunks() as usize, recipe.depth());
    let starts = match (&layout.boundaries, weights, layout.balance) {
        (Some(given), _, _) => boundaries::starts(given, num_chunks, depth)?,
        _ if num_chunks > depth => return Err(stages::too_deep(num_chunks, depth)),
        (None, Some(weights), _) => lightest(weights, [0, 0], &deal(layout)),
        (None, None, Balance::Params) => {
            let (layers, front, back) = param_weights(recipe);
            lightest(&layers, [front, back], &deal(layout))
        }
        (None, None, Balance::Layers) => even(depth, num_chunks),
        (None, None, balance @ (Balance::Memory | Balance::Time)) => return Err(unpriced_balance::refuse(balance)),
    };
    let ends = starts.iter().skip(1).copied().chain([depth]);
    Ok(starts.iter().copied().zip(ends).map(|(a, b)| a..b).collect())
}

/// The cut whose heaviest stage is lightest, all its chunks together; `ends` weigh on the first and
/// the last chunk. `held` are the chunks of each stage.
pub fn lightest(weights: &[u64], ends: [u64; 2], held: &[Vec<usize>]) -> Vec<usize> {
    let num_chunks = held.iter().flatten().max().map_or(1, |last| last + 1);
    let starts = weighted(weights, ends[0], ends[1], num_chunks);
    by_stage(starts, weights.len(), held, ends, |_, layer| weights[layer])
}

/// Parameters of every layer, of the front and of the back.
pub fn param_weights(recipe: &Recipe) -> (Vec<u64>, u64, u64) {
    let params = LayerParams::of(recipe);
    (params.layers, params.front, params.back)
}

/// Parameters by layer and at the edges.
struct LayerParams {
    layers: Vec<u64>,
    tokens: u64,
    positions: u64,
    /// Side channels of the first and of the last stage.
    side: [u64; 2],
    final_norm: u64,
    head: u64,
    mtp: u64,
    front: u64,
    back: u64,
}

impl LayerParams {
    fn of(recipe: &Recipe) -> LayerParams {
        let mut layers = vec![0; recipe.depth()];
        let (mut tokens, mut positions, mut final_norm, mut head, mut mtp) = (0, 0, 0, 0, 0);
        let mut side = [0; 2];
        for tensor in recipe.tensors() {
            *match tensor.place {
                Place::Layer(layer) => &mut layers[layer],
                Place::Embedding if tensor.surface == Surface::TokenEmbedding => &mut tokens,
                Place::Embedding => &mut positions,
                Place::Side(stage) => &mut side[stage as usize],
                Place::FinalNorm => &mut final_norm,
                Place::Head => &mut head,
                Place::Mtp(_) => &mut mtp,
            } += tensor.elements();
        }
        let head_or_copy = if recipe.tied { tokens } else { head };
        let front = tokens + positions + side[0];
        let back = head_or_copy + final_norm + mtp + side[1];
        LayerParams { layers, tokens, positions, side, final_norm, head, mtp, front, back }
    }

    fn of_extras(&self, extras: &[Extra]) -> u64 {
        extras
            .iter()
            .map(|extra| match extra {
                Extra::Embedding | Extra::MtpEmbeddingCopy => self.tokens + self.positions,
                Extra::TiedHeadCopy => self.tokens,
                Extra::SideEmbeddings => self.side[0],
                Extra::SideEmbeddingsLast => self.side[1],
                Extra::FinalNorm => self.final_norm,
                Extra::Head => self.head,
                Extra::Mtp => self.mtp,
                Extra::RopeTables | Extra::Loss | Extra::AuxiliaryLosses => 0,
            })
            .sum()
    }
}

/// Which chunks each stage holds, in the order of depth.
pub fn deal(layout: &Layout) -> Vec<Vec<usize>> {
    let pp = layout.pp.get() as usize;
    let chunks = layout.chunks() as usize;
    (0..pp)
        .map(|stage| match layout.schedule {
            // Two copies of the model run in opposite directions.
            Schedule::DualPipe if pp > 1 => {
                let mut held = vec![stage, chunks - 1 - stage];
                held.sort_unstable();
                held.dedup();
                held
            }
            // The depth goes down the stages and back up.
            Schedule::DualPipeV if chunks == 2 * pp => vec![stage, chunks - 1 - stage],
            _ => (stage..chunks).step_by(pp).collect(),
        })
        .collect()
}

/// Where a chunk stands in the depth.
#[derive(Clone, Copy)]
struct Edges {
    is_first: bool,
    is_last: bool,
    shares_embedding: bool,
}

fn extras(recipe: &Recipe, layers: &Range<usize>, edges: Edges) -> Vec<Extra> {
    let Edges { is_first, is_last, shares_embedding } = edges;
    let mut extras = Vec::new();
    let mut own = |condition: bool, extra| {
        if condition {
            extras.push(extra);
        }
    };
    let has_mtp = recipe.features.mtp().is_some();
    let has_side = |stage| recipe.features.sides().any(|(_, side)| side.stage == stage);
    let held = |mixer| recipe.layers[layers.clone()].iter().any(|l: &Layer| l.has(mixer));
    own(is_first, Extra::Embedding);
    own(is_first && has_side(OwnerStage::First), Extra::SideEmbeddings);
    let rotates = matches!(recipe.positions, recipe::Positions::Rope(_));
    own(rotates && (held(Mixer::Attention) || (is_last && has_mtp)), Extra::RopeTables);
    own(held(Mixer::Moe), Extra::AuxiliaryLosses);
    own(is_last && !shares_embedding && has_mtp, Extra::MtpEmbeddingCopy);
    own(is_last && has_mtp, Extra::Mtp);
    own(is_last && has_side(OwnerStage::Last), Extra::SideEmbeddingsLast);
    own(is_last, Extra::FinalNorm);
    own(is_last && !recipe.tied, Extra::Head);
    own(is_last && !shares_embedding && recipe.tied, Extra::TiedHeadCopy);
    own(is_last, Extra::Loss);
    extras
}

impl StageSeam {
    /// The cut before `layer`, if it runs through an expert or recurrent region; sequences are of
    /// `tokens`.
    pub fn at(recipe: &Recipe, layer: usize, tokens: u64) -> Option<StageSeam> {
        let mut families: Vec<Family> = [layer - 1, layer]
            .iter()
            .flat_map(|&l| recipe.layers[l].mixers())
            .map(Mixer::family)
            .filter(|f| matches!(f, Family::E | Family::R))
            .collect();
        families.sort();
        families.dedup();
        let carried = depth_carried_state(recipe, layer, tokens);
        if families.is_empty() && carried == 0 {
            return None;
        }
        let mut contract = Vec::new();
        if carried > 0 {
            contract.push(format!("recurrent state crosses with the activations: {carried} elements a sequence"));
        } else if families.contains(&Family::R) {
            contract.push("an R block stands at the cut; its state stays in its stage, whole".to_string());
        }
        if families.contains(&Family::E) {
            contract.push("experts stand at the cut; their auxiliary loss is counted on their own stage".to_string());
        }
        Some(StageSeam { before: layer, families, contract: contract.join("; "), state_elements: carried })
    }
}

/// State that runs up the depth across the cut before `layer`: there is an R block on either side
/// and the recipe says one feeds the next.
pub(crate) fn depth_carried_state(recipe: &Recipe, layer: usize, tokens: u64) -> u64 {
    let Some(recurrent) = &recipe.recurrent else { return 0 };
    let (below, above) = recipe.layers.split_at(layer);
    let crosses = [below, above].iter().all(|part| part.iter().any(|l| l.has(Mixer::Recurrent)));
    if crosses { recurrent.carried_elements(tokens) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Needs, settle};
    use crate::request::LayoutRequest;

    fn plan(name: &str, set: impl Fn(&mut LayoutRequest)) -> StagePlan {
        let recipe = recipe::builtin::find(name).unwrap();
        let mut request = LayoutRequest::default();
        set(&mut request);
        StagePlan::new(&recipe, &settle(&request, Needs::of(&recipe)).unwrap().0, None).unwrap()
    }

    #[test]
    fn nam56r_at_pp2_vpp2_has_four_chunks_of_thirteen() {
        let plan = plan("nam56r", |r| (r.pp, r.vpp) = (Some(2), Some(2)));
        assert_eq!(plan.layer_counts(), [13, 13, 13, 13]);
        assert_eq!(plan.by_stage, [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn state_up_the_depth_crosses_cuts_between_recurrent_layers() {
        let mut recipe = recipe::builtin::find("nam56r").unwrap();
        let each = recipe.recurrent.as_ref().unwrap().state_elements().0;
        recipe.recurrent.as_mut().unwrap().depth_carry = Some(64);
        // R stands at 11, 23, 35 and 47: nothing has run up before the first, or is taken behind the last.
        let cuts = [11, 12, 47, 48].map(|layer| depth_carried_state(&recipe, layer, 4096));
        assert_eq!(cuts, [0, 64 * each, 64 * each, 0]);
    }

    #[test]
    fn dualpipev_folds_the_depth() {
        let plan = plan("llama3-8b", |r| (r.pp, r.schedule) = (Some(4), Some(Schedule::DualPipeV)));
        assert_eq!(plan.by_stage, [vec![0, 7], vec![1, 6], vec![2, 5], vec![3, 4]]);
    }

    #[test]
    fn dualpipe_holds_every_stage_twice() {
        let plan = plan("llama3-8b", |r| (r.pp, r.schedule) = (Some(4), Some(Schedule::DualPipe)));
        assert_eq!(plan.by_stage, [vec![0, 3], vec![1, 2], vec![1, 2], vec![0, 3]]);
    }

    #[test]
    fn edges_count_when_parameters_are_balanced() {
        let plan = plan("llama3-8b", |r| (r.pp, r.balance) = (Some(4), Some(Balance::Params)));
        let counts = plan.layer_counts();
        assert_eq!(counts.iter().sum::<usize>(), 32);
        assert!(counts[0] < counts[1] && counts[3] < counts[2], "{counts:?}");
    }

    #[test]
    fn spare_layers_go_to_the_middle() {
        assert_eq!(plan("deepseek-v3", |r| r.pp = Some(16)).layer_counts()[0], 3);
        assert_eq!(even(61, 16).len(), 16);
    }
}
