//! What else a job could be: every axis with the values there are, each tried in the job's place. Which are legal is
//! what making a [`crate::Case`] says; there is no rule here.

use crate::asked::{Asked, EngineChoice, OptimizerChoice, PrecisionChoice};
use crate::build::{Settled, Terms, parts, settled_request};
use crate::modes_of;
use diag::{Finding, Severity};
use hardware::Cluster;
use layout::request::RecomputeModule;
use layout::{Balance, Engine, Layout, Recompute, Schedule, ZeroStage, check};
use recipe::{Dtype, Mixer, Mode, Recipe};
use serde_json::{Value, json};

/// Degrees of one axis that are tried at most.
const MOST: usize = 24;

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// What it is in this job; none where that is the recipe's or the engine's to say.
    pub now: Value,
    /// Whether that was typed.
    pub is_typed: bool,
    /// What it could be.
    pub values: Vec<Tried>,
}

/// A value in the job's place.
#[derive(Clone, Debug)]
pub struct Tried {
    /// As JSON has it: a number, a word, or whether it is on.
    pub value: Value,
    /// What refuses the job with it; nothing where it is legal.
    pub refusals: Vec<Finding>,
    /// How many of these the job does not have as it stands: where it is refused already, a value that brings none
    /// makes it no worse.
    pub brings: usize,
}

/// A job and its axes.
#[derive(Clone, Debug)]
pub struct Choices {
    /// What refuses the job as it stands.
    pub refusals: Vec<Finding>,
    /// Every axis.
    pub axes: Vec<Axis>,
}

/// A value and how it is typed.
struct Offer {
    value: Value,
    set: Box<dyn Fn(&mut Asked)>,
}

/// An axis before its values are tried.
struct Open {
    flag: &'static str,
    now: Value,
    is_typed: bool,
    values: Vec<Offer>,
}

impl Choices {
    /// Every axis of what was asked. `source` and `cluster` are what the asked words stand for, features switched.
    pub fn of(asked: &Asked, source: &Recipe, cluster: &Cluster) -> Choices {
        let mut known = Known::default();
        let refusals = known.refusals(asked, source, cluster);
        let now = settled(asked, source, cluster);
        let mut try_one = |Offer { value, set }: Offer| {
            let mut other = asked.clone();
            set(&mut other);
            let refusals_then = known.refusals(&other, source, cluster);
            let is_known = |f: &&Finding| refusals.iter().any(|known| known.rule == f.rule && known.object == f.object);
            let brings = refusals_then.iter().filter(|finding| !is_known(finding)).count();
            Tried { value, refusals: refusals_then, brings }
        };
        let axes = open(asked, source, cluster, now.as_ref())
            .into_iter()
            .map(|Open { flag, now, is_typed, values }| {
                let values = values.into_iter().map(&mut try_one).collect();
                Axis { flag, now, is_typed, values }
            })
            .collect();
        Choices { refusals, axes }
    }
}

/// Layouts whose parts were listed, and what that refused. Listing them is most of the work, and most values leave them as
/// they are: nothing of them follows from lengths, batches or what is computed again.
#[derive(Default)]
struct Known(Vec<(Layout, Vec<Finding>)>);

impl Known {
    /// What refuses a job.
    fn refusals(&mut self, asked: &Asked, source: &Recipe, cluster: &Cluster) -> Vec<Finding> {
        let switched = asked.state.optimizer.map(|choice| choice.applied(source.clone()));
        let source = switched.as_ref().unwrap_or(source);
        let findings = match Settled::of(asked, source, Some(cluster), Terms::RUN) {
            Ok(settled) => self.of_parts(&settled),
            Err(findings) => findings,
        };
        findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect()
    }

    fn of_parts(&mut self, settled: &Settled) -> Vec<Finding> {
        let like = Layout {
            sequence: 0,
            micro_batch: 0,
            global_batch: 0,
            recompute: Recompute::None,
            ..settled.layout.clone()
        };
        if let Some((_, findings)) = self.0.iter().find(|(layout, _)| *layout == like) {
            return findings.clone();
        }
        let findings = parts(&settled.recipe, &settled.layout).err().unwrap_or_default();
        self.0.push((like, findings.clone()));
        findings
    }
}

