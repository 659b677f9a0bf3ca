//! The recipes and layouts that tests of whole runs share.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use comm::{Call, Kind, Moved};
use layout::{Checked, Engine, Layout, LayoutRequest, Schedule, ZeroStage, check};
use recipe::Recipe;
use runtime::optimizer::Settings;
use runtime::report::StepHeld;
use runtime::train::{Batch, Trainer};
use std::sync::LazyLock;
use std::time::Duration;

pub const TABLES: &str = r#"
source = "test"
hidden = 16
vocab = 22
sequence = 16
rope_theta = 100.0

[attention]
heads = 4
kv_heads = 2
head_dim = 4
qk_norm = "head"

[moe]
experts = 8
top_k = 2
ffn = 8
activation = "relu2"

[moe.shared]
ffn = 8
activation = "swiglu"

[moe.router]
score = "sigmoid"
expert_bias = true
aux_loss = 0.1

[mlp]
ffn = 16

[optimizer]
matrix = "muon"
expert = "muon"

[recurrent]
heads = 4
qk_heads = 1
key_dim = 3
value_dim = 2
"#;

pub const MAMBA1: &str =
    "[mamba]\nkind = \"mamba1\"\ninner = 16\nstate = 4\ndt_rank = 3\ninner_norms = true\nproj_bias = true\n";
pub const MAMBA2: &str = "[mamba]\nkind = \"mamba2\"\nheads = 8\nhead_dim = 2\nstate = 4\ngroups = 4\nchunk = 3\n";
pub const MAMBA3: &str = "[mamba]\nkind = \"mamba3\"\nheads = 4\nhead_dim = 2\nstate = 4\ngroups = 4\nchunk = 3\n";

pub const DELTA: &str = "[gated_delta]\nkey_heads = 4\nvalue_heads = 8\nkey_dim = 3\nvalue_dim = 2\n";

/// A gate on the shared expert.
pub const GATED: &str = "moe.shared.gate = true\n";

/// A recipe of a pattern with more tables. A table said in `more` stands in place of the common one.
pub fn recipe(pattern: &str, more: &str) -> Recipe {
    recipe_of(TABLES, pattern, more)
}

/// The same over other common tables. What `more` begins with, up to its first table, stands above
/// all tables, or with a table's name before the key at that table's beginning.
pub fn recipe_of(tables: &str, pattern: &str, more: &str) -> Recipe {
    let (keys, more) = more.split_at(more.find('[').unwrap_or(more.len()));
    let is_said =
        |table: &&str| more.lines().any(|line| table.starts_with(&format!("{line}\n")) && line.starts_with('['));
    let common: Vec<&str> = tables.split("\n\n").filter(|table| !is_said(table)).collect();
    let (mut tables, mut above) = (common.join("\n\n"), String::new());
    for key in keys.lines() {
        let (name, value) = key.split_once('=').expect("a key has a value");
        match name.rsplit_once('.') {
            Some((table, name)) => {
                tables = tables.replacen(&format!("[{table}]"), &format!("[{table}]\n{name}= {value}"), 1);
            }
            None => above += &format!("{key}\n"),
        }
    }
    let text = format!("name = \"t\"\npattern = \"{pattern}\"\n{above}{tables}\n{more}");
    Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"))
}

/// The layout of a request for this engine, with four sequences a step.
pub fn legal(recipe: &Recipe, request: &LayoutRequest) -> Checked {
    let request = LayoutRequest { engine: Some(Engine::Shardwright), global_batch: Some(4), ..request.clone() };
    let checked = check(recipe, &request);
    assert!(checked.is_legal(), "{:#?}", checked.findings);
    checked
}

/// Degrees of tp, cp, pp, dp, ep and etp that fill at most sixteen ranks, a selection.
pub fn degrees() -> Vec<[u64; 6]> {
    let mut all = Vec::new();
    for tp in [1, 2] {
        for cp in [1, 2] {
            for pp in [1, 2] {
                for dp in [1, 2, 4] {
                    for (ep, etp) in [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (4, 2)] {
                        let (dense, experts) = (tp * cp * dp, ep * etp);
                        if dense * pp <= 16 && dense >= 2 && dense % experts == 0 {
                            all.push([tp, cp, pp, dp, ep, etp]);
                        }
                    }
                }
            }
        }
    }
    all.into_iter().step_by(3).collect()
}

