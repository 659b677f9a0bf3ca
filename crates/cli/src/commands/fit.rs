//! `fit`: memory geometry per rank class, phases, headroom, verdict, levers.

use super::{layout_json, layout_text, model_line, recipe_of, seams_text, serve};
use crate::args::{FitArgs, LayoutArgs, OptimizerChoice, PrecisionChoice, RecipeArgs, StateArgs};
use crate::files::{load_cluster, write_atomically};
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::picture;
use crate::table::{Table, heading};
use diag::{Blame, Finding};
use hardware::Cluster;
use layout::{Checked, Layout, LayoutRequest, StagePlan, check};
use ledger::megatron::CrossEntropy;
use ledger::{Ledger, deepspeed};
use memory::fit::{
    Fit, FitRequest, Item, Lever, OffloadRequest, Overload, RankClass, Verdict, at_overloads, checklist, communicators,
    levers,
};
use recipe::precision::OptimizerPolicy;
use recipe::{Mixer, Mode, Recipe};
use replay::Unmodelled;
use serde_json::{Value, json};
use units::{Bytes, count};

/// A model, a legal layout and a cluster, ready to be priced.
pub struct Case {
    /// The recipe as typed, before its mode.
    pub recipe: Recipe,
    /// What was typed, with the mode and world filled in.
    pub request: LayoutRequest,
    /// What checking it came to.
    pub checked: Checked,
    /// The layout.
    pub layout: Layout,
    /// Its stages.
    pub stages: StagePlan,
    /// The cluster.
    pub cluster: Cluster,
    /// Which engine's ledger prices it, with what that engine is told.
    pub ledger: Ledger,
    /// What stays on the host.
    pub offload: OffloadRequest,
}

impl Case {
    /// Reads a case from what was typed.
    pub fn new(recipe: &RecipeArgs, layout: &LayoutArgs, state: &StateArgs, on: &str) -> Result<Case, Refusal> {
        let recipe = recipe_under(recipe, state)?;
        let cluster = load_cluster(on)?;
        let request = on_cluster(layout, &recipe, &cluster, on)?;
        let checked = check(&recipe, &request);
        let Some(layout) = checked.layout.clone().filter(|_| checked.is_legal()) else {
            return Err(Refusal::from(checked.findings));
        };
        let stages = StagePlan::new(&checked.recipe, &layout, None)?;
        let mut ledger = Ledger::of(layout.engine, &checked.recipe, &layout).map_err(|e| unmodelled(&e))?;
        tell(&mut ledger, state)?;
        check_state(state, &cluster)?;
        let offload = offload(&ledger, state);
        Ok(Case { recipe, request, checked, layout, stages, cluster, ledger, offload })
    }

    /// The request to price, leaving `headroom` free.
    pub fn fit_request(&self, headroom: Bytes) -> FitRequest<'_> {
        FitRequest {
            recipe: &self.checked.recipe,
            layout: &self.layout,
            stages: &self.stages,
            device: &self.cluster.device,
            ledger: &self.ledger,
            offload: self.offload,
            headroom,
        }
    }
}

/// The recipe under the optimizers that were typed.
pub fn stepped(mut recipe: Recipe, choice: Option<OptimizerChoice>) -> Recipe {
    if let Some(choice) = choice {
        recipe.optimizer = match choice {
            OptimizerChoice::AdamW => OptimizerPolicy::default(),
            OptimizerChoice::MuonAdamW => OptimizerPolicy::muon(),
        };
    }
    recipe
}

/// Refuses formats the device does not multiply in, and shares that are none.
pub fn check_state(state: &StateArgs, cluster: &Cluster) -> Result<(), Refusal> {
    let format = state.precision.format();
    // This project's own runtime multiplies in these; other engines are refused them by name.
    let is_own = matches!(state.precision, PrecisionChoice::F32 | PrecisionChoice::F64);
    if !is_own && !cluster.device.formats.iter().any(|known| known == format) {
        let message = format!("{} does not multiply in {format}", cluster.device.name);
        let hint = format!("it multiplies in {}", cluster.device.formats.join(", "));
        return Err(Finding::error("fit/format", Blame::Usage, "precision", message).hint(hint).into());
    }
    for (key, share) in
        [("optimizer", state.offload_optimizer.unwrap_or(0.0)), ("activations", state.offload_activations)]
    {
        if !(0.0..=1.0).contains(&share) {
            let message = format!("`--offload-{key} {share}` is no share from 0 to 1");
            return Err(Finding::error("fit/offload", Blame::Usage, format!("offload-{key}"), message).into());
        }
    }
    Ok(())
}

