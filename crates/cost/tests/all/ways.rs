//! What other ways to train do to a step of the emitted FSDP2 program.

use case::Options;
use case::options::CrossEntropy;
use case::ways::{AdapterLayers, BaseFormat, ElementStep, MomentumFormat};
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
    assert!(one(BaseFormat::Nf4) > one(BaseFormat::Main));
    // Over two nodes a layer's weights take longer to gather than to compute with.
    let apart = |base| on("2x8xH200", base) - one(base);
    assert!(apart(BaseFormat::Nf4) < apart(BaseFormat::Main));
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
