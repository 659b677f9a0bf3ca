//! What would lower the peak: each lever changes one thing, is checked for legality, priced, and
//! listed with what it saves on the worst rank and what it costs.

use super::{Entry, Fit};
use case::{Asked, Case, useful_modules};
use layout::request::{Balance, Engine, Recompute, RecomputeModule, ZeroStage};
use recipe::Mixer;
use replay::line::Line;

/// One change and what it comes to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Lever {
    /// What to change, as flags.
    pub change: String,
    /// What the worst rank would hold, bytes.
    pub total_bytes: u64,
    /// What it saves there, bytes.
    pub saves_bytes: u64,
    /// What is left then.
    pub headroom_bytes: i64,
    /// How long a token takes then, as a multiple of what it takes now; none where either is not priced.
    pub slows: Option<f64>,
    /// What it costs.
    pub costs: &'static str,
}

/// Tokens a second and device of a job, where they are priced.
pub type Rate<'a> = &'a dyn Fn(&Case) -> Option<f64>;

/// A change to try.
struct Try {
    change: String,
    costs: &'static str,
    case: Case,
}

/// What would lower the peak.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Levers {
    /// Every lever that is legal, was priced and saves something: first those that leave the headroom asked for,
    /// the fastest first; then the rest, by what they save.
    pub found: Vec<Lever>,
    /// Changes that were not priced because they take more than was left of what is allowed.
    pub untried: Vec<String>,
}

/// Prices what was typed with one change typed along, change by change, as long as that is predicted to
/// take no more than so many operations of this machine.
pub fn levers(case: &Case, fit: &Fit, allowed: u64, rate: Rate) -> Levers {
    let (mut levers, mut taken) = (Levers::default(), 0u64);
    let now = rate(case);
    let slows = |after: &Case| Some(now? / rate(after)?);
    for Try { change, costs, case } in tries(case) {
        let takes = fit.work_beside(&case);
        if takes > allowed - taken {
            levers.untried.push(change);
        } else {
            taken += takes;
            levers.found.extend(lever(change, costs, &case, fit, &slows));
        }
    }
    levers.found.extend(least_offload(case, fit, &slows));
    let (mut enough, mut rest): (Vec<_>, Vec<_>) =
        levers.found.into_iter().partition(|lever| lever.headroom_bytes >= fit.margin.headroom.0 as i64);
    let time = |lever: &Lever| lever.slows.unwrap_or(f64::INFINITY);
    enough.sort_by(|a, b| time(a).total_cmp(&time(b)).then(b.saves_bytes.cmp(&a.saves_bytes)));
    rest.sort_by_key(|lever| std::cmp::Reverse(lever.saves_bytes));
    enough.append(&mut rest);
    Levers { found: enough, ..levers }
}

fn lever(change: String, costs: &'static str, case: &Case, fit: &Fit, slows: Rate) -> Option<Lever> {
    let after = fit.price_beside(case).ok()?;
    let worst = after.tightest();
    let saves_bytes = fit.tightest().total().checked_sub(worst.total()).filter(|saved| *saved > 0)?;
    let (total_bytes, headroom_bytes) = (worst.total(), worst.headroom);
    Some(Lever { change, total_bytes, saves_bytes, headroom_bytes, slows: slows(case), costs })
}

/// The least share of AdamW's state whose move makes it fit with the headroom asked for.
fn least_offload(case: &Case, fit: &Fit, slows: Rate) -> Option<Lever> {
    let missing = fit.margin.headroom.0 as i64 - fit.tightest().headroom;
    let adam = fit.tightest().line(Entry::Ledger(Line::OtherOptimizer));
    if missing <= 0 || adam == 0 || case.engine() != Engine::Megatron {
        return None;
    }
    let now = case.options.offload;
    let share = now + missing as f64 / adam as f64 * (1.0 - now);
    let share = (share * 100.0).ceil() / 100.0;
    if share >= 1.0 {
        return None;
    }
    let moved = case.with(|asked| asked.state.offload_optimizer = Some(share)).ok()?;
    let costs = "the least that fits on the host: memory there and the link, every step";
    lever(format!("--offload-optimizer {share}"), costs, &moved, fit, slows)
}

