//! Boxes of a tensor in logical coordinates. What any rank holds under any layout is a few boxes, so
//! that two layouts exchange state by intersecting theirs.

use layout::ownership::Part;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One index range a dimension, as `[first, end]` in files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<[u64; 2]>", into = "Vec<[u64; 2]>")]
pub struct Region(pub Vec<Range<u64>>);

impl From<Vec<[u64; 2]>> for Region {
    fn from(dims: Vec<[u64; 2]>) -> Region {
        Region(dims.into_iter().map(|[start, end]| start..end).collect())
    }
}

impl From<Region> for Vec<[u64; 2]> {
    fn from(region: Region) -> Vec<[u64; 2]> {
        region.0.into_iter().map(|r| [r.start, r.end]).collect()
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let dims: Vec<String> = self.0.iter().map(|r| format!("{}:{}", r.start, r.end)).collect();
        write!(f, "[{}]", dims.join(","))
    }
}

impl Region {
    /// All of a shape.
    pub fn whole(shape: &[u64]) -> Region {
        Region(shape.iter().map(|n| 0..*n).collect())
    }

    /// Sizes along the dimensions.
    pub fn shape(&self) -> Vec<u64> {
        self.0.iter().map(|r| r.end - r.start).collect()
    }

    /// Number of elements; `None` when a range is inside out or the product overflows.
    pub fn checked_elements(&self) -> Option<u64> {
        self.0.iter().try_fold(1u64, |n, r| n.checked_mul(r.end.checked_sub(r.start)?))
    }

    /// Number of elements of a region that lies inside a real tensor.
    pub fn elements(&self) -> u64 {
        self.shape().iter().product()
    }

    /// The intersection of two regions of one tensor.
    pub fn meet(&self, other: &Region) -> Option<Region> {
        let dims = self.0.iter().zip(&other.0).map(|(a, b)| a.start.max(b.start)..a.end.min(b.end));
        let dims: Vec<Range<u64>> = dims.collect();
        dims.iter().all(|r| r.start < r.end).then_some(Region(dims))
    }

    /// Whether a part contains it.
    pub fn is_in(&self, part: &Part) -> bool {
        self.0.iter().zip(&part.dims).all(|(r, held)| held.iter().any(|h| h.start <= r.start && r.end <= h.end))
    }

    /// A run of its elements, in the order they are stored, as boxes.
    pub fn run(&self, run: Range<u64>) -> Vec<Region> {
        let mut out = Vec::new();
        cut(&self.0, run, &mut Vec::new(), &mut out);
        out
    }

    /// Halves it along its longest dimension, again and again, into boxes of at most `most` elements. A
    /// layout that cuts rows or columns in halves then reads few boxes that it needs only in part.
    pub fn halves(&self, most: u64) -> Vec<Region> {
        let longest = (0..self.0.len()).rev().max_by_key(|d| self.0[*d].end - self.0[*d].start);
        let Some(dim) = longest.filter(|_| self.elements() > most.max(1)) else { return vec![self.clone()] };
        let (start, end) = (self.0[dim].start, self.0[dim].end);
        let middle = start + (end - start).div_ceil(2);
        let half = |range: Range<u64>| {
            let mut half = self.clone();
            half.0[dim] = range;
            half.halves(most)
        };
        [half(start..middle), half(middle..end)].concat()
    }

    /// For every run of `inner` along its last dimension, where it starts among this region's elements
    /// in stored order.
    pub fn rows(&self, inner: &Region) -> Vec<u64> {
        let mut starts = vec![0];
        for (d, (outer, inner)) in self.0.iter().zip(&inner.0).enumerate() {
            let is_last = d + 1 == self.0.len();
            let end = if is_last { inner.start + 1 } else { inner.end };
            let along = |s: &u64| {
                let base = s * (outer.end - outer.start);
                (inner.start..end).map(move |i| base + i - outer.start)
            };
            starts = starts.iter().flat_map(along).collect();
        }
        starts
    }

    /// The same starts one by one, without a list of them.
    pub fn each_row<'r>(&'r self, inner: &'r Region) -> impl Iterator<Item = u64> + 'r {
        let leading = inner.0.len().saturating_sub(1);
        let count: u64 = inner.0[..leading].iter().map(|r| r.end - r.start).product();
        (0..count).map(move |row| {
            let (mut rest, mut start, mut stride) = (row, 0, 1);
            for (d, (outer, inner)) in self.0.iter().zip(&inner.0).enumerate().rev() {
                let mut index = inner.start - outer.start;
                if d < leading {
                    index += rest % (inner.end - inner.start);
                    rest /= inner.end - inner.start;
                }
                start += index * stride;
                stride *= outer.end - outer.start;
            }
            start
        })
    }

    /// Elements of one of its rows.
    pub fn row_len(&self) -> u64 {
        self.0.last().map_or(1, |r| r.end - r.start)
    }
}

