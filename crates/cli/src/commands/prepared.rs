//! A model, a layout and a cluster, checked for launching: what `launch` writes down and
//! `preflight` holds a machine to. Unlike `fit`, an engine that no ledger prices is no refusal:
//! its memory is unmodelled, and both say so.

use super::fit::{check_state, is_plain, offload, on_cluster, stepped, tell};
use super::recipe_of;
use crate::args::{LayoutArgs, RecipeArgs, StateArgs};
use crate::files::load_cluster;
use crate::outcome::Refusal;
use diag::{Blame, Finding};
use hardware::Cluster;
use launch::job::{Frontend, Job, Seams, seams};
use launch::lanes::{self, Lane};
use launch::policy::Policy;
use layout::{Checked, Engine, Layout, LayoutRequest, StagePlan, check};
use ledger::Ledger;
use ledger::megatron::Reduction;
use memory::fit::{Fit, FitRequest, HEADROOM, OffloadRequest};
use recipe::{Recipe, Seam};
use replay::Unmodelled;

/// What was typed.
pub struct Typed<'a> {
    pub recipe: &'a RecipeArgs,
    pub layout: &'a LayoutArgs,
    pub state: &'a StateArgs,
    pub on: &'a str,
    pub lane: Option<&'static Lane>,
    pub frontend: Frontend,
}

/// Everything a job borrows.
pub struct Prepared {
    /// The recipe as typed, before its mode.
    pub recipe: Recipe,
    pub checked: Checked,
    pub layout: Layout,
    pub stages: StagePlan,
    pub cluster: Cluster,
    pub policy: Policy,
    seams: Vec<Seam>,
    allowed: Seams,
    frontend: Frontend,
    /// What prices it, or why nothing does.
    ledger: Result<Ledger, Unmodelled>,
    offload: OffloadRequest,
}

impl Prepared {
    /// Checks what was typed; blocks an engine does not have are refused or become seams.
    pub fn new(typed: &Typed, policy: Policy, allowed: Seams) -> Result<Prepared, Refusal> {
        let recipe = stepped(recipe_of(typed.recipe)?, typed.state.optimizer);
        let cluster = load_cluster(typed.on)?;
        let request = request(typed, &recipe, &cluster)?;
        let checked = check(&recipe, &request);
        let seams = seams(&checked, allowed)?;
        let Some(layout) = checked.layout.clone() else { return Err(checked.findings.into()) };
        let stages = StagePlan::new(&checked.recipe, &layout, None)?;
        check_state(typed.state, &cluster)?;
        let ledger = ledger(typed.state, &checked.recipe, &layout, &policy)?;
        let offload = ledger.as_ref().map_or(OffloadRequest::default(), |ledger| offload(ledger, typed.state));
        let frontend = typed.frontend;
        Ok(Prepared { recipe, checked, layout, stages, cluster, policy, seams, allowed, frontend, ledger, offload })
    }

    /// The job.
    pub fn job(&self) -> Job<'_> {
        Job {
            source: &self.recipe,
            recipe: &self.checked.recipe,
            layout: &self.layout,
            stages: &self.stages,
            cluster: &self.cluster,
            policy: &self.policy,
            told: self.ledger.as_ref().ok(),
            offload: self.offload,
            seams: &self.seams,
            allowed: self.allowed,
            frontend: self.frontend,
        }
    }

    /// The memory model's answer.
    pub fn price(&self) -> Result<Fit, Unmodelled> {
        Fit::price(&FitRequest {
            recipe: &self.checked.recipe,
            layout: &self.layout,
            stages: &self.stages,
            device: &self.cluster.device,
            ledger: self.ledger.as_ref().map_err(Clone::clone)?,
            offload: self.offload,
            headroom: HEADROOM,
        })
    }
}

/// The layout on the cluster: the engine is the lane's or Megatron, the mode one that the lane runs.
fn request(typed: &Typed, recipe: &Recipe, cluster: &Cluster) -> Result<LayoutRequest, Refusal> {
    let mut request = on_cluster(typed.layout, recipe, cluster, typed.on)?;
    let engine = request.engine.or(typed.lane.map(|lane| lane.engine)).unwrap_or(Engine::Megatron);
    request.engine = Some(engine);
    if typed.layout.mode.is_none()
        && let (Some(mode), Some(lane)) = (request.mode, lanes::of_engine(engine))
        && !lane.modes.contains(&mode)
    {
        request.mode = lane.modes.iter().copied().find(|mode| recipe.modes.contains(mode)).or(Some(mode));
    }
    Ok(request)
}

/// The engine's ledger with what it is told. An engine without one cannot be told anything that
/// only a ledger passes on, and that is refused rather than dropped.
fn ledger(
    state: &StateArgs,
    recipe: &Recipe,
    layout: &Layout,
    policy: &Policy,
) -> Result<Result<Ledger, Unmodelled>, Refusal> {
    let mut ledger = match Ledger::of(layout.engine, recipe, layout) {
        Err(_) if !is_plain(state) => {
            let message = "--precision, --gradients, --ce-fusion and offload are passed on to no such engine";
            return Err(Finding::error("launch/state", Blame::Usage, "engine", message)
                .hint("leave them out, and write them into the engine's own configuration")
                .into());
        }
        Err(reason) => return Ok(Err(reason)),
        Ok(ledger) => ledger,
    };
    tell(&mut ledger, state)?;
    if let (Ledger::Megatron(options), true) = (&mut ledger, policy.run.overlap) {
        options.reduction = Reduction::Overlapped;
    }
    Ok(Ok(ledger))
}
