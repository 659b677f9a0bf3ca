//! Widths that kernels want: of every matrix the part that one rank multiplies, held against a multiple of
//! elements.
//!
//! A row of a factor that is no multiple of 16 bytes cannot be loaded by Hopper's tensor memory unit, and
//! libraries fall back to kernels of an older generation (`cutlass_80_…_align2` of cuBLAS, in profiles of
//! NAM56R at tp 2).

use crate::axis::Axis;
use crate::layout::Layout;
use crate::ownership::{cut_len, divides, pad};
use crate::rules::{self, Cut, How};
use diag::{Finding, list};
use recipe::{Dim, Place, Recipe, Role, Surface, Tensor, Unit};
use units::Degree;

/// Elements of bf16 that make 16 bytes.
pub const BF16: u64 = 8;

/// The largest degree that is tried as a way out.
const MOST_RANKS: u64 = 64;

/// Matrices of one kind with a width on a rank that is no multiple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unaligned {
    /// The first of them.
    pub path: String,
    /// Layers that have one; none outside of layers.
    pub layers: Vec<usize>,
    /// Rows and columns of one rank's part: what it makes of what.
    pub part: [u64; 2],
    /// Which of the two is no multiple.
    pub side: usize,
    /// The axis that cuts that side, and its degrees at which it would be a multiple.
    pub degrees: Option<(Axis, Vec<u64>)>,
    /// Counts of units near its own that would do, by segment.
    pub counts: Vec<Nearest>,
}

/// Counts of runs of units whose parts would be multiples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nearest {
    /// Names of the runs; none where the dimension is one.
    pub segments: Vec<&'static str>,
    /// What it is made of.
    pub unit: Unit,
    /// How many there are.
    pub count: u64,
    /// The next fewer and more that would do.
    pub near: Vec<u64>,
}

impl Unaligned {
    /// The width.
    pub fn width(&self) -> u64 {
        self.part[self.side]
    }

    /// A finding with the degrees and counts at which the width would be a multiple.
    pub fn ways_out(&self, finding: Finding, multiple: u64) -> Finding {
        let mut ways = Vec::new();
        let degrees = self.degrees.as_ref().filter(|(_, degrees)| !degrees.is_empty());
        if let Some((axis, degrees)) = degrees {
            ways.push(format!("{axis} may be {}", list(degrees)));
        }
        ways.extend(self.counts.iter().map(|near| near.words(multiple)));
        let finding = if ways.is_empty() { finding } else { finding.hint(ways.join("; ")) };
        match degrees {
            Some((axis, degrees)) => finding.fix(axis.name(), degrees.clone()),
            None => finding,
        }
    }

    /// The path below its layer, where it has one.
    pub fn name(&self) -> &str {
        self.layers.first().and_then(|layer| self.path.strip_prefix(&format!("layers.{layer}."))).unwrap_or(&self.path)
    }
}

impl Nearest {
    fn words(&self, multiple: u64) -> String {
        let of = if self.segments.is_empty() { String::new() } else { format!(" ({})", self.segments.join(", ")) };
        let counts = self.near.iter().map(u64::to_string).collect::<Vec<_>>().join(" or ");
        match self.unit {
            Unit::Token => format!("--vocab-multiple {multiple} pads the vocabulary"),
            Unit::Whole => format!("{counts} elements would do instead of {}{of}", self.count),
            unit => format!("{counts} {unit} units would do instead of {}{of}", self.count),
        }
    }
}

