//! Where a rehearsal starts, and the checkpoint it ends with. A run that goes on from a checkpoint has its
//! sizes, not ones of its own: layouts shrink a recipe differently, and a checkpoint is of one model.

use super::{Ask, Prepared, settings};
use crate::checkpoint::{self, Index, Position, Store};
use crate::real::Real;
use crate::shrink::Shrunk;
use crate::train::{Batch, Trainer};
use ::checkpoint::about::Of;
use ::checkpoint::folder::unwritten;
use ::checkpoint::index::check_mode;
use comm::{Comm, Result};
use diag::{Blame, Finding};
use layout::{Layout, LayoutRequest};
use recipe::{Mode, Recipe};
use std::num::NonZeroUsize;
use std::path::Path;
use store::Failure;

/// The beginning of a run.
pub struct Start {
    index: Option<Index>,
    seed: u64,
}

impl Start {
    /// The beginning, or the checkpoint that was asked for if it is of the same recipe and mode.
    pub(super) fn new(ask: &Ask, recipe: &Recipe, mode: Option<Mode>) -> std::result::Result<Start, Vec<Finding>> {
        let Some(folder) = ask.load else { return Ok(Start { index: None, seed: ask.seed }) };
        let index = Index::read(folder).map_err(|f| vec![f])?;
        check_mode(index.mode.as_deref(), mode).map_err(|f| vec![f])?;
        let saved = Of::of_lines(&index.recipe).recipe(recipe.sequence)?;
        let differs = [
            ("name", recipe.name.terminal(), saved.name.terminal()),
            ("features", format!("{:?}", recipe.features.listed()), format!("{:?}", saved.features.listed())),
            ("optimizer", format!("{:?}", recipe.optimizer), format!("{:?}", saved.optimizer)),
            ("tied", recipe.tied.to_string(), saved.tied.to_string()),
        ];
        if let Some((what, here, there)) = differs.into_iter().find(|(_, here, there)| here != there) {
            let message =
                format!("the checkpoint is of another recipe: its {what} is {there}, and this one's is {here}");
            let finding = Finding::error("checkpoint/recipe", Blame::Recipe, recipe.name.terminal(), message);
            let hint =
                format!("`shardwright checkpoint inspect {}` says which recipe it is of", diag::quote::typed(folder));
            return Err(vec![finding.hint(hint)]);
        }
        Ok(Start { seed: index.seed, index: Some(index) })
    }

    /// Steps that were taken before.
    pub fn step(&self) -> u64 {
        self.index.as_ref().map_or(0, |index| index.step)
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sequences of a step of the run so far.
    fn global_batch(&self) -> Option<u64> {
        self.index.as_ref().filter(|i| i.step > 0 && i.sequences.is_multiple_of(i.step)).map(|i| i.sequences / i.step)
    }

    /// The small recipe at the checkpoint's sizes, with its batch unless another was asked for.
    pub(super) fn resized(&self, ask: &Ask, small: Shrunk) -> std::result::Result<Shrunk, Vec<Finding>> {
        let Some(index) = &self.index else { return Ok(small) };
        let recipe = Of::of_lines(&index.recipe).recipe(small.recipe.sequence)?;
        let batch = self.global_batch().filter(|_| ask.request.global_batch.is_none());
        let request = match batch {
            Some(batch) => LayoutRequest { global_batch: Some(batch), microbatches: None, ..small.request },
            None => small.request,
        };
        // Whoever saved it made it small: what this layout would have done to the recipe was not done.
        Ok(Shrunk { recipe, request, changes: Vec::new() })
    }

    /// Refuses a layout under which the same position would be other data.
    pub(super) fn check(&self, recipe: &Recipe, layout: &Layout) -> std::result::Result<(), Vec<Finding>> {
        let Some(index) = &self.index else { return Ok(()) };
        index.check_recipe(recipe, layout.mode).map_err(|f| vec![f])?;
        if index.sequences == index.step * layout.global_batch {
            return Ok(());
        }
        let message = format!(
            "the checkpoint used up {} sequences in {} steps, and steps of {} would not go on from there",
            index.sequences, index.step, layout.global_batch
        );
        let finding = Finding::error("rehearse/position", Blame::Usage, "gbs", message);
        Err(vec![match self.global_batch() {
            Some(batch) => finding.hint(format!("--gbs {batch}")),
            None => finding.hint("it was saved with batches of several sizes: start anew"),
        }])
    }

    /// A rank at the start of the run.
    pub(super) fn trainer<'a, R: Real>(
        &self,
        ask: &Ask,
        prepared: &Prepared,
        layout: &'a Layout,
        comm: &'a Comm,
    ) -> Result<Trainer<'a, R>> {
        let mut trainer = Trainer::<R>::new(&prepared.recipe, layout, comm, self.seed, settings(ask.number))?;
        if let Some(folder) = ask.load {
            checkpoint::load(folder, &mut trainer, &prepared.recipe)?;
        }
        ask.inject.and_then(|i| i.tilt(&prepared.recipe)).into_iter().for_each(|tilt| trainer.tilt(tilt));
        Ok(trainer)
    }

    /// The sequences of a step, counted from the start.
    pub(super) fn batch(&self, ask: &Ask, prepared: &Prepared, layout: &Layout, step: u64) -> Batch {
        ask.source.batch(&prepared.recipe, layout, self.seed, self.step() + step)
    }

    /// Refuses a run whose checkpoint would find its name taken, before any of it is computed.
    pub(super) fn check_target(&self, ask: &Ask) -> std::result::Result<(), Vec<Finding>> {
        let Some(folder) = ask.save else { return Ok(()) };
        let target = store_in(folder).at(self.step() + ask.steps);
        match target.symlink_metadata() {
            Ok(_) => Err(vec![unwritten(Failure::Exists(target))]),
            Err(_) => Ok(()),
        }
    }

    /// Saves, where that was asked for; nothing that is there is removed.
    pub(super) fn save<R: Real>(&self, ask: &Ask, prepared: &Prepared, trainer: &Trainer<R>) -> Result<()> {
        let Some(folder) = ask.save else { return Ok(()) };
        let sequences = trainer.steps() * prepared.layout.global_batch;
        let position = Position { seed: self.seed, sequences };
        store_in(folder).save(trainer, &prepared.recipe, position).map(|_| ())
    }
}

fn store_in(folder: &Path) -> Store {
    Store::new(folder, NonZeroUsize::MAX)
}
