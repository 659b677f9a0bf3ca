//! Native PyTorch: a module that applies a plan to a model in the order PP, TP, activation
//! checkpointing, compile, `fully_shard`, EP, optimizer, LoRA; a reference hybrid; and the plan.
//! The plan is the ownership table written out: no split is decided in Python.

use super::reference::{self, Program};
use crate::emission::{Argument, Emission, File, Kind, Starter};
use crate::job::Job;
use crate::tree;
use case::options::{CrossEntropy, Elementwise, Format};
use case::ways::{AdapterLayers, ElementStep};
use case::{Options, Ways};
use diag::{Blame, Finding};
use layout::ownership::{Row, copies_of_unit};
use layout::rules::Cut;
use layout::{Axis, Engine, Layout, OwnershipTable, Recompute, ZeroStage};
use recipe::{Dtype, Mixer, Recipe};
use serde_json::{Value, json};

/// The schema that `plan.py` reads.
const SCHEMA: &str = "shardwright.fsdp2/1";

/// E2: the one order, named in the plan and checked by the module.
const WRAP_ORDER: [&str; 8] = ["pp", "tp", "activation-checkpointing", "compile", "fsdp", "ep", "optimizer", "lora"];

/// What is emitted beside the plan.
pub(super) const ASSETS: &[(&str, &str)] = &[
    ("plan.py", include_str!("../../assets/fsdp2/plan.py")),
    ("collectives.py", include_str!("../../assets/fsdp2/collectives.py")),
    ("model.py", include_str!("../../assets/fsdp2/model.py")),
    ("basics.py", include_str!("../../assets/fsdp2/basics.py")),
    ("depths.py", include_str!("../../assets/fsdp2/depths.py")),
    ("engram.py", include_str!("../../assets/fsdp2/engram.py")),
    ("mhc.py", include_str!("../../assets/fsdp2/mhc.py")),
    ("moe.py", include_str!("../../assets/fsdp2/moe.py")),
    ("scans.py", include_str!("../../assets/fsdp2/scans.py")),
    ("recurrence.py", include_str!("../../assets/fsdp2/recurrence.py")),
    ("walk.py", include_str!("../../assets/fsdp2/walk.py")),
    ("parallelize.py", include_str!("../../assets/fsdp2/parallelize.py")),
    ("optim.py", include_str!("../../assets/fsdp2/optim.py")),
    ("stepped.py", include_str!("../../assets/fsdp2/stepped.py")),
    ("shampoo.py", include_str!("../../assets/fsdp2/shampoo.py")),
    ("soap.py", include_str!("../../assets/fsdp2/soap.py")),
    ("documents.py", include_str!("../../assets/fsdp2/documents.py")),
    ("teacher.py", include_str!("../../assets/fsdp2/teacher.py")),
    ("quantised.py", include_str!("../../assets/fsdp2/quantised.py")),
    ("lora.py", include_str!("../../assets/fsdp2/lora.py")),
    ("pieces.py", include_str!("../../assets/fsdp2/pieces.py")),
    ("clip.py", include_str!("../../assets/fsdp2/clip.py")),
    ("schedule.py", include_str!("../../assets/fsdp2/schedule.py")),
    ("lines.py", include_str!("../../assets/fsdp2/lines.py")),
    ("data.py", include_str!("../../assets/fsdp2/data.py")),
    ("folder.py", include_str!("../../assets/fsdp2/folder.py")),
    ("checkpoint.py", include_str!("../../assets/fsdp2/checkpoint.py")),
    ("loop.py", include_str!("../../assets/fsdp2/loop.py")),
    ("train.py", include_str!("../../assets/fsdp2/train.py")),
];

