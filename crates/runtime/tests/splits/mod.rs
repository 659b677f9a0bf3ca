//! The recipes and layouts that tests of whole runs share.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use layout::{Checked, Engine, LayoutRequest, Schedule, ZeroStage, check};
use recipe::Recipe;

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

[recurrent]
heads = 4
qk_heads = 1
key_dim = 3
value_dim = 2
state_carry = true

[mlp]
ffn = 16

[optimizer]
matrix = "muon"
expert = "muon"
"#;

pub const MAMBA2: &str = "[mamba]\nkind = \"mamba2\"\nheads = 8\nhead_dim = 2\nstate = 4\ngroups = 4\nchunk = 3\n";
pub const MAMBA3: &str =
    "[mamba]\nkind = \"mamba3\"\nheads = 4\nhead_dim = 2\nstate = 4\ngroups = 4\nchunk = 3\nstate_carry = true\n";

pub const DELTA: &str = "[gated_delta]\nkey_heads = 4\nvalue_heads = 8\nkey_dim = 3\nvalue_dim = 2\n";

/// A recipe of a pattern with more tables.
pub fn recipe(pattern: &str, more: &str) -> Recipe {
    recipe_of(TABLES, pattern, more)
}

/// The same over other common tables. What `more` begins with, up to its first table, stands above
/// all tables; `moe.` before a key puts it into that table.
pub fn recipe_of(tables: &str, pattern: &str, more: &str) -> Recipe {
    let (keys, more) = more.split_at(more.find('[').unwrap_or(more.len()));
    let (of_moe, keys): (Vec<&str>, Vec<&str>) = keys.lines().partition(|key| key.starts_with("moe."));
    let of_moe: String = of_moe.iter().map(|key| key.replacen("moe.", "\n", 1)).collect();
    let tables = tables.replacen("[moe]", &format!("[moe]{of_moe}"), 1);
    let text = format!("name = \"t\"\npattern = \"{pattern}\"\n{}\n{tables}{more}", keys.join("\n"));
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

const MTP: &str = "[features.mtp]\ndepth = 2\npattern = \"(AF)\"\n";
const MLA: &str = "[features.mla]\nq_rank = 6\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 4\n";

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
    add("M", MAMBA2, &|r| r.cp = Some(2));
    add("AG", DELTA, &|r| (r.tp, r.cp) = (Some(2), Some(2)));
    add("MR", MAMBA3, &|r| r.cp = Some(2));
    add("M", MAMBA3, &|r| (r.cp, r.micro_batch) = (Some(4), Some(2)));
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
    for (i, recompute) in ["selective:mlp+moe", "full"].into_iter().enumerate() {
        let zero = [ZeroStage::One, ZeroStage::Three][i];
        add("(AF)EMR", MAMBA2, &|r| {
            (r.tp, r.cp, r.ep, r.etp, r.zero) = (Some(2), Some(2), Some(2), Some(1), Some(zero));
            r.recompute = layout::Recompute::parse(recompute).ok();
        });
    }
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
const SCHEDULES: [(Schedule, u64, u64); 6] = [
    (Schedule::OneF1b, 2, 1),
    (Schedule::OneF1b, 4, 1),
    (Schedule::Interleaved, 2, 2),
    (Schedule::ZbH1, 2, 1),
    (Schedule::DualPipe, 2, 1),
    (Schedule::DualPipeV, 2, 2),
];