/// The changes worth trying from where the layout stands.
fn tries(case: &Case) -> Vec<Try> {
    let (recipe, layout) = (&case.recipe, &case.layout);
    let mut list = Vec::new();
    let mut add = |change: String, costs, with: &dyn Fn(&mut Asked)| {
        if let Ok(case) = case.with(with) {
            list.push(Try { change, costs, case });
        }
    };
    let has_experts = recipe.uses(Mixer::Moe);
    if layout.tp.splits() && !layout.sp {
        add("--sp".to_string(), "nothing: the same bytes move", &|asked| {
            (asked.layout.sp, asked.layout.no_sp) = (true, false);
        });
    }
    let blocks = RecomputeModule::ALL.iter().map(|(_, module)| *module).filter(|module| {
        layout.engine == Some(Engine::Shardwright) && module.is_ours() && module.whole().is_some_and(|m| recipe.uses(m))
    });
    for module in useful_modules(recipe).into_iter().chain(blocks) {
        if let Some(recompute) = with_module(&layout.recompute, module) {
            add(format!("--recompute {recompute}"), "that module computed twice", &|asked| {
                asked.layout.recompute = Some(recompute.clone());
            });
        }
    }
    if layout.recompute != Recompute::Full {
        add("--recompute full".to_string(), "every layer's forward computed twice", &|asked| {
            asked.layout.recompute = Some(Recompute::Full);
        });
    }
    let (tp, pp, cp, ep) = (2 * layout.tp.get(), 2 * layout.pp.get(), 2 * layout.cp.get(), 2 * layout.ep.get());
    add(format!("--tp {tp}"), "collectives in every layer body, smaller products", &|a| a.layout.tp = Some(tp));
    add(format!("--pp {pp}"), "a pipeline bubble, more microbatches in flight", &|a| a.layout.pp = Some(pp));
    add(format!("--cp {cp}"), "a ring under attention", &|a| a.layout.cp = Some(cp));
    if has_experts {
        add(format!("--ep {ep}"), "an all-to-all over more ranks", &|a| a.layout.ep = Some(ep));
    }
    if layout.micro_batch > 1 {
        let half = layout.micro_batch / 2;
        add(format!("--mbs {half}"), "smaller products, more microbatches", &|a| a.layout.mbs = Some(half));
    }
    let next = match layout.zero {
        ZeroStage::Zero => Some(ZeroStage::One),
        ZeroStage::One => Some(ZeroStage::Two),
        ZeroStage::Two => Some(ZeroStage::Three),
        ZeroStage::Three => None,
    };
    if let Some(zero) = next {
        add(format!("--zero {zero}"), "gathers and scatters over replicas", &|a| a.layout.zero = Some(zero));
    }
    if layout.pp.splits() && layout.boundaries.is_none() && layout.balance == Balance::Layers {
        add("--balance params".to_string(), "stages of unequal depth", &|a| a.layout.balance = Some(Balance::Params));
    }
    if case.engine() == Engine::Megatron {
        let costs = "host memory and the link, every step";
        if case.options.offload < 1.0 {
            add("--offload-optimizer 1".to_string(), costs, &|a| a.state.offload_optimizer = Some(1.0));
        }
    }
    list
}

/// The policy with one more module, unless it has it already.
fn with_module(now: &Recompute, module: RecomputeModule) -> Option<Recompute> {
    let mut modules = match now {
        Recompute::Full => return None,
        Recompute::None => Vec::new(),
        Recompute::Selective(modules) => modules.clone(),
    };
    if modules.contains(&module) {
        return None;
    }
    modules.push(module);
    modules.sort();
    Some(Recompute::Selective(modules))
}
