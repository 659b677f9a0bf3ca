//! A8: what a line says it scales with changes it, and what it says it ignores does not: weights by no
//! byte, optimizer state by less than the slack of a block.

use case::{Case, Terms};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, Recompute, ZeroStage};
use memory::fit::{Entry, Fit, HEADROOM, Knob, RankClass};
use recipe::Recipe;
use recipe::precision::OptimizerPolicy;
use replay::Line;

const DENSE: &str = "name = \"dense\"\npattern = \"(AF)\"\ndepth = 4\nhidden = 512\nvocab = 4096\nsequence = 512\n\
    [attention]\nheads = 8\nkv_heads = 8\nhead_dim = 64\n[mlp]\nffn = 1024\n";
const EXPERTS: &str = "name = \"experts\"\npattern = \"(AE)\"\ndepth = 4\nhidden = 512\nvocab = 4096\nsequence = 512\n\
    [attention]\nheads = 8\nkv_heads = 8\nhead_dim = 64\n[moe]\nexperts = 8\ntop_k = 2\nffn = 512\n";

/// A job of the grid: degrees, and everything else that a knob turns.
#[derive(Clone, Debug)]
struct Job {
    recipe: &'static str,
    engine: Engine,
    zero: ZeroStage,
    is_muon: bool,
    tp: u64,
    cp: u64,
    pp: u64,
    ep: u64,
    etp: u64,
    dp: u64,
    sp: bool,
    micro_batch: u64,
    sequence: u64,
    recompute: Recompute,
}

impl Job {
    fn new(recipe: &'static str, engine: Engine, zero: ZeroStage) -> Job {
        let ep = if recipe == EXPERTS { 2 } else { 1 };
        let (tp, sp) = if engine == Engine::Deepspeed { (1, false) } else { (2, true) };
        Job {
            recipe,
            engine,
            zero,
            is_muon: false,
            tp,
            cp: 1,
            pp: 1,
            ep,
            etp: 1,
            dp: 4,
            sp,
            micro_batch: 1,
            sequence: 512,
            recompute: Recompute::None,
        }
    }

    /// The same with a knob turned one step.
    fn turned(&self, knob: Knob) -> Job {
        let mut job = self.clone();
        match knob {
            Knob::Tp => job.tp *= 2,
            Knob::Sp => job.sp = !job.sp,
            Knob::Cp => job.cp *= 2,
            Knob::Pp => job.pp *= 2,
            Knob::Ep => job.ep *= 2,
            Knob::Etp => job.etp *= 2,
            Knob::Dp => job.dp *= 2,
            Knob::MicroBatch => job.micro_batch *= 2,
            Knob::Sequence => job.sequence *= 2,
            Knob::Recompute => job.recompute = Recompute::Full,
        }
        job
    }

    /// The first stage's lines; nothing where the layout is not legal or not priced.
    fn lines(&self) -> Option<RankClass> {
        let mut recipe = Recipe::parse(self.recipe).unwrap_or_else(|e| panic!("{e:?}"));
        if self.is_muon {
            recipe.optimizer = OptimizerPolicy::muon();
        }
        let has_experts = self.recipe == EXPERTS;
        let world = self.tp * self.cp * self.pp * self.dp;
        let request = LayoutRequest {
            tp: Some(self.tp),
            sp: Some(self.sp),
            cp: Some(self.cp),
            pp: Some(self.pp),
            dp: Some(self.dp),
            ep: has_experts.then_some(self.ep),
            etp: has_experts.then_some(self.etp),
            world: Some(world),
            micro_batch: Some(self.micro_batch),
            sequence: Some(self.sequence),
            microbatches: Some(4),
            zero: Some(self.zero),
            recompute: Some(self.recompute.clone()),
            engine: Some(self.engine),
            ..LayoutRequest::default()
        };
        let cluster = Cluster::parse(&format!("{world}xH200")).unwrap();
        let case = Case::laid_out(recipe, &request, Some(cluster), Terms::SPLIT).ok()?;
        let fit = Fit::price(&case, HEADROOM).ok()?;
        Some(fit.classes[0].clone())
    }
}