/// A pattern, more tables, and a layout.
pub struct Case {
    /// Of the recipe.
    pub pattern: &'static str,
    /// Tables beside the common ones.
    pub more: &'static str,
    /// The layout.
    pub request: LayoutRequest,
}

/// State runs up the depth: a key of the last of the common tables.
pub const CARRY: &str = "recurrent.depth_carry = 2\n";
/// Fewer Mamba-2 groups than ranks.
pub const FEW_GROUPS: &str =
    "[mamba]\nkind = \"mamba2\"\nheads = 8\nhead_dim = 2\nstate = 4\ngroups = 2\nchunk = 3\nconv = 3\n";
const MTP: &str = "[features.mtp]\ndepth = 2\npattern = \"(AF)\"\n";
const MLA: &str = "[features.mla]\nq_rank = 6\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 4\n";

/// Both kinds of side embeddings: one where tokens enter, one where the loss is taken.
pub const SIDES: &str = "[features.ngram_hash]\nrows = 41\ndim = 3\ntables = 4\n\
    [features.structure]\nrows = 9\ndim = 5\nscales = 2\nstage = \"last\"\n";
/// Both where tokens enter.
pub const SIDES_FIRST: &str = "[features.ngram_hash]\nrows = 41\ndim = 3\ntables = 4\n\
    [features.structure]\nrows = 9\ndim = 5\nscales = 2\n";

/// A sparse indexer on the second attention layer.
pub const DSA: &str = "[features.dsa]\nheads = 3\nhead_dim = 4\ntop_k = 5\nlayers = [1]\n";
/// On latent attention.
pub const DSA_MLA: &str = "[features.dsa]\nheads = 3\nhead_dim = 6\ntop_k = 5\n\
    [features.mla]\nq_rank = 6\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 4\n";

/// Experts with biases in a latent space.
pub const LATENT_EXPERTS: &str = "[moe]\nexperts = 8\ntop_k = 2\nffn = 8\nactivation = \"relu2\"\n\
    bias = true\nlatent = 6\nlatent_bias = true\n";

/// Layouts of experts: each axis of theirs, and all of them.
pub fn expert_layouts() -> Vec<LayoutRequest> {
    let degrees = [[1, 1, 1, 4, 2, 2], [2, 1, 1, 2, 4, 1], [1, 2, 1, 1, 2, 1], [2, 2, 2, 1, 2, 2], [2, 1, 1, 2, 1, 4]];
    let all = degrees.into_iter().enumerate().map(|(i, degrees)| {
        let [tp, cp, pp, dp, ep, etp] = degrees.map(Some);
        let zero = Some([ZeroStage::One, ZeroStage::Three][i % 2]);
        LayoutRequest { tp, cp, pp, dp, ep, etp, zero, ..LayoutRequest::default() }
    });
    all.collect()
}

/// Everything a head may have: sinks, a gate, and norms over all heads, whose KV heads are copied at
/// the highest degree.
pub const HEADS: &str = "[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 4\nqk_norm = \"full\"\n\
    sinks = true\noutput_gate = true\n";

/// Layouts that a feature is tried under: each axis, and all of them.
pub fn feature_layouts() -> Vec<LayoutRequest> {
    let mut all = Vec::new();
    let mut add = |set: &dyn Fn(&mut LayoutRequest)| {
        let mut request = LayoutRequest::default();
        set(&mut request);
        all.push(request);
    };
    add(&|r| r.tp = Some(2));
    add(&|r| (r.tp, r.sp) = (Some(2), Some(false)));
    add(&|r| (r.tp, r.cp) = (Some(2), Some(2)));
    add(&|r| r.cp = Some(4));
    for zero in [ZeroStage::Zero, ZeroStage::Two, ZeroStage::Three] {
        add(&|r| (r.cp, r.dp, r.zero) = (Some(2), Some(2), Some(zero)));
    }
    for (schedule, pp, vpp) in SCHEDULES {
        add(&|r| {
            (r.pp, r.vpp, r.schedule, r.microbatches) = (Some(pp), Some(vpp), Some(schedule), Some(4));
            r.zero = Some(if vpp == 1 { ZeroStage::One } else { ZeroStage::Three });
        });
    }
    add(&|r| (r.tp, r.cp, r.pp, r.dp, r.zero) = (Some(2), Some(2), Some(2), Some(2), Some(ZeroStage::Three)));
    all
}

