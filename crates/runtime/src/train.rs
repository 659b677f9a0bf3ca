//! Training steps: microbatches, reduction of gradients over the axes that share them, clipping, and the
//! optimizers on their shards.

use crate::blocks::edges::squares;
use crate::blocks::{Balance, Cx, Tilt};
use crate::live;
use crate::mat::{Mat, axpy};
use crate::model::{Model, Tokens};
use crate::optimizer::{self, Settings, State, Step};
use crate::params::{Id, Shelf, Sum, hash};
use crate::pipeline::{Done, Flight};
use crate::rank::Rank;
use crate::real::Real;
use crate::report::{HeldInPhase, StepHeld};
use crate::saved::Sizes;
use crate::shards::{Flat, Vault};
use crate::stats::{Of, Stats};
use crate::suffix;
use crate::supported::unsupported;
use comm::{Call, Comm, Group, Op, Result};
use layout::activations::Dealing;
use layout::order::{Pass, Pipeline};
use layout::{Axis, Layout, OwnershipTable, ZeroStage};
use ledger::shardwright::{Held, Phase};
use recipe::{Mixer, Optimizer, Recipe};
use std::ops::Range;

/// The sequences of one step. Each has one token more than it is trained on, and one more for each
/// prediction depth.
pub struct Batch {
    /// As many as the global batch, in the order replicas take them.
    pub sequences: Vec<Vec<u32>>,
}

impl Batch {
    /// Synthetic sequences that can be learned: each token follows from the one before by one of two
    /// rules.
    pub fn synthetic(recipe: &Recipe, layout: &Layout, seed: u64, step: u64) -> Batch {
        let (vocab, ahead) = (recipe.vocab, recipe.features.mtp().map_or(0, |mtp| mtp.depth));
        let sequence = |index: u64| {
            let key = hash(hash(seed, step), index);
            let mut token = hash(key, 0) % vocab;
            (0..=layout.sequence + ahead)
                .map(|t| {
                    let now = token;
                    token = (token * 5 + 3 + hash(key, t + 1) % 2) % vocab;
                    now as u32
                })
                .collect()
        };
        Batch { sequences: (0..layout.global_batch).map(sequence).collect() }
    }

    /// The tokens of one microbatch on this rank: its replica's sequences at its positions.
    fn tokens(&self, rank: &Rank, microbatch: usize, depths: usize) -> Tokens<'_> {
        let total = (rank.layout.global_batch * rank.layout.sequence) as f64;
        let (batch, replicas) = (rank.layout.micro_batch as usize, rank.layout.dp.get() as usize);
        let first = (microbatch * replicas + rank.on(Axis::Dp)) * batch;
        let sequences = &self.sequences[first..first + batch];
        let shifted = |by: usize, total: f64| {
            let (mut input, mut target) = (Vec::new(), Vec::new());
            for position in rank.positions() {
                for sequence in sequences {
                    input.push(sequence[position + by]);
                    target.push(sequence[position + by + 1]);
                }
            }
            Tokens { sequences, input, target, ahead: Vec::new(), total }
        };
        // A depth's loss counts `WEIGHT / depths`, which is done by dividing it by more tokens.
        let ahead = (1..=depths).map(|by| shifted(by, total * depths as f64 / suffix::WEIGHT)).collect();
        Tokens { ahead, ..shifted(0, total) }
    }
}

/// Results of a step, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Mean cross-entropy of the step's tokens.
    pub loss: f64,
    /// Balancing losses of all expert layers.
    pub auxiliary: f64,
    /// Global norm of the gradient before clipping.
    pub norm: f64,
    /// Most bytes that microbatches kept on this rank at once.
    pub saved_bytes: u64,
}

/// One rank of a training run: model, weights, gradients, optimizer state.
pub struct Trainer<'a, R> {
    pub(crate) rank: Rank<'a>,
    pub(crate) shelf: Shelf,
    model: Model<R>,
    settings: Settings,
    pub(crate) weights: Vec<Mat<R>>,
    grads: Vec<Mat<R>>,
    pub(crate) vault: Vault<R>,
    /// Reduced gradients of the held runs.
    reduced: Vec<Vec<R>>,
    /// What was held in the phases of the last step.
    last: StepHeld,
    pub(crate) states: Vec<State<R>>,
    pub(crate) steps: u64,
    depths: usize,
    /// One for each expert layer of the whole model, on whatever stage it runs.
    pub(crate) balances: Vec<Balance>,
    /// Norms of the step that runs, if somebody asked for them.
    stats: Option<Stats>,
}

