//! Faults that `--inject` makes on purpose.

use crate::blocks::Tilt;
use comm::{Call, Comm, Fault, Missing};
use diag::{Blame, Finding};
use layout::{Axis, Layout};
use recipe::{Mixer, Recipe};
use std::time::Duration;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Inject {
    /// A rank dies.
    Die(At),
    /// A rank brings another number format to a call than the rest of its group.
    Dtype(At),
    /// What a rank sends in one call never arrives.
    Drop(At),
    /// One expert gets this many times its share of tokens.
    Skew(f64),
    /// An expert that gets no token.
    ZeroExpert(u64),
    /// Gradients of weights are not summed over an axis, in any step.
    Unsummed(&'static str),
    /// Of what others bring to exchanges of activations over an axis nothing is heard, in any step.
    Unheard(&'static str),
}

/// Axes over which gradients of weights are summed, and those over which passes exchange.
const SUMMED: [&str; 4] = ["tp", "pp", "dp", "edp"];
const HEARD: [&str; 6] = ["tp", "sp", "cp", "pp", "ep", "etp"];

/// A rank, and the step (from zero) at whose beginning the fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub rank: usize,
    pub step: u64,
}

/// How much longer than the deadline a dropped message is held back, so that the ranks that wait for it
/// run into the deadline first and name it.
const PATIENCE: Duration = Duration::from_secs(1);

impl Inject {
    /// Reads `die:3@2`, `dtype:0@1`, `drop:1@0`, `skew:2.5`, `zero-expert:4`, `unsummed:tp` or `unheard:cp`.
    pub fn parse(text: &str) -> Result<Inject, String> {
        let known = "die:RANK@STEP, dtype:RANK@STEP, drop:RANK@STEP, skew:FACTOR, zero-expert:EXPERT, unsummed:AXIS or \
                     unheard:AXIS";
        let (word, value) = text.split_once(':').ok_or_else(|| format!("a fault is {known}"))?;
        let at = || {
            let (rank, step) = value.split_once('@').unwrap_or((value, "0"));
            let read =
                |n: &str| n.parse::<u64>().map_err(|_| format!("`{n}` in `{text}` is no number; a fault is {known}"));
            Ok::<At, String>(At { rank: read(rank)? as usize, step: read(step)? })
        };
        let axis = |known: &[&'static str]| {
            let found = known.iter().copied().find(|axis| *axis == value);
            found.ok_or_else(|| format!("`{value}` is no axis for `{word}`; there are {}", known.join(", ")))
        };
        match word {
            "unsummed" => axis(&SUMMED).map(Inject::Unsummed),
            "unheard" => axis(&HEARD).map(Inject::Unheard),
            "die" => at().map(Inject::Die),
            "dtype" => at().map(Inject::Dtype),
            "drop" => at().map(Inject::Drop),
            "skew" => match value.parse::<f64>() {
                Ok(factor) if factor.is_finite() && factor >= 0.0 => Ok(Inject::Skew(factor)),
                _ => Err(format!("`{value}` is no factor")),
            },
            "zero-expert" => value.parse().map(Inject::ZeroExpert).map_err(|_| format!("`{value}` is no expert")),
            _ => Err(format!("there is no fault `{word}`; a fault is {known}")),
        }
    }

    /// Why the fault cannot be made under this recipe and layout, if it cannot.
    pub(super) fn refuse(&self, recipe: &Recipe, layout: &Layout, steps: u64) -> Option<Finding> {
        let refuse = |message: String| Some(Finding::error("rehearse/inject", Blame::Usage, "inject", message));
        let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
        match (self, moe) {
            (Inject::Die(at) | Inject::Dtype(at) | Inject::Drop(at), _) => {
                if at.rank as u64 >= layout.world {
                    return refuse(format!("there is no rank {}: the layout has {}", at.rank, layout.world));
                }
                if at.step >= steps {
                    return refuse(format!("step {} is not among the {steps} steps, which count from 0", at.step));
                }
                let needs_company = !matches!(self, Inject::Die(_));
                if needs_company && layout.world == 1 {
                    return refuse("one rank talks to nobody, so nothing can go wrong between ranks".to_string());
                }
                None
            }
            (Inject::Unsummed(axis) | Inject::Unheard(axis), _) => {
                let degree = Axis::ALL.iter().find(|known| known.name() == *axis).map(|axis| layout.degree(*axis));
                let splits = match *axis {
                    "sp" => layout.sp,
                    // Context ranks divide gradients with replicas.
                    "dp" => layout.dp.splits() || layout.cp.splits(),
                    _ => degree.is_some_and(|degree| degree.splits()),
                };
                if splits {
                    return None;
                }
                refuse(format!("nothing is exchanged over {axis}: it has one rank in this layout"))
            }
            (_, None) => refuse(format!("recipe `{}` has no experts to route to", recipe.name.terminal())),
            (Inject::Skew(factor), Some(moe)) => {
                let most = moe.experts as f64 / moe.top_k as f64;
                if *factor <= most {
                    return None;
                }
                refuse(format!(
                    "no expert can get {factor} times its share: with top {} of {} experts, every token makes {most}",
                    moe.top_k, moe.experts
                ))
            }
            (Inject::ZeroExpert(expert), Some(moe)) => {
                if *expert >= moe.experts {
                    return refuse(format!("there is no expert {expert}: {} are rehearsed, from 0", moe.experts));
                }
                if moe.top_k < moe.experts {
                    return None;
                }
                refuse("every token goes to every expert, so none can be left out".to_string())
            }
        }
    }

    /// The routing fault it asks for, if it is one.
    pub(super) fn tilt(&self, recipe: &Recipe) -> Option<Tilt> {
        let moe = recipe.moe.as_ref()?;
        match *self {
            Inject::Skew(factor) => {
                Some(Tilt::Hot { expert: 0, share: factor * moe.top_k as f64 / moe.experts as f64 })
            }
            Inject::ZeroExpert(expert) => Some(Tilt::Never { expert: expert as usize }),
            _ => None,
        }
    }

    /// Makes a fault that lasts.
    pub(super) fn begin(&self, comm: &Comm) {
        match *self {
            Inject::Unsummed(axis) => comm.miss(Missing { axis, of: is_sum_of_gradients }),
            Inject::Unheard(axis) => comm.miss(Missing { axis, of: |call| !is_sum_of_gradients(call) }),
            _ => {}
        }
    }

    /// Makes the fault if it is due on this rank in this step.
    pub(super) fn strike(&self, comm: &Comm, step: u64, deadline: Duration) {
        let now = |at: &At| at.rank == comm.rank() && at.step == step;
        match self {
            // Unwinds without the panic hook, which would print a backtrace for a death that was asked
            // for.
            Inject::Die(at) if now(at) => std::panic::resume_unwind(Box::new("killed by --inject")),
            Inject::Dtype(at) if now(at) => comm.arm(Fault::Dtype),
            Inject::Drop(at) if now(at) => comm.arm(Fault::Drop { late: deadline + PATIENCE }),
            _ => {}
        }
    }
}

/// By the name each such call has where it is made.
fn is_sum_of_gradients(call: Call) -> bool {
    let names = ["gradients", "gradients of whole tensors", "gradients of shared heads", "gradients of copies"];
    names.contains(&call.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_typed() {
        assert_eq!(Inject::parse("die:3@2"), Ok(Inject::Die(At { rank: 3, step: 2 })));
        assert_eq!(Inject::parse("drop:1"), Ok(Inject::Drop(At { rank: 1, step: 0 })));
        assert_eq!(Inject::parse("skew:1.5"), Ok(Inject::Skew(1.5)));
        assert_eq!(Inject::parse("zero-expert:4"), Ok(Inject::ZeroExpert(4)));
        assert_eq!(Inject::parse("unsummed:dp"), Ok(Inject::Unsummed("dp")));
        assert_eq!(Inject::parse("unheard:cp"), Ok(Inject::Unheard("cp")));
        for wrong in [
            "unsummed:cp",
            "unheard:dp",
            "unheard:",
            "die",
            "die:x@1",
            "burn:1@1",
            "skew:-1",
            "skew:nan",
            "zero-expert:-1",
        ] {
            assert!(Inject::parse(wrong).is_err(), "{wrong}");
        }
    }
}