const TIED: &str = "tied = true\n";
const TIED_MTP: &str = "tied = true\n[features.mtp]\ndepth = 2\npattern = \"(AF)\"\n";
const MTP_EXPERTS: &str = "[features.mtp]\ndepth = 1\npattern = \"(AE)\"\n";
/// Room for fewer tokens than choose an expert.
const DROPS: &str = "moe.capacity_factor = 0.75\n";

/// Every axis alone and with others, every schedule and ZeRO stage, prediction heads, recompute,
/// experts that run out of room, tied tables.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |pattern: &'static str, more: &'static str, set: &dyn Fn(&mut LayoutRequest)| {
        let mut request = LayoutRequest::default();
        set(&mut request);
        all.push(Case { pattern, more, request });
    };
    for sp in [true, false] {
        for tp in [2, 4] {
            add("(AF)", "", &|r| (r.tp, r.sp) = (Some(tp), Some(sp)));
        }
        add("R", "", &|r| (r.tp, r.sp) = (Some(2), Some(sp)));
        add("M", MAMBA1, &|r| (r.tp, r.sp) = (Some(4), Some(sp)));
        add("M", MAMBA2, &|r| (r.tp, r.sp) = (Some(4), Some(sp)));
        add("M", MAMBA3, &|r| (r.tp, r.sp) = (Some(2), Some(sp)));
        add("G", DELTA, &|r| (r.tp, r.sp) = (Some(2), Some(sp)));
        add("A", MLA, &|r| (r.tp, r.sp) = (Some(2), Some(sp)));
        add("AF", MTP, &|r| (r.tp, r.sp) = (Some(2), Some(sp)));
    }
    for cp in [2, 4] {
        add("A", "", &|r| r.cp = Some(cp));
    }
    add("A", MLA, &|r| (r.tp, r.cp) = (Some(2), Some(2)));
    add("MM", MAMBA1, &|r| (r.tp, r.pp, r.dp, r.zero) = (Some(2), Some(2), Some(2), Some(ZeroStage::Three)));
    add("M", MAMBA2, &|r| r.cp = Some(2));
    add("AG", DELTA, &|r| (r.tp, r.cp) = (Some(2), Some(2)));
    add("MR", MAMBA3, &|r| r.cp = Some(2));
    add("M", MAMBA3, &|r| (r.cp, r.micro_batch) = (Some(4), Some(2)));
    // Groups that do not go round: Mamba-2 hands its state on.
    add("MA", FEW_GROUPS, &|r| (r.tp, r.cp) = (Some(2), Some(2)));
    add("E", "", &|r| (r.cp, r.ep) = (Some(2), Some(2)));
    add("E", "", &|r| (r.dp, r.ep, r.etp) = (Some(4), Some(2), Some(2)));
    add("E", "", &|r| (r.tp, r.dp, r.ep, r.etp) = (Some(2), Some(2), Some(4), Some(1)));
    for etp in [1, 2] {
        add("AE", "", &|r| {
            (r.tp, r.cp, r.ep, r.etp) = (Some(2), Some(2), Some(2), Some(etp));
            (r.micro_batch, r.microbatches) = (Some(4), Some(1));
        });
    }
    for zero in [ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        add("AEF", "", &|r| (r.dp, r.zero, r.microbatches, r.ep) = (Some(2), Some(zero), Some(2), Some(2)));
        add("AF", MTP, &|r| (r.cp, r.dp, r.zero) = (Some(2), Some(2), Some(zero)));
        for (schedule, pp, vpp) in SCHEDULES {
            add("AEMR", MAMBA2, &|r| {
                (r.pp, r.vpp, r.schedule) = (Some(pp), Some(vpp), Some(schedule));
                (r.zero, r.microbatches) = (Some(zero), Some(4));
            });
        }
    }
    for (schedule, pp, vpp) in SCHEDULES {
        add("RFAR", CARRY, &|r| {
            (r.pp, r.vpp, r.schedule, r.microbatches) = (Some(pp), Some(vpp), Some(schedule), Some(4));
        });
    }
    add("RFAR", CARRY, &|r| {
        (r.tp, r.cp, r.pp, r.dp, r.zero) = (Some(2), Some(2), Some(2), Some(2), Some(ZeroStage::Three));
        r.recompute = Some(layout::Recompute::Full);
    });
    for (i, recompute) in ["selective:mlp+moe", "full"].into_iter().enumerate() {
        let zero = [ZeroStage::One, ZeroStage::Three][i];
        add("(AF)EMR", MAMBA2, &|r| {
            (r.tp, r.cp, r.ep, r.etp, r.zero) = (Some(2), Some(2), Some(2), Some(1), Some(zero));
            r.recompute = layout::Recompute::parse(recompute).ok();
        });
    }
    for (pattern, more, recompute) in AGAIN {
        for sp in [true, false] {
            add(pattern, more, &|r| {
                (r.tp, r.cp, r.sp, r.etp) = (Some(2), Some(2), Some(sp), Some(1));
                r.recompute = layout::Recompute::parse(recompute).ok();
            });
        }
    }
    for recompute in ["selective:shared_experts", "selective:layernorm", "selective:shared_experts+layernorm+moe_act"] {
        for more in ["", GATED] {
            add("E", more, &|r| {
                (r.tp, r.cp, r.etp, r.microbatches) = (Some(2), Some(2), Some(1), Some(1));
                (r.micro_batch, r.recompute) = (Some(4), layout::Recompute::parse(recompute).ok());
            });
        }
    }
    for request in feature_layouts() {
        let more = if request.dp == Some(2) { SIDES_FIRST } else { SIDES };
        add("AFAF", more, &|r| *r = request.clone());
        add("AFAF", if request.cp == Some(2) { DSA_MLA } else { DSA }, &|r| *r = request.clone());
    }
    for request in expert_layouts() {
        add("EE", LATENT_EXPERTS, &|r| *r = request.clone());
    }
    for sp in [true, false] {
        for tp in [2, 4] {
            add("AF", HEADS, &|r| (r.tp, r.sp) = (Some(tp), Some(sp)));
        }
    }
    add("AFAF", HEADS, &|r| (r.tp, r.cp, r.pp, r.zero) = (Some(2), Some(2), Some(2), Some(ZeroStage::Three)));
    add("AF", DSA_MLA, &|r| (r.tp, r.cp, r.recompute) = (Some(2), Some(2), Some(layout::Recompute::Full)));
    features(&mut add);
    for (mamba, pattern) in [(MAMBA2, "AEMEAEMR"), (MAMBA3, "AEMEAEMEAEMR")] {
        for (i, [tp, cp, pp, dp, ep, etp]) in degrees().into_iter().enumerate() {
            let zero = [ZeroStage::One, ZeroStage::Three, ZeroStage::Two, ZeroStage::Zero][i % 4];
            add(pattern, mamba, &|r| {
                (r.tp, r.cp, r.pp, r.dp) = (Some(tp), Some(cp), Some(pp), Some(dp));
                (r.ep, r.etp, r.zero) = (Some(ep), Some(etp), Some(zero));
            });
        }
    }
    all
}

