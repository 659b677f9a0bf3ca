//! One rank of a job by itself, as a single device can run it with every other rank stood in for: kernels and
//! host alone, no link and no other stage.

use crate::Unpriced;
use crate::data;
use crate::part::Part;
use crate::prices::{Counts, Setting};
use crate::roofline::Numbers;
use case::Case;

/// What a rank's step takes by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Seconds in which kernels run.
    pub kernels: f64,
    /// Seconds the host takes to start them.
    pub host: f64,
    /// Seconds of the step: the longer of the two, from one wait of the host to the next.
    pub step: f64,
}

/// A rank of a stage by itself.
pub fn alone(case: &Case, stage: usize, numbers: Numbers) -> Result<Alone, Unpriced> {
    let layout = &case.layout;
    let setting = Setting::alone(case, numbers)?;
    let prices = setting.split(layout)?.prices(&layout.recompute, case.options.offload);
    let chunks = case.stages.by_stage.get(stage).ok_or_else(|| Unpriced::new("the rank", "there is no such stage"))?;
    let last = case.stages.chunks.len() - 1;
    let microbatches = layout.microbatches as f64;
    let mut sum = Alone { kernels: 0.0, host: 0.0, step: 0.0 };
    let all = prices.kinds().count(chunks.iter().flat_map(|chunk| case.stages.chunks[*chunk].layers.clone()));
    for chunk in chunks {
        let layers = prices.kinds().count(case.stages.chunks[*chunk].layers.clone());
        let counts = Counts { layers: &layers, is_first: *chunk == 0, is_last: *chunk == last };
        let price = prices.of_chunk(counts);
        let times = price.all();
        let pass = prices.stage(counts);
        sum.kernels += microbatches * times.compute();
        sum.host += microbatches * (times.of(Part::Launch) + price.host.iter().sum::<f64>());
        sum.step += microbatches * (pass.forward + pass.backward());
    }
    let counts = Counts { layers: &all, is_first: chunks.contains(&0), is_last: chunks.contains(&last) };
    let (kernels, host) = data::stepped_alone(&prices, layout, counts);
    sum.kernels += kernels;
    sum.host += host;
    sum.step += kernels.max(host) + setting.meter.profile().host.step_seconds;
    Ok(sum)
}
