//! XLA SPMD: one partition spec a parameter over ("data", "expert", "model"), a loader for
//! torch_xla and for JAX, and the reference model in both. The compiler places collectives.

use super::reference::{self, Program};
use crate::emission::{Argument, Emission, File, Kind, Starter};
use crate::job::Job;
use crate::tree;
use diag::{Blame, Finding};
use layout::ownership::Row;
use layout::{Axis, Engine, Layout, OwnershipTable};
use serde_json::{Map, Value, json};

/// The schema that `table.py` reads.
const SCHEMA: &str = "shardwright.xla-spmd/1";

/// What is emitted beside the table. What names no framework is the FSDP2 program's own: data, rates and
/// the folder of checkpoints; `model.py` and what it imports are the torch reference, unsharded: annotations
/// do the rest.
const ASSETS: [(&str, &str); 22] = [
    ("table.py", include_str!("../../assets/xla_spmd/table.py")),
    ("environment.py", include_str!("../../assets/xla_spmd/environment.py")),
    ("initial.py", include_str!("../../assets/xla_spmd/initial.py")),
    ("optimizer.py", include_str!("../../assets/xla_spmd/optimizer.py")),
    ("tensors.py", include_str!("../../assets/xla_spmd/tensors.py")),
    ("model_jax.py", include_str!("../../assets/xla_spmd/model_jax.py")),
    ("run_jax.py", include_str!("../../assets/xla_spmd/run_jax.py")),
    ("run_torch_xla.py", include_str!("../../assets/xla_spmd/run_torch_xla.py")),
    ("model.py", include_str!("../../assets/fsdp2/model.py")),
    ("basics.py", include_str!("../../assets/fsdp2/basics.py")),
    ("depths.py", include_str!("../../assets/fsdp2/depths.py")),
    ("engram.py", include_str!("../../assets/fsdp2/engram.py")),
    ("mhc.py", include_str!("../../assets/fsdp2/mhc.py")),
    ("moe.py", include_str!("../../assets/fsdp2/moe.py")),
    ("scans.py", include_str!("../../assets/fsdp2/scans.py")),
    ("recurrence.py", include_str!("../../assets/fsdp2/recurrence.py")),
    ("walk.py", include_str!("../../assets/fsdp2/walk.py")),
    ("schedule.py", include_str!("../../assets/fsdp2/schedule.py")),
    ("lines.py", include_str!("../../assets/fsdp2/lines.py")),
    ("data.py", include_str!("../../assets/fsdp2/data.py")),
    ("folder.py", include_str!("../../assets/fsdp2/folder.py")),
    ("train.py", include_str!("../../assets/xla_spmd/train.py")),
];

/// Writes a job down for XLA SPMD.
pub fn emit(job: &Job) -> Result<Emission, Vec<Finding>> {
    let table = OwnershipTable::new(job.recipe, job.layout)?;
    let findings = refusals(job, &table);
    if !findings.is_empty() {
        return Err(findings);
    }
    let table = File::new("table.json", tree::json_rows(&table_json(job, &table)));
    let why = "mesh and one partition spec a parameter";
    let arguments = vec![
        Argument::new(Kind::Layout, "--table", "plan", why).value("table.json"),
        Argument::new(Kind::Policy, "--steps", "policy.run.steps", "length of the run").value(job.policy.run.steps),
        Argument::new(Kind::Policy, "--framework", "lane", "the TPU lane runs torch_xla").value("torch_xla"),
    ];
    let program = Program {
        engine: Engine::XlaSpmd,
        starter: Starter::Python,
        rule: "xla-spmd/reference-model",
        data: table,
        assets: ASSETS.to_vec(),
        arguments,
    };
    program.emission(job)
}

