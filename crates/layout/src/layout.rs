//! A layout: every degree and policy settled, with a record of what was derived and why.
//! Whether it is legal for a recipe is [`crate::legality`]'s to say; here only sizes are settled.

use crate::axis::Axis;
use crate::request::{Balance, Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use diag::{Blame, Finding};
use recipe::{Mixer, Mode, Recipe};
use units::{Degree, gcd};

/// Tokens a microbatch may have.
const MOST_TOKENS: u64 = 1 << 36;

/// Sequences a step may have.
const MOST_SEQUENCES: u64 = 1 << 40;

/// Ranks we agree to lay out.
pub const MOST_RANKS: u64 = 1 << 24;

/// Every degree and policy of a run; nothing is left to derive.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Ranks in all.
    pub world: u64,
    /// Tensor-parallel degree.
    pub tp: Degree,
    /// Whether activations between tensor-parallel regions are sharded along the sequence.
    pub sp: bool,
    /// Context-parallel degree.
    pub cp: Degree,
    /// Pipeline stages.
    pub pp: Degree,
    /// Chunks a stage holds.
    pub vpp: Degree,
    /// Expert-parallel degree.
    pub ep: Degree,
    /// Tensor-parallel degree inside experts.
    pub etp: Degree,
    /// Data-parallel degree of the dense mesh; rounded down when the world does not divide, which
    /// legality then refuses.
    pub dp: Degree,
    /// Data-parallel degree of the expert mesh, likewise.
    pub edp: Degree,
    /// ZeRO stage.
    pub zero: ZeroStage,
    /// Sequences of a microbatch.
    pub micro_batch: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Microbatches of a step on one replica.
    pub microbatches: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Pipeline schedule.
    pub schedule: Schedule,
    /// Recompute policy.
    pub recompute: Recompute,
    /// Runtime mode.
    pub mode: Option<Mode>,
    /// First layer of every chunk but the first, when given.
    pub boundaries: Option<Vec<u64>>,
    /// How layers are dealt out without boundaries.
    pub balance: Balance,
    /// Engine whose own rules apply.
    pub engine: Option<Engine>,
    /// The padded vocabulary is a multiple of this times tp.
    pub vocab_multiple: u64,
}

/// A value nobody typed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Derived {
    /// The key as typed, without dashes.
    pub key: &'static str,
    /// As it would be typed.
    pub value: String,
    /// What it follows from, as a phrase.
    pub why: String,
}

impl Layout {
    /// The pipeline stage of a rank: stages are the outermost axis of both rank orders.
    pub fn stage_of(&self, rank: u64) -> usize {
        (rank / (self.world / self.pp.get()).max(1)) as usize
    }

    /// The degree of an axis.
    pub fn degree(&self, axis: Axis) -> Degree {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Dp => self.dp,
            Axis::Pp => self.pp,
            Axis::Ep => self.ep,
            Axis::Etp => self.etp,
            Axis::Edp => self.edp,
        }
    }

    /// Chunks the depth is cut into.
    pub fn chunks(&self) -> u64 {
        self.pp.get() * self.vpp.get()
    }

    /// Ranks that share out the state of a dense tensor: data-parallel ranks of every context part.
    pub fn dense_shards(&self) -> u64 {
        self.dp.get() * self.cp.get()
    }

    /// Tokens of a microbatch that one rank holds between tensor-parallel regions.
    pub fn tokens_per_microbatch_per_rank(&self) -> u64 {
        let shards = self.cp.get() * if self.sp { self.tp.get() } else { 1 };
        self.micro_batch * self.sequence / shards
    }

    /// The vocabulary padded so that every tensor-parallel rank holds the same number of rows.
    pub fn padded_vocab(&self, vocab: u64) -> u64 {
        let step = self.tp.get() * self.vocab_multiple;
        vocab.div_ceil(step) * step
    }

    /// The layout as the shortest flags that would type it.
    pub fn flags(&self) -> String {
        let mut out = vec![format!("--tp {}", self.tp)];
        for (name, degree) in [("cp", self.cp), ("pp", self.pp), ("vpp", self.vpp), ("ep", self.ep), ("dp", self.dp)] {
            if degree.splits() {
                out.push(format!("--{name} {degree}"));
            }
        }
        if self.ep.splits() && self.etp != self.tp {
            out.push(format!("--etp {}", self.etp));
        }
        if self.tp.splits() && !self.sp {
            out.push("--no-sp".to_string());
        }
        out.join(" ")
    }
}

