//! A trace against the step it draws: the same seconds, stage by stage and line by line.

use crate::steps::Case;
use cost::trace::{Detail, Slice, Trace, Track, What};
use cost::{Part, Prices, Step};
use layout::{LayoutRequest, Recompute, Schedule, ZeroStage};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Slices that no trace here comes near.
const MANY: usize = 1 << 24;

/// A step and its trace in at most so many slices, where the layout is legal and has a price.
fn traced(name: &str, on: &str, most: usize, set: impl Fn(&mut LayoutRequest)) -> Option<(Step, Trace)> {
    let case = Case::new(name, on, set)?;
    let prices = Prices::new(&case.recipe, &case.layout, &case.cluster, &case.options).ok()?;
    let (layout, plan) = (&case.layout, case.plan());
    Some((prices.step(layout, &plan).unwrap(), prices.trace(layout, &plan, most).ok()?))
}

fn end(slice: &Slice) -> f64 {
    slice.start + slice.seconds
}

/// Seconds of the slices of a stage that something holds of.
fn sum(trace: &Trace, stage: usize, is: impl Fn(&Slice) -> bool) -> f64 {
    let here = trace.slices.iter().filter(|slice| slice.stage as usize == stage && is(slice));
    // Adding nothing to -0.0 leaves it, which compares as 0.0.
    here.map(|slice| slice.seconds).sum::<f64>() + 0.0
}

fn assert_near(drawn: f64, said: f64, step: &Step, what: &str) {
    assert!((drawn - said).abs() <= 1e-9 * step.seconds, "{what}: {drawn} drawn, {said} said");
}

/// No slice of a track begins before the one before it ended, and the schedule has no gap.
fn assert_rows(trace: &Trace, step: &Step) {
    let mut rows: BTreeMap<(u32, Track), Vec<Slice>> = BTreeMap::new();
    for slice in &trace.slices {
        assert!(slice.seconds >= 0.0 && slice.start >= 0.0, "{slice:?}");
        rows.entry((slice.stage, slice.track)).or_default().push(*slice);
    }
    let rounding = 1e-12 * step.seconds;
    for ((stage, track), row) in &mut rows {
        row.sort_by(|a, b| a.start.total_cmp(&b.start).then(end(a).total_cmp(&end(b))));
        for pair in row.windows(2) {
            assert!(pair[1].start >= end(&pair[0]) - rounding, "stage {stage} {track:?}: {pair:?}");
            let is_gap = pair[1].start > end(&pair[0]) + rounding;
            assert!(*track != Track::Schedule || !is_gap, "stage {stage}: {pair:?}");
        }
        assert!(end(&row[row.len() - 1]) <= step.seconds + rounding, "stage {stage} {track:?}");
    }
    for stage in 0..step.stages.len() {
        let row = &rows[&(stage as u32, Track::Schedule)];
        assert_eq!(row[0].start, 0.0);
        assert_near(end(&row[row.len() - 1]), step.seconds, step, "the last end");
    }
}

/// Busy, idle and sending seconds of every stage.
fn assert_stages(trace: &Trace, step: &Step) {
    assert_near(trace.seconds, step.seconds, step, "the step");
    for (stage, said) in step.stages.iter().enumerate() {
        let folded = |of: fn(&cost::trace::Folded) -> f64| -> f64 {
            let here = trace.slices.iter().filter(|slice| slice.stage as usize == stage);
            here.filter_map(|slice| if let What::Folded(folded) = &slice.what { Some(of(folded)) } else { None }).sum()
        };
        let drawn = |is: fn(&What) -> bool| sum(trace, stage, |slice| is(&slice.what));
        assert_near(drawn(|w| matches!(w, What::Block(_))) + folded(|f| f.busy), said.busy, step, "busy");
        assert_near(drawn(|w| matches!(w, What::Wait(_))) + folded(|f| f.idle), said.idle, step, "idle");
        assert_near(drawn(|w| *w == What::Sending) + folded(|f| f.sending), said.sending, step, "sending");
    }
}

