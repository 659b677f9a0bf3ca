//! Replays of short stages that sums are made of.
//!
//! A probe is keyed by what it can depend on: experts' degrees only where experts stand, of the
//! recompute policy only the modules its layers have. A search that walks thousands of degrees
//! shares most of its probes that way.

use super::Once;
use super::held::{Counter, Holdings};
use super::probed::Probed;
use case::{KindId, LayerKinds, PerKind};
use layout::request::RecomputeModule;
use layout::{Layout, LayoutRequest, Needs, Recompute, StagePlan, ZeroStage, settle};
use ledger::megatron::{Job, MegatronOptions, replay, replay_passes};
use recipe::{Layer, Mixer, Recipe};
use replay::Unmodelled;
use replay::line::Line;
use replay::{Phase, PhaseKind, Replay};
use std::collections::HashMap;
use std::sync::Mutex;

/// Where in the pipeline a stage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Only,
    First,
    Middle,
    Last,
}

/// Bytes of a probe beyond its static state.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// At the highest point of its passes.
    bytes: u64,
    /// At the highest point of the first step's forward passes. Layers and microbatches add to it what
    /// they save and nothing else, while in backward gradients of the layer before may still be held.
    forward: u64,
    /// What the allocator kept besides.
    left: u64,
    /// Of the highest point, what stays for all later passes: workspaces, copies of weights in 8 bits.
    stays: u64,
}

/// What comes and goes grows evenly with the sequences of a microbatch, so that larger ones follow
/// from probes of these two; only roundings and remainders of blocks do not.
const ANCHORS: [u64; 2] = [2, 4];

impl Probe {
    /// The point as far beyond this one as `ahead` is of the `step` to another.
    fn along(self, other: Probe, ahead: u64, step: u64) -> Probe {
        let line = |from: u64, to: u64| from + to.saturating_sub(from) * ahead / step;
        Probe {
            bytes: line(self.bytes, other.bytes),
            forward: line(self.forward, other.forward),
            left: line(self.left, other.left),
            stays: line(self.stays, other.stays),
        }
    }
}

/// What the ends of a pipeline add.
struct Ends {
    boundary: u64,
    loss: [u64; 2],
    embedding: u64,
    left: u64,
}

/// What a probe depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    /// One kind, once or twice.
    kind: KindId,
    times: usize,
    role: Role,
    microbatches: u64,
    tp: u64,
    sp: bool,
    cp: u64,
    ep: u64,
    etp: u64,
    micro_batch: u64,
    sequence: u64,
    vocab_multiple: u64,
    /// Modules computed again, or all of them.
    recompute: Option<Vec<RecomputeModule>>,
}

/// Probes of one recipe, each replayed once however often it is asked for. Threads may share it.
pub(super) struct Probes {
    options: MegatronOptions,
    kinds: LayerKinds,
    /// One layer of each kind.
    layers: PerKind<Layer>,
    /// The recipe without layers, to be given those of a probe.
    bare: Recipe,
    replayed: Mutex<HashMap<Asked, Once<Probe>>>,
    counter: Counter,
}

impl Probes {
    /// No probe replayed yet.
    pub fn new(recipe: &Recipe, kinds: &LayerKinds, options: &MegatronOptions) -> Probes {
        let mut bare = recipe.clone();
        bare.layers.clear();
        let layers = PerKind::new(kinds, |layer| recipe.layers[layer].clone());
        Probes {
            counter: Counter::new(&bare, kinds, &layers),
            options: options.clone(),
            kinds: kinds.clone(),
            layers,
            bare,
            replayed: Mutex::default(),
        }
    }

    /// How probes share state out: not at all, but that an optimizer with formats of its own is a
    /// distributed one, if of one rank.
    fn sharing(&self) -> ZeroStage {
        if self.options.precision_aware.is_some() { ZeroStage::One } else { ZeroStage::Zero }
    }

    /// Refuses what no probe sees of a layout.
    pub fn refuse(&self, layout: &Layout) -> Result<(), Unmodelled> {
        match self.options.precision_aware {
            Some(_) if layout.zero != ZeroStage::One => {
                let why = "Megatron has it with the distributed optimizer only";
                Err(Unmodelled::new("a precision-aware optimizer", why))
            }
            _ => Ok(()),
        }
    }

    /// The sum for the degrees, batch, sequence and recompute of a layout, which must be legal.
    pub fn probed(&self, layout: &Layout) -> Result<Probed, Unmodelled> {
        let none = PerKind::new(&self.kinds, |_| 0);
        let (mut saved, mut stays, mut inside, mut left) = (none.clone(), none.clone(), none, 0);
        for (kind, _) in self.kinds.all() {
            let one = self.probe(layout, kind, 1, Role::Middle, 1)?;
            let two = self.probe(layout, kind, 2, Role::Middle, 1)?;
            saved[kind] = two.forward.saturating_sub(one.forward);
            stays[kind] = two.stays.saturating_sub(one.stays).min(saved[kind]);
            inside[kind] = one.bytes.max(two.bytes.saturating_sub(saved[kind]));
            left = left.max(two.left);
        }
        let ends = self.ends(layout)?;
        Ok(Probed {
            boundary: ends.boundary,
            loss: ends.loss,
            embedding: ends.embedding,
            left: left + ends.left,
            saved,
            stays,
            inside,
            ..self.counted(layout)?
        })
    }

