//! Ways to train in the ledger of the emitted FSDP2 program, against ranks measured on an H200 with the libraries
//! themselves (`data/truth/ways_h200.jsonl`, taken with `tools/measure_launch.py`).

use case::options::CrossEntropy;
use case::ways::{AdapterLayers, BaseFormat, ElementStep, MomentumFormat};
use case::{Documents, Options};
use layout::{Engine, Layout, LayoutRequest, Recompute, StagePlan, ZeroStage, check};
use ledger::{Ledger, RankJob};
use recipe::{Dtype, Recipe};
use replay::line::Line;
use replay::{PhaseKind, Replay};
use serde_json::Value;

fn layout_of(recipe: &Recipe, world: u64, change: impl FnOnce(&mut LayoutRequest)) -> Layout {
    let mut request = LayoutRequest {
        world: Some(world),
        zero: Some(ZeroStage::Three),
        micro_batch: Some(1),
        microbatches: Some(1),
        engine: Some(Engine::Fsdp2),
        ..LayoutRequest::default()
    };
    change(&mut request);
    check(recipe, &request).layout.unwrap()
}

fn replay_of(recipe: &Recipe, layout: &Layout, options: &Options) -> Result<Replay, replay::Unmodelled> {
    let stages = StagePlan::new(recipe, layout, None).unwrap();
    Ledger::of(recipe, layout, options)?.replay(&RankJob { recipe, layout, stages: &stages, rank: 0 })
}

/// The options a measured row ran with.
fn options_of(row: &Value, recipe: &Recipe) -> Options {
    let mut options = Options::of(Some(Engine::Fsdp2), recipe);
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(word) => Some(format!("{name}={word}")),
        Value::Number(_) => Some(format!("{name}=true")),
        _ => None,
    };
    let mut words: Vec<String> = row["ways"].as_object().unwrap().iter().filter_map(word).collect();
    words.push(format!("main={}", row["precision"]["main"].as_str().unwrap()));
    case::words::read(Some(Engine::Fsdp2), &words, &mut options).unwrap();
    options
}

/// Errors in percent of a measured row: allocated after backward, after the step, and at the peak.
fn errors(row: &Value) -> [f64; 3] {
    let said = &row["layout"];
    let recipe = Recipe::parse(row["recipe"].as_str().unwrap()).unwrap();
    let layout = layout_of(&recipe, said["world"].as_u64().unwrap(), |request| {
        request.micro_batch = said["mbs"].as_u64();
        request.microbatches = said["microbatches"].as_u64();
        request.recompute = Some(Recompute::parse(said["recompute"].as_str().unwrap()).unwrap());
    });
    let replay = replay_of(&recipe, &layout, &options_of(row, &recipe)).unwrap();
    let end = |phase| replay.phase(phase).unwrap().allocated;
    let measured = |phase: &str, key: &str| row[phase][key].as_u64().unwrap();
    let peak = ["fwdbwd2", "opt2"].map(|phase| measured(phase, "peak")).into_iter().max().unwrap();
    let pairs = [
        (end(PhaseKind::Passes(2)), measured("fwdbwd2", "alloc")),
        (end(PhaseKind::Update(2)), measured("opt2", "alloc")),
        (replay.allocated_peak(), peak),
    ];
    let e = pairs.map(|(predicted, truth)| 100.0 * (predicted as f64 / truth as f64 - 1.0));
    let [backward, update, peak] = e;
    let name = row["name"].as_str().unwrap();
    println!("{name:18} after backward {backward:7.3}% after the step {update:7.3}% peak {peak:7.3}%");
    e
}

#[test]
fn measured_ranks_hold_what_is_predicted() {
    let rows = include_str!("../../../../data/truth/ways_h200.jsonl").lines();
    let rows: Vec<Value> = rows.map(|line| serde_json::from_str(line).unwrap()).collect();
    let worst: Vec<f64> = rows.iter().flat_map(errors).map(f64::abs).collect();
    assert!(rows.len() >= 17, "{}", rows.len());
    assert!(worst.iter().all(|error| *error < 2.0), "{worst:?}");
}