fn grid() -> Vec<Job> {
    let mut jobs = Vec::new();
    for recipe in [DENSE, EXPERTS] {
        jobs.push(Job::new(recipe, Engine::Megatron, ZeroStage::One));
        jobs.push(Job { sp: recipe == EXPERTS, ..Job::new(recipe, Engine::Megatron, ZeroStage::Zero) });
        jobs.push(Job { is_muon: true, ..Job::new(recipe, Engine::Megatron, ZeroStage::One) });
        jobs.push(Job::new(recipe, Engine::Fsdp2, ZeroStage::Three));
        jobs.push(Job::new(recipe, Engine::Shardwright, ZeroStage::One));
    }
    jobs.push(Job::new(DENSE, Engine::Megatron, ZeroStage::Three));
    jobs.push(Job::new(DENSE, Engine::Deepspeed, ZeroStage::Two));
    jobs
}

#[test]
fn lines_follow_the_knobs_they_name_and_no_others_they_name() {
    let mut wrong = Vec::new();
    let mut turned: Vec<(Knob, usize)> = Knob::ALL.iter().map(|(_, knob)| (*knob, 0)).collect();
    for job in grid() {
        let now = job.lines().unwrap_or_else(|| panic!("{job:?} has no price"));
        for (knob, times) in &mut turned {
            let Some(then) = job.turned(*knob).lines() else { continue };
            *times += 1;
            // Lines are those of the peak, and other ones live where it moves to another block or phase.
            let is_moved = (now.peak_phase, &now.peak_origin) != (then.peak_phase, &then.peak_origin);
            for amount in now.lines.iter().filter(|amount| amount.bytes > 0) {
                let (before, after) = (amount.bytes, then.line(amount.entry));
                let says = &amount.scaling;
                let name = amount.entry.name();
                let place = format!(
                    "{} {} {:?} muon {}: {name} under {}",
                    &job.recipe[8..13],
                    job.engine,
                    job.zero,
                    job.is_muon,
                    knob.name()
                );
                // A scalar that is left of a line says nothing.
                if says.with.contains(knob) && before > 64 << 10 && before == after {
                    wrong.push(format!("{place}: says it scales, stays {before}"));
                }
                let is_state = [Line::MatrixOptimizer, Line::OtherOptimizer].map(Entry::Ledger).contains(&amount.entry);
                // The allocator rounds every tensor up; inside the loss the highest moment moves by a copy of its weight's gradient,
                // and where DeepSpeed's buckets share gradients out, inside a block by one activation's.
                let is_loss = amount.entry == Entry::Ledger(Line::Loss);
                let is_activation = amount.entry == Entry::Ledger(Line::Activations);
                let fills_buckets = job.engine == Engine::Deepspeed && job.zero < ZeroStage::Three;
                let moves = is_state || is_loss || is_activation && fills_buckets;
                let slack = if moves { 1 << 20 } else { 4 << 10 };
                if !is_moved && says.ignores.contains(knob) && before.abs_diff(after) > slack {
                    wrong.push(format!("{place}: says it ignores, {before} becomes {after}"));
                }
            }
        }
    }
    assert!(turned.iter().all(|(_, times)| *times > 0), "a knob was never turned: {turned:?}");
    assert!(wrong.is_empty(), "{} of them\n{}", wrong.len(), wrong.join("\n"));
}

/// What is on is said: weights are shared out from ZeRO 3 on, state from 1 on.
#[test]
fn zero_stages_are_said_where_they_share_out() {
    let words = |zero: ZeroStage, entry: Entry| {
        let class = Job::new(DENSE, Engine::Megatron, zero).lines().unwrap();
        class.lines.iter().find(|amount| amount.entry == entry).unwrap().scaling.words.clone()
    };
    let (weights, state) = (Entry::Ledger(Line::TpParams), Entry::Ledger(Line::OtherOptimizer));
    assert!(!words(ZeroStage::One, weights).contains("shared out"));
    assert!(words(ZeroStage::Three, weights).contains("dp·cp 4 (shared out)"));
    assert!(!words(ZeroStage::Zero, state).contains("shared out"));
    assert!(words(ZeroStage::One, state).contains("dp·cp 4 (shared out)"));
}
