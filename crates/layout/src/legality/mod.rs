//! Whether a layout is legal for a recipe: every finding at once, each with the rule, the object,
//! the values, why, and which values would do. One file a rule family; engines add theirs.
//!
//! A layout that passes here never fails later in ownership, stages or mesh.

mod batch;
mod context;
mod depth;
mod experts;
mod heads;
mod mixers;
mod modes;
mod recompute;
mod schedules;
mod sequence;
mod widths;
pub mod world;

use crate::engines;
use crate::layout::{Derived, Layout, Needs, settle};
use crate::request::LayoutRequest;
use diag::{Blame, Finding, RuleId, Severity, refuses};
use recipe::{Recipe, Seam};

/// A recipe, as its mode runs it, under a layout.
pub struct Case<'a> {
    /// What the model is.
    pub recipe: &'a Recipe,
    /// How it is split.
    pub layout: &'a Layout,
    /// What was typed: a hint never contradicts it.
    pub request: &'a LayoutRequest,
}

/// One family of rules.
type Check = fn(&Case, &mut Vec<Finding>);

const CHECKS: &[Check] = &[
    world::check,
    heads::check,
    mixers::check,
    widths::check,
    experts::check,
    sequence::check,
    context::check,
    depth::check,
    schedules::check,
    batch::check,
    modes::check,
    recompute::check,
];

/// What checking a request came to.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The recipe as the mode runs it.
    pub recipe: Recipe,
    /// The settled layout, unless sizes made none.
    pub layout: Option<Layout>,
    /// What was filled in.
    pub derived: Vec<Derived>,
    /// Where recipe and run differ under the mode.
    pub seams: Vec<Seam>,
    /// Everything found: errors first, in the order of the rules.
    pub findings: Vec<Finding>,
}

impl Checked {
    /// Whether nothing refuses.
    pub fn is_legal(&self) -> bool {
        self.layout.is_some() && !refuses(&self.findings)
    }
}

/// Checks a request against a recipe.
pub fn check(recipe: &Recipe, request: &LayoutRequest) -> Checked {
    let (recipe, seams, mut findings) = match request.mode.map(|mode| recipe.in_mode(mode)) {
        None => (recipe.clone(), Vec::new(), Vec::new()),
        Some(Ok((recipe, seams))) => (recipe, seams, Vec::new()),
        Some(Err(finding)) => (recipe.clone(), Vec::new(), vec![finding]),
    };
    let (layout, derived) = match settle(request, Needs::of(&recipe)) {
        Ok((layout, derived)) => (Some(layout), derived),
        Err(refusals) => {
            findings.extend(refusals);
            (None, Vec::new())
        }
    };
    if let Some(layout) = &layout {
        let case = Case { recipe: &recipe, layout, request };
        CHECKS.iter().for_each(|check| check(&case, &mut findings));
        if let Some(engine) = layout.engine {
            engines::check(engine, &case, &mut findings);
        }
    }
    findings.extend(recipe.notes.iter().cloned());
    findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    debug_assert!(findings.iter().all(|f| f.severity <= Severity::Error));
    Checked { recipe, layout, derived, seams, findings }
}

/// A refusal of the layout.
fn refuse(rule: RuleId, object: &str, message: String) -> Finding {
    Finding::error(rule, Blame::Layout, object, message)
}

/// Refuses unless `count` units divide over `degree` ranks of the axis `key`.
fn must_divide(
    findings: &mut Vec<Finding>,
    rule: RuleId,
    object: &str,
    what: &str,
    count: u64,
    key: &'static str,
    degree: u64,
) {
    if !count.is_multiple_of(degree) {
        let message =
            format!("cannot split `{object}` over {key}={degree}: {count} {what} are not a multiple of {degree}");
        findings.push(refuse(rule, object, message).fix(key, units::divisors(count)));
    }
}

/// The multiples of `step` next below and above `n`, and a few more above.
fn multiples_near(n: u64, step: u64) -> Vec<u64> {
    let below = n / step * step;
    (0..4).map(|i| below.saturating_add(i * step)).filter(|m| *m > 0).collect()
}
