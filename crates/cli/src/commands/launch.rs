//! `launch`: from a plan to what to hand to the cluster.

use super::fit::{allowed, step_json};
use super::plan::budget::Run;
use super::plan::text::seconds;
use super::plan::trust::spread;
use super::{asked, case_of, case_text, layout_json};
use crate::args::LaunchArgs;
use crate::files::{load_policy, write_folder};
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::panics;
use crate::table::{Table, heading, wrap};
use case::asked::EngineChoice;
use case::{Asked, Case, Purpose, Seams, Terms, offer_seams};
use cost::{Step, Unpriced};
use diag::{Blame, Finding, Severity, quote, refuses};
use launch::fields::{self, Accounted, Told};
use launch::header::{Header, choices};
use launch::identity::Identity;
use launch::job::Job;
use launch::lanes::Lane;
use launch::record::{self, MemoryVerdict};
use launch::tuning::FirstStep;
use launch::{Emission, File, Kind, Policy, engines, lanes, preflight, schedulers, tuned};
use layout::Engine;
use memory::fit::{Fit, HEADROOM, Verdict};
use replay::Unmodelled;
use serde_json::{Value, json};
use std::path::Path;
use units::{Bytes, count, exact};

/// A case with its policy, written down for its engine.
pub(super) struct Attempt {
    pub case: Case,
    pub policy: Policy,
    pub emission: Emission,
    pub findings: Vec<Finding>,
}

pub fn run(args: &LaunchArgs) -> Outcome {
    let attempt = begin(args)?;
    let Attempt { case, policy, mut emission, mut findings } = attempt;
    let job = Job { attempt: args.attempt.as_deref(), ..Job::new(&case, &policy, args.frontend) };
    findings.extend(notes(args));
    match unfilled(&job, &emission) {
        Some(finding) if !args.allow_seams => return Err(vec![finding].into()),
        finding => findings.extend(finding.map(|finding| Finding { severity: Severity::Note, ..finding })),
    }
    findings.extend(schedulers::unused(args.scheduler, &policy));
    allowed(&case, &args.work.of_an_answer(), 1)?;
    let (memory, step) = (verdict(&case, &Fit::price(&case, HEADROOM), args.override_memory), cost::step(&case));
    if let Some(refused) = refused(&memory, args.override_memory) {
        return refused;
    }
    let out = args.out.as_deref().map(|path| quote::path(path.as_os_str())).transpose()?;
    emission.files = schedulers::files(args.scheduler, &job, &emission)?;
    let record = record::Predicted { memory: &memory, step: step_json(&step), case: case.to_json() };
    let files = record::files(&job, &emission, args.scheduler, &record, plan(&job));
    panics::none_so_far()?;
    if let Some(path) = out {
        write_folder(Path::new(path), &files)?;
    }
    let mut text = summary(&case, &emission, &memory, &step) + "\n" + &case_text(&case);
    if args.explain {
        text += &explain(&emission);
        text += &told(&fields::account(&job, &emission));
    }
    text += &called(&job);
    let mut verbatim = String::new();
    let ending = ending(&schedulers::command(args.scheduler, &job), out, &emission, &files);
    if out.is_some() {
        text += &ending
    } else {
        verbatim = ending
    }
    let json = json!({
        "recipe": case.source.name, "engine": emission.engine.name(), "lane": emission.lane,
        "mode": emission.mode.map(|m| m.name()), "arguments": emission.arguments,
        "environment": emission.environment, "files": files, "seams": emission.seams, "memory": memory,
        "header": Header::of(&case), "topology": lanes::topology(job.cluster, job.layout), "step": record.step, "identity": Identity::of(&job).to_json(&job), "command": schedulers::command(args.scheduler, &job), "words": emission.words(),
        "fields": fields::account(&job, &emission),
        "checkpoint": {
            "bytes": preflight::checkpoint_bytes(job.recipe), "at_a_time": preflight::checkpoints(job.policy),
        },
        "layout": layout_json(&case.layout, &case.defaults), "findings": findings, "case": record.case,
    });
    Ok(Report { verbatim, ..Report::new(text, json).with_findings(&findings) })
}