/// Every matrix whose part on a rank has a width that is no multiple of `multiple` elements, once a kind. Routers
/// are left out: they are small, and nobody cuts them.
pub fn unaligned(recipe: &Recipe, layout: &Layout, multiple: u64) -> Vec<Unaligned> {
    let mut found: Vec<Unaligned> = Vec::new();
    for (tensor, layers) in products(recipe) {
        let tensor = pad(tensor, layout);
        let cuts = (rules::of(tensor.surface).decide)(&tensor, layout);
        let refused = |cut: &Cut| !can_be_cut(&tensor.dims[cut.dim], cut, layout.degree(cut.axis).get());
        if cuts.iter().any(refused) {
            // Another rule says why.
            continue;
        }
        let first = tensor.dims.len() - 2;
        let part = [first, first + 1].map(|dim| part_len(&tensor, &cuts, dim, layout));
        for side in 0..2 {
            if part[side] % multiple != 0 {
                let dim = first + side;
                let at = At { tensor: &tensor, cuts: &cuts, dim, layout, multiple };
                let (degrees, counts) = (at.degrees(), at.nearest());
                let path = tensor.path.clone();
                let one = Unaligned { path, layers: layers.clone(), part, side, degrees, counts };
                match found.iter_mut().find(|other| is_alike(other, &one)) {
                    Some(other) => {
                        other.layers.extend(one.layers);
                        other.layers.sort_unstable();
                    }
                    None => found.push(one),
                }
            }
        }
    }
    found
}

fn is_alike(a: &Unaligned, b: &Unaligned) -> bool {
    (a.name(), a.part, a.side) == (b.name(), b.part, b.side)
}

/// Tensors that are multiplied, each with the layers that have one like it; a tied head is the token table.
fn products(recipe: &Recipe) -> Vec<(Tensor, Vec<usize>)> {
    let kinds = kinds(recipe);
    let mut short = recipe.clone();
    short.layers = kinds.iter().map(|layers| recipe.layers[layers[0]].clone()).collect();
    let is_multiplied = |tensor: &Tensor| match tensor.role {
        // As many rows as streams have weights, which nobody can choose for a kernel.
        _ if tensor.surface == Surface::HyperConnection => false,
        Role::Matrix | Role::Expert | Role::Head => tensor.dims.len() >= 2,
        Role::Embedding => recipe.tied && tensor.surface == Surface::TokenEmbedding,
        _ => false,
    };
    let placed = |mut tensor: Tensor| match tensor.place {
        Place::Layer(kind) => {
            let layers = kinds[kind].clone();
            if let Some(rest) = tensor.path.strip_prefix(&format!("layers.{kind}.")) {
                tensor.path = format!("layers.{}.{rest}", layers[0]);
            }
            (tensor, layers)
        }
        _ => (tensor, Vec::new()),
    };
    short.tensors().into_iter().filter(is_multiplied).map(placed).collect()
}

/// Layers that are alike. With a sparse indexer on some attention layers every layer is one of its own.
fn kinds(recipe: &Recipe) -> Vec<Vec<usize>> {
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    for (index, layer) in recipe.layers.iter().enumerate() {
        let alike = kinds.iter_mut().find(|kind| recipe.layers[kind[0]] == *layer && recipe.features.dsa().is_none());
        match alike {
            Some(kind) => kind.push(index),
            None => kinds.push(vec![index]),
        }
    }
    kinds
}

fn part_len(tensor: &Tensor, cuts: &[Cut], dim: usize, layout: &Layout) -> u64 {
    match cuts.iter().find(|cut| cut.dim == dim) {
        Some(cut) => cut_len(&tensor.dims[dim], cut, layout.degree(cut.axis).get()),
        None => tensor.dims[dim].len(),
    }
}

/// A dimension of a tensor whose part is no multiple.
struct At<'a> {
    tensor: &'a Tensor,
    cuts: &'a [Cut],
    dim: usize,
    layout: &'a Layout,
    multiple: u64,
}