/// What the mesh cannot hold, and what the program does not step.
fn refusals(job: &Job, table: &OwnershipTable) -> Vec<Finding> {
    let layout = job.layout;
    let mut findings = reference::refused_optimizers(table, "xla-spmd/optimizer");
    let features = &job.recipe.features;
    for (is_on, feature, what) in [
        (features.mhc().is_some(), "mhc", "one residual stream, and the recipe has several"),
        (features.engram().is_some(), "engram", "no branches that look n-grams up, and the recipe has some"),
        (features.depths().is_some(), "mod", "layers that take all tokens, and the recipe has others"),
    ] {
        if is_on {
            let finding = Finding::error(
                "xla-spmd/features",
                Blame::Engine,
                format!("features.{feature}"),
                format!("the emitted programs have {what}"),
            );
            findings.push(finding.hint(format!("--engine fsdp2 runs it, or --without {feature}")));
        }
    }
    if !layout.dp.get().is_multiple_of(layout.ep.get()) {
        let message = format!("the mesh is (data, expert, model): ep {} must divide dp {}", layout.ep, layout.dp);
        let fix = units::divisors(layout.dp.get());
        findings.push(Finding::error("xla-spmd/expert-axis", Blame::Engine, "ep", message).fix("ep", fix));
    }
    if job.recipe.shared.is_some() {
        let message = "the program runs every block in one layer, and the recipe has blocks that layers share";
        let finding = Finding::error("xla-spmd/shared", Blame::Missing, "shared", message);
        findings.push(finding.hint("--engine fsdp2 runs them"));
    }
    findings
}

/// The mesh, outermost axis first; an axis of one is left out, data apart.
fn mesh(layout: &Layout) -> Vec<(&'static str, u64)> {
    let (expert, model) = (layout.ep.get(), layout.tp.get());
    let all = [("data", layout.dp.get() / expert), ("expert", expert), ("model", model)];
    all.into_iter().filter(|&(name, degree)| name == "data" || degree > 1).collect()
}

fn table_json(job: &Job, table: &OwnershipTable) -> Value {
    let (recipe, layout) = (job.recipe, job.layout);
    let mesh = mesh(layout);
    let mut parameters = Map::new();
    let mut shapes = Map::new();
    let mut optimizer_of = Map::new();
    for row in &table.rows {
        parameters.insert(row.tensor.path.clone(), spec(row, layout));
        shapes.insert(row.tensor.path.clone(), json!(row.tensor.shape()));
        optimizer_of.insert(row.tensor.path.clone(), json!(row.tensor.optimizer.name()));
    }
    json!({
        "schema": SCHEMA,
        "recipe": job.source.name,
        "mesh": {
            "axes": mesh.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            "shape": mesh.iter().map(|(_, degree)| *degree).collect::<Vec<_>>(),
        },
        "data": [replicas(layout), Value::Null],
        "batch": {
            "global_batch": layout.global_batch, "microbatches": layout.microbatches, "sequence": layout.sequence,
        },
        "model": reference::model(recipe, layout.padded_vocab(recipe.vocab)),
        "shapes": shapes,
        "parameters": parameters,
        "optimizers": reference::optimizers(job),
        "optimizer_of": optimizer_of,
        "run": reference::run(job),
    })
}

/// The axes that replicas of a dense tensor lie on.
fn replicas(layout: &Layout) -> Value {
    if layout.ep.splits() { json!(["data", "expert"]) } else { json!("data") }
}

/// One entry a dim: the table's own cuts as mesh axes, then ZeRO-3: the widest dim left that
/// divides is shared out over replicas. A dim that does not divide evenly stays whole: XLA would
/// pad it, and the plan says nothing of padding.
fn spec(row: &Row, layout: &Layout) -> Value {
    let shape = row.tensor.shape();
    let mut entries = vec![Value::Null; shape.len()];
    for cut in &row.cuts {
        let axis = if cut.axis == Axis::Ep { "expert" } else { "model" };
        if shape[cut.dim].is_multiple_of(layout.degree(cut.axis).get()) {
            entries[cut.dim] = json!(axis);
        }
    }
    let is_expert = row.tensor.acting.is_some() && layout.ep.splits();
    let (axes, degree) = if is_expert {
        (json!("data"), layout.dp.get() / layout.ep.get())
    } else {
        (replicas(layout), layout.dp.get())
    };
    let free = (0..shape.len()).filter(|&d| entries[d].is_null() && shape[d].is_multiple_of(degree));
    if let Some(dim) = free.max_by_key(|&d| (shape[d], std::cmp::Reverse(d))) {
        entries[dim] = axes;
    }
    Value::Array(entries)
}
