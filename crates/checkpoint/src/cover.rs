//! Whether boxes cover a tensor, every element once.

use crate::region::Region;

/// What is wrong with a cover.
#[derive(Debug, PartialEq, Eq)]
pub enum Flaw {
    /// These two share elements.
    Overlap(Region, Region),
    /// This many elements are in no box.
    Gap(u64),
}

/// Checks a cover. Boxes that lie inside the tensor, overlap nowhere and have its number of elements
/// together cover it.
pub fn check(shape: &[u64], boxes: &[&Region]) -> Result<(), Flaw> {
    // Along the dimension with the most different starts few boxes are beside one another.
    let starts = |d: usize| boxes.iter().map(|b| b.0[d].start).collect::<std::collections::BTreeSet<_>>().len();
    let along = (0..shape.len()).max_by_key(|d| starts(*d)).unwrap_or(0);
    let first = |b: &Region| b.0.get(along).map_or(0, |r| r.start);
    let mut sorted: Vec<&Region> = boxes.iter().copied().filter(|b| b.elements() > 0).collect();
    sorted.sort_by_key(|b| first(b));
    let mut open: Vec<&Region> = Vec::new();
    for new in &sorted {
        open.retain(|old| old.0.get(along).is_none_or(|r| r.end > first(new)));
        if let Some(old) = open.iter().find(|old| old.meet(new).is_some()) {
            return Err(Flaw::Overlap((*old).clone(), (*new).clone()));
        }
        open.push(new);
    }
    let held: u64 = sorted.iter().map(|b| b.elements()).sum();
    match Region::whole(shape).elements() - held {
        0 => Ok(()),
        gap => Err(Flaw::Gap(gap)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxes(all: &[[[u64; 2]; 2]]) -> Vec<Region> {
        all.iter().map(|b| Region(b.iter().map(|[s, e]| *s..*e).collect())).collect()
    }

    #[test]
    fn gaps_and_overlaps_are_seen() {
        let check = |all: &[[[u64; 2]; 2]]| check(&[4, 6], &boxes(all).iter().collect::<Vec<_>>());
        assert_eq!(check(&[[[0, 4], [0, 3]], [[0, 2], [3, 6]], [[2, 4], [3, 6]]]), Ok(()));
        assert_eq!(check(&[[[0, 4], [0, 3]], [[2, 4], [3, 6]]]), Err(Flaw::Gap(6)));
        // As many elements as the tensor has, and one of them twice.
        let flaw = check(&[[[0, 4], [0, 3]], [[0, 2], [2, 5]], [[2, 4], [3, 6]]]);
        assert!(matches!(flaw, Err(Flaw::Overlap(..))), "{flaw:?}");
    }

    #[test]
    fn scalars_and_nothing_are_covered_too() {
        let scalar = Region(Vec::new());
        assert_eq!(super::check(&[], &[&scalar]), Ok(()));
        assert_eq!(super::check(&[], &[]), Err(Flaw::Gap(1)));
        assert!(matches!(super::check(&[], &[&scalar, &scalar]), Err(Flaw::Overlap(..))));
        assert_eq!(super::check(&[0, 3], &[]), Ok(()));
    }
}