impl Layout {
    /// The layout as flags that settle to it again in the same world. Degrees of one, an absent
    /// pipeline's schedule and what every engine has by itself are left out, and so are experts where
    /// there are none.
    pub fn words(&self, has_experts: bool) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |flag: &str, value: String| out.extend([format!("--{flag}"), value]);
        say("tp", self.tp.to_string());
        for (name, degree) in [("cp", self.cp), ("pp", self.pp), ("vpp", self.vpp), ("ep", self.ep), ("dp", self.dp)] {
            if degree.splits() {
                say(name, degree.to_string());
            }
        }
        if has_experts && self.etp != self.tp {
            say("etp", self.etp.to_string());
        }
        say("zero", self.zero.to_string());
        say("mbs", self.micro_batch.to_string());
        say("microbatches", self.microbatches.to_string());
        say("seq", self.sequence.to_string());
        if self.pp.splits() || self.vpp.splits() || self.schedule != Schedule::OneF1b {
            say("schedule", self.schedule.to_string());
        }
        if self.recompute != Recompute::None {
            say("recompute", self.recompute.to_string());
        }
        match &self.boundaries {
            Some(cuts) if cuts.is_empty() => {}
            Some(cuts) => say("boundaries", cuts.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
            None if self.balance != Balance::Layers => say("balance", self.balance.to_string()),
            None => {}
        }
        if let Some(mode) = self.mode {
            say("mode", mode.to_string());
        }
        let usual_multiple = if self.engine == Some(Engine::Megatron) { 128 } else { 1 };
        if self.vocab_multiple != usual_multiple {
            say("vocab-multiple", self.vocab_multiple.to_string());
        }
        say("engine", self.engine.map_or("any", Engine::name).to_string());
        if self.tp.splits() && !self.sp {
            out.push("--no-sp".to_string());
        }
        out
    }

    /// The same in one line.
    pub fn all_flags(&self) -> String {
        self.words(true).join(" ")
    }
}

/// What a layout needs to know of a model.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Whether there are experts, and so an expert mesh to fill.
    pub experts: bool,
    /// Tokens of a sequence when none are typed.
    pub sequence: u64,
}

impl Needs {
    /// What a recipe needs.
    pub fn of(recipe: &Recipe) -> Needs {
        Needs { experts: recipe.uses(Mixer::Moe), sequence: recipe.sequence }
    }
}

/// Settles a request: fills in what was left out, and says so. Fails only on sizes that are no
/// sizes (zero, or beyond any machine).
pub fn settle(request: &LayoutRequest, needs: Needs) -> Result<(Layout, Vec<Derived>), Vec<Finding>> {
    let mut settler = Settler { derived: Vec::new(), findings: Vec::new() };
    let layout = settler.settle(request, needs);
    match layout {
        Some(layout) if settler.findings.is_empty() => Ok((layout, settler.derived)),
        _ => Err(settler.findings),
    }
}

/// A size that is none: zero, or beyond any machine.
fn refuse_size(object: &str, message: String) -> Finding {
    Finding::error("layout/size", Blame::Layout, object, message)
}

struct Settler {
    derived: Vec<Derived>,
    findings: Vec<Finding>,
}

impl Settler {
    fn derive<T: ToString>(&mut self, key: &'static str, value: T, why: impl Into<String>) -> T {
        self.derived.push(Derived { key, value: value.to_string(), why: why.into() });
        value
    }

    /// A typed size: at least one, at most what any machine has.
    fn size(&mut self, key: &'static str, value: Option<u64>, most: u64) -> Option<u64> {
        let value = value?;
        let most = most.max(1);
        if !(1..=most).contains(&value) {
            let message = format!("`--{key} {value}` is outside 1 to {most}");
            self.findings.push(refuse_size(key, message));
        }
        Some(value.clamp(1, most))
    }

    fn degree(&mut self, key: &'static str, value: Option<u64>, default: u64, why: &str) -> Degree {
        let value = match self.size(key, value, MOST_RANKS) {
            Some(value) => value,
            None if default == 1 => 1,
            None => self.derive(key, default, why),
        };
        Degree::new(value).unwrap_or(Degree::ONE)
    }

