//! One rank of a job by itself, as a single device can run it with every other rank stood in for: kernels and
//! host alone, no link and no other stage.

use crate::Unpriced;
use crate::data;
use crate::prices::Setting;
use crate::roofline::Numbers;
use case::Case;
use case::options::Dispatch;
use layout::Engine;

/// Seconds of the host between two steps of the emitted FSDP2 program, which logs nothing and reads a loss and a norm: a step less the
/// time in which its kernels ran, where they never waited inside it (6.0 and 6.6 ms of 117 and 76 on an H200's host).
const EMITTED: f64 = 6e-3;

/// What a rank's step takes by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Seconds in which kernels run.
    pub kernels: f64,
    /// Seconds the host takes to start them, were the device never behind.
    pub host: f64,
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
    let (mut kernels, mut issued, mut step) = (0.0, 0.0, 0.0);
    for chunk in chunks {
        let counts = counted.chunks[*chunk].counts();
        let pass = prices.stage(counts);
        kernels += microbatches * prices.of_chunk(counts).all().compute();
        issued += microbatches * prices.host(counts);
        step += microbatches * (pass.forward + pass.backward());
    }
    let held = prices.held(counted.stages[stage].counts());
    let copied: f64 = data::copied(&prices, &prices.placed(layout), &held).iter().sum();
    let copies = microbatches * copied / setting.meter.rate();
    let (stepped, host) = data::stepped_alone(&prices, layout, counted.stages[stage].counts());
    let between = match layout.engine {
        Some(Engine::Fsdp2) => EMITTED,
        _ => setting.meter.profile().host.step_seconds,
    };
    step += copies + stepped.max(host) + between;
    Ok(Alone { kernels: kernels + copies + stepped, host: issued + host + between, step })
}

impl Numbers {
    /// What a rank multiplies whose collectives nobody answers: gathers repeat its own data, and others leave what
    /// was in memory, which is soon not a number. Stages may be given drawn numbers in place of what nobody sends.
    pub fn stood_in(case: &Case, stages_receive: bool) -> Numbers {
        let layout = &case.layout;
        let exchanged = layout.ep.splits() && case.options.kernels.dispatch != Dispatch::AllGather;
        let is_left = layout.tp.splits() || layout.cp.splits() || layout.pp.splits() && !stages_receive || exchanged;
        if is_left { Numbers::Same } else { Numbers::Drawn }
    }
}
