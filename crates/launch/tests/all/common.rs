//! Cases for tests and for the engines' own parsers: every built-in recipe in every legal mode
//! under a grid of layouts, those that are legal.

#![allow(dead_code, missing_docs)]

use case::{Purpose, Seams, Terms};
use hardware::Cluster;
use launch::job::{Frontend, Job};
use launch::schedulers::{self, Scheduler};
use launch::{Emission, Policy};
use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage, check};
use recipe::{Feature, Mode, Recipe};

/// The findings of a refusal, each by this rule; panics where nothing was refused or no rule said so.
#[track_caller]
pub fn assert_refused(emitted: Result<Emission, Vec<diag::Finding>>, rule: &str) -> Vec<diag::Finding> {
    let findings = emitted.expect_err("it is refused");
    assert!(!findings.is_empty() && findings.iter().all(|f| f.rule == rule), "{rule}: {findings:?}");
    findings
}

/// A case with the policy it is launched under.
pub struct Case {
    pub name: String,
    pub case: case::Case,
    pub policy: Policy,
    pub frontend: Frontend,
}

impl std::ops::Deref for Case {
    type Target = case::Case;

    fn deref(&self) -> &case::Case {
        &self.case
    }
}

impl Case {
    /// A case, unless the layout is not legal (seams apart, where they are allowed).
    pub fn new(source: &Recipe, request: &LayoutRequest, seams: Seams) -> Result<Case, Vec<diag::Finding>> {
        let world = check(source, request).layout.map_or(8, |layout| layout.world);
        let nodes = world.div_ceil(8);
        let cluster = match request.engine {
            Some(Engine::XlaSpmd) => Cluster::parse(&format!("{world}xTPU-v6e")).map_err(|finding| vec![finding])?,
            _ => Cluster { nodes, devices_per_node: world / nodes, ..Cluster::parse("8xH200").unwrap() },
        };
        Case::on(source, request, seams, cluster)
    }

    /// A case on a cluster of one's own.
    pub fn on(
        source: &Recipe,
        request: &LayoutRequest,
        seams: Seams,
        cluster: Cluster,
    ) -> Result<Case, Vec<diag::Finding>> {
        let request = LayoutRequest { engine: request.engine.or(Some(Engine::Megatron)), ..request.clone() };
        let terms = Terms { purpose: Purpose::Split, seams };
        let case = case::Case::laid_out(source.clone(), &request, Some(cluster), terms)?;
        let (mut policy, frontend) = (Policy::default(), Frontend::MegatronLm);
        if request.engine == Some(Engine::Deepspeed) {
            // A script of one's own may split over every axis that DeepSpeed has.
            policy.job.script = Some("train.py".to_string());
        }
        Ok(Case { name: source.name.raw().to_string(), case, policy, frontend })
    }

    /// The same with AdamW's state on the host, where the engine takes that.
    pub fn offloaded(mut self) -> Result<Case, Vec<diag::Finding>> {
        self.case = self.case.with_options(|options| options.offload = 1.0);
        let case = &self.case;
        let unmet = case::unmet(&case.recipe, &case.layout, &case.options, case.cluster.as_ref());
        if unmet.is_empty() { Ok(self) } else { Err(unmet) }
    }

    pub fn job(&self) -> Job<'_> {
        Job::new(&self.case, &self.policy, self.frontend)
    }

    pub fn emit(&self) -> Result<Emission, Vec<diag::Finding>> {
        launch::engines::emit(&self.job())
    }

    /// Every file for a scheduler, with storage where `launch` puts it for that scheduler.
    pub fn files(&self, scheduler: Scheduler) -> Result<Vec<launch::File>, Vec<diag::Finding>> {
        let policy = schedulers::settled(scheduler, self.policy.clone());
        let job = Job::new(&self.case, &policy, self.frontend);
        schedulers::files(scheduler, &job, &launch::engines::emit(&job)?)
    }
}

/// A built-in recipe.
pub fn recipe(name: &str) -> Recipe {
    recipe::builtin::find(name).unwrap()
}

/// Built-in recipes as written, and with the features they have values for.
pub fn recipes() -> Vec<(String, Recipe)> {
    let mut all = Vec::new();
    for (name, _) in recipe::builtin::RECIPES {
        let plain = recipe(name);
        let features: Vec<Feature> = plain.features.listed().into_iter().map(|(feature, _)| feature).collect();
        let bundles: Vec<Vec<Feature>> = features.iter().map(|f| vec![*f]).chain([features.clone()]).collect();
        all.push((name.to_string(), plain.clone()));
        for bundle in bundles.into_iter().filter(|b| !b.is_empty()) {
            let words: Vec<&str> = bundle.iter().map(|f| f.name()).collect();
            if let Ok(with) = plain.clone().with_features(&bundle, &[]) {
                all.push((format!("{name}+{}", words.join("+")), with));
            }
        }
    }
    all.dedup_by(|a, b| a.0 == b.0);
    all
}

