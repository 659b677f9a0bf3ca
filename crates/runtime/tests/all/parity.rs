//! Every split against one rank, in f64: losses, gradients and weights after steps.

use layout::{LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::Recipe;
use runtime::mat::Mat;
use runtime::optimizer::Settings;
use runtime::params::global_indices;
use runtime::train::{Batch, Report, Trainer};
use std::collections::HashMap;
use std::time::Duration;

use crate::splits::{
    self, AGAIN, CARRY, DELTA, DSA, DSA_MLA, FEW_GROUPS, GATED, HEADS, LATENT_EXPERTS, MAMBA1, MAMBA2, MAMBA3,
    SCHEDULES, SIDES, SIDES_FIRST, TABLES, degrees, expert_layouts, feature_layouts, legal, recipe,
};

/// What a run came to: reports of every step, and whole gradients and weights by path.
struct Outcome {
    reports: Vec<Report>,
    gradients: HashMap<String, Vec<f64>>,
    weights: HashMap<String, Vec<f64>>,
}

/// Puts a rank's parts where they stand in the whole tensors. Copies must be equal.
fn place(into: &mut HashMap<String, Vec<f64>>, trainer: &Trainer<f64>, parts: &[Mat<f64>]) {
    for (param, part) in trainer.shelf().params.iter().zip(parts) {
        let tensor = &param.row.tensor;
        let whole = into.entry(tensor.path.clone()).or_insert_with(|| vec![f64::NAN; tensor.elements() as usize]);
        for (at, value) in global_indices(tensor, &param.part).into_iter().zip(&part.data) {
            let old = whole[at as usize];
            assert!(
                old.is_nan() || (old - value).abs() <= 1e-12 * old.abs().max(1e-3),
                "{}: copies differ",
                tensor.path
            );
            whole[at as usize] = *value;
        }
    }
}

fn run(recipe: &Recipe, request: &LayoutRequest, steps: u64) -> Outcome {
    let checked = legal(recipe, request);
    let layout = checked.layout.as_ref().unwrap();
    let out = std::sync::Mutex::new((HashMap::new(), HashMap::new()));
    let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f64>::new(&checked.recipe, layout, comm, 5, Settings::default())?;
        let (_, grads) = trainer.gradients(&Batch::synthetic(recipe, layout, 1, 0))?;
        let mut reports = Vec::new();
        for step in 0..steps {
            reports.push(trainer.step(&Batch::synthetic(recipe, layout, 1, step))?);
        }
        let weights = trainer.weights()?;
        let mut out = out.lock().unwrap();
        place(&mut out.0, &trainer, &grads);
        place(&mut out.1, &trainer, &weights);
        Ok(reports)
    });
    let reports = results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}"))).next().unwrap();
    let (gradients, weights) = out.into_inner().unwrap();
    Outcome { reports, gradients, weights }
}

/// Compares up to the length of the shorter: a split may pad the vocabulary.
fn compare(what: &str, name: &str, one: &HashMap<String, Vec<f64>>, many: &HashMap<String, Vec<f64>>) {
    assert_eq!(one.len(), many.len());
    for (path, expected) in one {
        let scale = expected.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
        for (i, (a, b)) in expected.iter().zip(&many[path]).enumerate() {
            assert!((a - b).abs() <= 1e-9 * scale, "{name}: {what} of {path}[{i}] is {b}, one rank has {a}");
        }
    }
}

fn check_parity(recipe: &Recipe, name: &str, request: &LayoutRequest, one: &Outcome) {
    let many = run(recipe, request, one.reports.len() as u64);
    for (a, b) in one.reports.iter().zip(&many.reports) {
        for (x, y) in [(a.loss, b.loss), (a.auxiliary, b.auxiliary), (a.norm, b.norm)] {
            assert!((x - y).abs() <= 1e-9 * x.abs().max(1e-3), "{name}: {a:?} on one rank, {b:?} split");
        }
    }
    compare("gradient", name, &one.gradients, &many.gradients);
    compare("weight", name, &one.weights, &many.weights);
}

fn one(recipe: &Recipe) -> Outcome {
    run(recipe, &LayoutRequest { world: Some(1), ..LayoutRequest::default() }, 2)
}

fn parity(pattern: &str, more: &str, set: impl Fn(&mut LayoutRequest)) {
    let recipe = recipe(pattern, more);
    let mut request = LayoutRequest::default();
    set(&mut request);
    let name = format!("{pattern} {request:?}");
    check_parity(&recipe, &name, &request, &one(&recipe));
}