/// Adds the boxes of a row-major run over `dims` to `out`, with `outer` as their leading ranges.
fn cut(dims: &[Range<u64>], run: Range<u64>, outer: &mut Vec<Range<u64>>, out: &mut Vec<Region>) {
    if run.is_empty() {
        return;
    }
    let Some((first, rest)) = dims.split_first() else {
        out.push(Region(outer.clone()));
        return;
    };
    let inner: u64 = rest.iter().map(|r| r.end - r.start).product();
    let partial = |row: u64, outer: &mut Vec<Range<u64>>, out: &mut Vec<Region>| {
        let within = run.start.max(row * inner) - row * inner..run.end.min((row + 1) * inner) - row * inner;
        outer.push(first.start + row..first.start + row + 1);
        cut(rest, within, outer, out);
        outer.pop();
    };
    let (full_start, full_end) = (run.start.div_ceil(inner), run.end / inner);
    if full_start > full_end {
        return partial(full_end, outer, out);
    }
    if run.start < full_start * inner {
        partial(full_start - 1, outer, out);
    }
    if full_start < full_end {
        let full = std::iter::once(first.start + full_start..first.start + full_end).chain(rest.iter().cloned());
        out.push(Region(outer.iter().cloned().chain(full).collect()));
    }
    if full_end * inner < run.end {
        partial(full_end, outer, out);
    }
}

/// Where a run of a part's elements, in the order a rank stores them, lies in the tensor.
pub fn of_part(part: &Part, run: Range<u64>) -> Vec<Region> {
    let boxes = Region::whole(&part.shape()).run(run);
    boxes.iter().flat_map(|local| split(part, local)).collect()
}

/// A box of local coordinates, cut where the part's ranges end.
pub fn split(part: &Part, local: &Region) -> Vec<Region> {
    let mut out = vec![Vec::new()];
    for (ranges, wanted) in part.dims.iter().zip(&local.0) {
        let mut start = 0;
        let mut found = Vec::new();
        for range in ranges {
            let len = range.end - range.start;
            let (low, high) = (wanted.start.max(start), wanted.end.min(start + len));
            if low < high {
                found.push(range.start + low - start..range.start + high - start);
            }
            start += len;
        }
        let with = |dims: &Vec<Range<u64>>| {
            let dims = dims.clone();
            found.iter().map(move |r| dims.iter().cloned().chain([r.clone()]).collect()).collect::<Vec<Vec<_>>>()
        };
        out = out.iter().flat_map(with).collect();
    }
    out.into_iter().map(Region).collect()
}

/// The same box in the local coordinates of a part that contains it.
pub fn local(part: &Part, region: &Region) -> Region {
    let along = |(ranges, wanted): (&Vec<Range<u64>>, &Range<u64>)| {
        let mut start = 0;
        for range in ranges {
            if range.start <= wanted.start && wanted.end <= range.end {
                let first = start + wanted.start - range.start;
                return first..first + wanted.end - wanted.start;
            }
            start += range.end - range.start;
        }
        unreachable!("the part holds the region")
    };
    Region(part.dims.iter().zip(&region.0).map(along).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Logical indices of a region in order, in a tensor of this shape.
    fn indices(shape: &[u64], region: &Region) -> Vec<u64> {
        let rows = Region::whole(shape).rows(region);
        rows.into_iter().flat_map(|s| s..s + region.row_len()).collect()
    }

    proptest! {
        #[test]
        fn boxes_of_a_run_are_the_run(a in 1u64..5, b in 1u64..5, c in 1u64..5, x in 0u64..130, y in 0u64..130) {
            let shape = [a, b, c];
            let len = a * b * c;
            let run = x.min(y).min(len)..x.max(y).min(len);
            let boxes = Region::whole(&shape).run(run.clone());
            prop_assert!(boxes.len() <= 5);
            let found: Vec<u64> = boxes.iter().flat_map(|r| indices(&shape, r)).collect();
            prop_assert_eq!(found, run.collect::<Vec<_>>());
            for r in &boxes {
                let whole = Region::whole(&shape);
                prop_assert_eq!(whole.each_row(r).collect::<Vec<_>>(), whole.rows(r));
            }
        }
    }

    #[test]
    fn a_packed_part_is_cut_between_its_segments() {
        // Two of four gate rows and two of four up rows, three wide.
        let part = Part { dims: vec![vec![2..4, 6..8], vec![0..3]] };
        let regions = of_part(&part, 1..8);
        let texts: Vec<String> = regions.iter().map(Region::to_string).collect();
        assert_eq!(texts, ["[2:3,1:3]", "[3:4,0:3]", "[6:7,0:2]"]);
        assert_eq!(regions.iter().map(Region::elements).sum::<u64>(), 7);
        assert!(regions.iter().all(|r| r.is_in(&part)));
        assert_eq!(local(&part, &Region(vec![6..7, 0..3])), Region(vec![2..3, 0..3]));
    }
}
