//! `preflight`: this machine against a policy, and against a plan where one is named.

use super::fit::allowed;
use super::launch::asked_of;
use super::{asked, case_of};
use crate::args::PreflightArgs;
use crate::files::load_policy;
use crate::machine::{self, Probe};
use crate::outcome::{NO, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use case::asked::RecipeArgs;
use case::{Case, Purpose, Seams, Terms};
use diag::{Blame, Finding, Severity};
use launch::job::{Frontend, Job};
use launch::policy::Policy;
use launch::preflight::{Check, Launcher, MemoryOverride, Plan, Verdict, judge};
use memory::fit::{Fit, HEADROOM};
use serde_json::json;

/// A policy with every key, kept valid by a test.
const EXAMPLE: &str = include_str!("../../../../docs/example_policy.toml");

/// Columns a report may take.
const WIDTH: usize = 110;

pub fn run(args: &PreflightArgs) -> Outcome {
    if args.example {
        return Ok(Report::text(EXAMPLE.to_string()));
    }
    let policy = args.policy.as_deref().map_or_else(|| Ok(Policy::default()), load_policy)?;
    let case = case(args, &policy)?;
    if let Some(case) = &case {
        allowed(case, &args.work.of_an_answer(), 1)?;
    }
    let plan = case.as_ref().map(|case| plan(case, &policy, args));
    let probe = if args.write_probe { Probe::Write } else { Probe::Ask };
    let launcher = if args.as_is { Launcher::Own } else { Launcher::Ours };
    let mut machine = machine::read(&policy.storage.places(), probe);
    if let Some(table) = plan.as_ref().and_then(|plan| plan.packages.as_ref()) {
        machine.packages = machine::packages(&table.to_string());
    }
    let checks = judge(&machine, &policy, launcher, plan.as_ref());
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    let is_fit = count(Verdict::Violation) == 0 && (!args.strict || count(Verdict::Unknown) == 0);
    let json = json!({
        "policy": args.policy.as_ref().map(|path| path.to_string_lossy()), "recipe": case.as_ref().map(|case| &case.source.name),
        "engine": plan.as_ref().map(|plan| plan.engine.name()), "fit": is_fit, "strict": args.strict,
        "violations": count(Verdict::Violation), "unknown": count(Verdict::Unknown),
        "overridden": count(Verdict::Overridden), "passed": count(Verdict::Pass), "checks": checks,
    });
    let mut text = verdict_line(&checks, is_fit);
    for (verdict, title) in
        [(Verdict::Violation, "Violations"), (Verdict::Unknown, "Not known"), (Verdict::Overridden, "Overridden")]
    {
        text += &details(&checks, verdict, title);
    }
    text += &if args.all { details(&checks, Verdict::Pass, "Passed") } else { summary(&checks) };
    let mut findings = case.as_ref().map_or(Vec::new(), |case| case.findings.clone());
    findings.retain(|finding| finding.severity != Severity::Error);
    if args.policy.is_none() {
        let message = "no --policy: 100 steps; checkpoints and logs go below ./runs of this directory (`launch` uses its launch directory)";
        findings.push(Finding::note("preflight/default-policy", Blame::Environment, "policy", message));
    }
    let report = Report::new(text, json).with_findings(&findings);
    if is_fit {
        return Ok(report);
    }
    let is_against = |check: &&Check| match check.verdict {
        Verdict::Violation => true,
        Verdict::Unknown => args.strict,
        Verdict::Overridden | Verdict::Pass => false,
    };
    Ok(report.refused(NO, checks.iter().filter(is_against).map(finding)))
}

/// A check as scripts read every other refusal.
fn finding(check: &Check) -> Finding {
    let message = format!("{}: {}; required: {}", check.object, check.found, check.required);
    let finding = Finding::error(check.rule, Blame::Environment, check.object.clone(), message);
    match &check.fix {
        Some(fix) => finding.hint(fix.clone()),
        None => finding,
    }
}

/// The job that was named, if any. Blocks an engine does not have are for `launch` to refuse.
fn case(args: &PreflightArgs, policy: &Policy) -> Result<Option<Case>, Refusal> {
    let (Some(recipe), Some(on)) = (&args.recipe, &args.on) else { return Ok(None) };
    let recipe = RecipeArgs { recipe: recipe.clone(), with: args.with.clone(), without: args.without.clone() };
    let asked = asked(&recipe, &args.layout, &args.state, Some(on));
    let case = case_of(asked_of(asked, None, policy), Terms { purpose: Purpose::Run, seams: Seams::Allow })?;
    Ok(Some(launch::tuned::applied(case, policy)?.0))
}

fn plan(case: &Case, policy: &Policy, args: &PreflightArgs) -> Plan {
    let memory_override = if args.override_memory { MemoryOverride::Yes } else { MemoryOverride::No };
    let job = Job::new(case, policy, Frontend::MegatronLm);
    Plan::of(&job, Fit::price(case, HEADROOM).as_ref(), memory_override)
}

/// Checks of one verdict, rule by rule. What a rule's checks share (requirement, fix) is said once.
fn details(checks: &[Check], verdict: Verdict, title: &str) -> String {
    let of_verdict: Vec<&Check> = checks.iter().filter(|check| check.verdict == verdict).collect();
    if of_verdict.is_empty() {
        return String::new();
    }
    let mut out = heading(title);
    for group in by_rule(&of_verdict) {
        let first = group[0];
        let shares_required = group.iter().all(|check| check.required == first.required);
        let shares_fix = group.iter().all(|check| check.fix == first.fix);
        let required = |check: &Check| wrap(&format!("required: {}", check.required), "      ", WIDTH);
        let fix = |check: &Check| {
            check.fix.as_ref().map_or(String::new(), |fix| wrap(&format!("fix: {fix}"), "      ", WIDTH))
        };
        out += &format!("  {}{}\x1b[0m\n", colour(verdict), first.rule);
        for check in &group {
            out += &wrap(&format!("{}: {}", check.object, check.found), "    ", WIDTH);
            out += &if shares_required { String::new() } else { required(check) };
            out += &if shares_fix { String::new() } else { fix(check) };
        }
        out += &if shares_required { required(first) } else { String::new() };
        out += &if shares_fix { fix(first) } else { String::new() };
    }
    out
}

/// Checks in groups of one rule, in the order rules appear.
fn by_rule<'a>(checks: &[&'a Check]) -> Vec<Vec<&'a Check>> {
    let mut groups: Vec<Vec<&Check>> = Vec::new();
    for check in checks {
        match groups.iter_mut().find(|group| group[0].rule == check.rule) {
            Some(group) => group.push(check),
            None => groups.push(vec![check]),
        }
    }
    groups
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Violation => "\x1b[1;31m",
        Verdict::Unknown | Verdict::Overridden => "\x1b[1;33m",
        Verdict::Pass => "\x1b[1;32m",
    }
}

