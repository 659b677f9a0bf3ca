//! Whether `launch` writes the best layout down: what an engine has no block for is known before a
//! person copies the command.

use case::{Case, Purpose, Seams, Terms};
use diag::{Blame, Finding, Severity, refuses};
use launch::job::{Frontend, Job};
use launch::{Policy, engines, lanes};
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

    /// What a job is called: the best one starts as it is written.
    pub fn title(&self) -> String {
        let named = |missing: &[Finding]| missing.iter().map(|f| f.message.as_str()).collect::<Vec<_>>().join("; ");
        match self {
            Written::AsItStands => "Best".to_string(),
            Written::WithSeams(missing) => {
                format!("Nothing starts by itself. With a module you bring ({}), the fastest", named(missing))
            }
            Written::Refused(missing) => {
                format!("Nothing is written down for this engine ({}). The fastest", named(missing))
            }
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

/// A seam that nothing of ours fills.
fn brought(seam: &Seam) -> Finding {
    let message = format!("needs a module you bring: {} ({})", seam.name, seam.wanted);
    Finding::error("launch/seams", Blame::Missing, "seams", message)
        .hint("name a `module:function` in the policy's [seams], or pick what starts by itself")
}

/// Tries to write a case down under the usual policy.
pub fn emit(case: &Case) -> Result<(), Vec<Finding>> {
    let policy = Policy::default();
    let job = Job::new(case, &policy, Frontend::MegatronLm);
    let findings = lanes::check(&job, None);
    if refuses(&findings) {
        return Err(findings);
    }
    let emission = engines::emit(&job)?;
    let unfilled = emission.seams.iter().filter(|seam| job.unfilled([*seam].into_iter()).len() == 1);
    let missing: Vec<Finding> = unfilled.filter(|_| !job.allows_seams()).map(brought).collect();
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}