/// The lines of the stage that bounds the step, part by part, and the bytes of its axes.
fn assert_lines(trace: &Trace, step: &Step) {
    let busy = |stage: &usize| step.stages[*stage].busy;
    let slow = (0..step.stages.len()).max_by(|a, b| busy(a).total_cmp(&busy(b))).unwrap();
    let line = |name: &str| step.parts.iter().filter(|l| l.name == name).map(|l| l.seconds).sum::<f64>() + 0.0;
    for &(name, part) in Part::ALL {
        let drawn = sum(trace, slow, |s| s.what == What::Part(part) || s.what == What::Again(part));
        assert_near(drawn, line(name), step, name);
    }
    assert_near(sum(trace, slow, |s| s.what == What::Line("zero exposed")), line("zero exposed"), step, "zero");
    assert_near(sum(trace, slow, |s| s.what == What::Line("reserve")), line("reserve"), step, "reserve");
    let once = ["gradients exposed", "weights exposed", "optimizer", "offload"];
    let said: f64 = once.iter().map(|name| line(name)).sum();
    let drawn = sum(trace, slow, |s| matches!(s.what, What::Update | What::WaitForUpdate));
    assert_near(drawn, said, step, "once a step");
    for row in step.traffic.iter().filter(|row| ["tp", "cp", "ep"].contains(&row.axis)) {
        let here = trace.slices.iter().filter(|s| s.stage as usize == slow && s.track == Track::Axis(row.axis));
        let bytes: f64 = here.filter_map(|s| s.bytes).sum();
        assert!((bytes - row.bytes).abs() <= 1e-6 * row.bytes, "{}: {bytes} drawn, {} said", row.axis, row.bytes);
    }
}

fn assert_agrees(trace: &Trace, step: &Step) {
    assert_rows(trace, step);
    assert_stages(trace, step);
    if trace.detail == Detail::Whole {
        assert_lines(trace, step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]
    #[test]
    fn a_trace_is_the_step(
        name in prop::sample::select(vec!["llama3-8b", "nam56r", "deepseek-v3", "mixtral-8x7b", "nemotron-h-8b"]),
        (tp, pp, cp, ep) in (0..3u32, 0..3u32, 0..2u32, 0..4u32),
        schedule in prop::sample::select(Schedule::ALL.iter().map(|(_, schedule)| *schedule).collect::<Vec<_>>()),
        zero in prop::sample::select(ZeroStage::ALL.iter().map(|(_, zero)| *zero).collect::<Vec<_>>()),
        (microbatches, full) in (1..40u64, any::<bool>()),
        most in prop::sample::select(vec![300, 3_000, MANY]),
    ) {
        let found = traced(name, "8x8xH200", most, |r| {
            (r.tp, r.pp, r.cp) = (Some(1 << tp), Some(1 << pp), Some(1 << cp));
            if matches!(name, "nam56r" | "deepseek-v3" | "mixtral-8x7b") {
                (r.ep, r.etp) = (Some(1 << ep), Some(1));
            }
            if pp > 0 {
                r.schedule = Some(schedule);
                r.vpp = matches!(schedule, Schedule::Interleaved | Schedule::DualPipeV).then_some(2);
            }
            (r.zero, r.microbatches, r.micro_batch) = (Some(zero), Some(4 * microbatches), Some(1));
            r.recompute = Some(if full { Recompute::Full } else { Recompute::None });
        });
        if let Some((step, trace)) = found {
            assert_agrees(&trace, &step);
            prop_assert!(trace.slices.len() <= most);
        }
    }
}

/// Every order and each way to leave something out, so that the property above cannot be empty.
#[test]
fn every_order_is_drawn() {
    for &(name, schedule) in Schedule::ALL {
        let mut seen = [false; 3];
        for most in [MANY, 60_000, 40_000, 24_000, 2_000] {
            let (step, trace) = traced("nam56r", "8x8xH200", most, |r| {
                (r.tp, r.pp, r.ep, r.etp) = (Some(2), Some(4), Some(4), Some(1));
                (r.schedule, r.microbatches, r.micro_batch) = (Some(schedule), Some(240), Some(1));
                r.vpp = matches!(schedule, Schedule::Interleaved | Schedule::DualPipeV).then_some(2);
            })
            .unwrap_or_else(|| panic!("{name} has a step"));
            seen[match trace.detail {
                Detail::Whole => 0,
                Detail::Plain { .. } => 1,
                Detail::Folded { .. } => 2,
            }] = true;
            assert!(trace.slices.len() <= most, "{} slices of {most}", trace.slices.len());
            assert_agrees(&trace, &step);
        }
        assert_eq!(seen, [true; 3], "{name}");
    }
}

#[test]
fn a_trace_that_cannot_be_small_is_refused() {
    let set = |r: &mut LayoutRequest| (r.pp, r.microbatches) = (Some(8), Some(64));
    assert!(traced("llama3-8b", "8xH200", 1_000, set).is_some());
    assert!(traced("llama3-8b", "8xH200", 100, set).is_none());
}