/// The layout as far as it is settled, legal or not.
fn settled(asked: &Asked, source: &Recipe, cluster: &Cluster) -> Option<Layout> {
    let request = settled_request(asked, source, cluster).ok()?;
    check(source, &request).layout
}

fn open(asked: &Asked, source: &Recipe, cluster: &Cluster, now: Option<&Layout>) -> Vec<Open> {
    let mut axes = policies(asked, source, now);
    axes.extend(degrees(asked, source, cluster, now));
    axes.extend(batches(asked, source, now));
    axes.extend(states(asked));
    axes
}

/// Engine, mode, recompute, schedule and the like.
fn policies(asked: &Asked, source: &Recipe, now: Option<&Layout>) -> Vec<Open> {
    let typed = &asked.layout;
    let engine = now.and_then(|layout| layout.engine);
    let mut axes = vec![axis(
        "engine",
        json!(engine.map(Engine::name)),
        typed.engine.is_some(),
        Engine::ALL.iter().map(|&(name, engine)| {
            value(name, move |asked: &mut Asked| asked.layout.engine = Some(EngineChoice::One(engine)))
        }),
    )];
    if !source.modes.is_empty() {
        let mode = now.and_then(|layout| layout.mode);
        // A mode that the engine has no blocks for is tried as well: the rule that refuses it says so.
        let modes = Mode::ALL.iter().filter(|(_, mode)| source.modes.contains(mode) || modes_of(engine).contains(mode));
        axes.push(axis(
            "mode",
            json!(mode.map(Mode::name)),
            typed.mode.is_some(),
            modes.map(|&(name, mode)| value(name, move |asked: &mut Asked| asked.layout.mode = Some(mode))),
        ));
    }
    axes.push(axis(
        "recompute",
        json!(now.map(|layout| layout.recompute.to_string())),
        typed.recompute.is_some(),
        recomputes(source, typed.recompute.as_ref()).into_iter().map(|policy| {
            value(policy.to_string(), move |asked: &mut Asked| asked.layout.recompute = Some(policy.clone()))
        }),
    ));
    axes.push(axis(
        "schedule",
        json!(now.map(|layout| layout.schedule.to_string())),
        typed.schedule.is_some(),
        Schedule::ALL
            .iter()
            .map(|&(name, schedule)| value(name, move |asked: &mut Asked| asked.layout.schedule = Some(schedule))),
    ));
    let balances = Balance::ALL.iter().filter(|(_, balance)| matches!(balance, Balance::Layers | Balance::Params));
    axes.push(axis(
        "balance",
        json!(now.map(|layout| layout.balance.to_string())),
        typed.balance.is_some(),
        balances.map(|&(name, balance)| value(name, move |asked: &mut Asked| asked.layout.balance = Some(balance))),
    ));
    axes
}

/// Everything, nothing, and each module that the recipe has; what was typed as well.
fn recomputes(source: &Recipe, typed: Option<&Recompute>) -> Vec<Recompute> {
    let useful = useful_modules(source);
    let has =
        |module: &RecomputeModule| useful.contains(module) || module.whole().is_some_and(|mixer| source.uses(mixer));
    let modules = RecomputeModule::ALL.iter().map(|(_, module)| *module).filter(has);
    let mut all = vec![Recompute::None, Recompute::Full];
    all.extend(modules.map(|module| Recompute::Selective(vec![module])));
    all.extend(typed.filter(|typed| !all.contains(typed)).cloned().into_iter().collect::<Vec<_>>());
    all
}

/// Modules whose recompute can save memory in this model.
pub fn useful_modules(recipe: &Recipe) -> Vec<RecomputeModule> {
    let mut modules = Vec::new();
    if recipe.uses(Mixer::Mlp) {
        modules.push(RecomputeModule::Mlp);
    }
    if recipe.uses(Mixer::Moe) {
        modules.extend([RecomputeModule::MoeAct, RecomputeModule::Moe, RecomputeModule::Layernorm]);
        if recipe.moe.as_ref().is_some_and(|m| m.shared.is_some()) {
            modules.push(RecomputeModule::SharedExperts);
        }
    }
    if recipe.is_latent() {
        modules.push(RecomputeModule::MlaUpProj);
    }
    if recipe.uses(Mixer::Attention) {
        modules.push(RecomputeModule::CoreAttn);
    }
    modules
}

/// A field of what was asked.
type Field = fn(&mut Asked) -> &mut Option<u64>;