/// The modes a recipe may run in, or none.
pub fn modes(recipe: &Recipe) -> Vec<Option<Mode>> {
    if recipe.modes.is_empty() { vec![None] } else { recipe.modes.iter().copied().map(Some).collect() }
}

/// A layout with these degrees: tp, cp, pp, vpp, ep, etp.
fn degrees([tp, cp, pp, vpp, ep, etp]: [u64; 6]) -> LayoutRequest {
    let some = |n: u64| (n > 1).then_some(n);
    LayoutRequest {
        world: Some(64),
        tp: Some(tp),
        cp: some(cp),
        pp: some(pp),
        vpp: some(vpp),
        ep: some(ep),
        etp: Some(etp),
        micro_batch: Some(1),
        microbatches: Some(if pp > 1 { 2 * pp } else { 2 }),
        ..LayoutRequest::default()
    }
}

/// The grid.
pub fn layouts() -> Vec<LayoutRequest> {
    let shapes = [
        [1, 1, 1, 1, 1, 1],
        [2, 1, 1, 1, 1, 1],
        [2, 1, 1, 1, 4, 1],
        [1, 1, 1, 1, 8, 1],
        [4, 1, 2, 1, 4, 1],
        [2, 1, 4, 1, 1, 1],
        [1, 2, 1, 1, 1, 1],
        [2, 2, 2, 1, 2, 1],
        [1, 1, 2, 2, 1, 1],
        [2, 1, 2, 2, 2, 2],
        [8, 1, 1, 1, 1, 1],
    ];
    let mut all: Vec<LayoutRequest> = shapes.into_iter().map(degrees).collect();
    all.push(LayoutRequest { recompute: Some(Recompute::Full), ..degrees([2, 1, 1, 1, 1, 1]) });
    let modules = Recompute::parse("selective:core_attn+layernorm").unwrap();
    all.push(LayoutRequest { recompute: Some(modules), ..degrees([2, 1, 1, 1, 2, 1]) });
    all.push(LayoutRequest { zero: Some(ZeroStage::Zero), ..degrees([1, 1, 1, 1, 1, 1]) });
    all.push(LayoutRequest { zero: Some(ZeroStage::Two), ..degrees([1, 1, 1, 1, 1, 1]) });
    all.push(LayoutRequest { zero: Some(ZeroStage::Three), ..degrees([2, 1, 1, 1, 2, 1]) });
    all.push(LayoutRequest { sp: Some(false), ..degrees([2, 1, 1, 1, 1, 1]) });
    all.push(LayoutRequest { schedule: Some(Schedule::DualPipeV), ..degrees([1, 1, 2, 2, 1, 1]) });
    all.push(LayoutRequest { boundaries: Some(vec![5, 11, 20]), ..degrees([2, 1, 4, 1, 1, 1]) });
    all
}

/// Every case of an engine, legal or refused.
pub fn cases(engine: Engine, allowed: Seams) -> Vec<(String, Result<Case, Vec<diag::Finding>>)> {
    let mut all = Vec::new();
    for (name, recipe) in recipes() {
        for mode in modes(&recipe) {
            for (index, layout) in layouts().into_iter().enumerate() {
                let request = LayoutRequest { mode, engine: Some(engine), ..layout };
                let mode_name = mode.map_or("plain", Mode::name);
                let name = format!("{name}.{mode_name}.{index}");
                let case = Case::new(&recipe, &request, allowed).map(|case| Case { name: name.clone(), ..case });
                all.push((name, case));
            }
            if engine == Engine::Megatron {
                let name = format!("{name}.{}.offload", mode.map_or("plain", Mode::name));
                let request = LayoutRequest { mode, engine: Some(engine), ..degrees([1, 1, 1, 1, 1, 1]) };
                let case = Case::new(&recipe, &request, allowed).and_then(Case::offloaded);
                all.push((name.clone(), case.map(|case| Case { name, ..case })));
            }
        }
    }
    all
}

/// Every axis of the lanes whose program is emitted, on eight ranks.
pub fn of_a_program(engine: Engine) -> LayoutRequest {
    LayoutRequest {
        world: Some(8),
        tp: Some(2),
        ep: Some(2),
        etp: Some(1),
        zero: Some(ZeroStage::Three),
        engine: Some(engine),
        ..LayoutRequest::default()
    }
}