    fn settle(&mut self, request: &LayoutRequest, needs: Needs) -> Option<Layout> {
        let mode_tp = request.mode.map_or(1, Mode::tensor_parallel);
        let mode_why = request.mode.map_or(String::new(), |m| format!("mode {m} is pinned to it"));
        let tp = self.degree("tp", request.tp, mode_tp, &mode_why);
        let cp = self.degree("cp", request.cp, 1, "");
        let pp = self.degree("pp", request.pp, 1, "");
        let ep = self.degree("ep", request.ep, 1, "");
        let has_experts = needs.experts;
        let etp_default = if has_experts { tp.get() } else { 1 };
        let etp = self.degree("etp", request.etp, etp_default, "experts take tp unless told otherwise");
        let vpp = self.degree("vpp", request.vpp, self.usual_vpp(request), "DualPipeV folds two chunks onto a rank");
        let (dense, expert) = self.products([tp, cp, pp, vpp], [etp, ep, pp])?;
        // Without experts the expert mesh is the dense one, and nothing lives on it.
        let expert = if has_experts { expert } else { dense };
        let world = self.world(request, dense, expert)?;
        let dp = self.dp(request, world, dense);
        let edp = Degree::new(world / expert).unwrap_or(Degree::ONE);
        let sp = self.sp(request, tp, has_experts && ep.splits());
        let schedule = self.schedule(request, vpp);
        let (micro_batch, microbatches, global_batch) = self.batch(request, dp, pp);
        let sequence = match self.size("seq", request.sequence, recipe::limits::SEQUENCE) {
            Some(sequence) => sequence,
            None => self.derive("seq", needs.sequence, "the recipe's sequence"),
        };
        if micro_batch.checked_mul(sequence).is_none_or(|tokens| tokens > MOST_TOKENS) {
            let message = format!("mbs {micro_batch} × seq {sequence} is more than {MOST_TOKENS} tokens");
            self.findings.push(refuse_size("mbs", message));
        }
        let vocab_multiple = self.vocab_multiple(request);
        Some(Layout {
            world,
            tp,
            sp,
            cp,
            pp,
            vpp,
            ep,
            etp,
            dp,
            edp,
            zero: self.zero(request),
            micro_batch,
            global_batch,
            microbatches,
            sequence,
            schedule,
            recompute: request.recompute.clone().unwrap_or(Recompute::None),
            mode: request.mode,
            boundaries: request.boundaries.clone(),
            balance: request.balance.unwrap_or(Balance::Layers),
            engine: request.engine,
            vocab_multiple,
        })
    }

    /// Ranks of a dense and of an expert replica, refused when beyond any machine.
    fn products(&mut self, dense: [Degree; 4], expert: [Degree; 3]) -> Option<(u64, u64)> {
        let product = |degrees: &[Degree]| {
            degrees.iter().try_fold(1u64, |n, d| n.checked_mul(d.get())).filter(|n| *n <= MOST_RANKS)
        };
        // Virtual stages own no ranks, but their chunks are counted like them.
        let both = product(&dense).and(product(&dense[..3]).zip(product(&expert)));
        if both.is_none() {
            let message = format!("the degrees multiply to more than {MOST_RANKS} ranks");
            self.findings.push(refuse_size("world", message));
        }
        both
    }

    /// Megatron pads the vocabulary to 128 times tp unless told otherwise
    /// (`core/tokenizers/utils/build_tokenizer.py`).
    fn vocab_multiple(&mut self, request: &LayoutRequest) -> u64 {
        match self.size("vocab-multiple", request.vocab_multiple, 1 << 20) {
            Some(multiple) => multiple,
            None if request.engine == Some(Engine::Megatron) => {
                self.derive("vocab-multiple", 128, "Megatron's --make-vocab-size-divisible-by")
            }
            None => 1,
        }
    }

    fn usual_vpp(&self, request: &LayoutRequest) -> u64 {
        if request.schedule == Some(Schedule::DualPipeV) { 2 } else { 1 }
    }

    /// The typed world, or the smallest one both meshes fit in.
    fn world(&mut self, request: &LayoutRequest, dense: u64, expert: u64) -> Option<u64> {
        if let Some(world) = self.size("world", request.world, MOST_RANKS) {
            return Some(world);
        }
        let dp = request.dp.unwrap_or(1).max(1);
        let least = dense.checked_mul(dp).and_then(|d| (d / gcd(d, expert)).checked_mul(expert));
        // With dp typed, the world is what it makes; legality then says whether experts fit it.
        let world = if request.dp.is_some() { dense.checked_mul(dp) } else { least };
        match world.filter(|w| *w <= MOST_RANKS) {
            Some(world) => Some(self.derive("world", world, "the fewest ranks these degrees need")),
            None => {
                let message = format!("the degrees need more than {MOST_RANKS} ranks");
                self.findings.push(refuse_size("world", message));
                None
            }
        }
    }

