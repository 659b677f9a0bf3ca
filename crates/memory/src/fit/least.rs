//! What a rank holds at least where no ledger replays its job: state counted off the ownership table, and the
//! input of one layer.
//!
//! It says that a job cannot fit, never that it does. Gathered weights, saved activations, workspaces and what
//! lies outside the allocator are not in it.

use crate::estimate::{Estimator, Shards, StageShape};
use case::Case;
use case::ways::MomentumFormat;
use layout::ownership::Row;
use layout::{Engine, ZeroStage};
use recipe::{Optimizer, Recipe};
use units::Bytes;

/// A lower bound of what the fullest rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Least {
    /// The stage whose ranks hold most.
    pub stage: usize,
    /// Weights, gradients and optimizer state.
    pub state_bytes: u64,
    /// The input of one layer, for one microbatch.
    pub input_bytes: u64,
}

impl Least {
    /// Of a job, whichever engine runs it. Nothing is replayed.
    pub fn of(case: &Case) -> Least {
        let by_ledger = of_ledger(case);
        let states = by_ledger.unwrap_or_else(|| match case.engine() {
            Engine::Maxtext | Engine::XlaSpmd => vec![of_compiler(case)],
            _ => (0..case.layout.pp.get() as usize).map(|stage| of_stage(case, stage)).collect(),
        });
        let most = states.iter().copied().enumerate().max_by_key(|&(stage, bytes)| (bytes, std::cmp::Reverse(stage)));
        let (stage, state_bytes) = most.unwrap_or((0, 0));
        Least { stage, state_bytes, input_bytes: input(case) }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.state_bytes.saturating_add(self.input_bytes)
    }

    /// In a few words: `at least 12.0 GiB of state and inputs`.
    pub fn words(&self) -> String {
        format!("at least {} of state and inputs", Bytes(self.total()))
    }
}

/// State of every stage under the engine's ledger; none where it has none, or nobody has counted its state.
fn of_ledger(case: &Case) -> Option<Vec<u64>> {
    let (estimator, layout, plan) = (Estimator::of_case(case).ok()?, &case.layout, &case.stages);
    let estimate = estimator.state(layout)?;
    // Whole tensors move to the host, the last of them beyond the share that was asked for.
    let share = if case.options.offload > 0.0 { 1.0 } else { 0.0 };
    let state = |stage: usize| {
        let (held, last) = (&plan.by_stage[stage], plan.chunks.len() - 1);
        let shape = StageShape::new(&case.kinds, plan.layers_of_stage(stage), held.contains(&0), held.contains(&last));
        let sum = estimate.sum(layout, stage as u64, &shape, &estimate.terms(&shape), share).ok()?;
        Some(sum.least(layout))
    };
    (0..layout.pp.get() as usize).map(state).collect()
}

/// State where a compiler decides who holds what: some rank holds no less than the mean.
fn of_compiler(case: &Case) -> u64 {
    let bytes = |row: &Row| {
        let elements: u64 = row.tensor.dims.iter().map(|dim| dim.len()).product();
        u128::from(elements) * u128::from(stepped_bytes(case, row))
    };
    let total: u128 = case.table.rows.iter().map(bytes).sum();
    u64::try_from(total / u128::from(case.layout.world)).unwrap_or(u64::MAX)
}

