//! Cases for tests and for the engines' own parsers: every built-in recipe in every legal mode
//! under a grid of layouts, those that are legal.

#![allow(dead_code, missing_docs)]

use hardware::Cluster;
use launch::job::{Frontend, Job, Seams, seams};
use launch::{Emission, Policy};
use layout::{Checked, Engine, Layout, LayoutRequest, Recompute, Schedule, StagePlan, ZeroStage, check};
use ledger::Ledger;
use memory::fit::OffloadRequest;
use recipe::{Feature, Mode, Recipe, Seam};

/// The findings of a refusal, each by this rule; panics where nothing was refused or no rule said so.
#[track_caller]
pub fn assert_refused(emitted: Result<Emission, Vec<diag::Finding>>, rule: &str) -> Vec<diag::Finding> {
    let findings = emitted.expect_err("it is refused");
    assert!(!findings.is_empty() && findings.iter().all(|f| f.rule == rule), "{rule}: {findings:?}");
    findings
}

/// A case with everything an emission borrows.
pub struct Case {
    pub name: String,
    pub source: Recipe,
    pub checked: Checked,
    pub layout: Layout,
    pub stages: StagePlan,
    pub cluster: Cluster,
    pub policy: Policy,
    pub seams: Vec<Seam>,
    pub ledger: Option<Ledger>,
    pub allowed: Seams,
    pub frontend: Frontend,
}

impl Case {
    /// A case, unless the layout is not legal (seams apart, where they are allowed).
    pub fn new(source: &Recipe, request: &LayoutRequest, allowed: Seams) -> Result<Case, Vec<diag::Finding>> {
        let checked = check(source, request);
        let seams = seams(&checked, allowed)?;
        let layout = checked.layout.clone().expect("a checked layout");
        let stages = StagePlan::new(&checked.recipe, &layout, None).map_err(|f| vec![f])?;
        let cluster = Cluster { nodes: layout.world.div_ceil(8), ..Cluster::parse("8xH200").unwrap() };
        let mut ledger = Ledger::of(layout.engine, &checked.recipe, &layout).ok();
        if let Some(Ledger::Megatron(options)) = &mut ledger {
            options.reduction = ledger::megatron::Reduction::Overlapped;
        }
        let name = source.name.clone();
        let (policy, frontend) = (Policy::default(), Frontend::MegatronLm);
        Ok(Case {
            name,
            source: source.clone(),
            checked,
            layout,
            stages,
            cluster,
            policy,
            seams,
            ledger,
            allowed,
            frontend,
        })
    }

    pub fn job(&self) -> Job<'_> {
        Job {
            source: &self.source,
            recipe: &self.checked.recipe,
            layout: &self.layout,
            stages: &self.stages,
            cluster: &self.cluster,
            policy: &self.policy,
            told: self.ledger.as_ref(),
            offload: OffloadRequest::default(),
            seams: &self.seams,
            allowed: self.allowed,
            frontend: self.frontend,
        }
    }

    pub fn emit(&self) -> Result<Emission, Vec<diag::Finding>> {
        launch::engines::emit(&self.job())
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
        }
    }
    all
}
