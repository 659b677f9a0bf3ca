//! What every pipeline order must be: each chunk sees each microbatch once forward and once
//! backward, on the stage that holds it, and no stage waits for what never comes.

use layout::order::{Action, Block, Pass, Pipeline};
use layout::{LayoutRequest, Schedule, StagePlan, check};
use proptest::prelude::*;

const KINDS: [Schedule; 6] =
    [Schedule::GPipe, Schedule::OneF1b, Schedule::Interleaved, Schedule::ZbH1, Schedule::DualPipe, Schedule::DualPipeV];

/// A pipeline of the kind near the sizes given.
fn pipeline(kind: Schedule, pp: u64, vpp: u64, microbatches: u64) -> Pipeline {
    let (pp, vpp, microbatches) = match kind {
        Schedule::Interleaved => (pp, vpp, microbatches.next_multiple_of(pp)),
        Schedule::DualPipe => {
            let pp = pp.next_multiple_of(2);
            (pp, 1, microbatches.max(2 * pp).next_multiple_of(2))
        }
        Schedule::DualPipeV => (pp, 2, microbatches.max(2 * pp)),
        _ => (pp, 1, microbatches),
    };
    Pipeline::new(kind, pp, vpp, microbatches).unwrap()
}

fn pipelines() -> impl Strategy<Value = Pipeline> {
    (prop::sample::select(&KINDS), 1..=9u64, 1..=4u64, 1..=30u64).prop_map(|(k, p, v, m)| pipeline(k, p, v, m))
}

/// How often each pass ran over each chunk and microbatch, checked as it goes.
struct Done {
    pipeline: Pipeline,
    counts: Vec<[u8; 4]>,
}

impl Done {
    fn at(&mut self, microbatch: u32, chunk: u32) -> &mut [u8; 4] {
        &mut self.counts[(microbatch * self.pipeline.chunks() + chunk) as usize]
    }

    /// Whether what an action needs is there: from the chunk before, from the chunk behind, or
    /// from an earlier pass of its own.
    fn is_ready(&mut self, Action { pass, microbatch, chunk }: Action) -> bool {
        let behind = chunk + 1 < self.pipeline.chunks();
        match pass {
            Pass::Forward => chunk == 0 || self.at(microbatch, chunk - 1)[0] == 1,
            Pass::Backward | Pass::BackwardInput if behind => {
                self.at(microbatch, chunk)[0] == 1
                    && self.at(microbatch, chunk + 1)[1] + self.at(microbatch, chunk + 1)[2] == 1
            }
            Pass::Backward | Pass::BackwardInput => self.at(microbatch, chunk)[0] == 1,
            Pass::BackwardWeight => self.at(microbatch, chunk)[2] == 1,
        }
    }

    fn run(&mut self, action: Action) {
        self.at(action.microbatch, action.chunk)[action.pass as usize] += 1;
    }
}

/// Runs all stages against each other until none can go on.
fn execute(pipeline: Pipeline) -> Done {
    let counts = vec![[0; 4]; (pipeline.microbatches() * pipeline.chunks()) as usize];
    let mut done = Done { pipeline, counts };
    let mut stages: Vec<_> = (0..pipeline.stages()).map(|s| pipeline.stage(s).peekable()).collect();
    let mut moved = true;
    while moved {
        moved = false;
        for (stage, order) in stages.iter_mut().enumerate() {
            while order.peek().is_some_and(|b| b.actions().all(|a| done.is_ready(a))) {
                for action in order.next().into_iter().flat_map(Block::actions) {
                    let direction = pipeline.direction(action.microbatch);
                    assert_eq!(pipeline.stage_of(direction, action.chunk), stage as u32, "{pipeline:?} {action:?}");
                    done.run(action);
                }
                moved = true;
            }
        }
    }
    for (stage, order) in stages.iter_mut().enumerate() {
        assert_eq!(order.next(), None, "{pipeline:?}: stage {stage} waits for ever");
    }
    done
}

proptest! {
    #[test]
    fn every_pass_runs_once_and_nobody_waits_for_ever(pipeline in pipelines()) {
        for [forward, backward, input, weight] in execute(pipeline).counts {
            prop_assert_eq!(forward, 1);
            prop_assert_eq!(backward + input, 1);
            prop_assert_eq!(input, weight);
        }
    }

    #[test]
    fn what_stays_on_a_stage_is_known(pipeline in pipelines()) {
        for direction in 0..pipeline.directions() {
            for chunk in 1..pipeline.chunks() {
                let stays = pipeline.stage_of(direction, chunk - 1) == pipeline.stage_of(direction, chunk);
                prop_assert_eq!(stays, pipeline.stays(chunk - 1));
            }
        }
    }

    /// Microbatches pass a chunk in order, which is what lets sends and receives match without tags.
    #[test]
    fn microbatches_pass_a_chunk_in_order(pipeline in pipelines()) {
        for stage in 0..pipeline.stages() {
            let mut last = std::collections::BTreeMap::new();
            for action in pipeline.stage(stage).flat_map(Block::actions) {
                let pass = if action.pass == Pass::Backward { Pass::BackwardInput } else { action.pass };
                if action.pass == Pass::BackwardWeight { continue; }
                let lane = (pass as u8, pipeline.direction(action.microbatch), action.chunk);
                let before = last.insert(lane, action.microbatch);
                prop_assert!(before.is_none_or(|b| b < action.microbatch), "{:?} {:?}", pipeline, action);
            }
        }
    }

    /// More microbatches lengthen the main loop and nothing else.
    #[test]
    fn only_the_main_loop_grows(pipeline in pipelines()) {
        let (pp, microbatches) = (u64::from(pipeline.stages()), u64::from(pipeline.microbatches()));
        let base = pipeline.with_microbatches(microbatches + 4 * pp).unwrap();
        let longer = base.with_microbatches(u64::from(base.microbatches() + pipeline.period())).unwrap();
        for stage in 0..base.stages() {
            let (short, long) = (base.program(stage), longer.program(stage));
            prop_assert_eq!(short.main(), long.main());
            prop_assert_eq!(short.loops().len(), long.loops().len());
            for (i, (a, b)) in short.loops().iter().zip(long.loops()).enumerate() {
                prop_assert_eq!(a.body, b.body);
                prop_assert_eq!(a.times == b.times, short.main().is_some_and(|main| main != i), "{:?} {}", base, i);
            }
        }
    }
}