const DENSE: &str = "name = \"dense\"\npattern = \"(AF)\"\ndepth = 4\nhidden = 2048\nvocab = 32000\nsequence = 2048\n\n\
    [attention]\nheads = 16\nkv_heads = 8\nhead_dim = 128\n\n[mlp]\nffn = 8192\n";
const ADAPTERS: &str = "\n[adapters]\nrank = 16\ntargets = [\"attention.qkv\", \"attention.out\"]\n";

fn replayed(text: &str, world: u64, change: impl FnOnce(&mut Options)) -> Result<Replay, replay::Unmodelled> {
    let recipe = Recipe::parse(text).unwrap();
    let mut options = Options::of(Some(Engine::Fsdp2), &recipe);
    change(&mut options);
    replay_of(&recipe, &layout_of(&recipe, world, |_| {}), &options)
}

/// What is held behind the third step, beyond two cuBLAS workspaces, rounded up to 512 bytes a tensor.
fn stepped(text: &str, world: u64, change: impl FnOnce(&mut Options)) -> u64 {
    replayed(text, world, change).unwrap().phase(PhaseKind::Update(2)).unwrap().allocated - (64 << 20)
}

/// Elements of matrices, and of norms, which stay below 4096 each.
fn elements() -> (u64, u64) {
    let all = Recipe::parse(DENSE).unwrap().counts().all.total;
    let norms = (2 * 4 + 1) * 2048;
    (all - norms, norms)
}

fn is_near(bytes: u64, expected: u64) {
    // Blocks of the allocator that are not split at the end.
    let most = expected + expected / 200 + (4 << 20);
    assert!((expected..most).contains(&bytes), "{bytes} is not {expected}");
}

#[test]
fn state_of_every_optimizer_is_what_its_library_keeps() {
    let (matrices, norms) = elements();
    let scales = |elements: u64| elements / 256 * 4;
    let steps = |step| stepped(DENSE, 1, |o| o.ways.elements = step);
    is_near(steps(ElementStep::AdamW), 12 * (matrices + norms));
    // Norms have fewer than 4096 elements, and two moments in fp32.
    is_near(steps(ElementStep::AdamW8bit), 6 * matrices + 2 * scales(matrices) + 12 * norms);
    is_near(steps(ElementStep::Lion), 8 * (matrices + norms));
    is_near(steps(ElementStep::Lion8bit), 5 * matrices + scales(matrices) + 8 * norms);
    is_near(steps(ElementStep::Sgd), 8 * (matrices + norms));
    let adafactor = steps(ElementStep::Adafactor);
    assert!(adafactor < 4 * (matrices + norms) + (2 << 20), "{adafactor}");
    // Over replicas, blocks are of a shard.
    let shared = stepped(DENSE, 8, |o| o.ways.elements = ElementStep::AdamW8bit);
    is_near(shared, (6 * matrices + 2 * scales(matrices) + 12 * norms) / 8);
}

#[test]
fn torchao_keeps_codes_and_steps_a_whole_parameter_in_buffers() {
    let (matrices, norms) = elements();
    let steps = |step| stepped(DENSE, 1, |o| o.ways.elements = step);
    is_near(steps(ElementStep::AoAdamW8bit), 6 * matrices + 2 * (matrices / 256 * 4) + 12 * norms);
    is_near(steps(ElementStep::AoAdamW4bit), 5 * matrices + 2 * (matrices / 128 * 4) + 12 * norms);
    is_near(steps(ElementStep::AoAdamWFp8), 6 * matrices + 2 * (matrices / 256 * 4) + 12 * norms);
    // A table of words is the largest parameter: two of it in fp32, under 4 bits with their codes in int64, or codes of
    // both under fp8.
    let table = 32000 * 2048;
    let beyond = |step| {
        let replay = replayed(DENSE, 1, |o| o.ways.elements = step).unwrap();
        replay.phase(PhaseKind::Update(2)).unwrap().peak.allocated
            - replay.phase(PhaseKind::Passes(2)).unwrap().allocated
    };
    is_near(beyond(ElementStep::AoAdamW8bit), 8 * table + 2 * (table / 256 * 4));
    is_near(beyond(ElementStep::AoAdamW4bit), 24 * table + 2 * (table / 128 * 4));
    is_near(beyond(ElementStep::AoAdamWFp8), 2 * table + 2 * (table / 256 * 4));
    // Blocks are of a shard, and moments of weights without an fp32 copy are as narrow as these.
    let shared = stepped(DENSE, 8, |o| o.ways.elements = ElementStep::AoAdamW8bit);
    is_near(shared, (6 * matrices + 2 * (matrices / 256 * 4) + 12 * norms) / 8);
    let narrow = stepped(DENSE, 1, |o| {
        o.ways.elements = ElementStep::AoAdamW8bit;
        (o.state.main, o.state.exp_avg, o.state.exp_avg_sq) = (Dtype::Bf16, Dtype::Bf16, Dtype::Bf16);
    });
    is_near(narrow, 4 * matrices + 2 * (matrices / 256 * 4) + 6 * norms);
}

