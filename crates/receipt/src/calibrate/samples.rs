//! Figures of receipts that say something of time, each with the job that it is priced by.

#![allow(missing_docs, reason = "a field whose name says it has no comment")]

use super::scaled;
use crate::record::{Kind, Receipt};
use case::{Case, Terms};
use cost::Numbers;
use evidence::DEVICE_BUSY;
use hardware::Term;
use layout::Engine;
use recipe::Mixer;
use units::named;

named! {
    /// What was measured.
    pub enum Figure {
        /// Seconds of a step.
        Step = "step",
        /// Seconds in which kernels run.
        Kernels = "kernels",
    }
}

/// One figure and the job it is of.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its receipt.
    pub receipt: String,
    pub figure: Figure,
    /// In seconds.
    pub measured: f64,
    case: Case,
    /// Of a probe: the stage of its rank.
    alone: Option<(usize, Numbers)>,
}

/// A receipt that says nothing of time, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    pub receipt: String,
    pub why: String,
}

impl Sample {
    /// What its job is priced at with these factors; infinite where it has no price.
    pub fn priced(&self, factors: &[(Term, f64)]) -> f64 {
        let case = scaled(&self.case, factors);
        let priced = match (self.alone, self.figure) {
            (None, _) => cost::step(&case).map(|step| step.seconds),
            (Some((stage, numbers)), Figure::Step) => cost::alone(&case, stage, numbers).map(|alone| alone.step),
            (Some((stage, numbers)), Figure::Kernels) => cost::alone(&case, stage, numbers).map(|alone| alone.kernels),
        };
        priced.unwrap_or(f64::INFINITY)
    }
}

/// The figures of receipts, and the receipts that have none.
pub fn samples<'a>(receipts: impl IntoIterator<Item = (&'a str, &'a Receipt)>) -> (Vec<Sample>, Vec<Unusable>) {
    let (mut samples, mut unusable) = (Vec::new(), Vec::new());
    for (id, receipt) in receipts {
        match of_receipt(id, receipt) {
            Ok(found) => samples.extend(found),
            Err(why) => unusable.push(Unusable { receipt: id.to_string(), why }),
        }
    }
    (samples, unusable)
}

fn of_receipt(id: &str, receipt: &Receipt) -> Result<Vec<Sample>, String> {
    if receipt.kind == Kind::Rehearsal {
        return Err("a rehearsal runs on this machine, not on the device".to_string());
    }
    let case = receipt.case.as_ref().ok_or("it has no case, so nothing says what to price")?;
    let first = |findings: Vec<diag::Finding>| findings.first().map_or(String::new(), |f| f.message.clone());
    let case = Case::from_json(case, Terms::RUN).map_err(|f| format!("its case reads no more: {}", first(f)))?;
    if case.cluster.is_none() {
        return Err("its case has no cluster".to_string());
    }
    if case.engine() == Engine::Fsdp2 && [Mixer::Mamba, Mixer::Recurrent].into_iter().any(|m| case.recipe.uses(m)) {
        return Err("its scans run as plain operations of torch, which no curve prices".to_string());
    }
    // A calibration made of receipts stands on the shipped curves, whatever they were predicted with.
    let case = scaled(&case, &[]);
    let evidence = &receipt.evidence;
    let alone = match receipt.kind {
        Kind::Probe => {
            let rank = evidence.memory.iter().find_map(|m| m.rank).or(evidence.kernels.first().map(|k| k.rank));
            let rank = rank.ok_or("it does not say which rank it was")?;
            Some((case.layout.stage_of(rank), Numbers::stood_in(&case, receipt.overlay["probe"]["taken"].is_null())))
        }
        _ => None,
    };
    let busy = evidence.benches.iter().find(|bench| bench.name == DEVICE_BUSY).map(|bench| bench.seconds);
    let mut found = Vec::new();
    let mut push = |figure, measured: Option<f64>| {
        if let Some(measured) = measured.filter(|seconds| seconds.is_finite() && *seconds > 0.0) {
            found.push(Sample { receipt: id.to_string(), figure, measured, case: case.clone(), alone });
        }
    };
    if alone.is_some() {
        push(Figure::Kernels, busy);
    }
    push(Figure::Step, evidence.step_seconds());
    if found.is_empty() {
        return Err("it has no step behind its warm-up, and no kernels".to_string());
    }
    match found.iter().find(|sample| !sample.priced(&[]).is_finite()) {
        Some(_) => Err("its step has no price".to_string()),
        None => Ok(found),
    }
}