    /// The state of a layout alone, counted: nothing is replayed for it.
    pub fn counted(&self, layout: &Layout) -> Result<Probed, Unmodelled> {
        let none = PerKind::new(&self.kinds, |_| 0);
        let Holdings { layers, front, back, tied } = self.counter.under(layout, None)?;
        Ok(Probed {
            held: layers,
            front,
            back,
            tied,
            grad_width: self.options.gradients.bits() / 8,
            // Without formats of its own: main weight and two moments in fp32.
            adam_width: self.options.precision_aware.map_or(12, |formats| formats.bytes()),
            saved: none.clone(),
            stays: none.clone(),
            inside: none,
            boundary: 0,
            loss: [0; 2],
            embedding: 0,
            left: 0,
        })
    }

    /// The ends of the pipeline, read off a kind without experts where there is one. What they add
    /// does not depend on what layers compute again, so every policy shares them.
    fn ends(&self, layout: &Layout) -> Result<Ends, Unmodelled> {
        let plain = Layout { recompute: Recompute::None, ..layout.clone() };
        let mut kinds = self.layers.entries();
        let light = kinds.find(|(_, layer)| !layer.has(Mixer::Moe)).or_else(|| self.layers.entries().next());
        let Some((light, _)) = light else { return Err(Unmodelled::new("this recipe", "it has no layers")) };
        let (one, more) =
            (self.probe(&plain, light, 1, Role::Middle, 1)?, self.probe(&plain, light, 2, Role::Middle, 1)?);
        let (saved, stays) = (more.forward.saturating_sub(one.forward), more.stays.saturating_sub(one.stays));
        let two = self.probe(&plain, light, 1, Role::Middle, 2)?.forward;
        let first = self.probe(&plain, light, 1, Role::First, 1)?;
        let roles = [self.probe(&plain, light, 1, Role::Only, 1)?, self.probe(&plain, light, 1, Role::Last, 1)?];
        Ok(Ends {
            boundary: two.saturating_sub(one.forward + saved.saturating_sub(stays)),
            loss: roles.map(|end| end.bytes.saturating_sub(saved)),
            embedding: first.bytes.saturating_sub(saved),
            left: first.left + roles[0].left.max(roles[1].left),
        })
    }

    fn probe(
        &self,
        layout: &Layout,
        kind: KindId,
        times: usize,
        role: Role,
        microbatches: u64,
    ) -> Result<Probe, Unmodelled> {
        let asked = self.asked(layout, kind, times, role, microbatches);
        let [few, more] = ANCHORS;
        if asked.micro_batch <= more {
            return self.known(asked);
        }
        let times = asked.micro_batch;
        let at = |micro_batch| self.known(Asked { micro_batch, ..asked.clone() });
        let (few_bytes, more_bytes) = (at(few)?, at(more)?);
        Ok(few_bytes.along(more_bytes, times - few, more - few))
    }

    /// Probes that were replayed.
    pub fn replayed(&self) -> u64 {
        self.replayed.lock().unwrap_or_else(|e| e.into_inner()).len() as u64
    }

    /// A probe, replayed once: whoever asks meanwhile waits.
    fn known(&self, asked: Asked) -> Result<Probe, Unmodelled> {
        let known = self.replayed.lock().unwrap_or_else(|e| e.into_inner()).entry(asked.clone()).or_default().clone();
        known.get_or_init(|| self.replay(&asked)).clone()
    }

    /// What the probe depends on, and nothing else.
    fn asked(&self, layout: &Layout, kind: KindId, times: usize, role: Role, microbatches: u64) -> Asked {
        let layer = &self.layers[kind];
        let suffix = self.bare.features.mtp().filter(|_| matches!(role, Role::Only | Role::Last));
        let stands = |mixer| layer.has(mixer) || suffix.is_some_and(|mtp| mtp.layer.has(mixer));
        let recompute = match &layout.recompute {
            Recompute::Full => None,
            Recompute::None => Some(Vec::new()),
            Recompute::Selective(modules) => {
                Some(modules.iter().copied().filter(|m| mixer_of(*m).is_none_or(stands)).collect())
            }
        };
        let (ep, etp) = if stands(Mixer::Moe) { (layout.ep.get(), layout.etp.get()) } else { (1, 1) };
        Asked {
            kind,
            times,
            role,
            microbatches,
            tp: layout.tp.get(),
            sp: layout.sp,
            cp: layout.cp.get(),
            ep,
            etp,
            micro_batch: layout.micro_batch,
            sequence: layout.sequence,
            vocab_multiple: layout.vocab_multiple,
            recompute,
        }
    }

