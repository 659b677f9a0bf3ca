//! What other ways to train do to a step of the emitted FSDP2 program.

use case::options::{CrossEntropy, Elementwise, Gathered};
use case::ways::{AdapterLayers, BaseFormat, ElementStep, MomentumFormat};
use case::{Documents, Options};
use cost::{Prices, Step};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, StagePlan, ZeroStage, check};
use recipe::Recipe;

const DENSE: &str = "name = \"dense\"\npattern = \"(AF)\"\ndepth = 4\nhidden = 4096\nvocab = 128256\nsequence = 4096\n\n\
    [attention]\nheads = 32\nkv_heads = 8\nhead_dim = 128\n\n[mlp]\nffn = 14336\n";
const ADAPTERS: &str =
    "\n[adapters]\nrank = 16\ntargets = [\"attention.qkv\", \"attention.out\", \"mlp.fc1\", \"mlp.fc2\"]\n";

fn step(text: &str, on: &str, change: impl FnOnce(&mut Options)) -> Step {
    let recipe = Recipe::parse(text).unwrap();
    let cluster = Cluster::parse(on).unwrap();
    let request = LayoutRequest {
        world: Some(cluster.devices()),
        zero: Some(ZeroStage::Three),
        micro_batch: Some(1),
        microbatches: Some(1),
        engine: Some(Engine::Fsdp2),
        ..LayoutRequest::default()
    };
    let layout = check(&recipe, &request).layout.unwrap();
    let mut options = Options::of(Some(Engine::Fsdp2), &recipe);
    change(&mut options);
    let plan = StagePlan::new(&recipe, &layout, None).unwrap();
    Prices::new(&recipe, &layout, &cluster, &options).unwrap().step(&layout, &plan).unwrap()
}

#[test]
fn optimizers_take_what_they_move() {
    let by = |elements| step(DENSE, "1xH200", |o| o.ways.elements = elements).seconds;
    let [adamw, narrow, lion, lion8, adafactor, sgd] = [
        ElementStep::AdamW,
        ElementStep::AdamW8bit,
        ElementStep::Lion,
        ElementStep::Lion8bit,
        ElementStep::Adafactor,
        ElementStep::Sgd,
    ]
    .map(by);
    // A momentum is half of two moments; kernels over 8 bits are slower than what they save.
    assert!(lion < adamw && sgd < adamw, "{lion} {sgd} {adamw}");
    assert!(adamw < lion8 && lion8 < narrow, "{adamw} {lion8} {narrow}");
    assert!(adafactor > adamw, "{adafactor} {adamw}");
    // Kernels of fp8 have no moments in fp32 between them.
    let [wide, narrow, float] = [ElementStep::AoAdamW4bit, ElementStep::AoAdamW8bit, ElementStep::AoAdamWFp8].map(by);
    assert!(float < adamw && adamw < narrow && narrow < wide, "{float} {adamw} {narrow} {wide}");
    let average = step(DENSE, "1xH200", |o| o.ways.average = true).seconds;
    assert!(average > adamw, "{average} {adamw}");
    let muon = format!("{DENSE}\n[optimizer]\nmatrix = \"muon\"\n");
    let by = |format| step(&muon, "1xH200", |o| o.ways.momentum = format).seconds;
    assert!(by(MomentumFormat::Int8) > by(MomentumFormat::Fp32));
}

#[test]
fn a_quantised_base_is_dequantised_and_not_gathered() {
    let text = format!("{DENSE}{ADAPTERS}");
    let on = |cluster, base| step(&text, cluster, |o| o.ways.base = base).seconds;
    let one = |base| on("1xH200", base);
    // A base that is gathered is cast, copied out and read; one that is not is made anew for every product. On an H200 the second
    // took less (rows `nf4` and `lora` of data/truth/ways_h200.jsonl).
    assert!(one(BaseFormat::Nf4) < one(BaseFormat::Main));
    // Over two nodes a layer's weights take longer to gather than to compute with.
    let apart = |base| on("2x8xH200", base);
    assert!(apart(BaseFormat::Nf4) < apart(BaseFormat::Main));
}

/// A mixer that the program has no fused kernel for is priced as what it runs instead.
#[test]
fn scans_of_the_program_are_no_fused_kernels() {
    let hybrid = "name = \"m\"\npattern = \"MFRF\"\nhidden = 4096\nvocab = 16384\nsequence = 4096\npositions = \"none\"\n\n\
        [mamba]\nheads = 128\nhead_dim = 64\nstate = 128\ngroups = 8\n\n\
        [recurrent]\nheads = 44\nkey_dim = 64\nvalue_dim = 16\n\n[mlp]\nffn = 8192\nactivation = \"relu2\"\n";
    let by = |kernels| step(hybrid, "8xH200", |o| o.kernels.elementwise = kernels).seconds;
    assert!(by(Elementwise::Eager) > 1.15 * by(Elementwise::Fused));
}

