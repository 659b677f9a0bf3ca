//! Replays against what `launch --engine megatron` wrote, as Megatron's own trainer ran it on an
//! H200 (`data/truth/emitted_h200.jsonl`): memory after set-up, and peaks step by step.

use layout::{Layout, LayoutRequest, StagePlan, ZeroStage, check};
use ledger::megatron::{Job, MegatronOptions, Microbatches, Segments, StateFormats, explain, replay};
use recipe::mode::Mode;
use recipe::precision::OptimizerPolicy;
use recipe::{Dtype, Recipe};
use replay::{PhaseKind, Replay};
use serde_json::Value;

const ROWS: usize = 14;

/// A row, and what was launched as we read its flags.
struct Emitted {
    name: String,
    recipe: Recipe,
    layout: Layout,
    options: MegatronOptions,
    rank: u64,
    row: Value,
}

fn rows() -> Vec<Emitted> {
    let read = |file: &str| {
        let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let text = read("emitted_h200.jsonl") + &read("emitted_options_h200.jsonl");
    let rows: Vec<_> = text.lines().map(|line| Emitted::read(serde_json::from_str(line).unwrap())).collect();
    assert_eq!(rows.len(), ROWS);
    rows
}

impl Emitted {
    fn read(row: Value) -> Emitted {
        let flags = row["flags"].as_str().unwrap();
        let mut words = flags.split_whitespace();
        let mut recipe = recipe::builtin::find(words.next().unwrap()).unwrap();
        let mut request = LayoutRequest { world: row["world"].as_u64(), ..LayoutRequest::default() };
        while let Some(flag) = words.next() {
            let value = words.next().unwrap();
            let number = value.parse::<u64>().ok();
            match flag {
                "--tp" => request.tp = number,
                "--pp" => request.pp = number,
                "--vpp" => request.vpp = number,
                "--ep" => request.ep = number,
                "--etp" => request.etp = number,
                "--cp" => request.cp = number,
                "--dp" => request.dp = number,
                "--zero" => request.zero = number.map(|n| if n == 0 { ZeroStage::Zero } else { ZeroStage::One }),
                "--mbs" => request.micro_batch = number,
                "--microbatches" => request.microbatches = number,
                "--seq" => request.sequence = number,
                "--recompute" => request.recompute = Some(layout::Recompute::parse(value).unwrap()),
                "--mode" => request.mode = Mode::ALL.iter().find(|mode| mode.0 == value).map(|mode| mode.1),
                "--optimizer" => recipe.optimizer = OptimizerPolicy::default(),
                "--engine" | "--on" => {}
                _ => panic!("{flag}"),
            }
        }
        request.engine = Some(layout::Engine::Megatron);
        let checked = check(&recipe, &request);
        let layout = checked.layout.clone().unwrap_or_else(|| panic!("{flags}: {:?}", checked.findings));
        let mut options =
            MegatronOptions { microbatches: Microbatches::All, ..MegatronOptions::launched(&checked.recipe) };
        let mut added = row["added"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
        while let Some(word) = added.next() {
            match word {
                "--no-gradient-accumulation-fusion" => options.gradient_accumulation_fusion = false,
                "--moe-permute-fusion" => options.permute_fusion = true,
                "--use-precision-aware-optimizer" => options.precision_aware = Some(StateFormats::FP32),
                "--exp-avg-dtype" => formats(&mut options).exp_avg = dtype(added.next().unwrap()),
                "--exp-avg-sq-dtype" => formats(&mut options).exp_avg_sq = dtype(added.next().unwrap()),
                "--moe-router-force-load-balancing" => {}
                _ => panic!("{word}"),
            }
        }
        if row["env"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True" {
            options.segments = Segments::Expandable;
        }
        let (name, rank) = (row["name"].as_str().unwrap().to_string(), row["rank"].as_u64().unwrap());
        Emitted { name, recipe: checked.recipe, layout, options, rank, row }
    }

    fn run(&self, run: fn(&Job) -> Result<Replay, replay::Unmodelled>) -> Replay {
        let stages = StagePlan::new(&self.recipe, &self.layout, None).unwrap();
        let Emitted { recipe, layout, options, rank, .. } = self;
        let job = Job { recipe, layout, stages: &stages, rank: *rank, options };
        run(&job).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

fn formats(options: &mut MegatronOptions) -> &mut StateFormats {
    options.precision_aware.get_or_insert(StateFormats::FP32)
}

fn dtype(word: &str) -> Dtype {
    match word {
        "bf16" => Dtype::Bf16,
        _ => panic!("{word}"),
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[test]
fn every_emitted_launch_is_replayed_within_bounds() {
    for emitted in rows() {
        if std::env::var("ONLY").is_ok_and(|only| only != emitted.name) {
            continue;
        }
        let replay = emitted.run(if std::env::var("HOLDERS").is_ok() { explain } else { replay });
        let row = &emitted.row;
        println!("== {}", emitted.name);
        let show = |what: &str, ours: u64, theirs: &Value| {
            let theirs = theirs.as_u64().unwrap();
            let off = 100.0 * (ours as f64 / theirs as f64 - 1.0);
            let bytes = ours as i64 - theirs as i64;
            println!("  {what:20} {:8.3} {:8.3} GiB {off:+7.3}% {bytes:+14}", gib(ours), gib(theirs));
        };
        let setup = replay.phase(PhaseKind::Optimizer).unwrap();
        if row["setup"].is_object() {
            assert_eq!(Some(replay.params), row["params"].as_u64(), "{}", emitted.name);
            let peak = |kinds: &[PhaseKind]| kinds.iter().map(|k| replay.phase(*k).unwrap().peak.allocated).max();
            show("setup alloc", setup.allocated, &row["setup"]["alloc"]);
            let setup_peak = peak(&[PhaseKind::Model, PhaseKind::Buffers, PhaseKind::Optimizer]).unwrap();
            show("setup peak", setup_peak, &row["setup"]["peak"]);
            show("setup reserved", setup.reserved_peak, &row["setup"]["reserved_peak"]);
        }
        for step in 0..emitted.options.steps {
            let (passes, update) = (PhaseKind::Passes(step), PhaseKind::Update(step));
            let (passes, update) = (replay.phase(passes).unwrap(), replay.phase(update).unwrap());
            let theirs = &row["steps"][step as usize];
            let peak = passes.peak.allocated.max(update.peak.allocated);
            let reserved = passes.reserved_peak.max(update.reserved_peak);
            if theirs.is_object() {
                show(&format!("step {step} alloc"), update.allocated, &theirs["alloc"]);
                show(&format!("step {step} peak"), peak, &theirs["peak"]);
                println!("      (passes {:.3} update {:.3})", gib(passes.peak.allocated), gib(update.peak.allocated));
                show(&format!("step {step} reserved"), reserved, &theirs["reserved_peak"]);
            } else {
                println!("  step {step} {:.3} {:.3} {}", gib(peak), gib(reserved), row["out_of_memory"]);
            }
        }
        if std::env::var("HOLDERS").is_ok() {
            println!("  peak at {} {}", replay.highest().kind, replay.highest().peak.origin);
            let mut sums = std::collections::BTreeMap::new();
            for holder in &replay.holders {
                let sum: &mut (u64, u64) = sums.entry(holder.name).or_default();
                *sum = (sum.0 + holder.bytes, sum.1 + holder.count);
            }
            let mut sums: Vec<_> = sums.into_iter().collect();
            sums.sort_by_key(|s| std::cmp::Reverse(s.1.0));
            for (name, (bytes, count)) in sums.into_iter().take(40) {
                println!("    {name:34} {bytes:>14} {count:>6}");
            }
        }
    }
}