/// State of one rank of a stage, shared out as far as ZeRO may.
fn of_stage(case: &Case, stage: usize) -> u64 {
    let layout = &case.layout;
    let zero = match case.engine() {
        Engine::Fsdp2 | Engine::Torchtitan => ZeroStage::Three,
        _ => layout.zero,
    };
    let (dense, edp) = (layout.dense_shards(), layout.edp.get());
    let shards = Shards::new(zero, [dense, if layout.ep.splits() { edp } else { edp.max(dense) }]);
    let on_host = case.options.offload > 0.0;
    let bytes = |row: &Row| {
        let group = usize::from(row.tensor.acting.is_some());
        let elements = row.part_elements(layout) * case.table.copies_on_stage(row, stage);
        let stepped = if on_host { 0 } else { elements.saturating_mul(stepped_bytes(case, row)) };
        let copy = elements.saturating_mul(copy_bytes(case, row));
        stepped / shards.optimizer[group] + copy / shards.weights[group]
    };
    case.table.rows.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Bytes of an element that is stepped: its main weight and what its optimizer keeps.
fn stepped_bytes(case: &Case, row: &Row) -> u64 {
    let (state, ways) = (&case.options.state, &case.options.ways);
    if row.tensor.is_frozen {
        return 0;
    }
    let main = state.main.bits() / 8;
    main + match row.tensor.optimizer {
        Optimizer::Muon if ways.momentum == MomentumFormat::Int8 => 1,
        Optimizer::Muon => 4,
        _ if *ways == case::Ways::PLAIN => (state.exp_avg.bits() + state.exp_avg_sq.bits()) / 8,
        _ => ways.elements.state_bytes(main),
    }
}

/// Bytes of an element beside its main weight: the copy that passes read, and all there is of a frozen one.
fn copy_bytes(case: &Case, row: &Row) -> u64 {
    let options = &case.options;
    let has_copy = matches!(case.engine(), Engine::Megatron | Engine::Deepspeed | Engine::Nanotron);
    match row.tensor.is_frozen || has_copy {
        _ if options.offload_params || options.ways.base.is_quantised() => 0,
        true if options.fp8_param_gather => 1,
        true => narrowest(&case.recipe),
        false => 0,
    }
}

/// Bytes of a weight in the format it is computed in.
fn narrowest(recipe: &Recipe) -> u64 {
    (recipe.precision.weights.bits() / 8).min(2)
}

/// The input of one layer, which its backward reads, whatever is computed again or kept on the host.
fn input(case: &Case) -> u64 {
    let layout = &case.layout;
    let shards = layout.cp.get() * layout.tp.get();
    (layout.micro_batch.saturating_mul(layout.sequence) / shards)
        .saturating_mul(case.recipe.hidden)
        .saturating_mul(narrowest(&case.recipe))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::{Fit, HEADROOM};
    use case::{Asked, Terms};
    use hardware::Cluster;

    /// Jobs that a ledger replays.
    const PRICED: &[&str] = &[
        "llama3-8b --on 8xH200 --engine megatron --tp 2 --zero 1",
        "llama3-8b --on 8xH200 --engine megatron --pp 4 --zero 0 --recompute full",
        "llama3-8b --on 8xH200 --engine megatron --zero 3",
        "llama3-8b --on 8xH200 --engine megatron --offload-optimizer 0.5",
        "llama3-8b --on 8xH200 --engine fsdp2 --recompute full",
        "llama3-8b --on 8xH200 --engine fsdp2 --zero 2",
        "llama3-8b --on 8xH200 --engine torchtitan --pp 2 --tp 2",
        "llama3-8b --on 8xH200 --engine deepspeed --zero 3 --offload-optimizer 1 --offload-params",
        "llama3-8b --on 8xH200 --engine deepspeed --zero 1",
        "llama3-8b --on 8xH200 --engine nanotron --tp 2",
        "mixtral-8x7b --on 16xH200 --engine megatron --tp 2 --ep 4 --etp 1",
        "mixtral-8x7b --on 16xH200 --engine fsdp2 --ep 4",
        "nam56r --on 8xH200 --engine megatron --ep 4 --mode author_dp",
    ];

    /// What stands in for a ledger's own count is no more than what the ledger's replay holds.
    #[test]
    fn a_replay_never_holds_less() {
        for line in PRICED {
            let words: Vec<&str> = line.split_whitespace().collect();
            let asked = Asked::parse(&words).unwrap();
            let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
            let cluster = Cluster::parse(asked.on.as_deref().unwrap()).unwrap();
            let case = Case::new(asked, recipe, Some(cluster), Terms::RUN).unwrap_or_else(|f| panic!("{line}: {f:?}"));
            let fit = Fit::price(&case, HEADROOM).unwrap_or_else(|why| panic!("{line}: {why}"));
            let held = fit.classes.iter().map(|class| class.reserved_peak).max().unwrap();
            let by_stage = (0..fit.classes.len()).map(|stage| of_stage(&case, stage)).max().unwrap();
            for (name, state) in [("compiler", of_compiler(&case)), ("stage", by_stage)] {
                let least = state + input(&case);
                assert!(least <= held, "{line}: by {name} {least} of {held}");
                // Of state that lies on the host, little is left to count.
                let is_here = case.options.offload < 1.0;
                assert!(!is_here || least > held / 50, "{line}: by {name} {least} says nothing of {held}");
            }
            assert!(Least::of(&case).total() <= held, "{line}: {} of {held}", Least::of(&case).total());
        }
    }
}