/// What was typed, with seams where they were allowed.
pub(super) fn begin(args: &LaunchArgs) -> Result<Attempt, Refusal> {
    attempt(args, Seams::Refuse).or_else(|refusal| match args.allow_seams {
        true => attempt(args, Seams::Allow),
        false => Err(offered(refusal, args)),
    })
}

/// What was typed and what the policy says, put together for a lane.
pub fn asked_of(mut asked: Asked, lane: Option<&Lane>, policy: &Policy) -> Asked {
    if let (None, Some(lane)) = (asked.layout.engine, lane) {
        asked.layout.engine = Some(EngineChoice::One(lane.engine));
    }
    if let Some(words) = &policy.run.engine_args {
        asked.state.engine_args.insert(0, words.clone());
    }
    asked
}

/// What was typed, checked and written down for its engine, with what a lane has to say of it.
fn attempt(args: &LaunchArgs, seams: Seams) -> Result<Attempt, Refusal> {
    let lane = args.lane.as_deref().map(lanes::find).transpose()?;
    let policy = args.policy.as_deref().map_or_else(|| Ok(Policy::default()), load_policy)?;
    let policy = schedulers::settled(args.scheduler, policy);
    let typed = asked(&args.recipe, &args.layout, &args.state, Some(&args.on));
    let case = case_of(asked_of(typed, lane, &policy), Terms { purpose: Purpose::Run, seams })?;
    let (case, notes) = tuned::applied(case, &policy)?;
    let (policy, planned) = planned(args, &case, policy)?;
    let job = Job { attempt: args.attempt.as_deref(), ..Job::new(&case, &policy, args.frontend) };
    let mut findings = lanes::check(&job, lane);
    if refuses(&findings) {
        return Err(findings.into());
    }
    findings.extend(notes);
    findings.extend(planned);
    let emission = engines::emit(&job)?;
    findings.splice(0..0, case.findings.iter().filter(|finding| !refuses(std::slice::from_ref(*finding))).cloned());
    Ok(Attempt { case, policy, emission, findings })
}

/// The policy with the steps of a run and the checkpoint interval to set, where tokens were typed.
fn planned(args: &LaunchArgs, case: &Case, mut policy: Policy) -> Result<(Policy, Option<Finding>), Refusal> {
    let Some(tokens) = args.run.tokens else { return Ok((policy, None)) };
    let step = cost::step(case).map_err(|reason| {
        let message = format!("how often to save hangs on how long a step takes: {reason}");
        Finding::error("launch/budget", Blame::Usage, "tokens", message)
            .hint("leave --tokens out; a policy says `save_every`")
    })?;
    let run = Run::of(&args.run.budget(), tokens, case, &step)?;
    (policy.run.steps, policy.run.save_every) = (run.steps(), run.every);
    let told = match case.engine() {
        Engine::Deepspeed => "; DeepSpeed's JSON has no word for it: your script saves",
        _ => "",
    };
    let message = format!(
        "{} steps for {} tokens, a checkpoint every {}: {:.1}% of the time then goes into steps that count{told}",
        exact(run.steps()),
        count(tokens),
        exact(run.every),
        100.0 * run.goodput.useful
    );
    let note = Finding::note("launch/budget", Blame::Environment, "tokens", message);
    let same =
        "in place of the policy's `steps` and `save_every`; `plan` with the same --tokens shows what they are made of";
    Ok((policy, Some(note.hint(same))))
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
    let storage = if args.scheduler.is_kubernetes() { "/mnt/shardwright" } else { "./runs in the launch directory" };
    let message = format!("no --policy: 100 steps on made-up or test data; checkpoints and logs are below {storage}");
    let note = Finding::note("launch/default-policy", Blame::Environment, "policy", message);
    vec![note.hint("`shardwright preflight --example > policy.toml` is one to start from")]
}

