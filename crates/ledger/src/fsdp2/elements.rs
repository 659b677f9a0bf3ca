//! What steps every element by itself, shard by shard (`crates/launch/assets/fsdp2/stepped.py`). torch's AdamW and SGD
//! are fused, and need nothing but their state. bitsandbytes 0.50 (`optim/optimizer.py`) makes a parameter's state when
//! it first steps it: bytes with an fp32 scale for 256 of them, or fp32 below 4096 elements, and one table of 256 values
//! for all. torch's Adafactor (`torch/optim/_adafactor.py`, without `foreach`) keeps a row and a column of a matrix, and
//! makes the second moments of one whole parameter while those of the last are still in a variable.

use super::group::Shard;
use super::options::Fsdp2Options;
use super::{shampoo, soap, torchao};
use case::ways::{BLOCK, ElementStep, LEAST_8BIT, LEAST_PAGED};
use replay::line::Line;
use replay::tape::{FP32, Storage, Tape};
use std::rc::Rc;

/// Entries of a table of 8-bit values.
const TABLE: u64 = 256;

/// One step of these shards; what it leaves when it is the first.
pub(super) fn step(tape: &Tape, parts: &[Shard], options: &Fsdp2Options, is_first: bool) -> Vec<Rc<Storage>> {
    let main = options.main.bits() / 8;
    let made = |bytes: u64, name| tape.storage(Line::OtherOptimizer, bytes, name);
    let mut kept = Vec::new();
    match options.ways.elements {
        ElementStep::AdamW if is_first => {
            for part in parts {
                let moment = || made(part.elements() * main, "moment");
                kept.extend([made(FP32, "step count"), moment(), moment()]);
            }
        }
        ElementStep::Sgd if is_first => {
            kept.extend(parts.iter().map(|part| made(part.elements() * main, "momentum")));
        }
        ElementStep::AdamW8bit | ElementStep::PagedAdamW8bit if is_first => {
            blockwise(parts, 2, true, options.ways.elements, &made, &mut kept);
        }
        ElementStep::PagedAdamW if is_first => {
            blockwise(parts, 2, false, options.ways.elements, &made, &mut kept);
        }
        ElementStep::Lion8bit if is_first => blockwise(parts, 1, true, options.ways.elements, &made, &mut kept),
        ElementStep::Lion if is_first => blockwise(parts, 1, false, options.ways.elements, &made, &mut kept),
        by if by.of_torchao().is_some() => kept.extend(torchao::step(parts, by, main, &made, is_first)),
        ElementStep::Shampoo => kept.extend(shampoo::step(parts, &made, is_first)),
        ElementStep::Soap => kept.extend(soap::step(parts, &made, is_first)),
        ElementStep::Adafactor => {
            if is_first {
                kept.extend(parts.iter().flat_map(|part| factors(part, &made)));
            }
            let mut last = None;
            for part in parts {
                last = Some(factored(part, &made, last));
            }
        }
        _ => {}
    }
    kept
}

/// State of bitsandbytes: so many tensors a parameter. What is paged lies in unified memory, outside of the allocator;
/// its scales do not.
fn blockwise(
    parts: &[Shard],
    states: u64,
    is_narrow: bool,
    by: ElementStep,
    made: &impl Fn(u64, &'static str) -> Rc<Storage>,
    kept: &mut Vec<Rc<Storage>>,
) {
    let mut has_tables = false;
    for part in parts {
        let elements = part.elements();
        let is_paged = by.paged_bytes() > 0 && elements >= LEAST_PAGED;
        if !is_narrow || elements < LEAST_8BIT {
            let here = if is_paged { 0 } else { states };
            kept.extend((0..here).map(|_| made(elements * FP32, "moment")));
            continue;
        }
        if !std::mem::replace(&mut has_tables, true) {
            kept.extend((0..states).map(|_| made(TABLE * FP32, "table of 8-bit values")));
        }
        let here = if is_paged { 0 } else { states };
        kept.extend((0..here).map(|_| made(elements, "moment in 8 bits")));
        kept.extend((0..states).map(|_| made(elements.div_ceil(BLOCK) * FP32, "moment's scales")));
    }
}

/// A row and a column of second moments, or all of a vector's.
fn factors(part: &Shard, made: &impl Fn(u64, &'static str) -> Rc<Storage>) -> Vec<Rc<Storage>> {
    match part.columns {
        1 => vec![made(part.rows * FP32, "second moments")],
        columns => vec![made(part.rows * FP32, "row of second moments"), made(columns * FP32, "column of them")],
    }
}

/// What one parameter's step has in variables when the next one's begins.
fn factored(
    part: &Shard,
    made: &impl Fn(u64, &'static str) -> Rc<Storage>,
    last: Option<Vec<Rc<Storage>>>,
) -> Vec<Rc<Storage>> {
    let mut variables = Vec::new();
    match part.columns {
        1 => variables.push(made(part.rows * FP32, "squared gradient")),
        columns => variables.extend([made(part.rows * FP32, "mean of rows"), made(columns * FP32, "mean of columns")]),
    }
    variables.push(made(part.elements() * FP32, "second moments, whole"));
    drop(last);
    variables
}