#[test]
fn orders_agree_with_the_stage_plan() {
    let recipe = recipe::builtin::find("llama3-8b").unwrap();
    for (schedule, vpp) in [
        (Schedule::GPipe, 1),
        (Schedule::OneF1b, 1),
        (Schedule::Interleaved, 2),
        (Schedule::ZbH1, 1),
        (Schedule::DualPipe, 1),
        (Schedule::DualPipeV, 2),
    ] {
        let request = LayoutRequest {
            pp: Some(4),
            vpp: Some(vpp),
            world: Some(4),
            microbatches: Some(16),
            schedule: Some(schedule),
            ..LayoutRequest::default()
        };
        let layout = check(&recipe, &request).layout.unwrap();
        let plan = StagePlan::new(&recipe, &layout, None).unwrap();
        let pipeline = Pipeline::of(&layout).unwrap();
        for stage in 0..4 {
            let mut held: Vec<usize> =
                pipeline.stage(stage).flat_map(Block::actions).map(|a| a.chunk as usize).collect();
            held.sort_unstable();
            held.dedup();
            assert_eq!(held, plan.by_stage[stage as usize], "{schedule}");
            let locals: Vec<usize> = held.iter().map(|&chunk| pipeline.local(chunk as u32)).collect();
            assert_eq!(locals, (0..held.len()).collect::<Vec<_>>(), "{schedule}");
        }
    }
}

/// The first microbatches of one stage as a line: `F0.1` is a forward of microbatch 0 over chunk 1,
/// `&` an overlap.
fn written(pipeline: Pipeline, stage: u32, blocks: usize) -> String {
    let action = |a: Action| {
        let letter = ["F", "B", "I", "W"][a.pass as usize];
        format!("{letter}{}.{}", a.microbatch, a.chunk)
    };
    let block = |b: Block| b.actions().map(action).collect::<Vec<_>>().join("&");
    pipeline.stage(stage).take(blocks).map(block).collect::<Vec<_>>().join(" ")
}

#[test]
fn orders_read_as_their_sources_draw_them() {
    let line = |kind, pp, vpp, m, stage, blocks| written(Pipeline::new(kind, pp, vpp, m).unwrap(), stage, blocks);
    assert_eq!(line(Schedule::OneF1b, 4, 1, 4, 2, 9), "F0.2 F1.2 B0.2 F2.2 B1.2 F3.2 B2.2 B3.2");
    assert_eq!(
        line(Schedule::Interleaved, 2, 2, 2, 1, 9),
        "F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1",
        "the last stage turns once its first microbatch is at the end"
    );
    assert_eq!(line(Schedule::ZbH1, 2, 1, 3, 1, 9), "F0.1 I0.1 F1.1 I1.1 W0.1 F2.1 I2.1 W1.1 W2.1");
    assert_eq!(line(Schedule::DualPipe, 2, 1, 4, 0, 5), "F0.0 F2.1 F1.0 B2.1 F3.1&B0.0");
    assert_eq!(line(Schedule::DualPipe, 2, 1, 4, 1, 5), "F2.0 F0.1 F3.0 B0.1 F1.1&B2.0");
    assert_eq!(line(Schedule::DualPipeV, 2, 2, 4, 0, 7), "F0.0 F1.0 F2.0 F0.3 I0.3 W0.3 F1.3");
}

#[test]
fn a_shape_without_an_order_is_refused() {
    for (kind, pp, vpp, m) in [
        (Schedule::OneF1b, 4, 2, 8),
        (Schedule::Interleaved, 4, 2, 9),
        (Schedule::DualPipe, 3, 1, 8),
        (Schedule::DualPipe, 4, 1, 9),
        (Schedule::DualPipeV, 4, 2, 7),
        (Schedule::DualPipeV, 4, 1, 8),
        (Schedule::GPipe, 0, 1, 8),
        (Schedule::GPipe, 1 << 20, 1, 1 << 20),
    ] {
        assert_eq!(Pipeline::new(kind, pp, vpp, m).unwrap_err().rule, "order/shape");
    }
}