/// What passed, one line a rule.
fn summary(checks: &[Check]) -> String {
    let passed: Vec<&Check> = checks.iter().filter(|check| check.verdict == Verdict::Pass).collect();
    if passed.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["rule", "what"]);
    for group in by_rule(&passed) {
        let what = match group.as_slice() {
            [one] => format!("{}: {}", one.object, one.found),
            many => many.iter().map(|check| check.object.as_str()).collect::<Vec<_>>().join(", "),
        };
        table.row([group[0].rule, &super::shorten(&what, WIDTH - 30)]);
    }
    heading("Passed") + &table.render()
}

/// The verdict, and a count of everything.
fn verdict_line(checks: &[Check], is_fit: bool) -> String {
    let names = [
        (Verdict::Violation, "against the policy or the engine"),
        (Verdict::Unknown, "not known"),
        (Verdict::Overridden, "overridden"),
        (Verdict::Pass, "passed"),
    ];
    let words = names.map(|(verdict, name)| {
        let count = checks.iter().filter(|check| check.verdict == verdict).count();
        (count > 0).then(|| format!("{count} {name}"))
    });
    let words: Vec<String> = words.into_iter().flatten().collect();
    let (colour, answer) = if is_fit {
        (colour(Verdict::Pass), "fit to launch")
    } else {
        (colour(Verdict::Violation), "not fit to launch")
    };
    format!("{colour}{answer}\x1b[0m: {} checks, {}\n", checks.len(), words.join(", "))
}