#[test]
fn tensor_parallel_with_and_without_sequence_parallel() {
    for sp in [true, false] {
        parity("(AF)", "", |r| (r.tp, r.sp) = (Some(2), Some(sp)));
        parity("(AF)", "", |r| (r.tp, r.sp) = (Some(4), Some(sp)));
        parity("R", "", |r| (r.tp, r.sp) = (Some(2), Some(sp)));
        parity("M", MAMBA1, |r| (r.tp, r.sp) = (Some(4), Some(sp)));
        parity("M", MAMBA2, |r| (r.tp, r.sp) = (Some(4), Some(sp)));
        parity("G", DELTA, |r| (r.tp, r.sp) = (Some(2), Some(sp)));
        parity("M", MAMBA3, |r| (r.tp, r.sp) = (Some(2), Some(sp)));
    }
    parity("MM", MAMBA1, |r| (r.tp, r.pp, r.dp, r.zero) = (Some(2), Some(2), Some(2), Some(ZeroStage::Three)));
    parity("E", "", |r| r.tp = Some(2));
}

#[test]
fn context_parallel() {
    parity("A", "", |r| r.cp = Some(2));
    parity("A", "", |r| r.cp = Some(4));
    parity("M", MAMBA2, |r| r.cp = Some(2));
    parity("M", MAMBA3, |r| r.cp = Some(2));
    parity("M", FEW_GROUPS, |r| r.cp = Some(4));
    parity("M", FEW_GROUPS, |r| (r.tp, r.cp) = (Some(2), Some(2)));
    parity("AG", DELTA, |r| (r.tp, r.cp) = (Some(2), Some(2)));
    parity("MR", MAMBA3, |r| r.cp = Some(2));
    parity("E", "", |r| (r.cp, r.ep) = (Some(2), Some(2)));
}

#[test]
fn experts() {
    parity("E", "", |r| (r.dp, r.ep) = (Some(4), Some(2)));
    parity("E", "", |r| (r.dp, r.ep, r.etp) = (Some(4), Some(2), Some(2)));
    parity("E", "", |r| (r.tp, r.dp, r.ep, r.etp) = (Some(2), Some(2), Some(4), Some(1)));
}

#[test]
fn replicas_and_shards() {
    for zero in [ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        parity("AEF", "", |r| (r.dp, r.zero) = (Some(2), Some(zero)));
        parity("AEF", "", |r| (r.dp, r.zero, r.microbatches, r.ep) = (Some(2), Some(zero), Some(2), Some(2)));
    }
}

#[test]
fn pipelines_in_every_order() {
    let cases = [
        (Schedule::GPipe, 2, 1, 4),
        (Schedule::OneF1b, 2, 1, 4),
        (Schedule::OneF1b, 4, 1, 4),
        (Schedule::Interleaved, 2, 2, 4),
        (Schedule::ZbH1, 2, 1, 4),
        (Schedule::DualPipe, 2, 1, 4),
        (Schedule::DualPipeV, 2, 2, 4),
    ];
    for tied in ["", "tied = true\n"] {
        let text = format!("{tied}pattern = \"AEMR\"\n");
        let recipe = Recipe::parse(&format!("name = \"t\"\n{text}{TABLES}{MAMBA2}")).unwrap();
        let expected = one(&recipe);
        for (schedule, pp, vpp, microbatches) in cases {
            for zero in [ZeroStage::One, ZeroStage::Three] {
                let request = LayoutRequest {
                    pp: Some(pp),
                    vpp: Some(vpp),
                    schedule: Some(schedule),
                    microbatches: Some(microbatches),
                    zero: Some(zero),
                    ..LayoutRequest::default()
                };
                check_parity(&recipe, &format!("{schedule} pp {pp} zero {zero} {tied}"), &request, &expected);
            }
        }
    }
}

/// State that runs up the depth crosses chunks in every order, with every other axis.
#[test]
fn state_up_the_depth() {
    let recipe = recipe("RFARAR", CARRY);
    let expected = one(&recipe);
    let plain = one(&splits::recipe("RFARAR", ""));
    assert!((plain.reports[0].loss - expected.reports[0].loss).abs() > 1e-6, "state changes nothing");
    for (schedule, pp, vpp) in SCHEDULES {
        let request = LayoutRequest {
            pp: Some(pp),
            vpp: Some(vpp),
            schedule: Some(schedule),
            microbatches: Some(4),
            ..LayoutRequest::default()
        };
        check_parity(&recipe, &format!("{schedule} pp {pp} vpp {vpp}"), &request, &expected);
    }
    for (tp, cp, pp, dp, recompute) in
        [(1, 2, 1, 1, "none"), (1, 2, 2, 1, "full"), (2, 1, 2, 2, "full"), (2, 2, 2, 2, "none")]
    {
        let mut request =
            LayoutRequest { tp: Some(tp), cp: Some(cp), pp: Some(pp), dp: Some(dp), ..Default::default() };
        request.recompute = Recompute::parse(recompute).ok();
        check_parity(&recipe, &format!("tp {tp} cp {cp} pp {pp} dp {dp} {recompute}"), &request, &expected);
    }
}

