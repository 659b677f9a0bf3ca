//! What a line grows with and what leaves it alone, read off the job: a ZeRO stage shares out weights
//! only from 3 on, sequence parallelism divides activations only where it is on.
//!
//! An axis that stands on neither list may move a line in passing, because it moves the peak. What
//! leaves optimizer state alone may still change which blocks of the allocator it lies in, and with
//! that the slack of a block, under 1 MiB.

use super::{Entry, Pricing};
use case::Case;
use layout::ownership::{Owner, Row};
use layout::{Recompute, ZeroStage};
use ledger::Ledger;
use recipe::{Mixer, Optimizer};
use replay::line::Line;
use units::named;

named! {
    /// Something of a job that can be turned.
    pub enum Knob {
        /// Tensor parallelism.
        Tp = "tp",
        /// Sequence parallelism.
        Sp = "sp",
        /// Context parallelism.
        Cp = "cp",
        /// Stages.
        Pp = "pp",
        /// Expert parallelism.
        Ep = "ep",
        /// Tensor parallelism inside experts.
        Etp = "etp",
        /// Replicas.
        Dp = "dp",
        /// Sequences of a microbatch.
        MicroBatch = "microbatch",
        /// Tokens of a sequence.
        Sequence = "sequence",
        /// What is computed again.
        Recompute = "recompute",
    }
}

use Knob::{Cp, Dp, Ep, Etp, MicroBatch, Pp, Sequence, Sp, Tp};

/// What a line grows with, and what leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// What it grows with, in words, degrees in force included.
    pub words: String,
    /// Knobs that change it.
    pub with: Vec<Knob>,
    /// Knobs that leave it alone.
    pub ignores: Vec<Knob>,
}

impl Scaling {
    /// What leaves it alone, in words.
    pub fn ignored(&self) -> String {
        match self.ignores.is_empty() {
            true => "–".to_string(),
            false => self.ignores.iter().map(|knob| knob.name()).collect::<Vec<_>>().join(", "),
        }
    }

    fn new(words: impl Into<String>, with: &[Knob], ignores: &[Knob]) -> Scaling {
        Scaling { words: words.into(), with: with.to_vec(), ignores: ignores.to_vec() }
    }
}

/// What a step computes, which no state depends on.
const OF_A_STEP: [Knob; 4] = [Sp, MicroBatch, Sequence, Knob::Recompute];

/// The scaling of a line in a job.
pub(super) fn of(pricing: Pricing, entry: Entry) -> Scaling {
    let of = Of { case: pricing.case, ledger: pricing.ledger };
    match entry {
        Entry::Ledger(line) => of.line(line),
        Entry::AllocatorOverhead => Scaling::new("sizes that come and go: rounding, splits, segments kept", &[], &[]),
        Entry::RuntimeReserve => {
            let all: Vec<Knob> = Knob::ALL.iter().map(|(_, knob)| *knob).collect();
            Scaling::new("device, driver, libraries loaded", &[], &all)
        }
        Entry::Communicators => {
            let talking = super::communicators(&of.case.layout, of.case.recipe.uses(Mixer::Moe));
            let names: Vec<&str> = talking.iter().map(|communicator| communicator.name).collect();
            let words = format!("groups that talk, a communicator each: {}", names.join(", "));
            Scaling::new(words, &[], &OF_A_STEP)
        }
    }
}

/// The kinds of state that a ZeRO stage shares out, from that stage on.
#[derive(Clone, Copy)]
enum Kept {
    Weights,
    Gradients,
    State,
}

struct Of<'a> {
    case: &'a Case,
    ledger: &'a Ledger,
}

