//! Whether `launch` writes the best layout down: what an engine has no block for is known before a
//! person copies the command.

use case::{Case, Purpose, Seams, Terms};
use diag::{Finding, Severity, refuses};
use launch::job::{Frontend, Job};
use launch::{Policy, engines, lanes};
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
    pub fn of(best: &Choice) -> Written {
        if best.case.layout.engine.is_none() {
            return Written::AsItStands;
        }
        let allowed = Terms { purpose: Purpose::Run, seams: Seams::Allow };
        match (emit(&best.case), emit(&best.case.under(allowed))) {
            (Ok(()), _) => Written::AsItStands,
            (Err(missing), Ok(())) => Written::WithSeams(missing),
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

/// Tries to write a case down under the usual policy.
pub fn emit(case: &Case) -> Result<(), Vec<Finding>> {
    let policy = Policy::default();
    let job = Job::new(case, &policy, Frontend::MegatronLm);
    let findings = lanes::check(&job, None);
    if refuses(&findings) {
        return Err(findings);
    }
    engines::emit(&job).map(|_| ())
}