#[test]
fn an_average_is_one_more_copy_in_fp32() {
    let (matrices, norms) = elements();
    let [without, with] = [false, true].map(|average| stepped(DENSE, 1, |o| o.ways.average = average));
    is_near(with, without + 4 * (matrices + norms));
    // Of adapters alone, where all else is frozen.
    let text = format!("{DENSE}{ADAPTERS}");
    let trained = Recipe::parse(&text).unwrap().counts().trained;
    let [without, with] = [false, true].map(|average| stepped(&text, 1, |o| o.ways.average = average));
    is_near(with, without + 4 * trained);
}

#[test]
fn weights_in_bf16_have_moments_of_their_format() {
    let (matrices, norms) = elements();
    let narrow = stepped(DENSE, 1, |o| {
        (o.state.main, o.state.exp_avg, o.state.exp_avg_sq) = (Dtype::Bf16, Dtype::Bf16, Dtype::Bf16);
    });
    is_near(narrow, 6 * (matrices + norms));
}

#[test]
fn weights_in_fp16_weigh_as_in_bf16() {
    let half = format!("{DENSE}\n[precision]\nweights = \"fp16\"\n");
    assert_eq!(stepped(&half, 1, |_| {}), stepped(DENSE, 1, |_| {}));
}

#[test]
fn a_base_in_nf4_is_bytes_and_scales() {
    let text = format!("{DENSE}{ADAPTERS}");
    let recipe = Recipe::parse(&text).unwrap();
    let edges = 2 * 32000 * 2048 + 9 * 2048;
    let adapters = recipe.counts().trained;
    let base = recipe.counts().all.total - adapters - edges;
    let held = |format| stepped(&text, 1, |o| o.ways.base = format);
    is_near(held(BaseFormat::Main), 4 * (edges + base) + 12 * adapters);
    is_near(held(BaseFormat::Nf4), 4 * edges + base / 2 + base / 64 * 4 + 12 * adapters);
    is_near(held(BaseFormat::Nf4Double), 4 * edges + base / 2 + base / 64 + base / 64 / 256 * 4 + 12 * adapters);
    // It is whole on every replica, whatever the others are.
    let shared = stepped(&text, 8, |o| o.ways.base = BaseFormat::Nf4);
    is_near(shared, edges / 2 + base / 2 + base / 64 * 4 + 12 * adapters);
}

#[test]
fn liger_never_holds_all_logits() {
    let long = DENSE.replace("sequence = 2048", "sequence = 8192");
    let highest = |loss| {
        let replay = replayed(&long, 1, |o| o.kernels.cross_entropy = loss).unwrap();
        // Of a step's passes, around the loss.
        replay.phase(PhaseKind::Passes(2)).unwrap().by_part[1]
    };
    let (eager, fused) = (highest(CrossEntropy::Eager), highest(CrossEntropy::Liger));
    // Logits in bf16 and in fp32, against those of 512 tokens and both gradients.
    let logits = 8192 * 32000 * 6;
    assert!(eager > fused + logits * 3 / 4, "{eager} is not {logits} above {fused}");
}

#[test]
fn an_int8_momentum_is_a_quarter_and_its_scales() {
    let text = format!("{DENSE}\n[optimizer]\nmatrix = \"muon\"\n");
    let state = |format| {
        let replay = replayed(&text, 1, |o| o.ways.momentum = format).unwrap();
        replay.phase(PhaseKind::Update(2)).unwrap().allocated
    };
    let (matrices, _) = elements();
    let layers = matrices - 2 * 32000 * 2048;
    is_near(state(MomentumFormat::Fp32) - state(MomentumFormat::Int8) + (1 << 19), layers * 3 - layers / 256 * 4);
}

