//! Options of the engine that a search leaves off, because something has to be installed for them: each on top of those
//! before it, where it saves time and fits.

use case::offers::{Offer, WORTH, offers};
use memory::fit::{Fit, Margin, Verdict};

use crate::answer::Choice;

/// One that helps.
pub struct Besides {
    /// What to turn on.
    pub offer: Offer,
    /// Seconds of a step with it and those before it.
    pub seconds: f64,
    /// Bytes then left on the worst rank.
    pub headroom: i64,
}

/// Those that help a layout, in the order in which they were tried.
pub fn besides(best: &Choice, margin: Margin) -> Vec<Besides> {
    let (mut case, mut least, mut found) = (best.case.clone(), best.step.seconds, Vec::new());
    let all = offers(&case.recipe, &case.layout, &case.options, case.cluster.as_ref());
    for offer in all.into_iter().filter(|offer| offer.needs.is_some()) {
        let Ok(next) = case.with(|asked| asked.state.engine_args.push(offer.args.clone())) else { continue };
        let Some(seconds) = cost::step(&next).ok().map(|step| step.seconds).filter(|s| *s < least * (1.0 - WORTH))
        else {
            continue;
        };
        let Some(fit) = Fit::price(&next, margin).ok().filter(holds) else {
            continue;
        };
        found.push(Besides { offer, seconds, headroom: fit.tightest().headroom });
        (case, least) = (next, seconds);
    }
    found
}

/// Whether a layout fits, overloaded as far as was asked for, if without the headroom.
fn holds(fit: &Fit) -> bool {
    fit.verdict != Verdict::DoesNotFit && fit.tightest().headroom >= 0
}
