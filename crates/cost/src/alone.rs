//! One rank of a job by itself, as a single device can run it with every other rank stood in for: kernels and
//! host alone, no link and no other stage.

use crate::Unpriced;
use crate::data;
use crate::prices::Setting;
use crate::roofline::Numbers;
use case::Case;

/// What a rank's step takes by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Seconds in which kernels run.
    pub kernels: f64,
    /// Seconds of the step: what kernels or the host that starts them take, whichever is longer, from one wait
    /// of the host to the next.
    pub step: f64,
}

/// A rank of a stage by itself.
pub fn alone(case: &Case, stage: usize, numbers: Numbers) -> Result<Alone, Unpriced> {
    let layout = &case.layout;
    let setting = Setting::alone(case, numbers)?;
    let prices = setting.split(layout)?.prices(&layout.recompute, case.options.offload);
    let chunks = case.stages.by_stage.get(stage).ok_or_else(|| Unpriced::new("the rank", "there is no such stage"))?;
    let counted = prices.counted(&case.stages);
    let microbatches = layout.microbatches as f64;
    let (mut kernels, mut step) = (0.0, 0.0);
    for chunk in chunks {
        let counts = counted.chunks[*chunk].counts();
        let pass = prices.stage(counts);
        kernels += microbatches * prices.of_chunk(counts).all().compute();
        step += microbatches * (pass.forward + pass.backward());
    }
    let (stepped, host) = data::stepped_alone(&prices, layout, counted.stages[stage].counts());
    step += stepped.max(host) + setting.meter.profile().host.step_seconds;
    Ok(Alone { kernels: kernels + stepped, step })
}