    fn dp(&mut self, request: &LayoutRequest, world: u64, dense: u64) -> Degree {
        let value = match self.size("dp", request.dp, MOST_RANKS / dense) {
            Some(dp) => dp,
            None => {
                let dp = (world / dense).max(1);
                self.derive("dp", dp, format!("world {world} / (tp·cp·pp = {dense})"))
            }
        };
        Degree::new(value).unwrap_or(Degree::ONE)
    }

    fn sp(&mut self, request: &LayoutRequest, tp: Degree, experts_cut: bool) -> bool {
        match request.sp {
            Some(true) if !tp.splits() => self.derive("sp", false, "one tensor-parallel rank leaves nothing to shard"),
            Some(sp) => sp,
            None if !tp.splits() => false,
            None if experts_cut => self.derive("sp", true, "tp with ep requires sequence parallelism"),
            None => self.derive("sp", true, "activations between tensor-parallel regions are sharded with them"),
        }
    }

    fn zero(&mut self, request: &LayoutRequest) -> ZeroStage {
        match (request.zero, request.engine) {
            (Some(zero), _) => zero,
            (None, Some(Engine::Fsdp2 | Engine::Torchtitan | Engine::Maxtext | Engine::XlaSpmd)) => {
                self.derive("zero", ZeroStage::Three, "the engine shards weights, gradients and optimizer state")
            }
            (None, _) => {
                self.derive("zero", ZeroStage::One, "optimizer state is shared out, as a distributed optimizer does")
            }
        }
    }

    fn schedule(&mut self, request: &LayoutRequest, vpp: Degree) -> Schedule {
        match request.schedule {
            Some(schedule) => schedule,
            None if vpp.splits() => self.derive("schedule", Schedule::Interleaved, "a stage holds several chunks"),
            None => Schedule::OneF1b,
        }
    }

    /// Microbatch, count and global batch: whichever is left out follows from the others.
    fn batch(&mut self, request: &LayoutRequest, dp: Degree, pp: Degree) -> (u64, u64, u64) {
        const MOST: u64 = 1 << 24;
        let micro = self.size("mbs", request.micro_batch, MOST).unwrap_or(1);
        let global = self.size("gbs", request.global_batch, MOST);
        let count = self.size("microbatches", request.microbatches, MOST);
        let per_count = micro.saturating_mul(dp.get());
        if let (Some(count), None) = (count, global)
            && count.saturating_mul(per_count) > MOST_SEQUENCES
        {
            let message =
                format!("microbatches {count} × mbs {micro} × dp {dp} is more than {MOST_SEQUENCES} sequences a step");
            self.findings.push(refuse_size("microbatches", message));
        }
        match (count, global) {
            (Some(count), Some(global)) => (micro, count, global),
            (Some(count), None) => (micro, count, count.saturating_mul(per_count)),
            (None, Some(global)) => {
                let count = (global / per_count).max(1);
                let why = format!("gbs {global} / (mbs {micro} · dp {dp})");
                (micro, self.derive("microbatches", count, why), global)
            }
            (None, None) => {
                let count = if pp.splits() { 2 * pp.get() } else { 1 };
                let why = if pp.splits() { "twice the stages, so that the pipeline fills" } else { "one stage" };
                (micro, self.derive("microbatches", count, why), count.saturating_mul(per_count))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legality::example::request;

    /// What settling a request refuses, in words.
    fn check(layout: &str, expect: &[&str]) {
        let settled = settle(&request(layout), Needs { experts: true, sequence: 4096 });
        let found = settled.err().unwrap_or_default();
        assert!(found.iter().all(|f| f.rule == "layout/size"));
        assert_eq!(found.iter().map(|f| f.message.as_str()).collect::<Vec<_>>(), expect, "{layout}");
    }

    #[test]
    fn sizes_are_at_least_one_and_at_most_what_a_machine_has() {
        check("tp=8 pp=4 mbs=2", &[]);
        check("tp=0", &["`--tp 0` is outside 1 to 16777216"]);
        check("tp=8192 pp=8192", &["the degrees multiply to more than 16777216 ranks"]);
        check("tp=4096 pp=4096 etp=1 ep=4095 dp=2", &["the degrees need more than 16777216 ranks"]);
        check(
            "microbatches=16777216 mbs=65536 seq=1 dp=8",
            &["microbatches 16777216 × mbs 65536 × dp 8 is more than 1099511627776 sequences a step"],
        );
        check("mbs=16777216 seq=8192", &["mbs 16777216 × seq 8192 is more than 68719476736 tokens"]);
    }
}
