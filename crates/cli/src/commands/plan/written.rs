//! Whether `launch` writes the best layout down: what an engine has no block for is known before a
//! person copies the command.

use super::{Asked, Solved};
use diag::{Finding, Severity};
use launch::job::{Frontend, Job, Seams};
use launch::{Policy, engines};
use memory::fit::OffloadRequest;
use recipe::Seam;
use search::Choice;

/// What `launch` says of a layout.
pub enum Written {
    /// It is written down.
    AsItStands,
    /// Only with `--allow-seams`: these stand for blocks of one's own.
    WithSeams(Vec<Finding>),
    /// It is refused.
    Refused(Vec<Finding>),
}

impl Written {
    /// Tries it, for the engine that was searched for; `any` has none to ask.
    pub fn of(asked: &Asked, solved: &Solved, best: &Choice) -> Written {
        if best.layout.engine.is_none() {
            return Written::AsItStands;
        }
        let space = solved.space;
        let recipe = &space.realms[best.point.realm].recipe;
        let told = (space.question.ledger)(recipe, &best.layout).and_then(|ledger| ledger.on_host(best.offload)).ok();
        let mode = best.layout.mode.and_then(|mode| asked.recipe.in_mode(mode).ok());
        let seams: Vec<Seam> = mode.map_or_else(Vec::new, |(_, seams)| seams);
        let policy = Policy::default();
        let emit = |allowed: Seams| {
            engines::emit(&Job {
                source: &asked.recipe,
                recipe,
                layout: &best.layout,
                stages: &best.stages,
                cluster: &asked.cluster,
                policy: &policy,
                told: told.as_ref(),
                offload: told
                    .as_ref()
                    .map_or_else(OffloadRequest::default, |told| OffloadRequest::of(told, best.offload, 0.0)),
                seams: &seams,
                allowed,
                frontend: Frontend::MegatronLm,
            })
        };
        match (emit(Seams::Refuse), emit(Seams::Allow)) {
            (Ok(_), _) => Written::AsItStands,
            (Err(missing), Ok(_)) => Written::WithSeams(missing),
            (Err(missing), Err(_)) => Written::Refused(missing),
        }
    }

    /// What the command needs besides; none where there is no command.
    pub fn flags(&self) -> Option<&'static str> {
        match self {
            Written::AsItStands => Some(""),
            Written::WithSeams(_) => Some(" --allow-seams"),
            Written::Refused(_) => None,
        }
    }

    /// What is missing, to be known and not to be stopped by.
    pub fn findings(&self) -> Vec<Finding> {
        let missing = match self {
            Written::AsItStands => return Vec::new(),
            Written::WithSeams(missing) | Written::Refused(missing) => missing,
        };
        missing.iter().map(|finding| Finding { severity: Severity::Warning, ..finding.clone() }).collect()
    }
}