/// A launch that will not start as it is written.
fn unfilled(job: &Job, emission: &Emission) -> Option<Finding> {
    let names = job.unfilled(emission.seams.iter());
    if names.is_empty() {
        return None;
    }
    let message = format!("the program stops at start: it needs a module you bring for {}", names.join(", "));
    let fill = match job.case.engine() {
        Engine::Megatron => "name a `module:function` in the policy's [seams]",
        Engine::Torchtitan => "name `model` in the policy's [seams]",
        _ => "its model has no such block: put one of your own in its place, under the plan's tensor paths",
    };
    let finding = Finding::error("launch/seams", Blame::Missing, "seams", message);
    Some(finding.hint(format!("{fill}; --allow-seams writes the launch all the same")))
}

/// The memory verdict of a plan, which goes on against it where that was allowed by name.
pub(super) fn verdict(case: &Case, fit: &Result<Fit, Unmodelled>, is_allowed: bool) -> MemoryVerdict {
    match fit {
        Ok(fit) => MemoryVerdict::of(fit, is_allowed && fit.verdict == Verdict::DoesNotFit),
        Err(reason) => MemoryVerdict::unmodelled(case, reason, is_allowed),
    }
}

/// The answer where a plan is not launched: it does not fit, or nobody knows whether it does.
pub(super) fn refused(memory: &MemoryVerdict, is_allowed: bool) -> Option<Outcome> {
    match () {
        () if is_allowed => None,
        () if memory.does_not_fit() => Some(Ok(does_not_fit(memory))),
        () if memory.is_unmodelled() => Some(Err(unknown(memory).into())),
        () => None,
    }
}

fn does_not_fit(memory: &MemoryVerdict) -> Report {
    let levers = match memory.is_unmodelled() {
        true => "more devices, or more of an axis that splits state",
        false => "`shardwright fit` shows levers",
    };
    let message = format!("the plan does not fit: {}", memory.detail);
    let finding = Finding::error("launch/memory", Blame::Layout, "memory", message)
        .hint(format!("{levers}; --override-memory launches anyway, and the record says so"));
    let json = json!({ "memory": memory, "findings": [finding] });
    Report::new(String::new(), json).with_findings(&[finding]).refused(DOES_NOT_FIT, [])
}

/// A plan whose memory is not modelled, and whose counted part would fit.
fn unknown(memory: &MemoryVerdict) -> Finding {
    let message = format!("whether the plan fits is unknown: {}", memory.detail);
    Finding::error("launch/memory-unknown", Blame::Engine, "memory", message).hint(
        "measure one step first; --override-memory launches without knowing activations and buffers, and the record \
         says so",
    )
}

/// The plan, for the record.
pub(super) fn plan(job: &Job) -> Value {
    let case = job.case;
    let chunk = |c: &layout::stages::Chunk| json!({ "first_layer": c.layers.start, "layers": c.layers.len() });
    json!({
        "recipe": case.source.name, "cluster": case.cluster,
        "layout": layout_json(&case.layout, &case.defaults), "flags": super::typed(case),
        "chunks": case.stages.chunks.iter().map(chunk).collect::<Vec<_>>(),
        "by_stage": case.stages.by_stage, "topology": lanes::topology(job.cluster, job.layout),
        "findings": case.findings, "policy": job.policy,
    })
}

