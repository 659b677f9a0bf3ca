//! Every known failure, as data, a file a group. Order settles ties: the narrower diagnosis stands first.

mod axes;
mod drift;
mod experts;
mod framework;
mod general;
mod machine;

use super::Diagnosis;

/// Every diagnosis.
pub fn all() -> impl Iterator<Item = &'static Diagnosis> {
    let groups = [experts::EXPERTS, axes::AXES, framework::FRAMEWORK, machine::MACHINE, drift::DRIFT, general::GENERAL];
    groups.into_iter().flatten()
}
