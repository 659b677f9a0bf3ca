//! The ownership table: for every logical tensor, who holds which part, and which rule said so.
//!
//! A row's parts are derived, never stored: ask for a rank's part and get index ranges along each
//! dimension. Rows exist only for layouts that legality accepts.

use crate::axis::Axis;
use crate::layout::Layout;
use crate::mesh::{Coordinates, Mesh};
use crate::request::ZeroStage;
use crate::rules::{self, Cut, How, Rule};
use crate::stages::StagePlan;
use diag::{Blame, Finding};
use recipe::{Dim, Place, Recipe, Segment, Surface, Tensor, Unit};
use std::ops::Range;
use std::sync::OnceLock;

/// One row: how one tensor is held across ranks.
#[derive(Clone, Debug)]
pub struct Row {
    /// The logical tensor, with its vocabulary padded where the split asks for it.
    pub tensor: Tensor,
    /// How it is cut; empty is whole on every rank that owns its layer.
    pub cuts: Vec<Cut>,
    /// Cuts its rule names over axes that have one rank here.
    pub uncut: Vec<Cut>,
    /// Which rule decided.
    pub rule: &'static Rule,
    /// Chunks of depth that own it, once for each copy.
    pub chunks: Vec<usize>,
    /// Over how many ranks its training state is shared out, by ZeRO stage.
    pub shards: Shards,
}

/// Whose degree divides a row. It is the axis that the row's rule names, whether or not that axis has
/// several ranks here: a projection is the tensor axis's at tp 1 too, and a router nobody's at any tp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// No axis inside a layer: norms, routers, latents, helpers.
    Replicated,
    /// The tensor axis.
    Tensor,
    /// The expert axes.
    Expert,
}

/// Over how many data-parallel ranks each kind of state is shared out; one is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// The axis replicas lie on: dense or expert data parallel.
    pub axis: Axis,
    /// Weights.
    pub weights: u64,
    /// Gradients.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
}

/// What one rank holds of a tensor: for each dimension, the index ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Ranges by dimension.
    pub dims: Vec<Vec<Range<u64>>>,
}

impl Part {
    /// Sizes of the part's dimensions.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(|ranges| ranges.iter().map(|r| r.end - r.start).sum()).collect()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape().iter().product()
    }
}

impl Row {
    /// How the row reads in a table: `replicated`, `tp: q k v by head`, `ep: expert × etp: channel`;
    /// `whole at tp 1, by head` where its axis has one rank.
    pub fn split(&self) -> String {
        let words: Vec<String> = self.cuts.iter().map(|cut| describe(cut, &self.tensor)).collect();
        match (words.is_empty(), self.uncut.first()) {
            (false, _) => words.join(" × "),
            (true, None) => "replicated".to_string(),
            (true, Some(cut)) => {
                let words = describe(cut, &self.tensor);
                let how = words.split_once(": ").map_or(words.as_str(), |(_, how)| how);
                format!("whole at {} 1, {how}", cut.axis)
            }
        }
    }

    /// Whose degree divides it.
    pub fn owner(&self) -> Owner {
        match (&self.tensor.acting, self.cuts.iter().chain(&self.uncut).any(|cut| cut.axis == Axis::Tp)) {
            (Some(_), _) => Owner::Expert,
            (None, true) => Owner::Tensor,
            (None, false) => Owner::Replicated,
        }
    }

    /// The part held at these coordinates. Every tensor-parallel part has the same shape.
    pub fn part(&self, layout: &Layout, at: &Coordinates) -> Part {
        let dims =
            self.tensor.dims.iter().enumerate().map(|(dim, d)| match self.cuts.iter().find(|cut| cut.dim == dim) {
                Some(cut) => ranges(d, cut, layout.degree(cut.axis).get(), at.on(cut.axis)),
                None => std::iter::once(0..d.len()).collect(),
            });
        Part { dims: dims.collect() }
    }

    /// Which units the rank at these coordinates holds, in words; empty when it holds everything.
    pub fn holds(&self, layout: &Layout, at: &Coordinates) -> String {
        let words: Vec<String> = self.cuts.iter().map(|cut| held_units(cut, &self.tensor, layout, at)).collect();
        words.join(" × ")
    }

