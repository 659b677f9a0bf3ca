//! What widths that leave the fastest kernels cost: a matrix's products as they are, against the same at the
//! next multiple.

use crate::Unpriced;
use crate::ops::{Shape, Work};
use crate::roofline::Meter;
use case::Case;
use case::options::Format;
use layout::widths::{BF16, Unaligned, unaligned};

/// Matrices of one kind that run slower for their width.
#[derive(Clone, Debug)]
pub struct Slower {
    /// Which.
    pub of: Unaligned,
    /// The next width that is a multiple.
    pub next: u64,
    /// How many times as long its products take as at that width.
    pub times: f64,
    /// Seconds of a step that it costs, layers shared out evenly over stages; none for experts, whose rows
    /// depend on routing.
    pub seconds: Option<f64>,
}

/// What a device's curves say of every width of a job that is no multiple; nothing where they do not tell such
/// widths apart.
pub fn slower(case: &Case) -> Result<Vec<Slower>, Unpriced> {
    let meter = Meter::new(&case.on().device, &case.options)?;
    let tokens = Shape::new(&case.recipe, &case.layout, &case.options).tokens;
    let found = unaligned(&case.recipe, &case.layout, BF16).into_iter();
    Ok(found.filter_map(|one| price(&meter, case, tokens, one)).collect())
}

/// A difference of less is the work's, not the kernel's.
const FELT: f64 = 1.05;

fn price(meter: &Meter, case: &Case, tokens: f64, of: Unaligned) -> Option<Slower> {
    let as_is = products(meter, tokens, of.part);
    let next = of.part.map(|width| width.next_multiple_of(BF16));
    let aligned = products(meter, tokens, next);
    let is_expert = case.table.rows.iter().any(|row| row.tensor.path == of.path && row.tensor.acting.is_some());
    let layers = of.layers.len().max(1) as f64 / case.layout.pp.get() as f64;
    let seconds = (as_is - aligned) * layers * case.layout.microbatches as f64;
    let times = as_is / aligned;
    let next = next[of.side];
    (times >= FELT).then_some(Slower { of, next, times, seconds: (!is_expert).then_some(seconds) })
}

/// Seconds of a product in bf16 and of both its gradients.
fn products(meter: &Meter, m: f64, [n, k]: [u64; 2]) -> f64 {
    let (n, k) = (n as f64, k as f64);
    let one = |m: f64, n: f64, k: f64| {
        meter.seconds(&Work::Gemm { format: Format::Bf16, m, n, k, groups: 1.0, out_bytes: 2.0 })
    };
    one(m, n, k) + one(m, k, n) + one(n, k, m)
}