/// What every rank came out of one step of a case with, in f32.
pub struct Stepped {
    pub case: Case,
    pub name: String,
    pub recipe: Recipe,
    pub layout: Layout,
    pub held: Vec<StepHeld>,
    pub moved: Vec<Vec<(Call, Kind, Moved)>>,
}

/// Every case, run once for all that look at what came of it.
pub static STEPPED: LazyLock<Vec<Stepped>> = LazyLock::new(|| cases().into_iter().map(stepped).collect());

fn stepped(case: Case) -> Stepped {
    let recipe = recipe(case.pattern, case.more);
    let layout = legal(&recipe, &case.request).layout.unwrap();
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f32>::new(&recipe, &layout, comm, 5, Settings::default())?;
        trainer.step(&Batch::synthetic(&recipe, &layout, 1, 0))?;
        Ok((trainer.last().clone(), comm.traffic().all()))
    });
    let (held, moved) = results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}"))).unzip();
    let name = format!("{} {:?}: {}", case.pattern, case.more, layout.all_flags());
    Stepped { case, name, recipe, layout, held, moved }
}

/// Patterns with what of them is computed again, alone and together.
pub const AGAIN: [(&str, &str, &str); 12] = [
    ("AF", "", "selective:core_attn"),
    ("AF", "", "selective:attention"),
    ("AF", "", "selective:layernorm+mlp"),
    ("AF", MLA, "selective:core_attn+layernorm+mla_up_proj"),
    ("AF", MTP, "selective:core_attn+layernorm"),
    ("GA", DELTA, "selective:gdn_norm_out+layernorm"),
    ("GA", DELTA, "selective:gated_delta"),
    ("MR", MAMBA2, "selective:layernorm"),
    ("MF", FEW_GROUPS, "selective:mamba+layernorm"),
    ("MR", MAMBA3, "selective:mamba+layernorm"),
    ("RFR", CARRY, "selective:recurrent"),
    ("RFR", CARRY, "selective:layernorm"),
];
/// What sets the degrees of a request.
type Set<'a> = &'a dyn Fn(&mut LayoutRequest);
/// What takes a case: pattern, tables, layout.
type Add<'a> = dyn FnMut(&'static str, &'static str, Set<'_>) + 'a;

