//! The FSDP2 ledger against ranks measured on an H200 (`data/truth/fsdp_h200.jsonl`).

use layout::{Layout, LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use ledger::fsdp2::{Fsdp2Options, Job, Reshard, explain, replay};
use recipe::kinds::attention::Attention;
use recipe::kinds::mlp::Mlp;
use recipe::kinds::{Activation, Norm};
use recipe::{Layer, Mixer, Pattern, Positions, Recipe, Rope};
use replay::Replay;
use serde_json::Value;

/// Rows of the truth file, whose peaks all stand in the loss.
const TRUTH: &str = "/../../data/truth/fsdp_h200.jsonl";
/// Rows with a small vocabulary, whose peaks stand in layers: four runs of
/// `tools/measure_fsdp2.py --one` on an H200, taken when the ledger stood.
const SMALL_VOCAB: &str = "/tests/data/fsdp_small_vocab.jsonl";

fn rows(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(format!("{}{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let all = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let rows: Vec<Value> = all.filter(|row: &Value| row["kind"] == "fsdp2").collect();
    assert_eq!(rows.len(), if path == TRUTH { 14 } else { 4 }, "{path}");
    rows
}

fn count(case: &Value, key: &str) -> u64 {
    case[key].as_u64().unwrap()
}

fn recipe(case: &Value) -> Recipe {
    let (hidden, heads) = (count(case, "hidden"), count(case, "heads"));
    let layers: Vec<_> = (0..count(case, "layers")).map(|_| Layer::of(&[Mixer::Attention, Mixer::Mlp])).collect();
    let recipe = Recipe {
        name: "llama".into(),
        source: "a measured row".into(),
        pattern: Pattern::describe(&layers),
        layers,
        hidden,
        vocab: count(case, "vocab"),
        tied: false,
        sequence: count(case, "seq"),
        norm: Norm::RmsNorm,
        norm_place: recipe::kinds::NormPlace::Before,
        embedding_norm: false,
        head_bias: false,
        norm_eps: recipe::NORM_EPS,
        init_std: None,
        dropout: 0.0,
        positions: Positions::Rope(Rope::plain(500_000.0)),
        multipliers: Default::default(),
        modes: Vec::new(),
        attention: Some(Attention::gqa(heads, count(case, "kv_heads"), hidden / heads)),
        moe: None,
        mamba: None,
        recurrent: None,
        gated_delta: None,
        linear: None,
        shared: None,
        mlp: Some(Mlp { ffn: count(case, "ffn"), activation: Activation::SwiGlu, bias: false, shift: false }),
        features: Default::default(),
        precision: Default::default(),
        optimizer: Default::default(),
        not_carried: Vec::new(),
        notes: Vec::new(),
    };
    recipe.validated().unwrap()
}

fn reshards(case: &Value) -> bool {
    case["reshard"].as_bool().unwrap_or(true)
}

fn layout(case: &Value, recipe: &Recipe) -> Layout {
    let is_full = case["ac"].as_str() == Some("full");
    let request = LayoutRequest {
        world: case["world"].as_u64(),
        tp: Some(1),
        zero: Some(if reshards(case) { ZeroStage::Three } else { ZeroStage::Two }),
        micro_batch: case["mbs"].as_u64(),
        microbatches: Some(1),
        sequence: case["seq"].as_u64(),
        recompute: Some(if is_full { Recompute::Full } else { Recompute::None }),
        ..LayoutRequest::default()
    };
    check(recipe, &request).layout.unwrap()
}

fn replayed(case: &Value, run: fn(&Job) -> Result<Replay, replay::Unmodelled>) -> Replay {
    let recipe = recipe(case);
    let layout = layout(case, &recipe);
    let stages = StagePlan::new(&recipe, &layout, None).unwrap();
    let mut options = Fsdp2Options::of(&layout);
    // The script tells the edges to reshard with the rest, and never the last layer.
    options.reshard = Reshard { layers: reshards(case), last_layer: false, edges: reshards(case) };
    options.compile = case["compile"].as_bool().unwrap_or(false);
    run(&Job { recipe: &recipe, layout: &layout, stages: &stages, rank: 0, options: &options }).unwrap()
}

fn highest(row: &Value, key: &str) -> u64 {
    row.as_object().unwrap().values().filter_map(|phase| phase[key].as_u64()).max().unwrap()
}

fn name(case: &Value) -> String {
    let size = format!("{}x{} s{} b{} w{}", case["layers"], case["hidden"], case["seq"], case["mbs"], case["world"]);
    let recompute = if case["ac"] == "full" { " ac" } else { "" };
    let compiled = if case["compile"] == true { " compiled" } else { "" };
    format!("{size}{recompute}{}{compiled}", if reshards(case) { "" } else { " kept" })
}

/// Errors in percent: allocated after backward, after the step, at the peak; reserved at its peak.
fn errors(path: &str) -> Vec<[f64; 4]> {
    println!("{:36} {:>9} {:>9} {:>9} {:>9}  peak stands in", "row", "after bwd", "after opt", "allocated", "reserved");
    let judge = |row: &Value| {
        let case = &row["case"];
        let replay = replayed(case, replay);
        let end = |phase| replay.phase(phase).unwrap().allocated;
        // The script keeps the angles it makes the rotary table from, and their frequencies.
        let angles = count(case, "seq") * count(case, "hidden") / count(case, "heads") / 2 * 4 + 512;
        assert_eq!(end(replay::PhaseKind::Optimizer) + angles, count(&row["optimizer"], "alloc"), "{}", name(case));
        let pairs = [
            (end(replay::PhaseKind::Passes(2)), count(&row["bwd2"], "alloc")),
            (end(replay::PhaseKind::Update(2)), count(&row["opt2"], "alloc")),
            (replay.allocated_peak(), highest(row, "peak")),
            (replay.reserved_peak(), highest(row, "reserved_peak")),
        ];
        let e = pairs.map(|(predicted, truth)| 100.0 * (predicted as f64 / truth as f64 - 1.0));
        let at = replay.highest().peak.origin;
        println!("{:36} {:+8.3}% {:+8.3}% {:+8.3}% {:+8.3}%  {at}", name(case), e[0], e[1], e[2], e[3]);
        e
    };
    rows(path).iter().map(judge).collect()
}

fn mean_and_worst(errors: &[[f64; 4]], i: usize) -> (f64, f64) {
    let sizes = errors.iter().map(|e| e[i].abs());
    (sizes.clone().sum::<f64>() / errors.len() as f64, sizes.fold(0.0, f64::max))
}

#[test]
fn every_measured_rank_is_replayed_within_bounds() {
    for path in [TRUTH, SMALL_VOCAB] {
        let errors = errors(path);
        let [bwd, opt, allocated, reserved] = [0, 1, 2, 3].map(|i| mean_and_worst(&errors, i));
        println!("n={} allocated {allocated:.3?} reserved {reserved:.3?} (mean, worst, %)", errors.len());
        assert!(bwd.1 <= 1.0 && opt.1 <= 1.0, "{path}: {bwd:?} {opt:?}");
        assert!(allocated.0 <= 0.05 && allocated.1 <= 0.2, "{path}: allocated {allocated:?}");
        assert!(reserved.0 <= 1.0 && reserved.1 <= 3.0, "{path}: reserved {reserved:?}");
    }
}

#[test]
fn a_step_leaves_nothing_behind() {
    for row in rows(TRUTH) {
        let replay = replayed(&row["case"], explain);
        assert!(replay.retained.is_empty(), "{}: {:?}", name(&row["case"]), replay.retained);
        let peak = replay.allocated_peak();
        assert_eq!(replay.by_line().iter().sum::<u64>(), peak);
        assert_eq!(replay.holders.iter().map(|h| h.bytes).sum::<u64>(), peak);
    }
}
