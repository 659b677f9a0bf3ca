//! torchao's AdamW (torchao 0.18, `optim/adam.py`): state is made when a shard is first stepped, codes with an fp32 scale a
//! block and, but for fp8, a table of their values beside each moment (`subclass_8bit.py`, `subclass_4bit.py`,
//! `subclass_fp8.py`); shards of fewer than 4096 elements, or of no whole blocks, have moments in the weights' format.
//! `single_param_adam` is compiled, one parameter at a time. What its kernels leave in buffers between them is what
//! inductor of torch 2.11 writes for an H200, the same for vectors, matrices and banks of experts; measured there.
//!
//! Not replayed: the first step's autotuning, and copies of gradients whose shards are no multiple of 16 bytes.

use super::group::Shard;
use case::ways::{ElementStep, LEAST_8BIT};
use replay::tape::{FP32, INT64, Storage};
use std::rc::Rc;

type Kept = Rc<Storage>;

/// One step of these shards; what it leaves when it is the first. `main` is the width of the weights.
pub(super) fn step(
    parts: &[Shard],
    by: ElementStep,
    main: u64,
    made: &impl Fn(u64, &'static str) -> Kept,
    is_first: bool,
) -> Vec<Kept> {
    let mut kept = Vec::new();
    for part in parts {
        let elements = part.elements();
        let blocks = by.of_torchao().filter(|(block, _)| elements >= LEAST_8BIT && elements.is_multiple_of(*block));
        let Some((block, bits)) = blocks else {
            kept.extend((0..if is_first { 2 } else { 0 }).map(|_| made(elements * main, "moment")));
            continue;
        };
        let scales = elements / block * FP32;
        if is_first {
            for _ in 0..2 {
                kept.extend([made(elements * bits / 8, "moment's codes"), made(scales, "moment's scales")]);
                // fp8 says its own values.
                let table = if by == ElementStep::AoAdamWFp8 { 0 } else { (1 << bits) * FP32 };
                kept.extend((table > 0).then(|| made(table, "table of values")));
            }
        }
        between(by, elements, scales, made);
    }
    kept
}

/// What one parameter's kernels write for one another.
fn between(by: ElementStep, elements: u64, scales: u64, made: &impl Fn(u64, &'static str) -> Kept) {
    let wide = || made(elements * FP32, "moment in fp32");
    let codes = || made(elements, "codes");
    let scales = || made(scales, "scales");
    match by {
        // Two codes lie in a byte, which takes neighbours: they are written in int64 first, as `torch.where` makes them.
        ElementStep::AoAdamW4bit => {
            let unpacked = || made(elements * INT64, "codes");
            drop([wide(), wide(), scales(), scales(), unpacked(), unpacked()]);
        }
        ElementStep::AoAdamWFp8 => drop([scales(), scales(), codes(), codes()]),
        _ => drop([scales(), scales(), wide(), wide()]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plain::Step;
    use super::*;
    use replay::line::Line;
    use replay::tape::Tape;
    use std::cell::RefCell;

    /// Bytes that a first step leaves, and all that it asked for.
    fn first(by: ElementStep, rows: u64, columns: u64) -> (u64, u64) {
        let tape = Tape::default();
        let asked = RefCell::new(0);
        let made = |bytes: u64, name| {
            *asked.borrow_mut() += bytes;
            tape.storage(Line::OtherOptimizer, bytes, name)
        };
        let part = Shard { rows, columns, step: Step::Elements };
        let kept = step(&[part], by, FP32, &made, true);
        (kept.iter().map(|storage| storage.bytes()).sum(), asked.take())
    }

    #[test]
    fn codes_scales_and_tables_are_kept_and_buffers_are_not() {
        let n = 4096 * 16;
        assert_eq!(first(ElementStep::AoAdamW8bit, 4096, 16).0, 2 * (n + n / 256 * 4 + 1024));
        assert_eq!(first(ElementStep::AoAdamW4bit, 4096, 16).0, 2 * (n / 2 + n / 128 * 4 + 64));
        assert_eq!(first(ElementStep::AoAdamWFp8, 4096, 16).0, 2 * (n + n / 256 * 4));
        let (kept, asked) = first(ElementStep::AoAdamW8bit, 4096, 16);
        assert_eq!(asked - kept, 2 * (4 * n + n / 256 * 4));
    }

    #[test]
    fn small_shards_and_broken_blocks_stay_as_the_weights_are() {
        for (rows, by) in
            [(4095, ElementStep::AoAdamW8bit), (4224, ElementStep::AoAdamW8bit), (4160, ElementStep::AoAdamW4bit)]
        {
            let (kept, asked) = first(by, rows, 1);
            assert_eq!((kept, asked), (8 * rows, 8 * rows), "{rows}");
        }
        // 4224 is 33 blocks of 128.
        assert!(first(ElementStep::AoAdamW4bit, 4224, 1).0 < 8 * 4224);
    }
}
