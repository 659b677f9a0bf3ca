//! From what was asked to a case: defaults filled in, each with its reason; refused with every
//! finding at once.

use crate::Case;
use crate::asked::{Asked, LayoutArgs, PrecisionChoice};
use crate::conditions;
use crate::kinds::LayerKinds;
use crate::machines;
use crate::options::Options;
use crate::words;
use diag::{Blame, Finding, Severity};
use hardware::Cluster;
use layout::{Balance, Checked, Derived, Engine, Layout, LayoutRequest, OwnershipTable, StagePlan, check};
use recipe::import::megatron_args::shell_words;
use recipe::{Mixer, Mode, Recipe, Seam};

/// What a case is wanted for: it decides what is derived when nobody types it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look at a split, or to rehearse it: no engine, and no mode but a typed one.
    Split,
    /// To price or to launch: an engine runs it, in a mode where the recipe has any.
    Run,
}

/// What to do about blocks an engine does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seams {
    /// Refuse them.
    Refuse,
    /// Let them pass, each marked as a seam.
    Allow,
}

/// How strictly a case is made, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What it is wanted for.
    pub purpose: Purpose,
    /// What an engine has no block for.
    pub seams: Seams,
}

impl Terms {
    /// To price or launch; what an engine does not have is refused.
    pub const RUN: Terms = Terms { purpose: Purpose::Run, seams: Seams::Refuse };
    /// To look at a split.
    pub const SPLIT: Terms = Terms { purpose: Purpose::Split, seams: Seams::Refuse };
}

/// Modes that an engine has the blocks for. Megatron-Core has built-in mixers and takes custom ones
/// as modules; the others run the recipe's own.
pub fn modes_of(engine: Option<Engine>) -> &'static [Mode] {
    match engine {
        None | Some(Engine::Megatron | Engine::Shardwright) => &[Mode::NemoNative, Mode::AuthorDp],
        Some(Engine::Nanotron | Engine::Maxtext) => &[],
        Some(_) => &[Mode::AuthorDp],
    }
}

impl Case {
    /// The job that was asked for. `recipe` and `cluster` are what the asked words stand for.
    pub fn new(asked: Asked, recipe: Recipe, cluster: Option<Cluster>, terms: Terms) -> Result<Case, Vec<Finding>> {
        let recipe =
            recipe.with_features(&asked.recipe.with, &asked.recipe.without).map_err(|finding| vec![finding])?;
        let source = asked.state.optimizer.map_or(recipe.clone(), |choice| choice.applied(recipe));
        Case::build(asked, source, cluster, terms)
    }

    /// The job of a recipe that nobody typed the name of: a measured row's, or a test's.
    pub fn laid_out(
        recipe: Recipe,
        request: &LayoutRequest,
        cluster: Option<Cluster>,
        terms: Terms,
    ) -> Result<Case, Vec<Finding>> {
        let mut asked = Asked { layout: LayoutArgs::from(request), ..Asked::default() };
        asked.recipe.recipe = recipe.name.raw().to_string();
        asked.on = cluster.as_ref().map(Cluster::typed);
        Case::build(asked, recipe, cluster, terms)
    }

    /// The same job with something else typed about its layout or state.
    pub fn with(&self, change: impl FnOnce(&mut Asked)) -> Result<Case, Vec<Finding>> {
        let mut asked = self.asked.clone();
        change(&mut asked);
        Case::build(asked, self.source.clone(), self.cluster.clone(), self.terms)
    }

    /// The same job with its engine told something that nobody types.
    pub fn with_options(&self, change: impl FnOnce(&mut Options)) -> Case {
        let mut case = self.clone();
        change(&mut case.options);
        case
    }