/// The recipe typed, under the optimizers typed.
pub fn recipe_under(args: &RecipeArgs, state: &StateArgs) -> Result<Recipe, Refusal> {
    Ok(stepped(recipe_of(args)?, state.optimizer))
}

/// What stays on the host; DeepSpeed's ledger replays its own offload.
pub fn offload(ledger: &Ledger, state: &StateArgs) -> OffloadRequest {
    OffloadRequest::of(ledger, state.offload_optimizer.unwrap_or(0.0), state.offload_activations)
}

/// Whether nothing was typed about precision and state.
pub fn is_plain(state: &StateArgs) -> bool {
    is_plain_precision(state) && state.offload_optimizer.unwrap_or(0.0) == 0.0 && state.offload_activations == 0.0
}

fn is_plain_precision(state: &StateArgs) -> bool {
    state.gradients.is_none() && !state.ce_fusion && !state.fp8_param_gather && state.precision == PrecisionChoice::Bf16
}

/// Passes on what was typed about precision and state; what an engine's ledger cannot take is
/// refused by name.
pub fn tell(ledger: &mut Ledger, state: &StateArgs) -> Result<(), Refusal> {
    let offloaded = state.offload_optimizer.unwrap_or(0.0);
    if let Ledger::Shardwright(options) = ledger {
        let is_wide = state.precision == PrecisionChoice::F64;
        options.bytes_each = if is_wide { 8 } else { 4 };
        let is_own = is_wide || state.precision == PrecisionChoice::F32;
        let is_else_plain = state.gradients.is_none() && !state.ce_fusion && !state.fp8_param_gather;
        if (is_plain_precision(state) || (is_own && is_else_plain))
            && offloaded == 0.0
            && state.offload_activations == 0.0
        {
            return Ok(());
        }
    }
    if let Ledger::Deepspeed(options) = ledger {
        options.offload_optimizer = (offloaded == 1.0).then_some(deepspeed::Offload::DEFAULT);
        if is_plain_precision(state) && [0.0, 1.0].contains(&offloaded) && state.offload_activations == 0.0 {
            return Ok(());
        }
    }
    let Ledger::Megatron(options) = ledger else {
        if is_plain(state) {
            return Ok(());
        }
        let message = "--precision, --gradients, --ce-fusion and shares of offload are for Megatron's ledger";
        return Err(Finding::error("fit/state", Blame::Usage, "engine", message)
            .hint("leave them out with this engine")
            .into());
    };
    if matches!(state.precision, PrecisionChoice::F32 | PrecisionChoice::F64) {
        let message = format!("--precision {} is for --engine shardwright", state.precision.format());
        return Err(Finding::error("fit/precision", Blame::Usage, "precision", message).hint("leave it out").into());
    }
    if let Some(dtype) = state.gradients {
        options.gradients = dtype;
    }
    if state.ce_fusion {
        options.cross_entropy = CrossEntropy::FusedNative;
    }
    if let PrecisionChoice::Fp8(scaling) = state.precision {
        options.fp8 = Some(scaling);
    }
    options.fp8_param_gather = state.fp8_param_gather;
    Ok(())
}

/// The layout typed for a cluster: the world is its devices, and a recipe with modes runs in one:
/// the custom mixers at tp 1, the built-in ones otherwise.
pub fn on_cluster(args: &LayoutArgs, recipe: &Recipe, cluster: &Cluster, on: &str) -> Result<LayoutRequest, Refusal> {
    let mut request = args.request();
    if let Some(world) = request.world.filter(|world| *world != cluster.devices()) {
        let message = format!("`--world {world}` is not the {} devices of `{on}`", cluster.devices());
        return Err(Finding::error("plan/world", Blame::Usage, "world", message).hint("leave --world out").into());
    }
    request.world = Some(cluster.devices());
    if request.mode.is_none() {
        let usual = if request.tp == Some(1) { Mode::AuthorDp } else { Mode::NemoNative };
        request.mode = recipe.modes.contains(&usual).then_some(usual);
    }
    Ok(request)
}