    /// Sizes of one rank's part: every rank's are the same.
    pub fn part_shape(&self, layout: &Layout) -> Vec<u64> {
        let dims = self.tensor.dims.iter().enumerate();
        let part = dims.map(|(dim, d)| match self.cuts.iter().find(|cut| cut.dim == dim) {
            Some(cut) => cut_len(d, cut, layout.degree(cut.axis).get()),
            None => d.len(),
        });
        part.collect()
    }

    /// Whether each tensor-parallel rank uses its whole copy for its own heads only, so that its
    /// gradient is a part of the sum whichever tokens the rank sees.
    pub fn serves_own_heads(&self) -> bool {
        let is_whole = !self.cuts.iter().any(|cut| cut.axis == Axis::Tp) && self.tensor.acting.is_none();
        is_whole && self.tensor.serves_heads
    }

    /// Rows of one rank's part that neighbours on the tensor axis hold as well, as a share of the
    /// part's elements, with the number of holders of each.
    pub fn shared_elements(&self, layout: &Layout) -> Option<(u64, u64)> {
        let cut = self.cuts.iter().find(|c| c.axis == Axis::Tp && c.how == How::Units)?;
        let (degree, dim) = (layout.tp.get(), &self.tensor.dims[cut.dim]);
        let holders = dim.0.iter().map(|s| copies_of_unit(s, degree)).max().filter(|c| *c > 1)?;
        let shared = dim.0.iter().filter(|s| copies_of_unit(s, degree) > 1);
        let rows: u64 = shared.map(|s| units_of(s, degree, 0).1 * s.size).sum();
        Some((rows * (self.part_elements(layout) / self.part_shape(layout)[cut.dim]), holders))
    }

    /// Elements of one rank's part.
    pub fn part_elements(&self, layout: &Layout) -> u64 {
        self.part_shape(layout).iter().product()
    }
}

fn describe(cut: &Cut, tensor: &Tensor) -> String {
    let segments = &tensor.dims[cut.dim].0;
    let axis = cut.axis;
    match (&cut.how, segments.as_slice()) {
        (How::Rows, _) => format!("{axis}: even rows, gathered"),
        (How::Units, [one]) => format!("{axis}: by {}", one.unit),
        (How::Units, many) => {
            let names: Vec<_> = many.iter().map(|s| s.name).collect();
            format!("{axis}: packed {}", names.join(" "))
        }
    }
}

/// The units of a cut that one rank holds: `q 28-55, k 4-7, v 4-7`.
fn held_units(cut: &Cut, tensor: &Tensor, layout: &Layout, at: &Coordinates) -> String {
    let (degree, place) = (layout.degree(cut.axis).get(), at.on(cut.axis));
    let dim = &tensor.dims[cut.dim];
    if cut.how == How::Rows {
        let rows = dim.len() / degree;
        return format!("rows {}-{}", place * rows, (place + 1) * rows - 1);
    }
    let span = |segment: &Segment| {
        let (first, count) = units_of(segment, degree, place);
        let name = if segment.name.is_empty() { segment.unit.name() } else { segment.name };
        if count == 1 {
            format!("{name} {first}")
        } else {
            format!("{name} {first}-{}", (first + count).saturating_sub(1))
        }
    };
    dim.0.iter().map(span).collect::<Vec<_>>().join(", ")
}

/// Index ranges of one rank of `degree` along a cut dimension.
fn ranges(dim: &Dim, cut: &Cut, degree: u64, at: u64) -> Vec<Range<u64>> {
    if cut.how == How::Rows {
        let rows = dim.len() / degree;
        return std::iter::once(at * rows..(at + 1) * rows).collect();
    }
    let mut start = 0;
    dim.0
        .iter()
        .map(|segment| {
            let (first, count) = units_of(segment, degree, at);
            let range = start + first * segment.size..start + (first + count) * segment.size;
            start += segment.len();
            range
        })
        .collect()
}

/// Elements of one of `degree` ranks along a cut dimension.
pub(crate) fn cut_len(dim: &Dim, cut: &Cut, degree: u64) -> u64 {
    ranges(dim, cut, degree, 0).iter().map(|range| range.end - range.start).sum()
}