    /// A recipe and layout whose stage under test holds the layers asked for.
    fn stage(&self, asked: &Asked) -> Result<(Recipe, Layout, StagePlan), Unmodelled> {
        let (before, after) = match asked.role {
            Role::Only => (0, 0),
            Role::First => (0, 1),
            Role::Middle => (1, 1),
            Role::Last => (1, 0),
        };
        let mut recipe = self.bare.clone();
        recipe.layers = vec![self.layers[asked.kind].clone(); before + asked.times + after];
        let mut cuts = Vec::new();
        cuts.extend((before > 0).then_some(before as u64));
        cuts.extend((after > 0).then_some((before + asked.times) as u64));
        let request = LayoutRequest {
            tp: Some(asked.tp),
            sp: Some(asked.sp),
            cp: Some(asked.cp),
            pp: Some(1 + before as u64 + after as u64),
            ep: Some(asked.ep),
            etp: Some(asked.etp),
            zero: Some(self.sharing()),
            micro_batch: Some(asked.micro_batch),
            microbatches: Some(asked.microbatches),
            sequence: Some(asked.sequence),
            recompute: Some(match &asked.recompute {
                None => Recompute::Full,
                Some(modules) if modules.is_empty() => Recompute::None,
                Some(modules) => Recompute::Selective(modules.clone()),
            }),
            boundaries: Some(cuts).filter(|c| !c.is_empty()),
            vocab_multiple: Some(asked.vocab_multiple),
            ..LayoutRequest::default()
        };
        let refused = |f: &diag::Finding| Unmodelled::new("this layout", f.message.as_str());
        let (layout, _) = settle(&request, Needs::of(&recipe)).map_err(|found| refused(&found[0]))?;
        let plan = StagePlan::new(&recipe, &layout, None).map_err(|f| refused(&f))?;
        Ok((recipe, layout, plan))
    }

    fn replay(&self, asked: &Asked) -> Result<Probe, Unmodelled> {
        let (recipe, layout, plan) = self.stage(asked)?;
        let stage = u64::from(matches!(asked.role, Role::Middle | Role::Last));
        let rank = stage * (layout.world / layout.pp.get());
        // What a layer keeps is the same in every step, so that one is enough and its update is not
        // looked at; libraries' workspaces, which stay from the first on, are read off the ends.
        let options = MegatronOptions { steps: 2, ..self.options.clone() };
        let job = Job { recipe: &recipe, layout: &layout, stages: &plan, rank, options: &options };
        let replay = if asked.role == Role::Middle { replay_passes(&job) } else { replay(&job) }?;
        Ok(Probe {
            bytes: running_bytes(&replay, self.options.gradients.bits() / 8),
            forward: forward_bytes(&replay),
            left: replay.reserved_peak() - replay.allocated_peak(),
            stays: highest_running(&replay).map_or(0, |phase| phase.peak.by_line[Line::Workspaces as usize]),
        })
    }
}

/// The highest of a replay's passes.
fn highest_running(replay: &Replay) -> Option<&Phase> {
    let running = replay.phases.iter().filter(|phase| matches!(phase.kind, PhaseKind::Passes(_)));
    running.max_by_key(|phase| phase.peak.allocated)
}

/// The mixer a recomputed module stands in; none when it stands in every layer.
fn mixer_of(module: RecomputeModule) -> Option<Mixer> {
    match module {
        RecomputeModule::CoreAttn | RecomputeModule::MlaUpProj => Some(Mixer::Attention),
        RecomputeModule::MoeAct | RecomputeModule::Moe | RecomputeModule::SharedExperts => Some(Mixer::Moe),
        RecomputeModule::Mlp => Some(Mixer::Mlp),
        RecomputeModule::GdnNormOut => Some(Mixer::GatedDelta),
        RecomputeModule::Layernorm => None,
        RecomputeModule::Attention
        | RecomputeModule::Mamba
        | RecomputeModule::Recurrent
        | RecomputeModule::GatedDelta => module.whole(),
    }
}

/// Bytes that come and go, at the highest point while layers run: every line but weights and
/// optimizer state, and of gradients what lies outside their buffers. Probes keep whole optimizer
/// state, whose blocks and steps are not a real stage's, so both are left out.
fn running_bytes(replay: &Replay, grad_width: u64) -> u64 {
    let Some(highest) = highest_running(replay) else { return 0 };
    let of = |line: Line| highest.peak.by_line[line as usize];
    let fixed = [
        Line::ReplicatedParams,
        Line::TpParams,
        Line::ExpertParams,
        Line::Gradients,
        Line::MatrixOptimizer,
        Line::OtherOptimizer,
    ];
    let fixed: u64 = fixed.into_iter().map(of).sum();
    let fresh_gradients = of(Line::Gradients).saturating_sub(grad_width * replay.params);
    highest.peak.allocated - fixed + fresh_gradients
}

/// Bytes that the first step's forward passes come to above what stood before it.
fn forward_bytes(replay: &Replay) -> u64 {
    let find = |kind| replay.phases.iter().find(|phase| phase.kind == kind);
    match (find(PhaseKind::Optimizer), find(PhaseKind::Passes(0))) {
        (Some(before), Some(passes)) => passes.by_part[0].saturating_sub(before.allocated),
        _ => 0,
    }
}