/// `fully_shard` copies weights out of what was gathered; one flat buffer is gathered in place.
#[test]
fn copies_around_collectives_take_time() {
    let by = |gathered| step(DENSE, "8xH200", |o| o.kernels.gathered = gathered).seconds;
    let (copied, flat) = (by(Gathered::CopiedOut), by(Gathered::Flat));
    // 14 to 16 bytes of 1.9 billion parameters at three to four terabytes a second, and clipping.
    assert!((0.006..0.02).contains(&(copied - flat)), "{copied} {flat}");
}

#[test]
fn peft_moves_more_than_our_adapters() {
    let text = format!("{DENSE}{ADAPTERS}");
    let by = |layers| step(&text, "1xH200", |o| o.ways.adapters = layers).seconds;
    assert!(by(AdapterLayers::Peft) > by(AdapterLayers::Ours));
    assert!(by(AdapterLayers::Ours) > step(&text.replace("rank = 16", "rank = 8"), "1xH200", |_| {}).seconds * 0.99);
}

#[test]
fn chunks_of_a_large_vocabulary_cost_liger_time() {
    let by = |text: &str, loss| step(text, "1xH200", |o| o.kernels.cross_entropy = loss).seconds;
    // 32 chunks read and write a gradient of a gigabyte each.
    let slower = by(DENSE, CrossEntropy::Liger) - by(DENSE, CrossEntropy::Eager);
    assert!(slower > 0.01, "{slower}");
    let small = DENSE.replace("vocab = 128256", "vocab = 4096");
    assert!(by(&small, CrossEntropy::Liger) < by(&small, CrossEntropy::Eager));
}

/// Seconds of a step's line.
fn part(step: &Step, name: &str) -> f64 {
    step.parts.iter().filter(|line| line.name == name).map(|line| line.seconds).sum()
}

/// Seconds of attention's core in a step.
fn attention(text: &str, documents: Option<&str>) -> f64 {
    let documents = documents.map(|lengths| Documents::parse(lengths).unwrap());
    part(&step(text, "1xH200", |o| o.documents = documents), "attention")
}

#[test]
fn attention_goes_by_the_squares_of_documents() {
    let long = DENSE.replace("sequence = 4096", "sequence = 32768");
    let [whole, one, halves, eighths] =
        [None, Some("32768"), Some("16384"), Some("4096")].map(|lengths| attention(&long, lengths));
    assert_eq!(whole, one);
    // Half the scores of a half, an eighth of an eighth; kernels over shorter rows are slower.
    assert!((0.5..0.56).contains(&(halves / whole)), "{halves} {whole}");
    assert!((0.125..0.17).contains(&(eighths / whole)), "{eighths} {whole}");
    // A long document among short ones: a half that is one, and a half of eighths.
    let mixed = attention(&long, Some("16384,4096,4096,4096,4096"));
    assert!((mixed / (0.5 * halves + 0.5 * eighths) - 1.0).abs() < 0.05, "{mixed}");
    let flops = |documents| step(&long, "1xH200", |o| o.documents = documents).model_flops;
    assert!(flops(Documents::parse("4096").ok()) < flops(None));
}

#[test]
fn cce_multiplies_once_more_and_moves_no_logits() {
    let by = |text: &str, loss| step(text, "1xH200", |o| o.kernels.cross_entropy = loss);
    let (eager, cce) = (by(DENSE, CrossEntropy::Eager), by(DENSE, CrossEntropy::Cce));
    let products = part(&cce, "matrix products") - part(&eager, "matrix products");
    // 4096 tokens by 128256 words by 4096 once more: 4.3 T operations at some 700 T a second.
    assert!((0.004..0.010).contains(&products), "{products}");
    assert!(part(&cce, "bandwidth") < part(&eager, "bandwidth"));
}

#[test]
fn pages_travel_and_preconditioners_multiply() {
    let by = |elements| step(DENSE, "1xH200", |o| o.ways.elements = elements).seconds;
    let elements = Recipe::parse(DENSE).unwrap().counts().all.total as f64;
    // Two bytes there and back at 0.86 of 64 GB/s.
    let travel = by(ElementStep::PagedAdamW8bit) - by(ElementStep::AdamW8bit);
    let expected = elements * 4.0 / (0.86 * 64e9);
    assert!((travel / expected - 1.0).abs() < 0.15, "{travel} {expected}");
    assert!(by(ElementStep::PagedAdamW) > by(ElementStep::AdamW));
    assert!(by(ElementStep::Soap) > 1.2 * by(ElementStep::AdamW));
    assert!(by(ElementStep::Shampoo) > 1.2 * by(ElementStep::AdamW));
}

#[test]
fn a_teacher_answers_before_every_microbatch() {
    let student = DENSE.replace("depth = 4", "depth = 2");
    let taught = |teacher| step(&student, "8xH200", |o| o.ways.teacher = teacher);
    let (alone, small, large) = (taught(None), taught(Some("llama3-8b")), taught(Some("llama3-70b")));
    // A forward of 8 billion weights over 4096 tokens: 66 T operations at 600 to 800 T a second.
    let more = small.seconds - alone.seconds;
    assert!((0.07..0.20).contains(&more), "{more}");
    assert!(large.seconds - alone.seconds > 5.0 * more, "{} {more}", large.seconds);
    assert_eq!(small.model_flops, alone.model_flops);
}