impl<'a, R: Real> Trainer<'a, R> {
    /// The rank that `comm` is, of a recipe under a legal layout.
    pub fn new(
        recipe: &Recipe,
        layout: &'a Layout,
        comm: &'a Comm,
        seed: u64,
        settings: Settings,
    ) -> Result<Trainer<'a, R>> {
        if let Some(finding) = unsupported(recipe).into_iter().next() {
            return Err(finding);
        }
        let table = OwnershipTable::new(recipe, layout).map_err(|mut f| f.remove(0))?;
        let rank = Rank::new(comm, layout)?;
        let mut shelf = Shelf::new(&table, layout, &rank.at, recipe.norm_eps)?;
        let model = Model::new(recipe, layout, &table, rank.on(Axis::Pp), &mut shelf)?;
        let mut weights = shelf.initial(seed);
        let flats = Flat::all(&shelf, &rank);
        // Weights are either whole here or in the vault (ZeRO 3), never both.
        let held = match layout.zero {
            ZeroStage::Three => flats.iter().map(|flat| flat.cut(&weights)).collect(),
            _ => vec![Vec::new(); flats.len()],
        };
        if layout.zero == ZeroStage::Three {
            weights.iter_mut().for_each(|w| w.data = Vec::new());
        }
        let states = flats.iter().map(|flat| State::new(flat, &shelf)).collect();
        let layers = recipe.count_with_suffix(Mixer::Moe) as usize;
        let balances = recipe.moe.as_ref().map_or(Vec::new(), |moe| vec![Balance::new(moe); layers]);
        let depths = recipe.features.mtp().map_or(0, |mtp| mtp.depth as usize);
        let (grads, vault) = (shelf.zeros(), Vault { flats, held });
        Ok(Trainer {
            rank,
            shelf,
            model,
            settings,
            weights,
            grads,
            vault,
            reduced: Vec::new(),
            last: StepHeld::default(),
            states,
            steps: 0,
            depths,
            balances,
            stats: None,
        })
    }

    /// The parameters this rank holds.
    pub fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Steps taken, including those before a checkpoint that was loaded.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Weights as they are now; under ZeRO 3 they are gathered for it.
    pub fn weights(&mut self) -> Result<Vec<Mat<R>>> {
        let mut weights = self.weights.clone();
        if self.rank.layout.zero == ZeroStage::Three {
            for place in self.places() {
                self.vault.open(&self.rank, place, &mut weights)?;
            }
        }
        Ok(weights)
    }

    fn places(&self) -> Vec<recipe::Place> {
        let mut places: Vec<_> = self.vault.flats.iter().map(|f| f.place).collect();
        places.dedup();
        places
    }

    /// Bytes held between passes, line by line, by capacity of the buffers.
    pub fn held(&self) -> Held {
        let whole = |all: &[Mat<R>]| all.iter().map(|m| m.data.capacity() as u64).sum::<u64>() * R::BYTES;
        let runs = |all: &[Vec<R>]| all.iter().map(|v| v.capacity() as u64).sum::<u64>() * R::BYTES;
        Held {
            weights: whole(&self.weights) + runs(&self.vault.held),
            gradients: whole(&self.grads) + runs(&self.reduced),
            sums: runs(&self.reduced),
            optimizer: self.states.iter().map(State::bytes).sum(),
            saved: 0,
        }
    }

    /// What was held in the phases of the last step, as far as it went, and the routing it was for.
    pub fn last(&self) -> &StepHeld {
        &self.last
    }

    /// Records what is held at the end of a phase, and starts the next.
    fn ends(&mut self, phase: Phase, saved: u64) {
        let peak = live::peak_since();
        self.last.phases.push(HeldInPhase { phase, held: Held { saved, ..self.held() }, peak });
    }

    /// Counts norms from the next step on.
    pub fn watch(&mut self, stats: Stats) {
        self.stats = Some(stats);
    }

    /// What this rank counted since it was last asked; nothing where nobody asked for norms.
    pub fn watched(&mut self) -> Vec<f64> {
        self.stats.as_mut().map_or_else(Vec::new, Stats::take)
    }

    fn watch_gradients(&mut self) {
        let Some(mut stats) = self.stats.take() else { return };
        for (flat, grads) in self.vault.flats.iter().zip(&self.reduced) {
            self.each_square(flat, grads, &mut |id, counted, squares| {
                let nonfinite = counted.iter().filter(|value| !value.f64().is_finite()).count();
                let squares = if nonfinite == 0 { squares } else { 0.0 };
                stats.count(Of::Gradient, &self.shelf.params[id.0].row.tensor.path, squares, nonfinite);
            });
        }
        self.stats = Some(stats);
    }

    /// For every expert layer, tokens of all steps on all ranks that chose each expert.
    pub fn load(&self) -> Vec<Vec<u64>> {
        self.balances.iter().map(|b| b.total.clone()).collect()
    }

    /// Makes every expert layer choose wrong on purpose.
    pub(crate) fn tilt(&mut self, tilt: Tilt) {
        self.balances.iter_mut().for_each(|b| b.tilt = Some(tilt));
    }

    /// Runs every microbatch of a step and reduces; gives this rank's parts of the gradients instead of
    /// updating.
    pub fn gradients(&mut self, batch: &Batch) -> Result<(Report, Vec<Mat<R>>)> {
        let report = self.accumulate(batch)?;
        let mut grads = self.shelf.zeros();
        for (flat, held) in self.vault.flats.iter().zip(&self.reduced) {
            let whole = flat.gather(&self.rank, "gradients to look at", held.clone())?;
            for (id, span) in flat.ids.iter().zip(&flat.spans) {
                grads[id.0].data.copy_from_slice(&whole[span.clone()]);
            }
        }
        Ok((report, grads))
    }

    /// Runs one step: microbatches, reduction, clipping, update.
    pub fn step(&mut self, batch: &Batch) -> Result<Report> {
        let report = self.accumulate(batch)?;
        let scale = self.settings.clip.map_or(1.0, |most| (most / (report.norm + 1e-6)).min(1.0));
        self.steps += 1;
        self.balance()?;
        for at in 0..self.vault.flats.len() {
            let grads = std::mem::take(&mut self.reduced[at]);
            self.update(at, Step { number: self.steps, scale: R::of(scale), grads: &grads })?;
        }
        self.ends(Phase::Step, 0);
        Ok(report)
    }

    fn accumulate(&mut self, batch: &Batch) -> Result<Report> {
        self.reduced = vec![Vec::new(); self.vault.flats.len()];
        self.balances.iter_mut().for_each(|b| b.counts.fill(0));
        self.last = StepHeld { phases: Vec::with_capacity(Phase::ALL.len()), routing: Dealing::default() };
        live::peak_since();
        self.ends(Phase::State, 0);
        let done = self.walk(batch)?;
        self.last.routing = done.routing;
        self.ends(Phase::Passes, done.saved_bytes);
        if self.rank.layout.zero < ZeroStage::Two {
            self.reduce()?;
        }
        self.sum_copies()?;
        self.ends(Phase::Reduce, 0);
        self.watch_gradients();
        let sums = self.sums(done.loss, done.auxiliary)?;
        Ok(Report { loss: sums[0], auxiliary: sums[1], norm: sums[2].sqrt(), saved_bytes: done.saved_bytes })
    }

    /// Runs the passes of this rank's stage in the order of the schedule.
    fn walk(&mut self, batch: &Batch) -> Result<Done> {
        let layout = self.rank.layout;
        let order = Pipeline::of(layout)?;
        let mut flight = Flight::new(order);
        for action in order.stage(self.rank.on(Axis::Pp) as u32).flat_map(layout::order::Block::actions) {
            let tokens = batch.tokens(&self.rank, action.microbatch as usize, self.depths);
            let mut cx = Cx {
                rank: &self.rank,
                sizes: Sizes::of(layout),
                weights: &mut self.weights,
                vault: (layout.zero == ZeroStage::Three).then_some(&self.vault),
                grads: &mut self.grads,
                auxiliary: 0.0,
                balances: &mut self.balances,
                carried: None,
                routed: Vec::new(),
                deferred: None,
                stats: self.stats.as_mut(),
            };
            flight.run(&mut cx, &self.model, &self.shelf, action, &tokens)?;
            // From ZeRO 2 on, gradients are reduced after every microbatch.
            if layout.zero >= ZeroStage::Two && matches!(action.pass, Pass::Backward | Pass::BackwardWeight) {
                self.reduce()?;
            }
        }
        Ok(flight.done)
    }

    /// Sums gradients of what several stages hold: a tied table, and everything under DualPipe.
    fn sum_copies(&mut self) -> Result<()> {
        let call = Call::new("pp", "gradients of copies");
        for (flat, sum) in self.vault.flats.iter().zip(&mut self.reduced) {
            *sum = self.rank.comm.all_reduce(&flat.copies, call, Op::Sum, std::mem::take(sum))?;
        }
        Ok(())
    }

    /// Loss, balancing loss and squared norm of the gradient, summed over all ranks, each tensor counted
    /// once.
    fn sums(&self, loss: f64, auxiliary: f64) -> Result<Vec<f64>> {
        let rank = &self.rank;
        let first = if rank.on(Axis::Tp) == 0 { loss } else { 0.0 };
        // Without SP, tensor neighbours would count the same tokens twice; but then there are no experts
        // unless tp is 1.
        let mine: f64 = self.vault.flats.iter().zip(&self.reduced).map(|(f, g)| self.squares(f, g)).sum();
        let world = Group::new(0..rank.comm.world());
        rank.comm.all_reduce(&world, Call::new("world", "loss and norm"), Op::Sum, vec![first, auxiliary, mine])
    }

    /// Squared norm of the gradients that this rank counts.
    fn squares(&self, flat: &Flat, grads: &[R]) -> f64 {
        let mut sum = 0.0;
        self.each_square(flat, grads, &mut |_, _, squares| sum += squares);
        sum
    }

    /// Squared norms of the gradients that this rank counts, tensor by tensor: of copies only the first holder's.
    /// What neighbours count comes off again, with no values.
    fn each_square(&self, flat: &Flat, grads: &[R], count: &mut dyn FnMut(Id, &[R], f64)) {
        let rank = &self.rank;
        let is_first_copy = flat.copies.place(rank.comm.rank()) == Some(0);
        if !is_first_copy || rank.layout.zero == ZeroStage::Zero && flat.group.place(rank.comm.rank()) != Some(0) {
            return;
        }
        let tp = rank.on(Axis::Tp);
        for (id, span) in flat.ids.iter().zip(&flat.spans) {
            let param = &self.shelf.params[id.0];
            if param.sum != Sum::Own && tp != 0
                || param.is_copied_over(rank.layout, Axis::Etp) && rank.on(Axis::Etp) != 0
            {
                continue;
            }
            let held = clip(span, &flat.held);
            let values = &grads[shift(&held, flat.held.start)];
            count(*id, values, squares(values));
            let Some((rows, holders)) = param.shared_rows(rank.layout) else { continue };
            if !tp.is_multiple_of(holders) {
                let unit = param.part.elements() as usize / param.part.shape()[0] as usize;
                for row in rows {
                    let shared = span.start + row.start * unit..span.start + row.end * unit;
                    count(*id, &[], -squares(&grads[shift(&clip(&shared, &flat.held), flat.held.start)]));
                }
            }
        }
    }

    /// Reduces this rank's gradients over the tensor axis and replicas, adds them to the held runs, and
    /// clears them.
    fn reduce(&mut self) -> Result<()> {
        self.sum_whole()?;
        self.sum_shared()?;
        for (flat, sum) in self.vault.flats.iter().zip(&mut self.reduced) {
            let held = flat.reduce(&self.rank, &self.grads)?;
            if sum.is_empty() {
                *sum = held;
            } else {
                axpy(sum, R::ONE, &held);
            }
        }
        self.grads.iter_mut().for_each(|g| g.data.fill(R::ZERO));
        Ok(())
    }

    /// Sums over the tensor axis the gradients of uncut tensors, of which each rank has a partial sum.
    fn sum_whole(&mut self) -> Result<()> {
        let is_partial = |sum: Sum| sum == Sum::Heads || (sum == Sum::Tokens && self.rank.layout.sp);
        let ids: Vec<usize> = (0..self.grads.len()).filter(|i| is_partial(self.shelf.params[*i].sum)).collect();
        if !self.rank.tp.splits() || ids.is_empty() {
            return Ok(());
        }
        let mut flat: Vec<R> = Vec::with_capacity(ids.iter().map(|i| self.grads[*i].data.len()).sum());
        ids.iter().for_each(|i| flat.extend_from_slice(&self.grads[*i].data));
        let call = Call::new("tp", "gradients of whole tensors");
        let flat = self.rank.comm.all_reduce(&self.rank.tp, call, Op::Sum, flat)?;
        let mut rest = flat.as_slice();
        for i in ids {
            let (mine, others) = rest.split_at(self.grads[i].data.len());
            self.grads[i].data.copy_from_slice(mine);
            rest = others;
        }
        Ok(())
    }

    /// Sums over their holders the gradients of units that several tensor ranks hold: KV heads below tp,
    /// and query and key heads that recurrent heads share.
    fn sum_shared(&mut self) -> Result<()> {
        let place = self.rank.on(Axis::Tp);
        for (param, grad) in self.shelf.params.iter().zip(&mut self.grads) {
            let Some((rows, holders)) = param.shared_rows(self.rank.layout) else { continue };
            let first = place / holders * holders;
            let group = Group::new(self.rank.tp.ranks()[first..first + holders].iter().copied());
            let unit = grad.data.len() / param.part.shape()[0] as usize;
            let places: Vec<usize> = rows.into_iter().flat_map(|r| r.start * unit..r.end * unit).collect();
            let values = places.iter().map(|i| grad.data[*i]).collect();
            let call = Call::new("tp", "gradients of shared heads");
            let sums = self.rank.comm.all_reduce(&group, call, Op::Sum, values)?;
            places.iter().zip(sums).for_each(|(i, v)| grad.data[*i] = v);
        }
        Ok(())
    }

    /// Moves the routing biases by the counts of all ranks.
    fn balance(&mut self) -> Result<()> {
        let counts: Vec<u64> = self.balances.iter().flat_map(|b| b.counts.iter().copied()).collect();
        if counts.is_empty() {
            return Ok(());
        }
        let world = Group::new(0..self.rank.comm.world());
        let call = Call::new("world", "tokens of each expert of the step");
        let sums = self.rank.comm.all_reduce(&world, call, Op::Sum, counts)?;
        let each = self.balances[0].counts.len();
        self.balances.iter_mut().zip(sums.chunks_exact(each)).for_each(|(b, c)| b.update(c));
        Ok(())
    }

    /// Updates one flat buffer.
    fn update(&mut self, at: usize, step: Step<R>) -> Result<()> {
        let (flat, shelf, rank) = (&self.vault.flats[at], &self.shelf, &self.rank);
        let is_sharded = rank.layout.zero == ZeroStage::Three;
        let mut held = if is_sharded { self.vault.held[at].clone() } else { flat.cut(&self.weights) };
        let old = if is_sharded { held.clone() } else { Vec::new() };
        self.states[at].step(&self.settings, flat, shelf, step, &mut held);
        let is_muon = |id: &Id| shelf.params[id.0].row.tensor.optimizer == Optimizer::Muon;
        let has_muon = flat.ids.iter().any(is_muon);
        if is_sharded && !has_muon {
            self.vault.held[at] = held;
            return Ok(());
        }
        let whole = flat.gather(rank, "weights after the step", held)?;
        if !is_sharded {
            return self.set(at, &whole);
        }
        // Under ZeRO 3 only the held run exists; Muon needs the old weights of the whole matrix.
        let mut before = flat.gather(rank, "weights before use", old)?;
        for (id, span) in flat.ids.iter().zip(&flat.spans) {
            if is_muon(id) {
                let weight = &mut before[span.clone()];
                optimizer::muon(&self.settings, shelf, rank, *id, &whole[span.clone()], weight)?;
            } else {
                before[span.clone()].copy_from_slice(&whole[span.clone()]);
            }
        }
        self.vault.held[at] = before[flat.held.clone()].to_vec();
        Ok(())
    }

    /// Writes an updated buffer into the whole weights: new values, or Muon's direction to apply.
    fn set(&mut self, at: usize, whole: &[R]) -> Result<()> {
        let (flat, shelf) = (&self.vault.flats[at], &self.shelf);
        for (id, span) in flat.ids.iter().zip(&flat.spans) {
            let (weight, new) = (&mut self.weights[id.0].data, &whole[span.clone()]);
            if shelf.params[id.0].row.tensor.optimizer == Optimizer::Muon {
                optimizer::muon(&self.settings, shelf, &self.rank, *id, new, weight)?;
            } else {
                weight.copy_from_slice(new);
            }
        }
        Ok(())
    }
}

pub(crate) fn clip(span: &Range<usize>, to: &Range<usize>) -> Range<usize> {
    let start = span.start.clamp(to.start, to.end);
    start..span.end.clamp(start, to.end)
}

pub(crate) fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start - by..range.end - by
}

#[cfg(test)]
mod published;
#[cfg(test)]
mod sides;
#[cfg(test)]
mod tests;
