//! A frozen model beside the trained one (`crates/launch/assets/fsdp2/teacher.py`): the same blocks under a root of their
//! own, weights kept and gathered in the format of products, forward without a graph. Its logits wait for the model's.

use super::engine::Fsdp;
use super::options::Fsdp2Options;
use super::plain::{Config, Model, Place, Rank};
use super::schedule::backward_of;
use super::{Blocks, Edges, Job, groups, missing};
use case::Ways;
use layout::StagePlan;
use recipe::Dtype;
use replay::Unmodelled;
use replay::line::Origin;
use replay::tape::{FP32, Microbatches};
use std::rc::Rc;

/// The teacher's sizes on this rank, where there is one.
pub(super) fn config(job: &Job) -> Result<Option<Config>, Unmodelled> {
    let Job { layout, rank, options, .. } = *job;
    let Some(recipe) = options.ways.teacher() else { return Ok(None) };
    if let Some(what) = missing(&recipe).first() {
        return Err(Unmodelled::new(format!("a teacher with {what}"), "the emitted program does not have it"));
    }
    let stages = StagePlan::new(&recipe, layout, None)
        .map_err(|finding| Unmodelled::new("the teacher's layers", finding.message))?;
    let mut config = Config::new(Place { blocks: Blocks::Emitted, recipe: &recipe, layout, stages: &stages, rank })?;
    (config.ways, config.documents, config.checkpoints) = (Ways::PLAIN, options.documents, false);
    config.edges_apart = options.edges == Edges::Apart && !config.is_tied;
    Ok(Some(config))
}

/// The teacher in motion.
pub(super) struct Teacher {
    model: Model,
    engine: Rc<Fsdp>,
    rank: Rc<Rank>,
}

impl Teacher {
    pub fn new(config: &Config, options: &Fsdp2Options, beside: &Rank) -> Teacher {
        let (model, units) = Model::new(config);
        units.iter().flat_map(|unit| &unit.params).for_each(|param| param.leaf.freeze());
        let kept = Fsdp2Options { main: Dtype::Bf16, ..options.clone() };
        let groups = groups(config, &kept, &units, &beside.tape);
        let engine = Rc::new(Fsdp::new(&beside.tape, groups, FP32, options.prefetch, false));
        let rank = beside.beside(config.clone(), engine.clone());
        Teacher { model, engine, rank }
    }

    /// All microbatches: the teacher's logits first, then the model's forward and backward.
    pub fn run_step(&self, c: &Rc<Rank>, model: &Model, engine: &Fsdp, which: Microbatches) {
        let round = || {
            c.tape.set_recording(false);
            let wanted = self.model.output(&self.rank, None);
            self.engine.end_of_forward();
            c.tape.set_recording(true);
            let (loss, logits) = model.distilled(c, wanted);
            drop(logits);
            c.tape.enter(Origin::Pipeline);
            backward_of(c, &loss, None);
            engine.end_of_backward();
        };
        c.tape.rounds(c.config.microbatches, which, || engine.standing(), round);
    }
}