/// A refusal to price, by name.
pub fn unmodelled(reason: &Unmodelled) -> Refusal {
    let message = format!("cannot be priced: {}", reason.why);
    Finding::error("fit/unmodelled", Blame::Engine, reason.what.clone(), format!("{} {message}", reason.what)).into()
}

pub fn run(args: &FitArgs) -> Outcome {
    let case = Case::new(&args.recipe, &args.layout, &args.state, &args.on)?;
    if args.serve.serve {
        return serve::run(args, &case);
    }
    let most = case.cluster.device.visible_bytes() as f64 / Bytes::GIB.0 as f64;
    if !(0.0..=most).contains(&args.headroom) {
        let message = format!("`--headroom {}` is no number of GiB from 0 to {most:.0}", args.headroom);
        return Err(Finding::error("fit/headroom", Blame::Usage, "headroom", message).into());
    }
    if let Some(factor) = args.overload.iter().find(|f| !f.is_finite() || **f <= 0.0) {
        let message = format!("`--overload {factor}` is no factor over the balanced share");
        return Err(Finding::error("fit/overload", Blame::Usage, "overload", message).into());
    }
    let request = case.fit_request(Bytes((args.headroom * Bytes::GIB.0 as f64) as u64));
    let fit = Fit::price(&request).map_err(|e| unmodelled(&e))?;
    let found = levers(&case.recipe, &case.request, &request, &fit);
    let skew = if args.overload.is_empty() {
        None
    } else {
        at_overloads(&request, &args.overload).map_err(|e| unmodelled(&e))?
    };
    let items = if args.checklist { checklist(&request, &fit) } else { Vec::new() };
    if let Some(path) = &args.svg {
        let title = format!("{} on {}: {}", case.checked.recipe.name, args.on, fit.verdict.name());
        write_atomically(path, &picture::svg(&fit.classes, case.cluster.device.visible_bytes(), &title))?;
    }
    let mut text = model_line(&case.checked.recipe) + "\n" + &layout_text(&case.layout, &case.checked);
    text += &seams_text(&case.checked.seams);
    text += &verdict_text(&fit, &request);
    text += &picture::bars(&fit.classes, case.cluster.device.visible_bytes(), 60);
    text += &lines_text(fit.worst());
    text += &classes_text(&fit);
    text += &phases_text(fit.worst());
    text += &overload_text(skew.as_ref(), &args.overload);
    text += &levers_text(&found);
    text += &checklist_text(&items);
    text += &unmodelled_text(&fit);
    let json = fit_json(&case, &fit, &found, skew.as_ref(), &items);
    let mut report = Report::new(text, json).with_findings(&case.checked.findings);
    if fit.verdict == Verdict::DoesNotFit {
        report.exit = DOES_NOT_FIT;
    }
    Ok(report)
}

/// The verdict in two sentences.
pub fn verdict_text(fit: &Fit, request: &FitRequest) -> String {
    let worst = fit.worst();
    let colour = match fit.verdict {
        Verdict::Fits => "\x1b[1;32m",
        Verdict::Tight => "\x1b[1;33m",
        Verdict::DoesNotFit => "\x1b[1;31m",
    };
    let left = match u64::try_from(worst.headroom) {
        Ok(left) => format!("{} left", Bytes(left)),
        Err(_) => format!("{} over", Bytes(worst.headroom.unsigned_abs())),
    };
    format!(
        "\n{colour}{}\x1b[0m on {}: the worst ranks are stage {}'s ({}-{}), holding {} of {} ({left}, {} asked for)\n\
         the peak stands in {} during {}\n\n",
        fit.verdict.name(),
        request.device.name,
        worst.stage,
        worst.first_rank,
        worst.first_rank + worst.num_ranks - 1,
        Bytes(worst.total()),
        Bytes(request.device.visible_bytes()),
        request.headroom,
        worst.peak_origin,
        worst.peak_phase,
    )
}

