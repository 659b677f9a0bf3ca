//! Values of one key that satisfy several rules at once, where each rule names its own.

use super::{check, multiples_near};
use crate::request::LayoutRequest;
use diag::{Finding, Severity};
use recipe::Recipe;
use units::gcd;

/// For every key that several refusals name values of: the values that satisfy them all, or none.
pub fn joint_fixes(recipe: &Recipe, request: &LayoutRequest, findings: &[Finding]) -> Vec<(&'static str, Vec<u64>)> {
    let mut lists: Vec<(&'static str, Vec<&[u64]>)> = Vec::new();
    for fix in findings.iter().filter(|f| f.severity == Severity::Error).filter_map(|f| f.fix.as_ref()) {
        match lists.iter_mut().find(|(key, _)| *key == fix.key) {
            Some((_, lists)) => lists.push(&fix.values),
            None => lists.push((fix.key, vec![&fix.values])),
        }
    }
    let several = lists.into_iter().filter(|(_, lists)| lists.len() > 1);
    several.map(|(key, lists)| (key, joint(recipe, request, key, &lists))).collect()
}

fn joint(recipe: &Recipe, request: &LayoutRequest, key: &str, lists: &[&[u64]]) -> Vec<u64> {
    let is_in_all = |value: &&u64| lists.iter().all(|list| list.contains(*value));
    let common: Vec<u64> = lists[0].iter().filter(is_in_all).copied().collect();
    if !common.is_empty() {
        return common;
    }
    // A rule about multiples names the next few of them, which need not be the next few of another rule's.
    let satisfies = |value: &u64| {
        let Some(mended) = request.with_size(key, *value) else { return false };
        let findings = check(recipe, &mended).findings;
        !findings.iter().any(|f| f.severity == Severity::Error && f.fix.as_ref().is_some_and(|fix| fix.key == key))
    };
    let mut candidates: Vec<u64> = lists.iter().flat_map(|list| list.iter().copied()).collect();
    let steps: Option<Vec<u64>> = lists.iter().map(|list| step(list)).collect();
    let start = lists.iter().filter_map(|list| list.first()).max();
    if let (Some(start), Some(step)) = (start, steps.and_then(|steps| steps.into_iter().try_fold(1, common_multiple))) {
        candidates.extend(multiples_near(*start, step));
    }
    candidates.sort_unstable();
    candidates.dedup();
    candidates.retain(satisfies);
    candidates
}

/// The step of a list of consecutive multiples.
fn step(values: &[u64]) -> Option<u64> {
    let [first, second, ..] = values else { return None };
    let step = second.checked_sub(*first).filter(|step| *step > 0 && first.is_multiple_of(*step))?;
    values.windows(2).all(|pair| pair[1] - pair[0] == step).then_some(step)
}

fn common_multiple(a: u64, b: u64) -> Option<u64> {
    (a / gcd(a, b)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legality::example::request;

    fn of(recipe: &str, words: &str, key: &str) -> Vec<u64> {
        let (recipe, request) = (recipe::builtin::find(recipe).unwrap(), request(words));
        let findings = check(&recipe, &request).findings;
        let all = joint_fixes(&recipe, &request, &findings);
        all.into_iter().find(|(name, _)| *name == key).unwrap_or_else(|| panic!("{key}: {findings:?}")).1
    }

    #[test]
    fn multiples_of_several_steps_meet() {
        let values = of("nam56r", "tp=8 ep=6 cp=3 world=48", "seq");
        assert!(values.contains(&4128) && values.iter().all(|seq| seq.is_multiple_of(24)), "{values:?}");
        assert_eq!(of("nam56r", "tp=8 ep=6 cp=3 world=48", "cp"), [1]);
        assert_eq!((common_multiple(6, 4), common_multiple(u64::MAX, 2)), (Some(12), None));
        assert_eq!((step(&[4, 6, 8]), step(&[1, 2, 4]), step(&[5, 7, 9])), (Some(2), None, None));
    }
}