/// Every axis with every other, up to sixteen ranks, on the flagship's pattern.
#[test]
fn axes_together() {
    for (mamba, pattern) in [(MAMBA2, "AEMEAEMR"), (MAMBA3, "AEMEAEMEAEMR")] {
        let recipe = recipe(pattern, mamba);
        let expected = one(&recipe);
        let mut ran = 0;
        for (i, [tp, cp, pp, dp, ep, etp]) in degrees().into_iter().enumerate() {
            let zero = [ZeroStage::One, ZeroStage::Three, ZeroStage::Two, ZeroStage::Zero][i % 4];
            let request = LayoutRequest {
                tp: Some(tp),
                cp: Some(cp),
                pp: Some(pp),
                dp: Some(dp),
                ep: Some(ep),
                etp: Some(etp),
                zero: Some(zero),
                ..LayoutRequest::default()
            };
            let name = format!("tp {tp} cp {cp} pp {pp} dp {dp} ep {ep} etp {etp} zero {zero}");
            check_parity(&recipe, &name, &request, &expected);
            ran += 1;
        }
        assert!(ran >= 24, "{ran}");
    }
}

#[test]
fn prediction_heads() {
    let mtp = "[features.mtp]\ndepth = 2\npattern = \"(AF)\"\n";
    parity("AF", mtp, |r| r.tp = Some(2));
    parity("AF", mtp, |r| (r.tp, r.sp) = (Some(2), Some(false)));
    parity("AF", mtp, |r| (r.cp, r.dp, r.zero) = (Some(2), Some(2), Some(ZeroStage::Three)));
    parity("AF", mtp, |r| (r.pp, r.microbatches) = (Some(2), Some(4)));
}

#[test]
fn what_is_computed_again_is_the_same_and_keeps_less() {
    let recipe = recipe("(AF)EMR", MAMBA2);
    let expected = one(&recipe);
    let mut kept = Vec::new();
    for recompute in ["none", "selective:mlp+moe", "full"] {
        let request = LayoutRequest {
            tp: Some(2),
            cp: Some(2),
            ep: Some(2),
            etp: Some(1),
            recompute: Recompute::parse(recompute).ok(),
            ..LayoutRequest::default()
        };
        check_parity(&recipe, recompute, &request, &expected);
        kept.push(run(&recipe, &request, 1).reports[0].saved_bytes);
    }
    assert!(kept[0] > kept[1] && kept[1] > kept[2], "{kept:?}");
}

/// What is computed again comes out bit for bit as if it had been kept.
#[test]
fn recompute_changes_no_bit() {
    let shared = |policy| ("EF", "", policy);
    let gated = |policy| ("E", GATED, policy);
    let experts = ["selective:shared_experts", "selective:layernorm", "selective:shared_experts+layernorm+moe_act"];
    let cases = AGAIN.into_iter().chain(experts.map(shared)).chain(experts.map(gated));
    for (pattern, more, policy) in cases {
        let recipe = recipe(pattern, more);
        let of = |policy: &str| {
            let mut request = LayoutRequest { tp: Some(2), cp: Some(2), etp: Some(1), ..LayoutRequest::default() };
            request.recompute = Recompute::parse(policy).ok();
            run(&recipe, &request, 2)
        };
        let (plain, again) = (of("none"), of(policy));
        let name = format!("{pattern} {policy}");
        for (a, b) in plain.reports.iter().zip(&again.reports) {
            assert_eq!((a.loss, a.norm, a.auxiliary), (b.loss, b.norm, b.auxiliary), "{name}");
            assert!(a.saved_bytes > b.saved_bytes, "{name}: {} to {}", a.saved_bytes, b.saved_bytes);
        }
        assert_eq!(plain.gradients, again.gradients, "{name}");
        assert_eq!(plain.weights, again.weights, "{name}");
    }
}

