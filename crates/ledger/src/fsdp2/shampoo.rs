//! Shampoo (`pytorch_optimizer` 4.1, `optimizer/shampoo.py` ScalableShampoo, `utils/preconditioner.py`): a momentum, and of
//! what it is grafted on a momentum and second moments; of matrices whose sides are not too long also statistics and
//! roots, squares of every block's two sides. All in fp32. Steps whose directions the roots turn are replayed, one
//! parameter at a time, while three results of the last are still in variables. Lists of blocks are booked as one
//! storage, and of a hundredth step's roots those of one block, since each makes way for the next.

use super::group::Shard;
use case::ways::{SHAMPOO_BLOCK, SHAMPOO_MOST, blocks_of};
use replay::tape::{FP32, Storage};
use std::rc::Rc;

type Kept = Rc<Storage>;

/// One step of these shards, which are whole; what it leaves when it is the first.
pub(super) fn step(parts: &[Shard], made: &impl Fn(u64, &'static str) -> Kept, is_first: bool) -> Vec<Kept> {
    let kept = if is_first { parts.iter().flat_map(|part| begun(part, made)).collect() } else { Vec::new() };
    let mut left = Vec::new();
    for part in parts {
        left = stepped(part, made, left);
    }
    kept
}

/// A matrix in blocks: elements of all their squares, and whether all squares are of one size, which are kept in one tensor.
struct Blocks {
    squares: u64,
    is_even: bool,
    /// Sides that are cut.
    cuts: usize,
}

fn blocks(part: &Shard) -> Option<Blocks> {
    let sides = [part.rows, part.columns];
    if part.columns == 1 || sides.iter().any(|side| *side > SHAMPOO_MOST) {
        return None;
    }
    let [rows, columns] = sides.map(blocks_of);
    let squares = |side: u64, (whole, rest): (u64, u64)| whole * side * side + rest * rest;
    let count = |(whole, rest): (u64, u64)| whole + u64::from(rest > 0);
    let of = |these, others| count(others) * squares(SHAMPOO_BLOCK, these);
    let is_even = rows.1 == 0 && columns.1 == 0 || part.rows == part.columns && part.rows <= SHAMPOO_BLOCK;
    let cuts = sides.iter().filter(|side| **side > SHAMPOO_BLOCK).count();
    Some(Blocks { squares: of(rows, columns) + of(columns, rows), is_even, cuts })
}

/// `init_group`: what a parameter keeps.
fn begun(part: &Shard, made: &impl Fn(u64, &'static str) -> Kept) -> Vec<Kept> {
    let like = |name| made(part.elements() * FP32, name);
    let mut kept = vec![like("momentum")];
    if let Some(blocks) = blocks(part) {
        let all = |name| made(blocks.squares * FP32, name);
        let lists = [all("statistics"), all("roots")];
        match blocks.is_even {
            // Each list is stacked, and makes way.
            true => kept.extend(lists.map(|list| {
                let stacked = all("stacked");
                drop(list);
                stacked
            })),
            false => kept.extend(lists),
        }
    }
    kept.extend([like("graft's momentum"), like("graft's second moments")]);
    kept
}

/// One parameter's step; what it leaves in variables: the graft's step, the turned one, and the momentum's look ahead.
fn stepped(part: &Shard, made: &impl Fn(u64, &'static str) -> Kept, left: Vec<Kept>) -> Vec<Kept> {
    let like = |name| made(part.elements() * FP32, name);
    let mut left = left.into_iter();
    let blocks = blocks(part);
    if let Some(blocks) = &blocks {
        // Rows and columns of every block, side by side.
        drop(blocks.is_even.then(|| made(2 * part.elements() * FP32, "unfolded gradient")));
        rooted(part, made);
    }
    let root = like("root of second moments");
    let quotient = like("quotient");
    drop(root);
    let graft = like("graft's step");
    drop(quotient);
    drop(left.next());
    let turned = match &blocks {
        None => like("copy of the graft's step"),
        Some(blocks) => {
            let list = like("turned blocks");
            let merged: Vec<Kept> = (0..blocks.cuts).map(|_| like("merged blocks")).collect();
            let whole = merged.last().unwrap_or(&list).clone();
            drop((list, merged));
            let turned = like("turned");
            drop(whole);
            turned
        }
    };
    // The last parameter's two were still called other names until here.
    drop(left);
    let ahead = like("momentum's look ahead");
    vec![graft, turned, ahead]
}

/// `compute_power_schur_newton` of one side of the largest block.
fn rooted(part: &Shard, made: &impl Fn(u64, &'static str) -> Kept) {
    let side = part.rows.max(part.columns).min(SHAMPOO_BLOCK);
    let square = |name| made(side * side * FP32, name);
    let _kept = [
        square("identity"),
        square("regularised statistics"),
        square("root so far"),
        square("iterate"),
        square("scaled identity"),
        square("correction"),
        square("next iterate"),
        square("next root"),
    ];
    let _power = [square("power of the correction"), square("square of it")];
}

#[cfg(test)]
mod tests {
    use super::super::plain::Step;
    use super::*;

    #[test]
    fn squares_of_blocks_are_twice_the_matrix_where_blocks_are_whole() {
        let squares =
            |rows, columns| blocks(&Shard { rows, columns, step: Step::Elements }).map(|b| (b.squares, b.is_even));
        assert_eq!(squares(4096, 2048), Some((2 * 4096 * 2048, true)));
        assert_eq!(squares(256, 256), Some((2 * 256 * 256, true)));
        // Blocks of 512 and 88 rows by 512 columns.
        assert_eq!(squares(600, 512), Some((512 * 512 + 88 * 88 + 2 * 512 * 512, false)));
        assert_eq!(squares(8193, 512), None);
        assert_eq!(squares(4096, 1), None);
    }
}