#[test]
fn peft_keeps_its_inputs_in_fp32() {
    let text = format!("{DENSE}{ADAPTERS}");
    let saved = |layers| replayed(&text, 1, |o| o.ways.adapters = layers).unwrap().line(Line::Activations);
    let (ours, peft) = (saved(AdapterLayers::Ours), saved(AdapterLayers::Peft));
    // Inputs of both projections of four layers, in fp32; ours keeps one of them in bf16 anyhow.
    let inputs = 4 * 2 * 2048 * 2048 * 4;
    assert!(peft > ours + inputs / 2, "{peft} is not {inputs} above {ours}");
}

#[test]
fn what_is_not_replayed_is_refused_by_name() {
    let refused = |text: &str, change: fn(&mut Options)| replayed(text, 1, change).unwrap_err().what;
    let short = format!("{DENSE}{ADAPTERS}").replace("sequence = 2048", "sequence = 1024");
    assert!(refused(&short, |o| o.ways.base = BaseFormat::Nf4).contains("1536 tokens"));
    let half = format!("{DENSE}{ADAPTERS}\n[precision]\nweights = \"fp16\"\n");
    assert!(refused(&half, |o| o.ways.base = BaseFormat::Nf4Double).contains("fp16"));
    let tied = DENSE.replace("sequence", "tied = true\nsequence");
    assert!(refused(&tied, |o| o.kernels.cross_entropy = CrossEntropy::Liger).contains("tied head"));
    let narrow: fn(&mut Options) = |o| {
        (o.state.main, o.state.exp_avg, o.state.exp_avg_sq) = (Dtype::Bf16, Dtype::Bf16, Dtype::Bf16);
        o.ways.elements = ElementStep::AdamW8bit;
    };
    assert!(refused(DENSE, narrow).contains("bf16 weights"));
    let experts = "name = \"experts\"\npattern = \"(AE)\"\ndepth = 2\nhidden = 1024\nvocab = 32000\nsequence = 2048\n\n\
        [attention]\nheads = 8\nkv_heads = 8\nhead_dim = 128\n\n[moe]\nexperts = 8\ntop_k = 2\nffn = 512\n";
    assert!(refused(experts, |o| o.ways.elements = ElementStep::Adafactor).contains("Adafactor"));
    assert!(refused(experts, |o| o.ways.elements = ElementStep::Soap).contains("SOAP"));
    assert!(refused(experts, |o| o.ways.elements = ElementStep::Shampoo).contains("Shampoo"));
}

#[test]
fn a_million_tokens_are_priced() {
    let long = DENSE.replace("sequence = 2048", "sequence = 1048576");
    let peak = |loss| replayed(&long, 1, |o| o.kernels.cross_entropy = loss).unwrap().allocated_peak();
    let (eager, fused) = (peak(CrossEntropy::Eager), peak(CrossEntropy::Liger));
    let (tokens, logits) = (1 << 20, (1 << 20) * 32000 * 6);
    // Four layers, each with 23 times the hidden states: two norms' inputs and outputs, queries, keys, values and what
    // attention gives (7), and of the feed-forward block gate and up, the gate's function and the product (16).
    let hidden = tokens * 2048 * 2;
    assert!((logits + 4 * 23 * hidden..logits + 4 * 26 * hidden).contains(&eager), "{eager}");
    assert!(eager > fused + logits * 3 / 4, "{eager} {fused}");
}

/// Bytes of the highest point of the third step's passes.
fn highest(text: &str, world: u64, change: impl FnOnce(&mut Options)) -> u64 {
    replayed(text, world, change).unwrap().phase(PhaseKind::Passes(2)).unwrap().peak.allocated
}

/// A model whose attention's backward is the highest point: one layer, hardly any words and a narrow feed-forward block.
fn attentive(sequence: u64) -> String {
    let narrow = DENSE.replace("vocab = 32000", "vocab = 256").replace("ffn = 8192", "ffn = 256");
    narrow.replace("depth = 4", "depth = 1").replace("sequence = 2048", &format!("sequence = {sequence}"))
}