/// The largest lines of the worst rank, in one sentence.
pub fn fit_lines(fit: &Fit) -> String {
    let mut lines: Vec<_> = fit.worst().lines.iter().filter(|a| a.bytes > 0).collect();
    lines.sort_by_key(|a| std::cmp::Reverse(a.bytes));
    let words: Vec<String> = lines.iter().take(6).map(|a| format!("{} {}", a.entry.name(), Bytes(a.bytes))).collect();
    format!("  most of it: {}\n", words.join(", "))
}

/// The lines of the worst class with their basis.
fn lines_text(class: &RankClass) -> String {
    let mut table = Table::new(&["line", "bytes", "basis", "scales with", "does not care about"]).right(&[1]);
    for amount in class.lines.iter().filter(|a| a.bytes > 0) {
        table.row([
            amount.entry.name(),
            &Bytes(amount.bytes).to_string(),
            &super::shorten(&amount.basis.words(), 34),
            amount.entry.scales_with(),
            amount.entry.ignores(),
        ]);
    }
    let title = format!("Lines at the peak of stage {} (one rank; {} parameters)", class.stage, count(class.params));
    let mut out = heading(&title) + &table.render();
    if class.offload.bytes() > 0 {
        out += &format!(
            "  on the host: {} of AdamW's state, {} of activations; the link takes {:.2} s a step if nothing hides it\n",
            Bytes(class.offload.optimizer_bytes),
            Bytes(class.offload.activation_bytes),
            class.offload.link_seconds
        );
    }
    out
}

fn classes_text(fit: &Fit) -> String {
    if fit.classes.len() == 1 {
        return String::new();
    }
    let mut table =
        Table::new(&["stage", "ranks", "parameters", "allocated", "reserved", "outside", "headroom", "peak stands in"])
            .right(&[0, 2, 3, 4, 5, 6]);
    for class in &fit.classes {
        let left = class.headroom as f64 / Bytes::GIB.0 as f64;
        table.row([
            class.stage.to_string(),
            format!("{}-{}", class.first_rank, class.first_rank + class.num_ranks - 1),
            count(class.params),
            Bytes(class.allocated_peak).to_string(),
            Bytes(class.reserved_peak).to_string(),
            Bytes(class.outside).to_string(),
            format!("{left:.1} GiB"),
            format!("{} ({})", class.peak_origin, class.peak_phase),
        ]);
    }
    heading("Rank classes") + &table.render()
}

fn phases_text(class: &RankClass) -> String {
    let head = ["phase", "allocated peak", "forward", "loss", "backward", "reserved", "what happens"];
    let mut table = Table::new(&head).right(&[1, 2, 3, 4, 5]);
    for phase in &class.phases {
        let part = |i: usize| match phase.parts.map(|parts| parts[i]) {
            None | Some(0) => String::new(),
            Some(bytes) => Bytes(bytes).to_string(),
        };
        table.row([
            &phase.kind.to_string(),
            &Bytes(phase.allocated_peak).to_string(),
            &part(0),
            &part(1),
            &part(2),
            &Bytes(phase.reserved_peak).to_string(),
            phase.kind.what(),
        ]);
    }
    heading(&format!("Phases of stage {}", class.stage)) + &table.render()
}

fn overload_text(skew: Option<&Overload>, asked: &[f64]) -> String {
    let Some(skew) = skew else {
        let silent = asked.is_empty();
        return if silent {
            String::new()
        } else {
            heading("Routing skew") + "  ep is 1 or there are no experts: skew moves no tokens between ranks\n"
        };
    };
    let mut table = Table::new(&["overload", "holds", "headroom"]).right(&[0, 1, 2]);
    for at in &skew.at {
        table.row([
            format!("{:.2}", at.factor),
            Bytes(at.total).to_string(),
            format!("{:.1} GiB", at.headroom as f64 / Bytes::GIB.0 as f64),
        ]);
    }
    let breaks = match skew.breaks_at {
        Some(factor) if factor <= 0.01 => "does not fit however tokens fall: routing is not the cause".to_string(),
        Some(factor) => format!("no longer fits once a rank's experts receive {factor:.2} times their share"),
        None => "fits even when every token of every peer chooses this rank's experts".to_string(),
    };
    heading("Routing skew (worst rank)")
        + &table.render()
        + &format!("  {breaks} (the most there is: {:.1})\n", skew.most)
}