/// Writes a job down for native PyTorch.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let table = OwnershipTable::new(job.recipe, job.layout)?;
    let findings = refusals(job, &table);
    if !findings.is_empty() {
        return Err(findings);
    }
    let plan = File::new("sharding.json", tree::json_rows(&plan(job, &table)));
    let why = "degrees, table, groups: everything the module applies";
    let arguments = vec![
        Argument::new(Kind::Layout, "--plan", "plan", why).value("sharding.json"),
        Argument::new(Kind::Policy, "--steps", "policy.run.steps", "length of the run").value(job.policy.run.steps),
    ];
    let program = Program {
        engine: Engine::Fsdp2,
        starter: Starter::Torchrun,
        rule: "fsdp2/reference-model",
        data: plan,
        assets: ASSETS.to_vec(),
        arguments,
    };
    let mut emission = program.emission(job)?;
    emission.files.push(listed(job, &needed(&job.case.options)));
    Ok(emission)
}

/// What of the model the emitted module does not build; what another layout would mend was refused
/// before.
fn refusals(job: &Job, table: &OwnershipTable) -> Vec<Finding> {
    let refuse = |rule, object: &str, message: String| Finding::error(rule, Blame::Engine, object, message);
    let mut findings = Vec::new();
    if job.recipe.precision.weights.bits() < 16 {
        let message =
            format!("fully_shard casts to bf16, fp16 or fp32, and weights are {}", job.recipe.precision.weights);
        findings.push(refuse("fsdp2/precision", "precision.weights", message));
    }
    if !matches!(job.case.options.format, Format::Bf16) {
        let message = "the emitted projections multiply in bf16, and another format was asked for".to_string();
        findings.push(refuse("fsdp2/precision", "precision", message));
    }
    if !compiled(job).is_empty() && !may_compile(job.recipe, job.layout) {
        let message = "the lane compiles models whose experts need no exchange, and this is none".to_string();
        findings.push(refuse("fsdp2/compile", "compile", message).hint("leave `compile` out of --engine-args"));
    }
    let says = |path: &String| !path.ends_with(".npy") && !path.ends_with(".u16") && !path.ends_with(".u32");
    let data = &job.policy.data;
    if job.case.options.documents.is_some() && data.end_of_document.is_none() && !data.paths.iter().all(says) {
        let message = "documents are kept apart, and files of plain tokens do not say where one ends".to_string();
        let finding = refuse("fsdp2/documents", "policy.data.end_of_document", message);
        findings.push(finding.hint("give the policy's [data] end_of_document, the token behind which one ends"));
    }
    findings.extend(reference::refused_optimizers(table, "fsdp2/optimizer"));
    findings
}

/// `sharding.json`: the model, how it is held, and how it is trained.
pub(super) fn plan(job: &Job, table: &OwnershipTable) -> Value {
    let (recipe, layout, options) = (job.recipe, job.layout, &job.case.options);
    let chunks: Vec<Vec<usize>> = table.stages.chunks.iter().map(|c| c.layers.clone().collect()).collect();
    let has_experts = recipe.uses(Mixer::Moe);
    // Without experts the expert mesh is the dense one.
    let expert = if has_experts { (layout.ep.get(), layout.etp.get()) } else { (1, 1) };
    let edp = layout.world / (layout.pp.get() * expert.0 * expert.1);
    json!({
        "schema": SCHEMA,
        "recipe": job.source.name,
        "wrap_order": WRAP_ORDER,
        "degrees": {
            "world": layout.world, "pp": layout.pp.get(), "vpp": layout.vpp.get(), "dp": layout.dp.get(),
            "tp": layout.tp.get(), "ep": expert.0, "etp": expert.1, "edp": edp,
        },
        "sequence_parallel": layout.sp,
        "schedule": layout.schedule.name(),
        "chunks": chunks,
        "stages": table.stages.by_stage,
        "reshard_after_forward": layout.zero == ZeroStage::Three,
        "prefetch": {"forward": options.prefetch.forward, "backward": options.prefetch.backward},
        "recompute": recompute(&layout.recompute),
        "compile": {"blocks": compiled(job), "backend": "inductor"},
        "batch": {"micro_batch": layout.micro_batch, "microbatches": layout.microbatches, "sequence": layout.sequence},
        "precision": {
            "params": dtype(recipe.precision.weights), "reduce": dtype(recipe.precision.gradients),
            "main": dtype(options.state.main),
        },
        "model": reference::model(recipe, layout.padded_vocab(recipe.vocab)),
        "modules": if layout.tp.splits() { borders(recipe, layout) } else { Vec::new() },
        "tensors": table.rows.iter().map(|row| tensor(row, layout)).collect::<Vec<_>>(),
        "optimizers": reference::optimizers(job),
        "lora": recipe.adapters().map(|adapters| json!({"rank": adapters.rank, "alpha": adapters.alpha})),
        "ways": ways(options),
        "documents": options.documents.map(|documents| json!({
            "lengths": documents.lengths(), "end": job.policy.data.end_of_document,
        })),
        "teacher": teacher(job),
        "run": reference::run(job),
    })
}