impl Of<'_> {
    fn line(&self, line: Line) -> Scaling {
        let steps = |optimizer: Optimizer| move |row: &Row| row.tensor.optimizer == optimizer;
        match line {
            Line::ReplicatedParams => {
                self.state(Kept::Weights, "whole tensors of the stage's layers", |row| row.owner() == Owner::Replicated)
            }
            Line::TpParams => {
                self.state(Kept::Weights, "projections and tables of the stage", |row| row.owner() == Owner::Tensor)
            }
            Line::ExpertParams => {
                self.state(Kept::Weights, "expert banks of the stage", |row| row.owner() == Owner::Expert)
            }
            Line::Gradients => {
                let words = format!("parameters of the rank in {}", self.ledger.gradients());
                self.state(Kept::Gradients, &words, |_| true)
            }
            Line::MatrixOptimizer => self.state(Kept::State, "parameters Muon steps", steps(Optimizer::Muon)),
            Line::OtherOptimizer => {
                let (host, by) = (self.case.options.offload, self.case.options.ways.elements.title());
                let words = match host > 0.0 {
                    true => format!("parameters {by} steps, {:.0}% of it on the host", 100.0 * host),
                    false => format!("parameters {by} steps"),
                };
                self.state(Kept::State, &words, steps(Optimizer::AdamW))
            }
            _ => self.of_a_step(line),
        }
    }

    /// State that stays between steps: rows of the table, divided by the axes that cut them and by the
    /// ranks that share it out.
    fn state(&self, kept: Kept, words: &str, is_of: impl Fn(&Row) -> bool) -> Scaling {
        let layout = &self.case.layout;
        let rows: Vec<&Row> = self.case.table.rows.iter().filter(|row| is_of(row)).collect();
        let owned = |owner: Owner| rows.iter().any(|row| row.owner() == owner);
        let (tensor, expert) = (owned(Owner::Tensor), owned(Owner::Expert));
        let dense = tensor || owned(Owner::Replicated);
        let from = match kept {
            Kept::Weights => ZeroStage::Three,
            Kept::Gradients => ZeroStage::Two,
            Kept::State => ZeroStage::One,
        };
        // `fully_shard` shares out everything, whenever weights are gathered again.
        let is_shared = layout.zero >= from || matches!(self.ledger, Ledger::Fsdp2(_));
        let (mut with, mut over) = (vec![Pp], vec![format!("pp {}", layout.pp)]);
        let mut ignores = OF_A_STEP.to_vec();
        if tensor {
            with.push(Tp);
            over.push(format!("tp {}", layout.tp));
        } else if !(is_shared && expert) {
            ignores.push(Tp);
        }
        if expert {
            over.push(format!("ep {}, etp {}", layout.ep, layout.etp));
            // What is shared out besides has fewer ranks to share it the more ranks cut it.
            with.extend([Ep, Etp].iter().filter(|_| !is_shared));
        } else {
            ignores.extend([Ep, Etp]);
        }
        if is_shared && dense {
            with.extend([Dp, Cp]);
            over.push(format!("dp·cp {} (shared out)", layout.dense_shards()));
        }
        if is_shared && expert {
            over.push(format!("edp {} (shared out)", layout.edp));
        }
        // Buffers of a distributed optimizer are padded to its ranks.
        let is_padded = matches!(self.ledger, Ledger::Megatron(_)) && (tensor || expert);
        if !is_shared && !is_padded {
            ignores.extend([Dp, Cp]);
        }
        if matches!(kept, Kept::Gradients) {
            // A gradient on its way to its buffer may stand at the peak.
            ignores.retain(|knob| matches!(knob, Sp | Ep | Etp));
        }
        let muon = self.case.table.rows.iter().any(|row| row.tensor.optimizer == Optimizer::Muon);
        if matches!((kept, self.ledger), (Kept::State, Ledger::Megatron(_))) && muon && is_shared {
            // Megatron's layer-wise optimizer deals whole tensors out, by size.
            let words = format!("{words}, whole tensors dealt out over {} ranks", layout.dense_shards());
            return Scaling::new(words, &[Pp], &[Sp]);
        }
        Scaling { words: format!("{words} over {}", over.join(", ")), with, ignores }
    }

    fn of_a_step(&self, line: Line) -> Scaling {
        let layout = &self.case.layout;
        let tokens = match (layout.sp, layout.tp.get(), layout.cp.get()) {
            (true, tp, cp) => format!("microbatch, sequence over tp·cp {} (sp)", tp * cp),
            (false, _, cp) => format!("microbatch, sequence over cp {cp}"),
        };
        match line {
            Line::Activations => {
                let again = match &layout.recompute {
                    Recompute::None => "nothing computed again".to_string(),
                    policy => format!("recompute {policy}"),
                };
                let host = self.case.options.offload_activations;
                let host = if host > 0.0 { format!(", {:.0}% on the host", 100.0 * host) } else { String::new() };
                let words = format!("{tokens}, layers of the stage, microbatches in flight, {again}{host}");
                Scaling::new(words, &[MicroBatch, Sequence, Knob::Recompute], &[Dp])
            }
            Line::ActivationGradients => {
                Scaling::new(format!("{tokens}, the widest block in backward"), &[MicroBatch, Sequence], &[Dp])
            }
            Line::FeatureActivations => {
                Scaling::new(format!("the features switched on, {tokens}"), &[MicroBatch, Sequence], &[Dp])
            }
            Line::ExpertInputs => {
                Scaling::new(format!("{tokens}, top-k, expert layers, recompute"), &[MicroBatch, Sequence], &[Dp])
            }
            Line::RoutingScratch => {
                let limit = self.case.recipe.moe.as_ref().and_then(|moe| moe.capacity_factor);
                let limit = match limit {
                    Some(factor) => format!("capacity factor {factor}"),
                    None => format!("overload {} of the rank's experts", self.case.options.overload),
                };
                Scaling::new(format!("{tokens}, top-k, {limit}"), &[MicroBatch, Sequence], &[Dp])
            }
            Line::Loss => {
                let words = format!("microbatch, sequence over cp {}, vocabulary over tp {}", layout.cp, layout.tp);
                Scaling::new(words, &[MicroBatch, Sequence, Tp, Cp], &[Dp])
            }
            Line::Communication => Scaling::new(format!("{tokens}, gathers and receives in flight"), &[], &[]),
            _ => Scaling::new("libraries in use, gathered buffers they keep, fp8 copies of weights", &[], &[]),
        }
    }
}
