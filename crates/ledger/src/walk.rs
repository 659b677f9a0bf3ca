//! How much a replay is going to walk, before it does: counted from the blocks of a stage, the
//! microbatches that are walked and the tensors that are stepped. The counts a block are the most that
//! any built-in recipe's come to, so that a prediction is above the walk by a small factor, never below.

use super::choice::{Ledger, RankJob};
use crate::megatron::microbatches_walked;
use layout::{Recompute, Schedule};
use recipe::{Mixer, Optimizer, Recipe, Role};
use replay::Replay;
use work::Work;

/// Nanoseconds that an allocation of a short replay takes with its way through graph, book and allocator, and
/// its freeing: 3.0 s of cores for 7.1 M of them (`plan deepseek-v3 --on 16xH100 --engine fsdp2 --stats`).
const WALKED_NANOSECONDS: u64 = 450;
/// Live blocks beyond which finding one leaves the cache; a gradient on its way, with its node, is two.
const MANY: u64 = 100_000;
/// The same of a predicted one under Megatron-Core and the rest: some 2.9 are predicted for one that is walked.
const NANOSECONDS: u64 = 160;
/// The same under FSDP2 and DeepSpeed. An optimised build, a core each:
///
/// | FSDP2, 16 ranks, microbatches | predicted | walked | seconds |
/// |---|---|---|---|
/// | llama3-70b tp 4 pp 2, first stage, 100 | 1.62 M | 1.07 M | 0.52 |
/// | deepseek-v3 tp 4 pp 2 ep 8, first stage, 100 | 2.34 M | 1.39 M | 0.83 |
/// | deepseek-v3 the same, last stage, 100 | 2.37 M | 1.40 M | 0.78 |
/// | deepseek-v3 the same, first stage, 300 | 6.99 M | 4.15 M | 3.55 |
/// | deepseek-v3 the same, first stage, 512 | 11.9 M | 7.07 M | 6.20 |
const PLAIN_NANOSECONDS: u64 = 400;
/// Bytes that a tensor alive on the tape takes here, with its node.
const BYTES: u64 = 800;
/// Microbatches in which a step without a pipeline has shown that it repeats itself.
const SHOWN: u64 = 6;
/// The same for every stage that follows: its warm-up is given back, then rounds as long as storages live
/// ask for the same, twice.
const SHOWN_BEHIND: u64 = 3;
/// Allocations that are played to the allocator alone in the time that one is walked.
const PLAYED: u64 = 5;

/// Allocations of one microbatch in a block, forward and backward.
#[derive(Clone, Copy)]
struct Each {
    block: u64,
    experts: u64,
    /// Of a stepped tensor: made, its state made, and stepped once.
    tensor: u64,
    /// Tensors of a bank of experts that are stepped apart: all of it, or each expert's.
    expert_tensors: u64,
}

/// The same of a stage under Megatron-Core, which is smaller: 7.5 s of cores for 32 M of them (stages of qwen3-235b-a22b on
/// 32 H200).
const WALKED_STAGE_NANOSECONDS: u64 = 240;

/// Operations of this machine that a replay took.
pub fn work_of(replay: &Replay) -> u64 {
    replay.operations.saturating_mul(WALKED_NANOSECONDS)
}

impl Ledger {
    /// Operations of this machine that a replay of so many allocations took.
    pub fn work_of_walked(&self, allocations: u64) -> u64 {
        let each = if matches!(self, Ledger::Megatron(_)) { WALKED_STAGE_NANOSECONDS } else { WALKED_NANOSECONDS };
        allocations.saturating_mul(each)
    }

    /// What replaying a rank takes of this machine.
    pub fn work(&self, job: &RankJob) -> Work {
        let alive = self.alive(job);
        let held = alive.saturating_mul(BYTES);
        let each = match self {
            Ledger::Fsdp2(_) | Ledger::Deepspeed(_) => PLAIN_NANOSECONDS,
            Ledger::Megatron(_) | Ledger::Nanotron(_) | Ledger::Shardwright(_) => NANOSECONDS,
        };
        let operations = self.operations(job).saturating_add(self.played(job) / PLAYED);
        // What no longer fits in a core's cache takes twice as long to find (nanoseconds of a gradient, 8 blocks
        // of experts: 300 with 512 experts a block, 570 with 2048).
        let each = if alive.saturating_add(2 * self.handed(job)) > MANY { 2 * each } else { each };
        Work { bytes: held, operations: operations.saturating_mul(each) }
    }