    /// From a recipe whose features and optimizers are switched already.
    pub fn build(asked: Asked, source: Recipe, cluster: Option<Cluster>, terms: Terms) -> Result<Case, Vec<Finding>> {
        let Settled { recipe, layout, options, passed, defaults, seams, mut findings } =
            Settled::of(&asked, &source, cluster.as_ref(), terms)?;
        let (stages, table) = parts(&recipe, &layout)?;
        let kinds = LayerKinds::of(&recipe);
        if terms.purpose == Purpose::Run {
            findings.extend(not_priced(&recipe, layout.engine));
            findings.extend(passed_on(&passed, layout.engine));
            findings.extend(conditions::widths(&recipe, &layout, &options));
            findings.extend(cluster.as_ref().and_then(|on| conditions::asks(&recipe, &layout, &options, on)));
        }
        Ok(Case {
            asked,
            source,
            recipe,
            layout,
            stages,
            table,
            kinds,
            cluster,
            options,
            passed,
            defaults,
            seams,
            findings,
            terms,
        })
    }

    /// The same job under other terms, where it is legal under both.
    pub fn under(&self, terms: Terms) -> Case {
        Case { terms, ..self.clone() }
    }

    /// How strictly it was made, and for what.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The engine that runs it; Megatron-Core when none is named.
    pub fn engine(&self) -> Engine {
        self.layout.engine.unwrap_or(Engine::Megatron)
    }

    /// The cluster it is priced on.
    ///
    /// # Panics
    /// When the case was made without one: whoever prices makes it with one.
    pub fn on(&self) -> &Cluster {
        self.cluster.as_ref().expect("a case that is priced has a cluster")
    }
}

/// A job whose layout no rule refuses, before its parts are listed.
pub(crate) struct Settled {
    pub recipe: Recipe,
    pub layout: Layout,
    options: Options,
    passed: Vec<Vec<String>>,
    defaults: Vec<Derived>,
    seams: Vec<Seam>,
    findings: Vec<Finding>,
}

impl Settled {
    /// From a recipe whose features and optimizers are switched already.
    pub fn of(
        asked: &Asked,
        source: &Recipe,
        cluster: Option<&Cluster>,
        terms: Terms,
    ) -> Result<Settled, Vec<Finding>> {
        let mut defaults = Vec::new();
        let request = request(asked, source, cluster, terms, &mut defaults)?;
        let engine = request.engine.or((terms.purpose == Purpose::Run).then_some(Engine::Megatron));
        if let (Some(engine), Some(cluster)) = (engine, cluster)
            && let Some(finding) = machines::refusal(engine, cluster, asked)
        {
            return Err(vec![finding]);
        }
        let (options, passed) = options(asked, request.engine, source, cluster)?;
        let mut checked = check(source, &request);
        if terms.purpose == Purpose::Run && asked.layout.engine.is_none() {
            say_assumed(&mut checked.findings);
        }
        defaults.extend(checked.derived.iter().cloned());
        let mut seams = seams(&checked, terms.seams)?;
        let Some(layout) = checked.layout else { return Err(checked.findings) };
        let unmet = conditions::unmet(&checked.recipe, &layout, &options, cluster);
        if !unmet.is_empty() {
            return Err(checked.findings.into_iter().chain(unmet).collect());
        }
        seams.extend(conditions::sparse_seam(&checked.recipe, &layout, &options));
        let (recipe, findings) = (checked.recipe, checked.findings);
        Ok(Settled { recipe, layout, options, passed, defaults, seams, findings })
    }
}

/// Which layers each chunk holds, and who owns what.
pub(crate) fn parts(recipe: &Recipe, layout: &Layout) -> Result<(StagePlan, OwnershipTable), Vec<Finding>> {
    let stages = StagePlan::new(recipe, layout, None).map_err(|finding| vec![finding])?;
    Ok((stages, OwnershipTable::new(recipe, layout)?))
}

/// Fields that add elementwise work and short-lived masks, which prices do not have, and of ledgers only that of the
/// emitted FSDP2 program.
fn not_priced(recipe: &Recipe, engine: Option<Engine>) -> Option<Finding> {
    let router = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe)).map(|moe| &moe.router);
    let mut fields = Vec::new();
    if router.is_some_and(|r| r.groups > 1) {
        fields.push("`moe.router.groups`");
    }
    if router.is_some_and(|r| r.z_loss.is_some()) {
        fields.push("`moe.router.z_loss`");
    }
    if !recipe.multipliers.set().is_empty() {
        fields.push("`multipliers`");
    }
    let figures = if engine == Some(Engine::Fsdp2) { "seconds" } else { "bytes and seconds" };
    let message = format!("{figures} are as if without {}: they add elementwise work", fields.join(", "));
    (!fields.is_empty()).then(|| Finding::note("case/not-priced", Blame::Recipe, "recipe", message))
}