/// First unit and number of units of one rank. Fewer units than ranks are shared by neighbours.
fn units_of(segment: &Segment, degree: u64, at: u64) -> (u64, u64) {
    if segment.count < degree && segment.unit.may_be_shared() {
        (at / (degree / segment.count), 1)
    } else {
        let count = segment.count / degree;
        (at * count, count)
    }
}

/// How many ranks of `degree` hold each unit of a segment.
pub fn copies_of_unit(segment: &Segment, degree: u64) -> u64 {
    if segment.count < degree && segment.unit.may_be_shared() { degree / segment.count } else { 1 }
}

/// Whether a segment can be cut over `degree` ranks without cutting a unit.
pub fn divides(segment: &Segment, degree: u64) -> bool {
    segment.count.is_multiple_of(degree)
        || (segment.unit.may_be_shared() && segment.count > 0 && degree.is_multiple_of(segment.count))
}

/// The table of a recipe under a layout.
#[derive(Clone, Debug)]
pub struct OwnershipTable {
    /// One row a tensor.
    pub rows: Vec<Row>,
    /// The partition of depth.
    pub stages: StagePlan,
    /// Rows by path, once somebody has asked by it.
    by_path: OnceLock<Vec<usize>>,
}

impl OwnershipTable {
    /// Decides every row. Fails when a unit would be cut, which a layout that legality accepts
    /// never does.
    pub fn new(recipe: &Recipe, layout: &Layout) -> Result<OwnershipTable, Vec<Finding>> {
        let stages = StagePlan::new(recipe, layout, None).map_err(|finding| vec![finding])?;
        let mut findings = Vec::new();
        let mut rows = Vec::new();
        for tensor in recipe.tensors() {
            let tensor = pad(tensor, layout);
            let rule = rules::of(tensor.surface);
            let (cuts, uncut): (Vec<Cut>, Vec<Cut>) =
                (rule.decide)(&tensor, layout).into_iter().partition(|cut| layout.degree(cut.axis).splits());
            for cut in &cuts {
                findings.extend(refuse_cut_units(&tensor, cut, rule, layout));
            }
            let chunks = stages.owners(&tensor);
            let shards = shards(&tensor, layout);
            rows.push(Row { tensor, cuts, uncut, rule, chunks, shards });
        }
        if findings.is_empty() { Ok(OwnershipTable { rows, stages, by_path: OnceLock::new() }) } else { Err(findings) }
    }

    /// Rows of the tensors inside a block, such as those of `layers.3.attention`.
    pub fn inside(&self, block: &str) -> impl Iterator<Item = &Row> + Clone {
        let path = |row: &usize| self.rows[*row].tensor.path.as_str();
        let sorted = self.by_path.get_or_init(|| {
            let mut all: Vec<usize> = (0..self.rows.len()).collect();
            all.sort_by(|a, b| path(a).cmp(path(b)));
            all
        });
        // What is before every `block.…`, and then what is one.
        let is_before = |row: &usize| path(row).strip_prefix(block).map_or(path(row) < block, |rest| rest < ".");
        let is_inside = |row: &usize| path(row).strip_prefix(block).is_some_and(|rest| rest.starts_with('.'));
        let behind = &sorted[sorted.partition_point(is_before)..];
        behind[..behind.partition_point(is_inside)].iter().map(|row| &self.rows[*row])
    }

    /// How many times a stage holds a row: once for each of its chunks that owns a copy. Where the
    /// first and last chunk share a stage (one stage, or the fold of DualPipe), so do the copies.
    pub fn copies_on_stage(&self, row: &Row, stage: usize) -> u64 {
        let held = &self.stages.by_stage[stage];
        let copies = row.chunks.iter().filter(|chunk| held.contains(chunk)).count() as u64;
        if row.tensor.place == Place::Embedding && held.contains(&0) { copies.min(1) } else { copies }
    }

    /// Elements of a stage's parts that an axis owns, on one rank and before any ZeRO sharding.
    pub fn owned(&self, layout: &Layout, stage: usize, owner: Owner) -> impl Iterator<Item = (&Row, u64)> {
        let rows = self.rows.iter().filter(move |row| row.owner() == owner);
        rows.map(move |row| (row, row.part_elements(layout) * self.copies_on_stage(row, stage)))
    }

