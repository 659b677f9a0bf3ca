//! `launch`: from a plan to what to hand to the cluster.

use super::prepared::{Prepared, Typed};
use super::{layout_json, layout_text, model_line, seams_text};
use crate::args::LaunchArgs;
use crate::files::{load_policy, write_folder};
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading};
use diag::{Blame, Finding, refuses};
use launch::job::{Job, Seams, offer_seams};
use launch::record::{self, MemoryVerdict};
use launch::{Emission, File, Kind, Policy, engines, lanes, quote, schedulers};
use layout::Engine;
use memory::fit::Verdict;
use serde_json::{Value, json};
use std::path::Path;
use units::Bytes;

pub fn run(args: &LaunchArgs) -> Outcome {
    let allowed = if args.allow_seams { Seams::Allow } else { Seams::Refuse };
    let (prepared, mut emission, mut findings) = attempt(args, allowed).map_err(|refusal| offered(refusal, args))?;
    let job = prepared.job();
    findings.extend(notes(args));
    let memory = price(&prepared, args);
    if memory.verdict == Verdict::DoesNotFit.name() && !args.override_memory {
        return Ok(does_not_fit(&memory));
    }
    let out = args.out.as_deref().map(|path| quote::path(path.as_os_str())).transpose()?;
    emission.files = schedulers::files(args.scheduler, &job, &emission)?;
    let plan = plan(&prepared, &job, args);
    let files = record::files(&job, &emission, args.scheduler, emission.files.clone(), &memory, plan);
    if let Some(path) = out {
        write_folder(Path::new(path), &files)?;
    }
    let mut text = model_line(&prepared.recipe) + "\n" + &layout_text(&prepared.layout, &prepared.checked);
    text += &summary(&emission, &memory);
    text += &seams_text(&emission.seams);
    if args.explain {
        text += &explain(&emission);
    }
    text += &ending(&schedulers::command(args.scheduler, &job), out, &emission, &files);
    let json = json!({
        "recipe": prepared.recipe.name, "engine": emission.engine.name(), "lane": emission.lane,
        "mode": emission.mode.map(|m| m.name()), "arguments": emission.arguments,
        "environment": emission.environment, "files": files, "seams": emission.seams, "memory": memory,
        "command": schedulers::command(args.scheduler, &job), "words": emission.words(),
        "layout": layout_json(&prepared.layout, &prepared.checked), "findings": findings,
    });
    Ok(Report::new(text, json).with_findings(&findings))
}

/// What was typed, checked and written down for its engine, with what a lane has to say of it.
fn attempt(args: &LaunchArgs, allowed: Seams) -> Result<(Prepared, Emission, Vec<Finding>), Refusal> {
    let lane = args.lane.as_deref().map(lanes::find).transpose()?;
    let policy = args.policy.as_deref().map_or_else(|| Ok(Policy::default()), load_policy)?;
    let (recipe, layout, state) = (&args.recipe, &args.layout, &args.state);
    let typed = Typed { recipe, layout, state, on: &args.on, lane, frontend: args.frontend };
    let prepared = Prepared::new(&typed, policy, allowed)?;
    let findings = lanes::check(&prepared.job(), lane);
    if refuses(&findings) {
        return Err(findings.into());
    }
    let emission = engines::emit(&prepared.job())?;
    Ok((prepared, emission, findings))
}

/// A refusal; seams are offered only where they would help, which is found out by trying.
fn offered(refusal: Refusal, args: &LaunchArgs) -> Refusal {
    match attempt(args, Seams::Allow) {
        Ok(_) => Refusal { findings: offer_seams(refusal.findings), ..refusal },
        Err(_) => refusal,
    }
}

/// What a reader should know before handing it on.
fn notes(args: &LaunchArgs) -> Vec<Finding> {
    if args.policy.is_some() {
        return Vec::new();
    }
    let message = "no --policy: storage is below /mnt/shardwright, the engine at /opt/engine, its test data, 100 steps";
    let note = Finding::note("launch/default-policy", Blame::Environment, "policy", message);
    vec![note.hint("`shardwright preflight --example > policy.toml` is one to start from")]
}

/// The memory verdict of the plan.
fn price(prepared: &Prepared, args: &LaunchArgs) -> MemoryVerdict {
    let fit = match prepared.price() {
        Ok(fit) => fit,
        Err(reason) => {
            let detail = reason.to_string();
            return MemoryVerdict { verdict: "unmodelled".to_string(), detail, overridden: false };
        }
    };
    let worst = fit.worst();
    let left = worst.headroom as f64 / Bytes::GIB.0 as f64;
    let is_overlapped = prepared.layout.engine == Some(Engine::Megatron) && prepared.policy.run.overlap;
    let overlap = if is_overlapped { " (buffers of the overlapped reduction included)" } else { "" };
    MemoryVerdict {
        verdict: fit.verdict.name().to_string(),
        detail: format!("stage {} holds {}, headroom {left:.1} GiB{overlap}", worst.stage, Bytes(worst.total())),
        overridden: fit.verdict == Verdict::DoesNotFit && args.override_memory,
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
fn ending(command: &str, out: Option<&str>, emission: &Emission, files: &[File]) -> String {
    match out {
        Some(folder) => {
            let names: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
            format!("\nwrote {folder}: {}\n", names.join(", "))
                + &heading("Start it")
                + &format!("  cd {} && {command}\n", quote::shell(folder))
        }
        None => {
            let printed = |file: &File| heading(&file.path) + &file.contents;
            let text: String = emission.files.iter().map(printed).collect();
            text + &heading("Start it") + &format!("  {command}\n")
        }
    }
}
