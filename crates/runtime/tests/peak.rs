//! The most a rank really has allocated in a step is what `memory`'s ledger replays, nearly.

use layout::{LayoutRequest, OwnershipTable, Recompute, Schedule, ZeroStage};
use memory::ledger::shardwright::highest;
use recipe::Recipe;
use runtime::live::{Counting, Meter};
use runtime::optimizer::Settings;
use runtime::train::{Batch, Trainer};
use std::time::Duration;

mod splits;
use splits::legal;

#[global_allocator]
static COUNTING: Counting = Counting;

/// How far a prediction may be off.
const NEAR: f64 = 0.05;

/// Wide enough in tokens that tensors, not the names of parameters, are what is held.
const TABLES: &str = r#"
source = "test"
hidden = 32
vocab = 64
sequence = 128
rope_theta = 100.0

[attention]
heads = 4
kv_heads = 2
head_dim = 8

[moe]
experts = 8
top_k = 2
ffn = 32

[moe.shared]
ffn = 32

[mlp]
ffn = 64

[recurrent]
heads = 4
qk_heads = 4
key_dim = 4
value_dim = 8
"#;

const MAMBA1: &str = "[mamba]\nkind = \"mamba1\"\ninner = 64\nstate = 8\ndt_rank = 4\n";
const MAMBA2: &str = "[mamba]\nkind = \"mamba2\"\nheads = 8\nhead_dim = 8\nstate = 8\ngroups = 4\nchunk = 16\n";
const MAMBA3: &str = "[mamba]\nkind = \"mamba3\"\nheads = 8\nhead_dim = 8\nstate = 8\ngroups = 4\nchunk = 16\n";
const FEW_GROUPS: &str = "[mamba]\nkind = \"mamba2\"\nheads = 8\nhead_dim = 8\nstate = 8\ngroups = 1\nchunk = 16\n";
/// A key of the last common table.
const CARRY: &str = "depth_carry = 16\n";
const DELTA: &str = "[gated_delta]\nkey_heads = 4\nvalue_heads = 4\nkey_dim = 8\nvalue_dim = 8\n";
const MLA: &str = "[features.mla]\nq_rank = 16\nkv_rank = 8\nqk_dim = 8\nrope_dim = 4\nv_dim = 8\n";

const EXPERTS: &str = "[moe]\nexperts = 8\ntop_k = 2\nffn = 32\n";
const LATENT: &str = "[moe]\nexperts = 8\ntop_k = 2\nffn = 32\nbias = true\nlatent = 16\n";
const DSA: &str = "[features.dsa]\nheads = 4\nhead_dim = 8\ntop_k = 16\n";
const SIDES: &str = "[features.ngram_hash]\nrows = 512\ndim = 8\ntables = 16\n\
    [features.structure]\nrows = 32\ndim = 32\nscales = 2\nstage = \"last\"\n";

/// The largest error over ranks, signed.
fn error(pattern: &str, more: &str, set: impl Fn(&mut LayoutRequest)) -> (String, f64) {
    // Experts of another kind stand in place of the common ones.
    let common = if more.starts_with("[moe]") { TABLES.replace(EXPERTS, "") } else { TABLES.to_string() };
    let text = format!("name = \"t\"\npattern = \"{pattern}\"\n{common}{more}");
    let recipe = Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"));
    let mut request = LayoutRequest::default();
    set(&mut request);
    let checked = legal(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let table = OwnershipTable::new(&recipe, layout).unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let meter = Meter::start();
        let mut trainer = Trainer::<f32>::new(&recipe, layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, layout, 1, 0))?;
        let predicted = highest(&recipe, layout, &table, comm.rank() as u64, 4)?;
        let batch = Batch::synthetic(&recipe, layout, 1, 1);
        // What is no tensor of the run: names, parts, the batch, the kernels' own workspace.
        let rest = meter.live() - predicted.state.iter().sum::<u64>() as i64;
        meter.mark();
        trainer.step(&batch)?;
        let peak = meter.peak() - rest;
        Ok(predicted.bytes() as f64 / peak as f64 - 1.0)
    });
    let errors = results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}")));
    let worst = errors.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
    (format!("{pattern} {more:?}: {}", layout.all_flags()), worst)
}

#[test]
fn peaks_are_near() {
    let mut all = Vec::new();
    let blocks = [("AAAA", ""), ("AAAA", MLA), ("FFFF", ""), ("EEEE", ""), ("RRRR", "")];
    let scans = [("MMMM", MAMBA2), ("MMMM", MAMBA3), ("GGGG", DELTA)];
    for (pattern, more) in blocks.into_iter().chain(scans) {
        all.push(error(pattern, more, |r| r.world = Some(1)));
        all.push(error(pattern, more, |r| (r.tp, r.etp) = (Some(2), Some(1))));
        all.push(error(pattern, more, |r| r.cp = Some(2)));
    }
    all.push(error("MMMM", FEW_GROUPS, |r| r.cp = Some(2)));
    all.push(error("GGGG", DELTA, |r| r.recompute = Recompute::parse("selective:gdn_norm_out").ok()));
    all.push(error("MMMM", MAMBA2, |r| r.recompute = Recompute::parse("selective:mamba").ok()));
    for recompute in ["selective:core_attn", "selective:attention", "selective:layernorm"] {
        all.push(error("AAAA", "", |r| r.recompute = Recompute::parse(recompute).ok()));
        all.push(error("AAAA", MLA, |r| (r.tp, r.recompute) = (Some(2), Recompute::parse(recompute).ok())));
    }
    for recompute in ["selective:shared_experts", "selective:layernorm", "selective:moe_act"] {
        all.push(error("EEEE", "", |r| {
            (r.tp, r.etp, r.recompute) = (Some(2), Some(1), Recompute::parse(recompute).ok())
        }));
    }
    for recompute in ["none", "full", "selective:layernorm", "selective:recurrent"] {
        all.push(error("RFRRFRRF", CARRY, |r| (r.pp, r.recompute) = (Some(2), Recompute::parse(recompute).ok())));
    }
    for zero in [ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        all.push(error("AEMR", MAMBA2, |r| (r.dp, r.zero, r.ep) = (Some(2), Some(zero), Some(2))));
    }
    let schedules = [
        (Schedule::GPipe, 1),
        (Schedule::OneF1b, 1),
        (Schedule::Interleaved, 2),
        (Schedule::ZbH1, 1),
        (Schedule::DualPipeV, 2),
    ];
    for (schedule, vpp) in schedules {
        all.push(error("AFMRAFMR", MAMBA2, |r| {
            (r.pp, r.vpp, r.schedule, r.microbatches) = (Some(2), Some(vpp), Some(schedule), Some(4));
        }));
    }
    for zero in [ZeroStage::One, ZeroStage::Three] {
        all.push(error("AAAA", DSA, |r| (r.tp, r.cp, r.zero) = (Some(2), Some(2), Some(zero))));
        all.push(error("EEEE", LATENT, |r| (r.dp, r.ep, r.zero) = (Some(2), Some(2), Some(zero))));
        all.push(error("FF", SIDES, |r| (r.tp, r.dp, r.zero) = (Some(2), Some(2), Some(zero))));
    }
    all.push(error("MMMM", MAMBA1, |r| r.world = Some(1)));
    all.push(error("MMMM", MAMBA1, |r| r.tp = Some(2)));
    let wrong: Vec<String> =
        all.iter().filter(|(_, e)| e.abs() > NEAR).map(|(name, e)| format!("{:+.1}% {name}", 100.0 * e)).collect();
    assert!(wrong.is_empty(), "{} of {} are off:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}