    /// Elements one rank holds, before any ZeRO sharding.
    pub fn rank_params(&self, layout: &Layout, mesh: &Mesh, rank: u64) -> u64 {
        let stage = mesh.coordinates(rank).on(Axis::Pp) as usize;
        self.rows.iter().map(|row| row.part_elements(layout) * self.copies_on_stage(row, stage)).sum()
    }
}

/// Pads token rows so that they divide.
pub(crate) fn pad(mut tensor: Tensor, layout: &Layout) -> Tensor {
    if matches!(tensor.surface, Surface::TokenEmbedding | Surface::OutputHead) {
        for segment in tensor.dims[0].0.iter_mut().filter(|s| s.unit == Unit::Token) {
            segment.count = layout.padded_vocab(segment.count);
        }
    }
    tensor
}

fn refuse_cut_units(tensor: &Tensor, cut: &Cut, rule: &Rule, layout: &Layout) -> Option<Finding> {
    let degree = layout.degree(cut.axis).get();
    let dim = &tensor.dims[cut.dim];
    let refusal = match cut.how {
        How::Rows => (!dim.len().is_multiple_of(degree)).then(|| format!("{} rows", dim.len())),
        How::Units => {
            let cut_segment = dim.0.iter().find(|s| s.unit == Unit::Whole || !divides(s, degree));
            cut_segment.map(|s| format!("{} {} units", s.count, s.unit))
        }
    };
    let what = refusal?;
    let message = format!("cannot split `{}` over {}={degree}: {what} are not a multiple", tensor.path, cut.axis);
    Some(Finding::error(rule.id, Blame::Layout, tensor.path.clone(), message))
}

fn shards(tensor: &Tensor, layout: &Layout) -> Shards {
    let is_expert = tensor.acting.is_some();
    let (axis, degree) = if is_expert { (Axis::Edp, layout.edp.get()) } else { (Axis::Dp, layout.dense_shards()) };
    // What is added once a wrapper has shared out the model is whole on every replica.
    let is_added = matches!(tensor.surface, Surface::AdapterDown | Surface::AdapterUp);
    let from = |stage| if layout.zero >= stage && !is_added { degree } else { 1 };
    Shards { axis, weights: from(ZeroStage::Three), gradients: from(ZeroStage::Two), optimizer: from(ZeroStage::One) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legality::example::request;
    use crate::{Needs, settle};

    #[test]
    fn a_unit_is_never_cut() {
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let (layout, _) = settle(&request("tp=3"), Needs::of(&recipe)).unwrap();
        let refused = OwnershipTable::new(&recipe, &layout).unwrap_err();
        assert_eq!(refused[0].rule, rules::of(Surface::AttentionIn).id);
        let words = "cannot split `layers.0.attention.qkv.weight` over tp=3: 32 head units are not a multiple";
        assert_eq!(refused[0].message, words);
    }

    #[test]
    fn rows_of_a_block_are_those_whose_path_begins_with_its() {
        for name in ["nam56r", "deepseek-v3", "llama3-8b"] {
            let recipe = recipe::builtin::find(name).unwrap();
            let (layout, _) = settle(&request("tp=1"), Needs::of(&recipe)).unwrap();
            let table = OwnershipTable::new(&recipe, &layout).unwrap();
            let paths = table.rows.iter().map(|row| row.tensor.path.clone());
            let blocks = paths.filter_map(|path| path.rmatch_indices('.').nth(1).map(|(at, _)| path[..at].to_string()));
            for block in blocks.chain(["layers.1", "layers", "layers.1.", "", "z"].map(String::from)) {
                let mut inside: Vec<&str> = table.inside(&block).map(|row| row.tensor.path.as_str()).collect();
                let begins = |path: &&str| path.strip_prefix(&block).is_some_and(|rest| rest.starts_with('.'));
                let mut all: Vec<&str> = table.rows.iter().map(|r| r.tensor.path.as_str()).filter(begins).collect();
                inside.sort_unstable();
                all.sort_unstable();
                assert_eq!(inside, all, "{name} {block}");
            }
        }
    }
}
