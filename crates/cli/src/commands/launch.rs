//! `launch`: from a plan to what to hand to the cluster.

use super::fit::{check_state, offload, on_cluster, stepped, tell};
use super::{layout_json, layout_text, model_line, recipe_of, seams_text};
use crate::args::LaunchArgs;
use crate::files::{read_text, write_folder};
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading};
use diag::{Blame, Finding, refuses};
use hardware::Cluster;
use launch::job::{Job, Seams, seams};
use launch::lanes::{self, Lane};
use launch::record::{self, MemoryVerdict};
use launch::{Emission, File, Kind, Policy, engines, schedulers};
use layout::{Checked, Engine, Layout, LayoutRequest, StagePlan, check};
use memory::fit::{Fit, FitRequest, HEADROOM, OffloadRequest, Verdict};
use memory::ledger::Ledger;
use memory::ledger::megatron::Reduction;
use recipe::{Recipe, Seam};
use serde_json::{Value, json};
use units::Bytes;

/// Everything a launch borrows.
struct Prepared {
    recipe: Recipe,
    checked: Checked,
    layout: Layout,
    stages: StagePlan,
    cluster: Cluster,
    policy: Policy,
    seams: Vec<Seam>,
    ledger: Option<Ledger>,
    offload: OffloadRequest,
    /// Why nothing can be priced, when nothing can.
    unpriced: Option<String>,
}

pub fn run(args: &LaunchArgs) -> Outcome {
    let lane = args.lane.as_deref().map(lanes::find).transpose()?;
    let prepared = prepare(args, lane)?;
    let job = job(args, &prepared);
    let mut findings = lanes::check(&job, lane);
    if refuses(&findings) {
        return Err(findings.into());
    }
    findings.extend(notes(args));
    let memory = price(&prepared, args);
    if memory.verdict == Verdict::DoesNotFit.name() && !args.override_memory {
        return Ok(does_not_fit(&memory));
    }
    let mut emission = engines::emit(&job)?;
    emission.files = schedulers::files(args.scheduler, &job, &emission)?;
    let plan = plan(&prepared, &job, args);
    let files = record::files(&job, &emission, args.scheduler, emission.files.clone(), &memory, plan);
    if let Some(path) = &args.out {
        write_folder(path, &files)?;
    }
    let mut text = model_line(&prepared.recipe) + "\n" + &layout_text(&prepared.layout, &prepared.checked);
    text += &summary(&emission, &memory);
    text += &seams_text(&emission.seams);
    if args.explain {
        text += &explain(&emission);
    }
    text += &ending(args, &job, &emission, &files);
    let json = json!({
        "recipe": prepared.recipe.name, "engine": emission.engine.name(), "lane": emission.lane,
        "mode": emission.mode.map(|m| m.name()), "arguments": emission.arguments,
        "environment": emission.environment, "files": files, "seams": emission.seams, "memory": memory,
        "command": schedulers::command(args.scheduler, &job), "words": emission.words(),
        "layout": layout_json(&prepared.layout, &prepared.checked), "findings": findings,
    });
    Ok(Report::new(text, json).with_findings(&findings))
}

/// What was typed, checked; blocks an engine does not have are refused or become seams.
fn prepare(args: &LaunchArgs, lane: Option<&'static Lane>) -> Result<Prepared, Refusal> {
    let recipe = stepped(recipe_of(&args.recipe)?, &args.state);
    let cluster = Cluster::parse(&args.on)?;
    let policy = match &args.policy {
        None => Policy::default(),
        Some(path) => {
            let text = read_text(path)?;
            let source = Some((path.display().to_string(), text.clone()));
            Policy::parse(&text).map_err(|findings| Refusal { findings, source })?
        }
    };
    let request = request(args, lane, &recipe, &cluster)?;
    let checked = check(&recipe, &request);
    let allowed = if args.allow_seams { Seams::Allow } else { Seams::Refuse };
    let seams = seams(&checked, allowed)?;
    let Some(layout) = checked.layout.clone() else { return Err(checked.findings.into()) };
    let stages = StagePlan::new(&checked.recipe, &layout, None)?;
    check_state(&args.state, &cluster)?;
    let (ledger, unpriced) = match Ledger::of(layout.engine, &checked.recipe, &layout) {
        Ok(mut ledger) => {
            tell(&mut ledger, &args.state)?;
            if let (Ledger::Megatron(options), true) = (&mut ledger, policy.run.overlap) {
                options.reduction = Reduction::Overlapped;
            }
            (Some(ledger), None)
        }
        Err(reason) => (None, Some(reason.to_string())),
    };
    let offload = ledger.as_ref().map_or(OffloadRequest::default(), |ledger| offload(ledger, &args.state));
    Ok(Prepared { recipe, checked, layout, stages, cluster, policy, seams, ledger, offload, unpriced })
}

/// The layout on the cluster: the engine is the lane's or Megatron, the mode one that the lane runs.
fn request(
    args: &LaunchArgs,
    lane: Option<&Lane>,
    recipe: &Recipe,
    cluster: &Cluster,
) -> Result<LayoutRequest, Refusal> {
    let mut request = on_cluster(&args.layout, recipe, cluster, &args.on)?;
    let engine = request.engine.or(lane.map(|lane| lane.engine)).unwrap_or(Engine::Megatron);
    request.engine = Some(engine);
    if args.layout.mode.is_none()
        && let (Some(mode), Some(lane)) = (request.mode, lanes::of_engine(engine))
        && !lane.modes.contains(&mode)
    {
        request.mode = lane.modes.iter().copied().find(|mode| recipe.modes.contains(mode)).or(Some(mode));
    }
    Ok(request)
}