#[test]
fn documents_cost_the_kernel_a_block_of_rows_each() {
    let packed = |lengths: Option<&str>| {
        let documents = lengths.map(|lengths| Documents::parse(lengths).unwrap());
        highest(&attentive(8192), 1, |o| o.documents = documents)
    };
    let plain = packed(None);
    // Sums and the accumulator of query gradients: 16 heads, 129 columns in fp32, 128 rows for each of so many.
    let rows = |documents: u64| documents * 128 * 16 * 129 * 4;
    for (lengths, documents) in [("8192", 1), ("512", 16), ("64", 128)] {
        let more = packed(Some(lengths)) - plain;
        assert!(more.abs_diff(rows(documents)) < 2 << 20, "{lengths}: {more} is not {}", rows(documents));
    }
    // What is kept otherwise is the same: masks are borders of a few bytes.
    let held = |documents| stepped(DENSE, 8, |o| o.documents = documents);
    assert!(held(Documents::parse("64").ok()) - held(None) < 4096);
}

#[test]
fn megatron_plans_its_kernel_over_documents_for_round_numbers_of_tokens() {
    let replayed = |text: &str, documents: Option<&str>| {
        let recipe = Recipe::parse(text).unwrap();
        let request = LayoutRequest {
            world: Some(1),
            micro_batch: Some(1),
            microbatches: Some(1),
            engine: Some(Engine::Megatron),
            ..LayoutRequest::default()
        };
        let layout = check(&recipe, &request).layout.unwrap();
        let mut options = Options::of(Some(Engine::Megatron), &recipe);
        options.documents = documents.map(|lengths| Documents::parse(lengths).unwrap());
        replay_of(&recipe, &layout, &options)
    };
    let highest = |sequence, documents| {
        let replay = replayed(&attentive(sequence), documents).unwrap();
        replay.phase(PhaseKind::Passes(2)).unwrap().peak.allocated
    };
    // 9,000 tokens are planned for as 16,384: accumulator, sums, and gradients of keys and values by query head.
    // The rotary table is as long as the longest document.
    let table = |sequence: u64| (sequence - 500) * 128 * 4;
    let more = highest(9000, Some("500")) + table(9000) - highest(9000, None);
    let planned = (16384 - 9000) * 16 * (129 * 4 + 2 * 128 * 2);
    assert!(more.abs_diff(planned) < 4 << 20, "{more} is not {planned}");
    let same = highest(16384, Some("500")) + table(16384);
    assert!(same.abs_diff(highest(16384, None)) < 4 << 20, "{same}");
    let mamba = "\n[mamba]\nkind = \"mamba2\"\nheads = 64\nhead_dim = 64\nstate = 128\ngroups = 8\nconv = 4\n";
    let scans = DENSE.replace("(AF)", "(MF)") + mamba;
    assert_eq!(replayed(&scans, Some("512")).unwrap_err().what, "documents under scans");
}

#[test]
fn cce_keeps_no_logits_and_makes_gradients_in_backward() {
    let long = DENSE.replace("sequence = 2048", "sequence = 8192");
    let around = |loss| {
        let replay = replayed(&long, 1, |o| o.kernels.cross_entropy = loss).unwrap();
        // Of a step's passes, around the loss.
        replay.phase(PhaseKind::Passes(2)).unwrap().by_part[1]
    };
    let [eager, liger, cce] = [CrossEntropy::Eager, CrossEntropy::Liger, CrossEntropy::Cce].map(around);
    let logits = 8192 * 32000 * 6;
    assert!(eager > cce + logits * 3 / 4, "{eager} is not {logits} above {cce}");
    // Both have both gradients at their highest, Liger logits of 512 tokens beside them.
    let chunk = 512 * 32000 * 2;
    assert!(liger > cce + chunk / 2, "{liger} is not {chunk} above {cce}");
    let tied = DENSE.replace("sequence", "tied = true\nsequence");
    let refused = replayed(&tied, 1, |o| o.kernels.cross_entropy = CrossEntropy::Cce).unwrap_err().what;
    assert!(refused.contains("tied head"), "{refused}");
}