/// Degrees: what divides the world, and what was typed.
fn degrees(asked: &Asked, source: &Recipe, cluster: &Cluster, now: Option<&Layout>) -> Vec<Open> {
    let world = divisors(cluster.devices());
    let depth = source.depth() as u64;
    let mut axes = Vec::new();
    let mut add = |flag, now: Option<u64>, field: Field, values: Vec<u64>| {
        axes.push(numbers(asked, flag, now, field, values));
    };
    let degree = |of: fn(&Layout) -> u64| now.map(of);
    add("tp", degree(|l| l.tp.get()), |a| &mut a.layout.tp, world.clone());
    add("cp", degree(|l| l.cp.get()), |a| &mut a.layout.cp, world.clone());
    let stages = world.iter().copied().filter(|pp| *pp <= depth).collect();
    add("pp", degree(|l| l.pp.get()), |a| &mut a.layout.pp, stages);
    let each = depth / degree(|l| l.pp.get()).unwrap_or(1).max(1);
    let chunks = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16].into_iter().filter(|vpp| *vpp <= each.max(1)).collect();
    add("vpp", degree(|l| l.vpp.get()), |a| &mut a.layout.vpp, chunks);
    if source.uses(Mixer::Moe) {
        add("ep", degree(|l| l.ep.get()), |a| &mut a.layout.ep, world.clone());
        add("etp", degree(|l| l.etp.get()), |a| &mut a.layout.etp, world.clone());
    }
    add("dp", degree(|l| l.dp.get()), |a| &mut a.layout.dp, world);
    let sp = [true, false]
        .map(|is_on| value(is_on, move |asked: &mut Asked| (asked.layout.sp, asked.layout.no_sp) = (is_on, !is_on)));
    axes.insert(1, axis("sp", json!(now.map(|layout| layout.sp)), asked.layout.sp || asked.layout.no_sp, sp));
    axes.push(axis(
        "zero",
        json!(now.map(|layout| layout.zero.to_string())),
        asked.layout.zero.is_some(),
        ZeroStage::ALL.iter().map(|&(name, zero)| value(name, move |asked: &mut Asked| asked.layout.zero = Some(zero))),
    ));
    axes
}

/// Sequences and tokens.
fn batches(asked: &Asked, source: &Recipe, now: Option<&Layout>) -> Vec<Open> {
    let doubled = |from: u64, times: usize| -> Vec<u64> {
        std::iter::successors(Some(from), |n| n.checked_mul(2)).take(times).collect()
    };
    let of = |of: fn(&Layout) -> u64| now.map(of);
    let replicas = now.map_or(1, |layout| layout.dp.get().saturating_mul(layout.micro_batch));
    let shortest = (source.sequence / 4).max(1);
    vec![
        numbers(asked, "mbs", of(|l| l.micro_batch), |a| &mut a.layout.mbs, doubled(1, 6)),
        numbers(asked, "microbatches", of(|l| l.microbatches), |a| &mut a.layout.microbatches, doubled(1, 8)),
        numbers(asked, "gbs", of(|l| l.global_batch), |a| &mut a.layout.gbs, doubled(replicas, 8)),
        numbers(asked, "seq", of(|l| l.sequence), |a| &mut a.layout.seq, doubled(shortest, 7)),
    ]
}

/// Precision and state.
fn states(asked: &Asked) -> Vec<Open> {
    let typed = &asked.state;
    vec![
        axis(
            "precision",
            json!(typed.precision.map(PrecisionChoice::name)),
            typed.precision.is_some(),
            PrecisionChoice::named()
                .map(|(name, precision)| value(name, move |asked: &mut Asked| asked.state.precision = Some(precision))),
        ),
        axis(
            "optimizer",
            json!(typed.optimizer.map(OptimizerChoice::name)),
            typed.optimizer.is_some(),
            OptimizerChoice::named()
                .map(|(name, optimizer)| value(name, move |asked: &mut Asked| asked.state.optimizer = Some(optimizer))),
        ),
        axis(
            "gradients",
            json!(typed.gradients.map(|dtype| dtype.to_string())),
            typed.gradients.is_some(),
            Dtype::ALL
                .iter()
                .filter(|(_, dtype)| matches!(dtype, Dtype::Bf16 | Dtype::Fp32))
                .map(|&(name, dtype)| value(name, move |asked: &mut Asked| asked.state.gradients = Some(dtype))),
        ),
    ]
}