/// Words that the engine is told and nothing here prices.
fn passed_on(passed: &[Vec<String>], engine: Option<Engine>) -> Option<Finding> {
    let names = words::not_priced(engine, passed);
    let message = format!("{} is passed on and not priced: bytes and seconds are as if without", names.join(", "));
    let finding = Finding::warning("engine-args/not-priced", Blame::Usage, "engine-args", message);
    (!names.is_empty()).then_some(finding)
}

/// Says with the refusals of an engine that nobody typed it.
fn say_assumed(findings: &mut [Finding]) {
    for finding in findings.iter_mut().filter(|f| f.severity == Severity::Error && f.blame == Blame::Engine) {
        hint_besides(finding, "the engine is assumed: --engine names another, or `any`");
    }
}

/// A hint behind the finding's own.
fn hint_besides(finding: &mut Finding, hint: &str) {
    finding.hint = Some(finding.hint.take().map_or(hint.to_string(), |own| format!("{own}; {hint}")));
}

/// A world that is not the cluster's.
pub fn wrong_world(world: u64, devices: u64, on: &str) -> Finding {
    let message = format!("`--world {world}` is not the {devices} devices of `{on}`");
    Finding::error("case/world", Blame::Usage, "world", message).hint("leave --world out")
}

/// The layout as asked, with world, engine and mode filled in.
fn request(
    asked: &Asked,
    recipe: &Recipe,
    cluster: Option<&Cluster>,
    terms: Terms,
    defaults: &mut Vec<Derived>,
) -> Result<LayoutRequest, Vec<Finding>> {
    let mut request = asked.layout.request();
    if let Some(cluster) = cluster {
        let devices = cluster.devices();
        if let Some(world) = request.world.filter(|world| *world != devices) {
            let on = asked.on.as_deref().unwrap_or("the cluster");
            return Err(vec![wrong_world(world, devices, on)]);
        }
        request.world = Some(devices);
    }
    if let Some(balance) = request.balance.filter(|b| matches!(b, Balance::Memory | Balance::Time))
        && request.boundaries.is_none()
    {
        let message =
            format!("`--balance {balance}` needs a price for every layer, which only `stages` and `plan` work out");
        let hint = "ask `shardwright stages` with --balance and --on, and hand on the --boundaries it prints";
        return Err(vec![Finding::error("case/balance", Blame::Usage, "balance", message).hint(hint)]);
    }
    // Boundaries say all that a balance would.
    if request.boundaries.is_some() {
        request.balance = None;
    }
    if terms.purpose == Purpose::Split {
        // Our own runtime runs the blocks of a recipe as they are.
        if request.engine.is_some_and(|engine| engine != Engine::Shardwright) {
            defaults.extend(settle_mode(recipe, &mut request));
        }
        return Ok(request);
    }
    if asked.layout.engine.is_none() {
        let (engine, why) = machines::usual_engine(recipe, cluster);
        request.engine = Some(engine);
        defaults.push(Derived { key: "engine", value: engine.to_string(), why });
    }
    defaults.extend(settle_mode(recipe, &mut request));
    Ok(request)
}

/// Fills in the mode of a job of the request's engine where none is typed, and says why.
pub fn settle_mode(recipe: &Recipe, request: &mut LayoutRequest) -> Option<Derived> {
    if request.mode.is_some() {
        return None;
    }
    let (mode, why) = usual_mode(recipe, request)?;
    request.mode = Some(mode);
    Some(Derived { key: "mode", value: mode.to_string(), why })
}

