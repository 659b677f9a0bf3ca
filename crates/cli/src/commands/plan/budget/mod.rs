//! What a whole run of a layout comes to: steps, days, checkpoints, goodput, energy and money.

pub mod text;

use crate::args::BudgetArgs;
use crate::outcome::Refusal;
use case::Case;
use cost::Step;
use diag::{Blame, Finding};
use fleet::{Bill, Budget, Failures, Goodput, Level, Saves, Terms, levels};
use hardware::Way;
use serde_json::{Value, json};
use units::exact;

/// A run that was asked for, added up.
pub struct Run {
    pub tokens: u64,
    pub levels: Vec<Level>,
    pub saves: Saves,
    pub failures: Failures,
    pub terms: Terms,
    /// Steps between checkpoints.
    pub every: u64,
    pub goodput: Goodput,
    pub budget: Budget,
    /// Seconds of a whole step.
    pub step_seconds: f64,
    pub nodes: u64,
    pub watts: Option<f64>,
    /// Whether that is a device's part of its node.
    pub has_node_power: bool,
    pub pue: f64,
    pub price: Option<f64>,
}

impl Run {
    /// Of a priced job.
    pub fn of(args: &BudgetArgs, tokens: u64, case: &Case, step: &Step) -> Result<Run, Refusal> {
        let (layout, cluster) = (&case.layout, case.on());
        let levels = levels(args.ramp.as_ref(), layout.global_batch, layout.sequence, tokens).map_err(no_ramp)?;
        let mut seconds = 0.0;
        for level in &levels {
            seconds += level.steps as f64 * seconds_of(case, step, level.batch)?;
        }
        let saves = Saves::of(case);
        let failures = Failures::of(&cluster.device.name, cluster.nodes, &args.failures());
        let written = saves.node_bytes as f64 / failures.write_bytes_per_second;
        let between = failures.between(cluster.nodes);
        let down = failures.restart_seconds;
        let terms = if args.async_save {
            let copied = saves.rank_bytes as f64 / cluster.device.link(Way::Host)?.bytes_per_second;
            Terms { between, down, stall: copied, lag: written }
        } else {
            Terms { between, down, stall: written, lag: 0.0 }
        };
        let (every, goodput) = terms.in_steps(step.seconds);
        let edges = step.interval.as_ref().map_or([1.0; 2], |i| [i.low / step.seconds, i.high / step.seconds]);
        let (watts, price) = (
            cluster.device.watts(),
            args.price_per_device_hour.as_ref().and_then(|prices| prices.of(&cluster.device.name)),
        );
        let bill = Bill {
            seconds,
            spread: edges.map(|edge| edge * seconds),
            useful: goodput.useful,
            devices: cluster.devices(),
            watts,
            pue: args.pue,
            price,
        };
        Ok(Run {
            tokens,
            levels,
            saves,
            failures,
            terms,
            every,
            goodput,
            budget: bill.sum(),
            step_seconds: step.seconds,
            nodes: cluster.nodes,
            watts,
            has_node_power: cluster.device.power.as_ref().is_some_and(|power| power.node_watts.is_some()),
            pue: args.pue,
            price,
        })
    }

    /// Steps in all.
    pub fn steps(&self) -> u64 {
        self.levels.iter().map(|level| level.steps).sum()
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let levels: Vec<Value> =
            self.levels.iter().map(|level| json!({ "gbs": level.batch, "steps": level.steps })).collect();
        json!({
            "tokens": self.tokens, "steps": self.steps(), "batches": levels, "days": finite(self.budget.days),
            "days_low": finite(self.budget.days_low), "days_high": finite(self.budget.days_high),
            "device_hours": finite(self.budget.device_hours), "energy_mwh": self.budget.energy_mwh.and_then(finite),
            "watts_per_device": self.watts, "pue": self.pue, "cost": self.budget.cost.and_then(finite),
            "price_per_device_hour": self.price,
            "goodput": self.goodput,
            "failures": { "between_seconds": self.terms.between, "down_seconds": self.terms.down, "nodes": self.nodes,
                "node_seconds": self.failures.node_seconds, "is_borrowed": self.failures.is_borrowed,
                "sources": self.failures.sources },
            "checkpoint": { "every_steps": self.every, "every_seconds": self.every as f64 * self.step_seconds,
                "best_seconds": self.terms.best_interval(), "young_seconds": self.terms.young(), "bytes": self.saves.bytes,
                "rank_bytes": self.saves.rank_bytes, "stall_seconds": self.terms.stall, "lag_seconds": self.terms.lag },
        })
    }
}

/// JSON has no infinity: a run that never ends has none.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn no_ramp(why: String) -> Refusal {
    let hint = "START:STEP:TOKENS, whose batches reach that of a step (--gbs) and divide over replicas, as 32:32:50B";
    Finding::error("plan/ramp", Blame::Usage, "ramp", why).hint(hint).into()
}

/// Seconds of a step with fewer sequences than the job's own.
fn seconds_of(case: &Case, step: &Step, batch: u64) -> Result<f64, Refusal> {
    let layout = &case.layout;
    if batch == layout.global_batch {
        return Ok(step.seconds);
    }
    let each = layout.dp.get() * layout.micro_batch;
    if !batch.is_multiple_of(each) {
        let (batch, dp, mbs) = (exact(batch), layout.dp.get(), layout.micro_batch);
        return Err(no_ramp(format!("{batch} sequences do not divide over {dp} replicas of microbatches of {mbs}")));
    }
    let smaller = case.with(|asked| {
        asked.layout.gbs = None;
        asked.layout.microbatches = Some(batch / each);
    })?;
    let priced = cost::step(&smaller).map_err(|error| no_ramp(error.to_string()))?;
    Ok(priced.seconds)
}
