//! MaxText 0.2.5. File names are relative to `maxtext`.

use super::{refuse_mixers, refuse_parallel, unsupported};
use crate::legality::Case;
use crate::request::Schedule;
use diag::{Blame, Finding};
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    refuse_mixers("maxtext/no-block", "MaxText", &[Mixer::Mamba, Mixer::Recurrent], case, findings);
    refuse_parallel("maxtext/parallel-block", "MaxText", case, findings);
    let depth = recipe.depth() as u64;
    if layout.pp.splits() {
        match layout.schedule {
            Schedule::OneF1b | Schedule::Interleaved => {
                let message = "MaxText runs its own circular pipeline in place of the named schedule";
                findings.push(Finding::note("maxtext/schedule", Blame::Engine, "schedule", message));
            }
            other => {
                let message = format!("MaxText has no schedule `{other}`: its pipeline is circular");
                findings.push(unsupported("maxtext/schedule", "schedule", message));
            }
        }
        if !depth.is_multiple_of(layout.chunks()) {
            // configs/types.py
            let message = format!("{depth} layers are not a multiple of pp·vpp = {}", layout.chunks());
            let finding = unsupported("maxtext/layers", "pp", message);
            let fits =
                units::divisors(depth).into_iter().filter(|p| depth.is_multiple_of(p * layout.vpp.get())).collect();
            findings.push(finding.fix("pp", fits).quote("must be equal to pipeline_parallel_layers "));
        }
        if !layout.microbatches.is_multiple_of(layout.pp.get()) {
            // configs/types.py
            let message = format!("{} microbatches are not a multiple of pp {}", layout.microbatches, layout.pp);
            let finding = unsupported("maxtext/microbatches", "microbatches", message);
            let fits = (1..=4).map(|i| i * layout.pp.get()).collect();
            findings.push(finding.fix("microbatches", fits).quote("must be divisible by the number of "));
        }
    }
    if recipe.uses(Mixer::GatedDelta) && layout.cp.splits() {
        // configs/types.py
        let message = "gated delta nets under cp run without causal load balance";
        let note = Finding::note("maxtext/gated-delta-cp", Blame::Engine, "cp", message);
        findings.push(note.quote("GatedDeltaNet context parallelism requires context_parallel_load_balance=False."));
    }
}