/// The layout of a job to price, as asked, with world, engine and mode filled in.
pub(crate) fn settled_request(
    asked: &Asked,
    recipe: &Recipe,
    cluster: &Cluster,
) -> Result<LayoutRequest, Vec<Finding>> {
    request(asked, recipe, Some(cluster), Terms::RUN, &mut Vec::new())
}

/// The mode a recipe runs in when none is typed: one that the engine has, that is pinned to the
/// typed tp, and under which the rest of what was typed is legal.
fn usual_mode(recipe: &Recipe, request: &LayoutRequest) -> Option<(Mode, String)> {
    let has = |mode: &&Mode| recipe.modes.contains(mode) && modes_of(request.engine).contains(mode);
    let modes: Vec<Mode> = recipe.modes.iter().filter(has).copied().collect();
    let first = *modes.first()?;
    if let Some(tp) = request.tp {
        let pinned = modes.iter().find(|mode| mode.tensor_parallel() == tp);
        return Some(match pinned {
            Some(mode) => (*mode, format!("the mode that is pinned to tp {tp}")),
            None => (first, "the recipe's first mode that the engine runs".to_string()),
        });
    }
    let is_legal = |mode: &&Mode| check(recipe, &LayoutRequest { mode: Some(**mode), ..request.clone() }).is_legal();
    match modes.iter().find(is_legal) {
        Some(mode) if *mode == first => Some((first, "the recipe's first mode that the engine runs".to_string())),
        Some(mode) => Some((*mode, format!("{first} is not legal with the rest of what was typed, {mode} is"))),
        None => Some((first, "the recipe's first mode that the engine runs".to_string())),
    }
}

/// What the engine runs: its defaults in a launch, then what was typed; and words passed on as they
/// stand.
pub fn options(
    asked: &Asked,
    engine: Option<Engine>,
    recipe: &Recipe,
    cluster: Option<&Cluster>,
) -> Result<(Options, Vec<Vec<String>>), Vec<Finding>> {
    let (state, mut findings) = (&asked.state, Vec::new());
    let mut options = Options::of(engine, recipe);
    if let Some(precision) = state.precision {
        findings.extend(format_refusal(precision, engine, cluster));
        options = options.in_precision(precision);
    }
    let mut usage =
        |object: &str, message: String| findings.push(Finding::error("case/state", Blame::Usage, object, message));
    let is_megatron = matches!(engine, None | Some(Engine::Megatron));
    if state.gradients.is_some() && !is_megatron && engine != Some(Engine::Deepspeed) {
        let engine = engine_name(engine);
        usage("gradients", format!("`--gradients` is for Megatron-Core and DeepSpeed, and the engine is `{engine}`"));
    }
    for (object, is_typed) in [
        ("ce-fusion", state.ce_fusion),
        ("fp8-param-gather", state.fp8_param_gather),
        ("offload-activations", state.offload_activations != 0.0),
    ] {
        if is_typed && !is_megatron {
            usage(object, format!("`--{object}` is for Megatron-Core, and the engine is `{}`", engine_name(engine)));
        }
    }
    if let Some(dtype) = state.gradients {
        options.state.gradients = dtype;
    }
    if state.ce_fusion {
        options.kernels.cross_entropy = crate::options::CrossEntropy::Native;
    }
    options.fp8_param_gather = state.fp8_param_gather;
    options.offload = state.offload_optimizer.unwrap_or(0.0);
    options.offload_activations = state.offload_activations;
    options.offload_params = state.offload_params;
    options.on_nvme = state.offload_nvme.is_some();
    let is_deepspeed = engine == Some(Engine::Deepspeed);
    for (object, is_typed) in [("offload-params", options.offload_params), ("offload-nvme", options.on_nvme)] {
        if is_typed && !is_deepspeed {
            usage(object, format!("`--{object}` is for DeepSpeed, and the engine is `{}`", engine_name(engine)));
        }
    }
    if let Some(path) =
        state.offload_nvme.as_ref().filter(|path| !path.starts_with('/') || path.contains(char::is_control))
    {
        usage(
            "offload-nvme",
            format!("`--offload-nvme {}` is no path from / on one line", diag::quote::terminal(path)),
        );
    }
    for (object, share) in
        [("offload-optimizer", options.offload), ("offload-activations", options.offload_activations)]
    {
        if !(0.0..=1.0).contains(&share) {
            usage(object, format!("`--{object} {share}` is no share from 0 to 1"));
        }
    }
    let is_offloading = matches!(engine, None | Some(Engine::Megatron | Engine::Deepspeed));
    if options.offload > 0.0 && !is_offloading {
        usage("offload-optimizer", format!("`{}` keeps its state on the device", engine_name(engine)));
    }
    options.documents = state.documents;
    let packs = matches!(engine, None | Some(Engine::Megatron | Engine::Fsdp2));
    if state.documents.is_some() && !packs {
        let message = format!("`{}` is told nothing of documents in a sequence", engine_name(engine));
        usage("documents", format!("{message}: --engine megatron or --engine fsdp2 keep them apart"));
    }
    let typed: Vec<String> = state.engine_args.iter().flat_map(|text| shell_words(text)).collect();
    let passed = match words::read(engine, &typed, &mut options) {
        Ok(said) => said.passed,
        Err(refusals) => {
            findings.extend(refusals);
            Vec::new()
        }
    };
    if findings.is_empty() { Ok((options, passed)) } else { Err(findings) }
}