fn levers_text(levers: &[Lever]) -> String {
    let mut table = Table::new(&["change", "saves", "holds then", "headroom", "costs"]).right(&[1, 2, 3]);
    for lever in levers.iter().filter(|l| l.saves_bytes > 0).take(8) {
        table.row([
            lever.change.clone(),
            Bytes(lever.saves_bytes.unsigned_abs()).to_string(),
            Bytes(lever.total_bytes).to_string(),
            format!("{:.1} GiB", lever.headroom_bytes as f64 / Bytes::GIB.0 as f64),
            lever.costs.to_string(),
        ]);
    }
    heading("Levers (one change each, on the worst rank)") + &table.render()
}

fn checklist_text(items: &[Item]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["", "item", "evidence"]);
    for item in items {
        table.row([if item.holds { "ok" } else { "NO" }, item.what, &item.evidence]);
    }
    heading("Checklist") + &table.render()
}

fn unmodelled_text(fit: &Fit) -> String {
    let lines: String = fit.unmodelled.iter().map(|line| format!("  {line}\n")).collect();
    heading("Not in any number above") + &lines
}

/// One rank class as JSON.
fn class_json(class: &RankClass) -> Value {
    let line = |a: &memory::fit::Amount| json!({ "line": a.entry.name(), "bytes": a.bytes, "basis": a.basis, "scales_with": a.entry.scales_with(), "ignores": a.entry.ignores() });
    let phase = |p: &memory::fit::PhasePeak| json!({ "phase": p.kind.to_string(), "allocated_peak_bytes": p.allocated_peak, "forward_loss_backward_bytes": p.parts, "reserved_peak_bytes": p.reserved_peak, "what": p.kind.what() });
    json!({
        "ranks": { "first": class.first_rank, "count": class.num_ranks }, "example_rank": class.first_rank, "stage": class.stage,
        "params": class.params, "lines": class.lines.iter().map(line).collect::<Vec<_>>(),
        "phases": class.phases.iter().map(phase).collect::<Vec<_>>(), "peak_phase": class.peak_phase.to_string(),
        "peak_block": class.peak_origin.to_string(), "allocated_peak_bytes": class.allocated_peak,
        "reserved_peak_bytes": class.reserved_peak, "outside_bytes": class.outside, "total_bytes": class.total(),
        "headroom_bytes": class.headroom, "host_bytes": class.offload.bytes(), "link_seconds": class.offload.link_seconds,
    })
}

fn fit_json(case: &Case, fit: &Fit, levers: &[Lever], skew: Option<&Overload>, items: &[Item]) -> Value {
    let has_experts = case.checked.recipe.uses(Mixer::Moe);
    let at = |o: &memory::fit::AtOverload| json!({ "factor": o.factor, "total_bytes": o.total, "headroom_bytes": o.headroom });
    json!({
        "recipe": case.checked.recipe.name, "layout": layout_json(&case.layout, &case.checked),
        "hardware": case.cluster, "engine": case.layout.engine.map_or("megatron", |e| e.name()),
        "verdict": fit.verdict, "rank_classes": fit.classes.iter().map(class_json).collect::<Vec<_>>(),
        "worst": fit.worst, "communicators": communicators(&case.layout, has_experts),
        "unmodelled": fit.unmodelled, "levers": levers, "checklist": items,
        "overload": skew.map(|s| json!({ "at": s.at.iter().map(at).collect::<Vec<_>>(), "breaks_at": s.breaks_at, "most": s.most })),
        "seams": case.checked.seams, "findings": case.checked.findings,
    })
}
