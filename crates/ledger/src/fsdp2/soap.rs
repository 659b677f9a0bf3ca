//! SOAP (`pytorch_optimizer` 4.1, `optimizer/soap.py`): two moments, and of every side of a matrix that is not too long a
//! preconditioner and its eigenbasis, all in fp32. A first step makes them and moves nothing. Later ones turn gradient
//! and momentum into the bases and back, one matrix at a time, while four results of the last are still in variables.
//! Every tenth makes the bases anew; the steps that are replayed all do, since that is the highest of ten.

use super::group::Shard;
use case::ways::MOST_PRECONDITIONED;
use replay::tape::{FP32, Storage};
use std::rc::Rc;

type Kept = Rc<Storage>;

/// One step of these shards, which are whole; what it leaves when it is the first.
pub(super) fn step(parts: &[Shard], made: &impl Fn(u64, &'static str) -> Kept, is_first: bool) -> Vec<Kept> {
    if is_first {
        return parts.iter().flat_map(|part| begun(part, made)).collect();
    }
    let mut left = Vec::new();
    for part in parts {
        left = stepped(part, made, left);
        for side in sides(part) {
            refreshed(part, side, made);
        }
    }
    Vec::new()
}

/// Sides that have a preconditioner; vectors have none.
fn sides(part: &Shard) -> impl Iterator<Item = u64> {
    let sides = if part.columns == 1 { [0, 0] } else { [part.rows, part.columns] };
    sides.into_iter().filter(|side| (1..=MOST_PRECONDITIONED).contains(side))
}

/// `init_group`: moments, preconditioners, the first gradient's products, and eigenbases.
fn begun(part: &Shard, made: &impl Fn(u64, &'static str) -> Kept) -> Vec<Kept> {
    let square = |side: u64, name| made(side * side * FP32, name);
    let mut kept = vec![made(part.elements() * FP32, "moment"), made(part.elements() * FP32, "moment")];
    kept.extend(sides(part).map(|side| square(side, "preconditioner")));
    sides(part).for_each(|side| drop(square(side, "product of a gradient")));
    kept.extend(sides(part).map(|side| {
        // `eigh` of a sum with a tiny identity works in a copy, turned around at the end. What cuSOLVER wants besides
        // is taken for what LAPACK's divide and conquer does, twice the matrix.
        let _sum = (square(side, "identity"), square(side, "tiny identity"), square(side, "sum"));
        let _vectors = (square(side, "eigenvectors"), made(2 * side * side * FP32, "workspace of eigenvectors"));
        square(side, "eigenbasis")
    }));
    kept
}

/// One parameter's step; what it leaves in variables: the gradient and the momentum in the bases, the root of second
/// moments, and the direction.
fn stepped(part: &Shard, made: &impl Fn(u64, &'static str) -> Kept, left: Vec<Kept>) -> Vec<Kept> {
    let like = |name| made(part.elements() * FP32, name);
    let mut left = left.into_iter();
    let count = sides(part).count();
    // A product a side, each from the one before it; a side without a basis is a view.
    let turned = |first: Option<Kept>| {
        let mut at = first;
        for _ in 0..count {
            at = Some(like("turned"));
        }
        at
    };
    let gradient = turned(None);
    drop(left.next());
    drop(like("squared gradient"));
    let root = Some(like("root of second moments"));
    drop(left.next());
    let momentum = turned(None);
    drop(left.next());
    let direction = turned(Some(like("quotient")));
    drop(left.next());
    [gradient, root, momentum, direction].into_iter().flatten().collect()
}

/// `update_pre_conditioner` and `get_orthogonal_matrix_qr` of one side.
fn refreshed(part: &Shard, side: u64, made: &impl Fn(u64, &'static str) -> Kept) {
    let square = |name| made(side * side * FP32, name);
    drop(square("product of the gradient"));
    let product = square("product with the basis");
    drop(square("estimated eigenvalues"));
    let _sorted = made(part.elements() * FP32, "second moments in order");
    let _power = square("product in order");
    drop(product);
    let _factors = (square("orthogonal factor"), square("triangular factor"));
}