/// How weights are kept, stepped and followed.
fn ways(options: &Options) -> Value {
    let Ways { elements, base, adapters, average, momentum, teacher: _ } = options.ways;
    let loss = options.kernels.cross_entropy;
    json!({
        "optimizer": elements.name(),
        "base": base.is_quantised().then(|| base.name()),
        "adapters": adapters.name(),
        "loss": if loss.has_head() { loss } else { CrossEntropy::Eager }.name(),
        "average": average.then_some(AVERAGE_DECAY),
        "momentum": momentum.name(),
    })
}

/// The frozen model beside the trained one: its blocks, its tensors, and where its weights come from.
fn teacher(job: &Job) -> Option<Value> {
    let recipe = job.case.options.ways.teacher()?;
    let table = OwnershipTable::new(&recipe, job.layout).ok()?;
    Some(json!({
        "recipe": recipe.name,
        "model": reference::model(&recipe, job.layout.padded_vocab(recipe.vocab)),
        "tensors": table.rows.iter().map(|row| tensor(row, job.layout)).collect::<Vec<_>>(),
        "weights": job.policy.data.teacher,
    }))
}

/// Packages that the program loads, each with the version it was measured with on an H200 or, where none was, ran with.
const LIBRARIES: [(&str, &str, &str); 9] = [
    ("deepspeed", "0.19.8", "ran"),
    ("torch", "2.11.0", "measured"),
    ("numpy", "2.5.4", "ran"),
    ("bitsandbytes", "0.50.2", "measured"),
    ("peft", "0.21.2", "measured"),
    ("liger-kernel", "0.8.5", "measured"),
    ("cut-cross-entropy", "25.1.1", "measured"),
    ("pytorch_optimizer", "4.1.0", "measured"),
    ("torchao", "0.18.0", "measured"),
];

/// Names of the packages that this way to train loads.
fn needed(options: &Options) -> Vec<&'static str> {
    use ElementStep::{AdamW8bit, Lion, Lion8bit, PagedAdamW, PagedAdamW8bit};
    let Ways { elements, base, adapters, .. } = options.ways;
    let by_bitsandbytes = [AdamW8bit, PagedAdamW, PagedAdamW8bit, Lion, Lion8bit].contains(&elements);
    let loss = options.kernels.cross_entropy;
    let all = [
        (true, "torch"),
        (true, "numpy"),
        (by_bitsandbytes || base.is_quantised(), "bitsandbytes"),
        (adapters == AdapterLayers::Peft, "peft"),
        (loss == CrossEntropy::Liger, "liger-kernel"),
        (loss == CrossEntropy::Cce, "cut-cross-entropy"),
        (elements.preconditions(), "pytorch_optimizer"),
        (elements.of_torchao().is_some(), "torchao"),
    ];
    all.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, name)| name).collect()
}

/// Packages that the program of a job loads, each with the least version that is known to do.
pub fn libraries(job: &Job) -> Vec<(&'static str, &'static str)> {
    versions(&needed(&job.case.options))
}

/// Packages with the least versions that are known to do.
pub(super) fn versions(names: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let version = |name: &&str| LIBRARIES.iter().find(|(known, ..)| known == name);
    names.iter().filter_map(version).map(|(name, version, _)| (*name, *version)).collect()
}

/// Packages in pip's words: the policy's pins, and else the versions that are known to do.
pub(super) fn listed(job: &Job, names: &[&str]) -> File {
    let line = |name: &str| {
        let (_, version, how) = LIBRARIES.iter().find(|(known, ..)| *known == name)?;
        Some(match job.policy.pins.get(name) {
            Some(pinned) => format!("{name}=={pinned}  # the policy's pin\n"),
            None => format!("{name}=={version}  # {how}\n"),
        })
    };
    let lines: String = names.iter().copied().filter_map(line).collect();
    File::new("requirements.txt", format!("# What train.py loads: pip install -r requirements.txt\n{lines}"))
}

