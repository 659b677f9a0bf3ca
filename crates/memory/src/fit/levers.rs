//! What would lower the peak: each lever changes one thing, is checked for legality, priced, and
//! listed with what it saves on the worst rank and what it costs.

use super::{Entry, Fit, FitRequest, OffloadRequest};
use layout::request::{Balance, Engine, LayoutRequest, Recompute, RecomputeModule, ZeroStage};
use layout::{StagePlan, check};
use ledger::Ledger;
use recipe::{Mixer, Recipe};
use replay::line::Line;

/// One change and what it comes to.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Lever {
    /// What to change, as flags.
    pub change: String,
    /// What the worst rank would hold, bytes.
    pub total_bytes: u64,
    /// What it saves there, bytes; negative when it costs memory.
    pub saves_bytes: i64,
    /// What is left then.
    pub headroom_bytes: i64,
    /// What it costs.
    pub costs: &'static str,
}

/// A change to try.
struct Try {
    change: String,
    costs: &'static str,
    request: LayoutRequest,
    offload: OffloadRequest,
}

/// Every lever that is legal and can be priced, best first. `typed` is what the user asked for;
/// world and cluster stay.
pub fn levers(recipe: &Recipe, typed: &LayoutRequest, now: &FitRequest, fit: &Fit) -> Vec<Lever> {
    let before = fit.worst().total();
    let mut found: Vec<Lever> = tries(now, typed)
        .into_iter()
        .filter_map(|attempt| {
            let after = price(recipe, now, &attempt)?;
            let worst = after.worst();
            Some(Lever {
                change: attempt.change,
                total_bytes: worst.total(),
                saves_bytes: before as i64 - worst.total() as i64,
                headroom_bytes: worst.headroom,
                costs: attempt.costs,
            })
        })
        .collect();
    found.extend(least_offload(now, fit));
    found.sort_by_key(|lever| std::cmp::Reverse(lever.saves_bytes));
    found
}

/// The least share of AdamW's state whose move makes it fit with the headroom asked for.
fn least_offload(now: &FitRequest, fit: &Fit) -> Option<Lever> {
    let missing = now.headroom.0 as i64 - fit.worst().headroom;
    let adam = fit.worst().line(Entry::Ledger(Line::OtherOptimizer));
    if missing <= 0 || adam == 0 || !matches!(now.ledger, Ledger::Megatron(_)) {
        return None;
    }
    let share = now.offload.optimizer + missing as f64 / adam as f64 * (1.0 - now.offload.optimizer);
    let share = (share * 100.0).ceil() / 100.0;
    if share >= 1.0 {
        return None;
    }
    let request = FitRequest { offload: OffloadRequest { optimizer: share, ..now.offload }, ..*now };
    let after = Fit::price(&request).ok()?;
    let worst = after.worst();
    Some(Lever {
        change: format!("--offload-optimizer {share}"),
        total_bytes: worst.total(),
        saves_bytes: fit.worst().total() as i64 - worst.total() as i64,
        headroom_bytes: worst.headroom,
        costs: "the least that fits on the host: memory there and the link, every step",
    })
}

fn price(recipe: &Recipe, now: &FitRequest, attempt: &Try) -> Option<Fit> {
    let checked = check(recipe, &attempt.request);
    let layout = checked.layout.clone().filter(|_| checked.is_legal())?;
    let stages = StagePlan::new(&checked.recipe, &layout, None).ok()?;
    let request =
        FitRequest { recipe: &checked.recipe, layout: &layout, stages: &stages, offload: attempt.offload, ..*now };
    Fit::price(&request).ok()
}

/// The changes worth trying from where the layout stands.
fn tries(now: &FitRequest, typed: &LayoutRequest) -> Vec<Try> {
    let (recipe, layout, offload) = (now.recipe, now.layout, now.offload);
    // Everything else stays as it was typed, so that a lever typed along gives the figure shown.
    let base = LayoutRequest { world: Some(layout.world), ..typed.clone() };
    let mut list = Vec::new();
    let mut add = |change: String, costs, request| list.push(Try { change, costs, request, offload });
    let has_experts = recipe.uses(Mixer::Moe);
    if layout.tp.splits() && !layout.sp {
        add("--sp".to_string(), "nothing: the same bytes move", LayoutRequest { sp: Some(true), ..base.clone() });
    }
    let blocks = RecomputeModule::ALL.iter().map(|(_, module)| *module).filter(|module| {
        layout.engine == Some(Engine::Shardwright) && module.is_ours() && module.whole().is_some_and(|m| recipe.uses(m))
    });
    for module in useful_modules(recipe).into_iter().chain(blocks) {
        if let Some(recompute) = with_module(&layout.recompute, module) {
            let change = format!("--recompute {recompute}");
            add(change, "that module computed twice", LayoutRequest { recompute: Some(recompute), ..base.clone() });
        }
    }
    if layout.recompute != Recompute::Full {
        let full = LayoutRequest { recompute: Some(Recompute::Full), ..base.clone() };
        add("--recompute full".to_string(), "every layer's forward computed twice", full);
    }
    for (key, degree, costs) in [
        ("tp", layout.tp.get(), "collectives in every layer body, smaller products"),
        ("pp", layout.pp.get(), "a pipeline bubble, more microbatches in flight"),
        ("cp", layout.cp.get(), "a ring under attention"),
        ("ep", layout.ep.get(), "an all-to-all over more ranks"),
    ] {
        if key == "ep" && !has_experts {
            continue;
        }
        let mut request = base.clone();
        let slot = match key {
            "tp" => &mut request.tp,
            "pp" => &mut request.pp,
            "cp" => &mut request.cp,
            _ => &mut request.ep,
        };
        *slot = Some(degree * 2);
        add(format!("--{key} {}", degree * 2), costs, request);
    }
    if layout.micro_batch > 1 {
        let half = layout.micro_batch / 2;
        add(
            format!("--mbs {half}"),
            "smaller products, more microbatches",
            LayoutRequest { micro_batch: Some(half), ..base.clone() },
        );
    }
    let next = match layout.zero {
        ZeroStage::Zero => Some(ZeroStage::One),
        ZeroStage::One => Some(ZeroStage::Two),
        ZeroStage::Two => Some(ZeroStage::Three),
        ZeroStage::Three => None,
    };
    if let Some(zero) = next {
        add(
            format!("--zero {zero}"),
            "gathers and scatters over replicas",
            LayoutRequest { zero: Some(zero), ..base.clone() },
        );
    }
    if layout.pp.splits() && layout.boundaries.is_none() && layout.balance == Balance::Layers {
        let moved = LayoutRequest { balance: Some(Balance::Params), ..base.clone() };
        add("--balance params".to_string(), "stages of unequal depth", moved);
    }
    if matches!(now.ledger, Ledger::Megatron(_)) {
        let mut host = |flag: &str, request: OffloadRequest| {
            list.push(Try {
                change: format!("--offload-{flag} 1"),
                costs: "host memory and the link, every step",
                request: base.clone(),
                offload: request,
            });
        };
        if offload.optimizer < 1.0 {
            host("optimizer", OffloadRequest { optimizer: 1.0, ..offload });
        }
        if offload.activations < 1.0 {
            host("activations", OffloadRequest { activations: 1.0, ..offload });
        }
    }
    list
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