#[test]
fn training_learns_and_replicas_follow_the_same_curve_in_f32() {
    let recipe = recipe("AEMR", MAMBA3);
    let settings = Settings { rate: 3e-3, ..Settings::default() };
    let curve = |request: &LayoutRequest| {
        let checked = legal(&recipe, request);
        let layout = checked.layout.as_ref().unwrap();
        let results = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
            let mut trainer = Trainer::<f32>::new(&recipe, layout, comm, 5, settings)?;
            (0..40).map(|step| Ok(trainer.step(&Batch::synthetic(&recipe, layout, 1, step))?.loss)).collect()
        });
        results.into_iter().next().unwrap().unwrap_or_else(|f| panic!("{f:#?}"))
    };
    let one: Vec<f64> = curve(&LayoutRequest { world: Some(1), ..LayoutRequest::default() });
    let four: Vec<f64> = curve(&LayoutRequest { dp: Some(4), ep: Some(2), ..LayoutRequest::default() });
    // Each token has two equally likely successors, so the loss of a perfect model is ln 2.
    assert!(one[39] < 0.7 * one[0], "{} to {}", one[0], one[39]);
    assert!(one[..5].iter().zip(&four).all(|(a, b)| (a - b).abs() <= 1e-4 * a.abs()), "{one:?} {four:?}");
}

#[test]
fn latent_attention() {
    let mla = "[features.mla]\nq_rank = 6\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 4\n";
    for more in [mla, &mla.replace("q_rank = 6\n", "")] {
        parity("A", more, |r| r.tp = Some(2));
        parity("A", more, |r| (r.tp, r.sp) = (Some(4), Some(false)));
        parity("A", more, |r| (r.tp, r.cp) = (Some(2), Some(2)));
    }
}

/// Drops, softmax scores, and experts that no token chooses, under every split of tokens.
#[test]
fn experts_with_drops_and_without_tokens() {
    let routers = ["score = \"softmax\"\n", "score = \"sigmoid\"\nbias = true\naux_loss = 0.5\n"];
    for (i, router) in routers.into_iter().enumerate() {
        // With 64 experts and 64 choices of two a step, many experts stay without tokens.
        let experts = if i == 0 { 64 } else { 8 };
        let text = format!(
            "name = \"t\"\nsource = \"test\"\npattern = \"E\"\nhidden = 16\nvocab = 22\nsequence = 16\nrope_theta = 100.0\n\
             [moe]\nexperts = {experts}\ntop_k = 2\nffn = 8\ncapacity_factor = 0.8\n[moe.router]\n{router}"
        );
        let recipe = Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"));
        let expected = one(&recipe);
        for [tp, cp, dp, ep, etp] in
            [[2, 1, 1, 2, 1], [1, 2, 1, 2, 1], [2, 2, 1, 2, 2], [1, 1, 4, 4, 1], [2, 2, 2, 4, 2]]
        {
            let mut request = LayoutRequest { tp: Some(tp), cp: Some(cp), dp: Some(dp), ..LayoutRequest::default() };
            (request.ep, request.etp) = (Some(ep), Some(etp));
            check_parity(&recipe, &format!("tp {tp} cp {cp} dp {dp} ep {ep} etp {etp}"), &request, &expected);
        }
    }
}

/// A feature under each axis and all of them.
fn feature(pattern: &str, more: &str) {
    under(feature_layouts(), pattern, more);
}

fn under(layouts: Vec<LayoutRequest>, pattern: &str, more: &str) {
    let recipe = recipe(pattern, more);
    let expected = one(&recipe);
    for request in layouts {
        check_parity(&recipe, &format!("{pattern} {more:?} {request:?}"), &request, &expected);
    }
}

/// N-grams that reach over cuts in time, tables whose owner is either edge, with prediction heads
/// beside them.
#[test]
fn side_embeddings() {
    feature("AFAF", SIDES);
    feature("AFAF", &format!("{SIDES_FIRST}[features.mtp]\ndepth = 1\npattern = \"F\"\n"));
}

/// Keys chosen by position, whichever rank holds them; the indexer's loss is what all heads read.
#[test]
fn sparse_attention() {
    feature("AFAF", DSA);
    feature("AFAF", DSA_MLA);
    feature("AAFF", &format!("{DSA}[features.mtp]\ndepth = 1\npattern = \"(AF)\"\n").replace("[1]", "[0, 1]"));
}

/// Biases that experts add behind sums over ranks, and tokens sent in another width.
#[test]
fn latent_and_biased_experts() {
    under(expert_layouts(), "EE", LATENT_EXPERTS);
}

/// Sinks, gates and norms over all heads, with KV heads cut and copied.
#[test]
fn heads_with_extras() {
    feature("AFAF", HEADS);
    for sp in [true, false] {
        parity("A", HEADS, |r| (r.tp, r.sp) = (Some(4), Some(sp)));
    }
    let sinks =
        "[attention]\nkind = \"mla\"\nheads = 4\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 4\nsinks = true\n";
    parity("A", sinks, |r| (r.tp, r.cp) = (Some(2), Some(2)));
}