impl At<'_> {
    fn cut(&self) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.dim == self.dim)
    }

    /// Degrees of the axis that cuts it at which the part is a multiple.
    fn degrees(&self) -> Option<(Axis, Vec<u64>)> {
        let cut = self.cut()?;
        let fits = |degree: &u64| {
            let tensor = pad(self.tensor.clone(), &with_degree(self.layout, cut.axis, *degree));
            let dim = &tensor.dims[self.dim];
            can_be_cut(dim, cut, *degree) && cut_len(dim, cut, *degree).is_multiple_of(self.multiple)
        };
        Some((cut.axis, (1..=MOST_RANKS).filter(|degree| degree.is_power_of_two()).filter(fits).collect()))
    }

    /// Counts near those of its runs at which each run's part is a multiple; runs of the same units together.
    fn nearest(&self) -> Vec<Nearest> {
        let degree = self.cut().map_or(1, |cut| self.layout.degree(cut.axis).get());
        let mut steps: Vec<(Unit, u64, Vec<&'static str>, u64)> = Vec::new();
        for segment in &self.tensor.dims[self.dim].0 {
            let one = Dim(vec![segment.clone()]);
            let part = self.cut().map_or(segment.len(), |cut| cut_len(&one, cut, degree));
            if part.is_multiple_of(self.multiple) {
                continue;
            }
            let step = degree * (self.multiple / gcd(self.multiple, segment.size));
            let names = if segment.name.is_empty() { Vec::new() } else { vec![segment.name] };
            match steps.iter_mut().find(|(unit, count, _, _)| (*unit, *count) == (segment.unit, segment.count)) {
                Some((_, _, segments, together)) => {
                    segments.extend(names);
                    *together *= step / gcd(*together, step);
                }
                None => steps.push((segment.unit, segment.count, names, step)),
            }
        }
        let near = |(unit, count, segments, step): (Unit, u64, Vec<&'static str>, u64)| {
            let below = count / step * step;
            let near = [below, below + step].into_iter().filter(|count| *count > 0).collect();
            Nearest { segments, unit, count, near }
        };
        steps.into_iter().map(near).collect()
    }
}

fn can_be_cut(dim: &Dim, cut: &Cut, degree: u64) -> bool {
    match cut.how {
        How::Rows => dim.len().is_multiple_of(degree),
        How::Units => dim.0.iter().all(|segment| divides(segment, degree)),
    }
}

fn with_degree(layout: &Layout, axis: Axis, degree: u64) -> Layout {
    let degree = Degree::new(degree).unwrap_or(Degree::ONE);
    let mut other = layout.clone();
    match axis {
        Axis::Tp => other.tp = degree,
        Axis::Etp => other.etp = degree,
        _ => {}
    }
    other
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legality::example::request;
    use crate::{Needs, OwnershipTable, settle};
    use recipe::Mode;

    /// A part here is the ownership table's part.
    #[test]
    fn widths_are_those_of_the_table() {
        for name in ["nam56r", "llama3-8b", "deepseek-v3", "nemotron-h-8b"] {
            let recipe = recipe::builtin::find(name).unwrap();
            let (layout, _) = settle(&request("tp=2 etp=1"), Needs::of(&recipe)).unwrap();
            let table = OwnershipTable::new(&recipe, &layout).unwrap();
            // Nothing is a multiple of this, so that every matrix is found, on both sides.
            let found = unaligned(&recipe, &layout, 1 << 40);
            assert!(found.len() > 8, "{name}");
            for one in found {
                let row = table.rows.iter().find(|row| row.tensor.path == one.path).unwrap();
                let shape = row.part_shape(&layout);
                assert_eq!(shape[shape.len() - 2..], one.part, "{}", one.path);
            }
        }
    }

    #[test]
    fn ways_out_are_ways_out() {
        let recipe = recipe::builtin::find("nam56r").unwrap();
        let at = |recipe: &Recipe, typed: &str| {
            let (layout, _) = settle(&request(typed), Needs::of(recipe)).unwrap();
            unaligned(recipe, &layout, BF16)
        };
        let found = at(&recipe, "tp=2");
        assert_eq!((found[0].name(), found[0].width(), found[0].layers.len()), ("mamba.in_proj.weight", 4180, 13));
        assert_eq!(found[0].degrees, Some((Axis::Tp, vec![1])));
        let per_head = &found[0].counts[0];
        assert_eq!((per_head.segments.as_slice(), per_head.near.as_slice()), (&["dt", "A", "trap"][..], &[48, 64][..]));
        // The native mixer, as a launch runs it.
        let (native, _) = recipe.in_mode(Mode::NemoNative).unwrap();
        let widths: Vec<u64> = at(&native, "tp=2").iter().map(Unaligned::width).collect();
        assert_eq!(widths, [4124]);
        assert_eq!(at(&native, "tp=1"), []);
    }
}