    /// Allocations of microbatches that are not walked: under a pipeline blocks may wander to the end of a
    /// step, and are followed.
    fn played(&self, job: &RankJob) -> u64 {
        let left = job.layout.microbatches.saturating_sub(self.walked(job));
        match self {
            Ledger::Fsdp2(_) if job.layout.pp.splits() => {
                u64::from(self.steps()).saturating_mul(left).saturating_mul(self.pass(job))
            }
            _ => 0,
        }
    }

    /// Allocations that replaying a rank walks, at most.
    pub fn operations(&self, job: &RankJob) -> u64 {
        let steps = u64::from(self.steps());
        let pass = self.pass(job).saturating_add(self.handed(job));
        let passes = self.walked(job).saturating_mul(pass);
        let state = self.tensors(job).saturating_mul(self.each(job).tensor);
        // What a job makes once is at most what a step makes.
        steps.saturating_mul(passes.saturating_add(state)).saturating_add(state).saturating_add(self.received(job))
    }

    /// Buffers that a stage receives into, where every microbatch has its own: one a direction.
    fn received(&self, job: &RankJob) -> u64 {
        match self {
            Ledger::Fsdp2(_) if job.layout.pp.splits() => job.layout.microbatches.saturating_mul(2),
            _ => 0,
        }
    }

    /// Tensors alive at once: what stays, and what microbatches in flight keep.
    fn alive(&self, job: &RankJob) -> u64 {
        let in_flight = match job.layout.schedule {
            Schedule::GPipe => job.layout.microbatches,
            _ => job.layout.microbatches.min(2 * job.layout.pp.get()),
        };
        let kept = self.tensors(job).saturating_add(self.received(job));
        self.pass(job).saturating_mul(in_flight).saturating_add(kept)
    }

    fn steps(&self) -> u32 {
        match self {
            Ledger::Megatron(options) => options.steps,
            Ledger::Fsdp2(options) => options.steps,
            Ledger::Deepspeed(options) => options.steps,
            Ledger::Nanotron(options) => options.steps,
            Ledger::Shardwright(_) => 1,
        }
    }

    fn each(&self, job: &RankJob) -> Each {
        let experts = job.recipe.moe.as_ref().map_or(0, |moe| moe.experts / job.layout.ep.get());
        let steps = |role| job.recipe.optimizer.of(role, true) == Optimizer::Muon;
        let orthogonalised = steps(Role::Matrix) || steps(Role::Expert);
        match self {
            // A grouped product makes a gradient for every expert.
            Ledger::Megatron(_) => Each {
                block: 32 + 12 * job.layout.cp.get(),
                experts: 136,
                tensor: if orthogonalised { 8 } else { 3 },
                expert_tensors: 2 * experts,
            },
            // Preconditioners and bases, or statistics and roots, are made; and results and a refresh for each step.
            Ledger::Fsdp2(options) if options.ways.elements.preconditions() => {
                Each { block: 64, experts: 190, tensor: 26, expert_tensors: 3 }
            }
            Ledger::Fsdp2(_) | Ledger::Deepspeed(_) => {
                Each { block: 64, experts: 190, tensor: if orthogonalised { 12 } else { 4 }, expert_tensors: 3 }
            }
            Ledger::Nanotron(_) => Each { block: 40, experts: 0, tensor: 4, expert_tensors: 0 },
            Ledger::Shardwright(_) => Each { block: 40, experts: 70, tensor: 4, expert_tensors: 3 },
        }
    }