fn axis(flag: &'static str, now: Value, is_typed: bool, values: impl IntoIterator<Item = Offer>) -> Open {
    Open { flag, now, is_typed, values: values.into_iter().collect() }
}

fn value(value: impl Into<Value>, set: impl Fn(&mut Asked) + 'static) -> Offer {
    Offer { value: value.into(), set: Box::new(set) }
}

/// An axis of whole numbers; what it is now stands among them.
fn numbers(asked: &Asked, flag: &'static str, now: Option<u64>, field: Field, mut values: Vec<u64>) -> Open {
    values.extend(now);
    values.sort_unstable();
    values.dedup();
    let is_typed = field(&mut asked.clone()).is_some();
    let values = values.into_iter().map(|number| value(number, move |asked: &mut Asked| *field(asked) = Some(number)));
    axis(flag, json!(now), is_typed, values)
}

/// What divides a number, smallest first; of very many the smaller ones.
fn divisors(n: u64) -> Vec<u64> {
    let low: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let high = low.iter().rev().map(|d| n / d).filter(|d| d * d != n);
    let mut all: Vec<u64> = low.iter().copied().chain(high).collect();
    all.truncate(MOST);
    all
}

#[cfg(test)]
mod tests {
    use super::{Choices, divisors};
    use crate::{Asked, Case, Terms};
    use hardware::Cluster;
    use recipe::builtin;
    use serde_json::json;

    fn choices(words: &str) -> Choices {
        let asked = Asked::parse(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let recipe = builtin::find(&asked.recipe.recipe).unwrap();
        let cluster = Cluster::parse(asked.on.as_deref().unwrap()).unwrap();
        Choices::of(&asked, &recipe, &cluster)
    }

    #[test]
    fn a_value_is_legal_where_the_case_with_it_is() {
        for words in ["nam56r --on 8xH200 --tp 2", "deepseek-v3 --on 64xH100 --ep 8 --pp 4", "llama3-8b --on 8xB200"] {
            let found = choices(words);
            assert!(found.refusals.is_empty(), "{words}: {:?}", found.refusals);
            for axis in &found.axes {
                let now = axis.values.iter().find(|tried| tried.value == axis.now);
                assert!(axis.now.is_null() || now.is_some_and(|now| now.refusals.is_empty()), "{words}: {}", axis.flag);
                for tried in &axis.values {
                    let flag = match &tried.value {
                        json if *json == json!(false) => format!("--no-{}", axis.flag),
                        json if *json == json!(true) => format!("--{}", axis.flag),
                        json => format!("--{} {}", axis.flag, json.to_string().trim_matches('"')),
                    };
                    let without: Vec<String> = typed_without(words, axis.flag);
                    let words = format!("{} {flag}", without.join(" "));
                    let asked = Asked::parse(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
                    let recipe = builtin::find(&asked.recipe.recipe).unwrap();
                    let cluster = Cluster::parse(asked.on.as_deref().unwrap()).unwrap();
                    let case = Case::new(asked, recipe, Some(cluster), Terms::RUN);
                    assert_eq!(case.is_ok(), tried.refusals.is_empty(), "{words}");
                    assert_eq!(tried.brings == 0, tried.refusals.is_empty(), "{words}: the job itself is legal");
                }
            }
        }
    }

    /// The words without a flag and its value.
    fn typed_without(words: &str, flag: &str) -> Vec<String> {
        let mut words: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        if let Some(at) = words.iter().position(|word| *word == format!("--{flag}")) {
            words.drain(at..at + 2);
        }
        words
    }

    #[test]
    fn of_a_refused_job_the_values_that_make_it_no_worse_are_told_apart() {
        let found = choices("nam56r --on 8xH200 --pp 3");
        assert!(!found.refusals.is_empty());
        let of = |flag: &str| found.axes.iter().find(|axis| axis.flag == flag).unwrap();
        assert!(of("pp").values.iter().any(|tried| tried.refusals.is_empty()), "another pp mends it");
        assert!(of("mbs").values.iter().all(|tried| !tried.refusals.is_empty()), "no mbs does");
        assert!(of("mbs").values.iter().any(|tried| tried.brings == 0), "and none is to blame");
    }

    #[test]
    fn degrees_divide_the_world() {
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
    }
}