#[test]
fn paged_state_is_the_hosts_and_its_scales_are_not() {
    let (matrices, norms) = elements();
    let steps = |step| stepped(DENSE, 1, |o| o.ways.elements = step);
    is_near(steps(ElementStep::PagedAdamW), 4 * matrices + 12 * norms);
    is_near(steps(ElementStep::PagedAdamW8bit), 4 * matrices + 2 * (matrices / 256 * 4) + 12 * norms);
    // Shards of fewer than 100,000 elements are not paged: those of a small model over many ranks.
    let small = DENSE
        .replace("2048", "256")
        .replace("32000", "4096")
        .replace("8192", "512")
        .replace("heads = 16", "heads = 2")
        .replace("kv_heads = 8", "kv_heads = 2");
    let held = |step| stepped(&small, 64, |o| o.ways.elements = step);
    assert_eq!(held(ElementStep::PagedAdamW8bit), held(ElementStep::AdamW8bit));
}

#[test]
fn soap_keeps_a_preconditioner_and_a_basis_of_every_side() {
    let (matrices, norms) = elements();
    let sides = |rows: u64, columns: u64| [rows, columns].iter().filter(|s| **s <= 10_000).map(|s| s * s).sum::<u64>();
    // Queries, keys and values in one, their output, gate and up in one (too many rows), down, and two tables.
    let layer = sides(4096, 2048) + sides(2048, 2048) + sides(16384, 2048) + sides(2048, 8192);
    let squares = 4 * layer + 2 * sides(32000, 2048);
    is_near(stepped(DENSE, 1, |o| o.ways.elements = ElementStep::Soap), 12 * (matrices + norms) + 8 * squares);
    // What a step needs besides is above what AdamW's does: four results of a matrix, and those of a refresh.
    let update = |step| {
        replayed(DENSE, 1, |o| o.ways.elements = step).unwrap().phase(PhaseKind::Update(2)).unwrap().peak.allocated
    };
    let table = 32000 * 2048 * 4;
    let more = update(ElementStep::Soap) - update(ElementStep::AdamW) - 8 * squares;
    assert!((3 * table..9 * table).contains(&more), "{more} of {table}");
}

#[test]
fn shampoo_keeps_squares_of_blocks_and_what_it_is_grafted_on() {
    let (matrices, norms) = elements();
    // In blocks of 512, squares are twice their matrix; gate and up in one have too many rows, and tables too many words.
    let turned = 4 * (4096 * 2048 + 2048 * 2048 + 2048 * 8192);
    let kept = 4 * (1 + 3) * (matrices + norms) + 2 * 4 * 2 * turned;
    is_near(stepped(DENSE, 1, |o| o.ways.elements = ElementStep::Shampoo), kept);
    // A step holds three results of a table beyond what AdamW's does, and two on the way to them.
    let update = |step| {
        replayed(DENSE, 1, |o| o.ways.elements = step).unwrap().phase(PhaseKind::Update(2)).unwrap().peak.allocated
    };
    let table = 32000 * 2048 * 4;
    let more = update(ElementStep::Shampoo) - update(ElementStep::AdamW) - table - 2 * 4 * 2 * turned;
    assert!((2 * table..9 * table).contains(&more), "{more} of {table}");
}

#[test]
fn a_teacher_is_weights_and_logits() {
    let student = DENSE.replace("vocab = 32000", "vocab = 128256");
    let teach = |o: &mut Options| o.ways.teacher = Some("llama3-8b");
    let teacher = recipe::builtin::find("llama3-8b").unwrap().counts().all.total;
    // Alone in bf16, over eight ranks an eighth of it; neither gradients nor state.
    for world in [1, 8] {
        let more = stepped(&student, world, teach) - stepped(&student, world, |_| {});
        is_near(more, 2 * teacher / world);
    }
    // At the loss: its logits in bf16, and beyond the model's own buffer in fp32 two of the wanted distribution.
    let logits = 2048 * 128_256;
    let more = highest(&student, 8, teach) - highest(&student, 8, |_| {}) - 2 * teacher / 8;
    assert!((2 * logits..11 * logits).contains(&more), "{more} of {logits}");
}