fn job<'a>(args: &LaunchArgs, prepared: &'a Prepared) -> Job<'a> {
    Job {
        source: &prepared.recipe,
        recipe: &prepared.checked.recipe,
        layout: &prepared.layout,
        stages: &prepared.stages,
        cluster: &prepared.cluster,
        policy: &prepared.policy,
        told: prepared.ledger.as_ref(),
        offload: prepared.offload,
        seams: &prepared.seams,
        allowed: if args.allow_seams { Seams::Allow } else { Seams::Refuse },
        frontend: args.frontend,
    }
}

/// What a reader should know before handing it on.
fn notes(args: &LaunchArgs) -> Vec<Finding> {
    if args.policy.is_some() {
        return Vec::new();
    }
    let message = "no --policy: storage is below /mnt/shardwright, data and tokenizer are made up, 100 steps";
    vec![Finding::note("launch/default-policy", Blame::Environment, "policy", message)]
}

/// The memory verdict of the plan.
fn price(prepared: &Prepared, args: &LaunchArgs) -> MemoryVerdict {
    let unmodelled = |detail: String| MemoryVerdict { verdict: "unmodelled".to_string(), detail, overridden: false };
    let Some(ledger) = &prepared.ledger else { return unmodelled(prepared.unpriced.clone().unwrap_or_default()) };
    let request = FitRequest {
        recipe: &prepared.checked.recipe,
        layout: &prepared.layout,
        stages: &prepared.stages,
        device: &prepared.cluster.device,
        ledger,
        offload: prepared.offload,
        headroom: HEADROOM,
    };
    match Fit::price(&request) {
        Err(reason) => unmodelled(reason.to_string()),
        Ok(fit) => {
            let worst = fit.worst();
            let left = worst.headroom as f64 / Bytes::GIB.0 as f64;
            let held = Bytes(worst.total());
            MemoryVerdict {
                verdict: fit.verdict.name().to_string(),
                detail: format!("stage {} holds {held}, headroom {left:.1} GiB", worst.stage),
                overridden: fit.verdict == Verdict::DoesNotFit && args.override_memory,
            }
        }
    }
}

/// A plan that is not launched because it does not fit.
fn does_not_fit(memory: &MemoryVerdict) -> Report {
    let message = format!("the plan does not fit: {}", memory.detail);
    let finding = Finding::error("launch/memory", Blame::Layout, "memory", message)
        .hint("`shardwright fit` shows levers; --override-memory launches anyway, and the record says so");
    let json = json!({ "error": true, "memory": memory, "findings": [finding] });
    let mut report = Report::new(String::new(), json).with_findings(&[finding]);
    report.exit = DOES_NOT_FIT;
    report
}

/// The plan, for the record.
fn plan(prepared: &Prepared, job: &Job, args: &LaunchArgs) -> Value {
    let chunk = |c: &layout::stages::Chunk| json!({ "first_layer": c.layers.start, "layers": c.layers.len() });
    json!({
        "recipe": prepared.recipe.name, "cluster": prepared.cluster,
        "layout": layout_json(&prepared.layout, &prepared.checked),
        "flags": format!("{}{}", prepared.layout.all_flags(), args.state.flags()),
        "chunks": prepared.stages.chunks.iter().map(chunk).collect::<Vec<_>>(),
        "by_stage": prepared.stages.by_stage, "topology": lanes::topology(job.cluster, job.layout),
        "findings": prepared.checked.findings, "policy": prepared.policy,
    })
}

fn summary(emission: &Emission, memory: &MemoryVerdict) -> String {
    let mode = emission.mode.map_or(String::new(), |mode| format!(", mode {mode}"));
    let overridden = if memory.overridden { " (overridden)" } else { "" };
    let detail = if memory.detail.is_empty() { String::new() } else { format!(": {}", memory.detail) };
    format!(
        "\nengine {}, lane {}{mode}: {} arguments, {} variables, {} seams\nmemory: {}{overridden}{detail}\n",
        emission.engine,
        emission.lane,
        emission.arguments.len(),
        emission.environment.len(),
        emission.seams.len(),
        memory.verdict
    )
}

/// Every argument with where it came from; what the recipe says apart from patch points.
fn explain(emission: &Emission) -> String {
    let kinds = [
        (Kind::RecipeNative, "Recipe-native values"),
        (Kind::RuntimePatch, "Runtime patch points"),
        (Kind::Layout, "From the layout"),
        (Kind::Policy, "From policy and lane"),
    ];
    let mut text = String::new();
    for (kind, title) in kinds {
        let mut table = Table::new(&["argument", "value", "from", "because"]);
        let mut any = false;
        for argument in emission.of_kind(kind) {
            any = true;
            let value = super::shorten(&argument.values.join(" "), 60);
            table.row([argument.flag.as_str(), &value, &argument.from, &argument.why]);
        }
        if any {
            text += &(heading(title) + &table.render());
        }
    }
    let mut table = Table::new(&["variable", "value", "because"]);
    for variable in &emission.environment {
        table.row([variable.name.as_str(), &super::shorten(&variable.value, 60), &variable.why]);
    }
    text + &heading("Environment") + &table.render()
}

/// Where it is, or what it is.
fn ending(args: &LaunchArgs, job: &Job, emission: &Emission, files: &[File]) -> String {
    let command = schedulers::command(args.scheduler, job);
    match &args.out {
        Some(path) => {
            let names: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
            let folder = path.display();
            format!("\nwrote {folder}: {}\n", names.join(", "))
                + &heading("Start it")
                + &format!("  cd {} && {command}\n", launch::quote::shell(&folder.to_string()))
        }
        None => {
            let printed = |file: &File| heading(&file.path) + &file.contents;
            let text: String = emission.files.iter().map(printed).collect();
            text + &heading("Start it") + &format!("  {command}\n")
        }
    }
}