/// How much of an average of weights a step leaves: the default of diffusers' `EMAModel`.
const AVERAGE_DECAY: f64 = 0.9999;

fn dtype(dtype: Dtype) -> &'static str {
    dtype.name()
}

fn recompute(policy: &Recompute) -> Value {
    match policy {
        Recompute::None => json!({"policy": "none", "modules": []}),
        Recompute::Full => json!({"policy": "full", "modules": []}),
        Recompute::Selective(modules) => {
            json!({"policy": "selective", "modules": modules.iter().map(|m| m.name()).collect::<Vec<_>>()})
        }
    }
}

/// What is compiled, where it was asked for and priced. Scans stay eager: a compiler would unroll
/// them step by step.
fn compiled(job: &Job) -> Vec<&'static str> {
    match job.case.options.kernels.elementwise {
        Elementwise::Compiled => vec!["attention", "moe", "mlp"],
        _ => Vec::new(),
    }
}

/// The lane compiles small expert models only: those whose experts need no exchange.
fn may_compile(recipe: &Recipe, layout: &Layout) -> bool {
    recipe.uses(Mixer::Moe) && !layout.ep.splits()
}

/// Where tensor-parallel regions begin and end, by module.
fn borders(recipe: &Recipe, layout: &Layout) -> Vec<Value> {
    let border = |module: String, places: &[&str]| json!({"module": module, "borders": places});
    let mut all = vec![border("embedding.tokens".to_string(), &["rows", "leave"])];
    for (_, path, mixer) in reference::blocks(recipe) {
        match mixer {
            Mixer::Moe => {
                // Balance is of whole sequences, of which each rank holds a part.
                if layout.sp {
                    all.push(border(format!("{path}.router"), &["counts"]));
                }
                if recipe.moe.as_ref().is_some_and(|m| m.shared.is_some()) {
                    all.push(border(format!("{path}.shared"), &["enter", "leave"]));
                }
                if layout.etp.splits() {
                    all.push(border(format!("{path}.experts"), &["enter", "leave"]));
                }
            }
            Mixer::Recurrent => {
                all.push(border(path.clone(), &["enter", "leave"]));
                all.push(border(format!("{path}.gate_norm"), &["across"]));
            }
            _ => all.push(border(path, &["enter", "leave"])),
        }
    }
    all.push(border("head".to_string(), &["enter"]));
    all
}

fn tensor(row: &Row, layout: &Layout) -> Value {
    let cuts: Vec<Value> = row.cuts.iter().map(|cut| cut_of(row, cut, layout)).collect();
    json!({
        "path": row.tensor.path,
        "shape": row.tensor.shape(),
        "cuts": cuts,
        "tp_gradient": tp_gradient(row, layout),
        "optimizer": row.tensor.optimizer.name(),
        "expert": row.tensor.acting.is_some(),
        "trained": !row.tensor.is_frozen,
    })
}

fn cut_of(row: &Row, cut: &Cut, layout: &Layout) -> Value {
    let degree = layout.degree(cut.axis).get();
    let segments: Vec<Value> = row.tensor.dims[cut.dim].0.iter().map(|segment| {
        json!({"count": segment.count, "size": segment.size, "shared": copies_of_unit(segment, degree) > 1})
    }).collect();
    json!({"axis": cut.axis.name(), "dim": cut.dim, "segments": segments})
}

/// What tp ranks hold of a gradient after backward: parts; equal copies; or copies that are partial
/// because each rank saw only its heads, or only its part of the sequence.
fn tp_gradient(row: &Row, layout: &Layout) -> &'static str {
    if row.cuts.iter().any(|cut| matches!(cut.axis, Axis::Tp | Axis::Etp)) {
        return "cut";
    }
    if layout.tp.splits() && (layout.sp || row.tensor.serves_heads) { "sum" } else { "whole" }
}
