//! What a pipeline schedule needs of stages, chunks and microbatches.
//!
//! DualPipe and DualPipeV: deepseek-ai/DualPipe, the assertions at the top of `step`.

use super::{Case, multiples_near, refuse};
use crate::request::Schedule;
use diag::Finding;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let (pp, vpp, microbatches) = (layout.pp.get(), layout.vpp.get(), layout.microbatches);
    let schedule = layout.schedule;
    if pp == 1 && (vpp > 1 || schedule != Schedule::OneF1b) {
        let message = format!("schedule `{schedule}` with vpp {vpp} orders a pipeline, and pp is 1");
        findings.push(refuse("schedule/no-pipeline", "schedule", message).fix("pp", vec![2, 4, 8]));
        return;
    }
    match schedule {
        Schedule::GPipe | Schedule::OneF1b | Schedule::ZbH1 | Schedule::DualPipe if vpp > 1 => {
            let message = format!("schedule `{schedule}` runs one chunk a stage, and vpp is {vpp}");
            let finding = refuse("schedule/one-chunk", "schedule", message).fix("vpp", vec![1]);
            findings.push(Finding { hint: Some("vpp may be 1, or the schedule `interleaved`".to_string()), ..finding });
        }
        Schedule::Interleaved if vpp == 1 => {
            let message = "schedule `interleaved` runs several chunks a stage, and vpp is 1".to_string();
            findings.push(refuse("schedule/chunks", "schedule", message).fix("vpp", vec![2, 3, 4]));
        }
        Schedule::DualPipeV if vpp != 2 => {
            let message = format!("schedule `dualpipev` folds exactly two chunks onto a stage, and vpp is {vpp}");
            findings.push(refuse("schedule/v-chunks", "schedule", message).fix("vpp", vec![2]));
        }
        _ => {}
    }
    if schedule == Schedule::Interleaved && !microbatches.is_multiple_of(pp) {
        let message =
            format!("schedule `interleaved` needs microbatches in rounds of pp {pp}, and there are {microbatches}");
        let fits = multiples_near(microbatches, pp);
        findings.push(refuse("schedule/interleaved-microbatches", "microbatches", message).fix("microbatches", fits));
    }
    if schedule == Schedule::DualPipe && !pp.is_multiple_of(2) {
        let message = format!("schedule `dualpipe` mirrors stages in pairs, and pp {pp} is odd");
        findings.push(refuse("schedule/dualpipe-even", "pp", message).fix("pp", vec![pp - 1, pp + 1]));
    }
    let is_dual = matches!(schedule, Schedule::DualPipe | Schedule::DualPipeV);
    let odd = schedule == Schedule::DualPipe && !microbatches.is_multiple_of(2);
    if is_dual && (microbatches < 2 * pp || odd) {
        let even = if schedule == Schedule::DualPipe { " and an even number" } else { "" };
        let message = format!(
            "schedule `{schedule}` needs at least 2·pp = {} microbatches{even}, and there are {microbatches}",
            2 * pp
        );
        let least = microbatches.max(2 * pp).next_multiple_of(2);
        let finding = refuse("schedule/dual-microbatches", "microbatches", message);
        findings.push(finding.fix("microbatches", (0..4).map(|i| least + 2 * i).collect()));
    }
}