fn engine_name(engine: Option<Engine>) -> &'static str {
    engine.map_or("megatron", Engine::name)
}

/// A format that the engine or the device does not multiply in.
fn format_refusal(precision: PrecisionChoice, engine: Option<Engine>, cluster: Option<&Cluster>) -> Option<Finding> {
    let refuse = |message: String| Finding::error("case/format", Blame::Usage, "precision", message);
    let name = precision.name();
    let is_own = engine == Some(Engine::Shardwright);
    let Some(format) = precision.format() else {
        let is_refused = !is_own;
        return is_refused
            .then(|| refuse(format!("--precision {name} is for --engine shardwright")).hint("leave it out"));
    };
    let is_scaled = matches!(precision, PrecisionChoice::Scaled(_));
    if is_scaled && !matches!(engine, None | Some(Engine::Megatron)) {
        return Some(refuse(format!(
            "--precision {name} is for Megatron-Core, and the engine is `{}`",
            engine_name(engine)
        )));
    }
    let device = &cluster?.device;
    let has = device.formats.iter().any(|known| known == format.name());
    (!has && !is_own).then(|| {
        refuse(format!("{} does not multiply in {format}", device.name))
            .hint(format!("it multiplies in {}", device.formats.join(", ")))
    })
}

/// Whether a refusal is a block or feature the engine does not have, so that a patch of one's own
/// could stand there.
fn is_seam(finding: &Finding) -> bool {
    finding.severity == Severity::Error && finding.blame == Blame::Missing
}

/// A refusal as the seam it becomes when allowed.
pub fn as_seam(finding: &Finding) -> Seam {
    Seam {
        name: finding.rule,
        layers: Vec::new(),
        wanted: finding.message.clone(),
        runs: "nothing built in: a patch of your own must stand here".to_string(),
        gives_up: false,
        filled_by: None,
    }
}

/// The mode's seams, and the engine's where they are allowed. Refused with every finding otherwise.
fn seams(checked: &Checked, policy: Seams) -> Result<Vec<Seam>, Vec<Finding>> {
    let refusals: Vec<&Finding> = checked.findings.iter().filter(|f| f.severity == Severity::Error).collect();
    let all_seams = refusals.iter().all(|f| is_seam(f));
    if refusals.is_empty() || (policy == Seams::Allow && all_seams) {
        let engine = refusals.into_iter().map(as_seam);
        return Ok(checked.seams.iter().cloned().chain(engine).collect());
    }
    Err(checked.findings.clone())
}

/// Refusals with what lets them pass as seams, for a caller who has seen that it does.
pub fn offer_seams(mut findings: Vec<Finding>) -> Vec<Finding> {
    for finding in findings.iter_mut().filter(|f| is_seam(f)) {
        hint_besides(finding, "--allow-seams emits the rest and marks this place");
    }
    findings
}