fn summary(case: &Case, emission: &Emission, memory: &MemoryVerdict, step: &Result<Step, Unpriced>) -> String {
    let mode = emission.mode.map_or(String::new(), |mode| format!(", mode {mode}"));
    let overridden = if memory.overridden { " (overridden)" } else { "" };
    let detail = if memory.detail.is_empty() { String::new() } else { format!(": {}", memory.detail) };
    let beside = case.beside_figures();
    let time = match step {
        Ok(step) => format!("a step of {}, {}", seconds(step.seconds), spread(step)),
        Err(reason) => reason.to_string(),
    };
    format!(
        "engine {}, lane {}{mode}: {} arguments, {} variables, {} seams\nmemory: {}{overridden}{detail}{beside}\ntime: {time}{beside}\n{}",
        emission.engine,
        emission.lane,
        emission.arguments.len(),
        emission.environment.len(),
        emission.seams.len(),
        memory.verdict,
        wrap(&Header::of(case).to_string(), "  ", 80)
    )
}

/// What it is called and where it keeps things, so that no other mode's run is taken for it.
fn called(job: &Job) -> String {
    let identity = Identity::of(job);
    let tied = match &identity.tied.to {
        Some(degrees) => format!("tied to {degrees}: {}", identity.tied.why),
        None => format!("any layout loads them: {}", identity.tied.why),
    };
    let mut lines = choices(job.case);
    let first = FirstStep::of(job).map(|first| first.words().trim_start_matches("the first step ").to_string());
    lines.extend(first.map(|words| ("first step", words)));
    lines.extend([
        ("job", identity.job_name.clone()),
        ("logs", job.logs()),
        ("checkpoints", job.checkpoints()),
        ("", room(job)),
        ("", tied),
        ("topology", lanes::topology(job.cluster, job.layout)),
    ]);
    let indent = " ".repeat(13);
    let line = |(key, value): &(&str, String)| wrap(value, &indent, 80).replacen(&indent, &format!("{key:<13}"), 1);
    lines.iter().map(line).collect()
}

/// What checkpoints take, and how many there are at a time.
fn room(job: &Job) -> String {
    let (one, count) = (Bytes(preflight::checkpoint_bytes(job.recipe)), preflight::checkpoints(job.policy));
    match (count, job.policy.storage.keep_last) {
        (1, _) => format!("one is written, of {one}"),
        (count, None) => {
            format!("{count} are written and kept, of {one} each: {}", Bytes(one.0.saturating_mul(count)))
        }
        (count, Some(kept)) => {
            format!("{kept} kept while one is written, of {one} each: {}", Bytes(one.0.saturating_mul(count)))
        }
    }
}

/// Every argument with where it came from; what the recipe says apart from patch points.
fn explain(emission: &Emission) -> String {
    let kinds = [
        (Kind::RecipeNative, "Recipe-native values"),
        (Kind::Mode, "Plain flags that a mode puts in the recipe's place"),
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

/// How the engine is told every field of the recipe.
fn told(fields: &[Accounted]) -> String {
    let mut table = Table::new(&["field", "value", "told", "by or because"]);
    for field in fields {
        let (word, why) = match &field.told {
            Told::By(names) => ("said", names.join(" ")),
            Told::Fixed(why) => ("fixed", why.to_string()),
            Told::Irrelevant(why) => ("irrelevant", why.to_string()),
            Told::Seam(why) => ("SEAM", why.to_string()),
        };
        table.row([field.path.as_str(), &super::shorten(&field.value, 30), word, &why]);
    }
    heading("Fields of the recipe") + &table.render()
}

/// Where it is, or what it is.
fn ending(command: &str, out: Option<&str>, emission: &Emission, files: &[File]) -> String {
    match out {
        Some(folder) => {
            let names: Vec<&str> = files.iter().map(|f| f.path.as_str()).collect();
            format!("\nwrote {}: {}\n", quote::terminal(folder), names.join(", "))
                + &heading("Start it")
                + &format!("  cd {} && {command}\n", quote::typed(folder))
        }
        None => {
            let printed = |file: &File| heading(&file.path) + &file.contents;
            let text: String = emission.files.iter().map(printed).collect();
            text + &heading("Start it") + &format!("  {command}\n")
        }
    }
}