/// What a recipe may have besides its blocks, under layouts that treat it apart.
fn features(add: &mut Add) {
    for (ep, etp) in [(1, 2), (2, 1), (2, 2), (4, 1)] {
        add("AE", DROPS, &|r| (r.dp, r.ep, r.etp) = (Some(4), Some(ep), Some(etp)));
        add("AE", DROPS, &|r| {
            (r.tp, r.cp, r.ep, r.etp) = (Some(2), Some(2), Some(ep), Some(etp));
            r.recompute = layout::Recompute::parse("full").ok();
        });
    }
    for zero in [ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        add("AF", TIED, &|r| (r.tp, r.dp, r.zero) = (Some(2), Some(2), Some(zero)));
        add("AFAF", TIED_MTP, &|r| (r.pp, r.dp, r.zero) = (Some(2), Some(2), Some(zero)));
        add("AE", MTP_EXPERTS, &|r| {
            (r.tp, r.dp, r.ep, r.etp, r.zero) = (Some(2), Some(2), Some(2), Some(1), Some(zero))
        });
        add("AE", MLA, &|r| (r.cp, r.dp, r.ep, r.zero) = (Some(2), Some(2), Some(2), Some(zero)));
    }
    for recompute in ["selective:mlp+moe", "full"] {
        add("AEMR", MAMBA3, &|r| {
            (r.pp, r.ep, r.dp, r.microbatches) = (Some(2), Some(2), Some(2), Some(2));
            r.recompute = layout::Recompute::parse(recompute).ok();
        });
        add("AF", MTP, &|r| (r.tp, r.recompute) = (Some(2), layout::Recompute::parse(recompute).ok()));
    }
    for (schedule, pp, vpp) in SCHEDULES {
        add("AFAEAFAE", TIED_MTP, &|r| {
            (r.pp, r.vpp, r.schedule, r.microbatches) = (Some(pp), Some(vpp), Some(schedule), Some(4));
        });
        add("AEAEAEAE", DROPS, &|r| {
            (r.pp, r.vpp, r.schedule) = (Some(pp), Some(vpp), Some(schedule));
            (r.tp, r.ep, r.etp) = (Some(2), Some(2), Some(1));
        });
    }
}

/// Schedules with the stages and chunks they are tried with.
pub const SCHEDULES: [(Schedule, u64, u64); 7] = [
    (Schedule::GPipe, 2, 1),
    (Schedule::OneF1b, 2, 1),
    (Schedule::OneF1b, 4, 1),
    (Schedule::Interleaved, 2, 2),
    (Schedule::ZbH1, 2, 1),
    (Schedule::DualPipe, 2, 1),
    (Schedule::DualPipeV, 2, 2),
];