    /// Microbatches that are walked in a step.
    fn walked(&self, job: &RankJob) -> u64 {
        let (all, pp) = (job.layout.microbatches, job.layout.pp.get());
        match self {
            Ledger::Megatron(options) => microbatches_walked(options, job, job.layout.stage_of(job.rank)),
            // Nobody is further ahead than the first stage, by a microbatch for each that follows.
            Ledger::Fsdp2(_) | Ledger::Deepspeed(_) => all.min(SHOWN + SHOWN_BEHIND * (pp - 1)),
            Ledger::Nanotron(_) if job.layout.schedule != Schedule::GPipe => all.min(pp + 4),
            Ledger::Nanotron(_) => all,
            // Each kind of pass once, a forward again for a second kind of backward; the rest are booked.
            Ledger::Shardwright(_) if pp == 1 => 1,
            Ledger::Shardwright(_) => 2,
        }
    }

    /// Whether a replay stops walking microbatches once the pipeline is steady, which a tape does not know of.
    pub fn is_cut_short(&self, job: &RankJob) -> bool {
        matches!(self, Ledger::Megatron(_) | Ledger::Nanotron(_)) && self.walked(job) < job.layout.microbatches
    }

    /// Allocations of one microbatch on the rank's stage.
    fn pass(&self, job: &RankJob) -> u64 {
        let each = self.each(job);
        let of = |mixer: Mixer| match mixer {
            Mixer::Moe => each.experts,
            Mixer::Mamba | Mixer::Recurrent => each.block.saturating_add(SCAN),
            _ => each.block,
        };
        let blocks = mixers(job).map(of).fold(0u64, u64::saturating_add);
        // Embedding, head and loss, and a prediction suffix that has them again at every depth.
        let edges = each.experts.saturating_add(each.block).saturating_mul(1 + suffix(job.recipe));
        let once = blocks.saturating_add(edges);
        let passes = if job.layout.recompute == Recompute::None { once } else { once.saturating_mul(2) };
        passes.saturating_add(self.taught(job))
    }

    /// Allocations of a teacher's forward.
    fn taught(&self, job: &RankJob) -> u64 {
        let Ledger::Fsdp2(options) = self else { return 0 };
        let (each, teacher) = (self.each(job), options.ways.teacher());
        let of = |mixer: Mixer| if mixer == Mixer::Moe { each.experts } else { each.block };
        let blocks = teacher.iter().flat_map(|teacher| &teacher.layers).flat_map(|layer| layer.mixers());
        blocks.map(of).fold(0, u64::saturating_add)
    }

    /// Gradients that one microbatch hands to experts, each of which takes what an allocation does, beyond those
    /// that a block's count has room for: it is above what any built-in recipe walks.
    fn handed(&self, job: &RankJob) -> u64 {
        let banks = mixers(job).filter(|mixer| *mixer == Mixer::Moe).count() as u64;
        banks.saturating_mul(self.each(job).expert_tensors.saturating_sub(ROOM))
    }

    fn tensors(&self, job: &RankJob) -> u64 {
        let each = self.each(job);
        let of = |mixer: Mixer| BLOCK_TENSORS + if mixer == Mixer::Moe { each.expert_tensors } else { 0 };
        let suffix = suffix(job.recipe) * (2 * BLOCK_TENSORS + each.expert_tensors);
        mixers(job).map(of).fold(BLOCK_TENSORS + suffix, u64::saturating_add)
    }
}

/// Allocations that are predicted of a block of experts above those that are walked (110 for 46, mixtral-8x7b).
const ROOM: u64 = 64;
/// Tensors of a block beside its experts.
const BLOCK_TENSORS: u64 = 9;
/// Allocations of a block's scans in plain torch, forward, again and backward, beyond those that a block's count has room for.
const SCAN: u64 = 200;

fn suffix(recipe: &Recipe) -> u64 {
    recipe.features.mtp().map_or(0, |mtp| mtp.depth)
}

fn mixers<'a>(job: &RankJob<'a>) -> impl Iterator<Item = Mixer> + 'a {
    let (recipe, stages) = (job.recipe, job.stages);
    stages.layers_of_stage(job.layout.stage_of(job.rank)).flat_map(move |layer| recipe.layers[layer].mixers())
}
