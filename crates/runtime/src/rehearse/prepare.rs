//! From what was asked to a small recipe, the layout to rehearse, and the layout of one rank to compare
//! with.

use super::predict::{self, How};
use super::resume::Start;
use super::{Ask, Source, data};
use crate::shrink::{Change, Dim, Dims, shrink};
use crate::supported::unsupported;
use diag::{Blame, Finding};
use layout::legality::UNCARRIED_STATE;
use layout::{Checked, Engine, Layout, LayoutRequest, ZeroStage, check};
use recipe::Recipe;
use work::Work;

/// Most ranks that one machine rehearses: threads far beyond its cores only wait for one another.
pub const MOST_RANKS: u64 = 64;

/// A rehearsal that is ready to run.
pub struct Prepared {
    /// The small recipe, as its mode runs it.
    pub recipe: Recipe,
    /// The layout to rehearse.
    pub layout: Layout,
    /// The layout on one rank that takes the same steps.
    pub one: Layout,
    /// Sizes that were made smaller.
    pub changes: Vec<Change>,
    /// Notes and warnings for the user.
    pub notes: Vec<Finding>,
    /// Where the run goes on from.
    pub start: Start,
    /// What it will take of this machine, roughly.
    pub work: Work,
}

/// Shrinks and checks; refuses by name what cannot be rehearsed, or not within the limit on work. Nothing as
/// large as the model is allocated.
pub fn prepare(ask: &Ask) -> Result<Prepared, Vec<Finding>> {
    let prepared = laid_out(ask, &dims(ask))?;
    let what = match prepared.layout.world {
        1 => format!("rehearsing `{}` on one rank", prepared.recipe.name.terminal()),
        world => format!("rehearsing `{}` on one rank and on {world}", prepared.recipe.name.terminal()),
    };
    let is_beyond = ask.limit.check(&what, prepared.work, "").is_err();
    let less = if is_beyond { less(ask, &prepared) } else { String::new() };
    ask.limit.check(&what, prepared.work, &less)?;
    Ok(prepared)
}

/// Values that would bring a rehearsal within the limit: of the sizes that were insisted on each alone, and
/// fewer steps.
fn less(ask: &Ask, prepared: &Prepared) -> String {
    let fits = |work: Work| ask.limit.check("", work, "").is_ok();
    let dims = dims(ask);
    let smaller = |at: usize| {
        let (dim, value) = dims.0[at];
        let halves = (1..u64::BITS).map(|times| value >> times).take_while(|value| *value > 0);
        let tried = halves.map(|value| {
            let mut dims = dims.clone();
            dims.0[at].1 = value;
            (value, laid_out(ask, &dims).is_ok_and(|prepared| fits(prepared.work)))
        });
        let mut tried = tried;
        tried.find(|(_, fits)| *fits).map(|(value, _)| format!("--dims {dim}={value}"))
    };
    let mut found: Vec<String> = (0..dims.0.len()).filter_map(smaller).collect();
    let one = |steps: u64| work(ask, prepared, steps);
    let fewer = (0..u64::BITS).map(|times| ask.steps >> times).take_while(|steps| *steps > 0).skip(1);
    found.extend(fewer.into_iter().find(|steps| fits(one(*steps))).map(|steps| format!("--steps {steps}")));
    match &found[..] {
        [] => String::new(),
        all => format!("{} would do", all.join(" or ")),
    }
}

fn work(ask: &Ask, prepared: &Prepared, steps: u64) -> Work {
    let how = How { bytes_each: ask.number.bytes(), steps, ranks: ask.ranks };
    predict::work(&prepared.recipe, &prepared.layout, &prepared.one, how)
}

/// The small recipe and the layouts it runs under.
fn laid_out(ask: &Ask, dims: &Dims) -> Result<Prepared, Vec<Finding>> {
    let (recipe, mut request, notes) = (ask.recipe, ask.request.clone(), carried(ask));
    let unsupported = unsupported(recipe);
    if !unsupported.is_empty() {
        return Err(unsupported);
    }
    if request.engine.is_some_and(|engine| engine != Engine::Shardwright) {
        let theirs = check(recipe, &request);
        if !theirs.is_legal() {
            return Err(theirs.findings);
        }
    }
    request.engine = Some(Engine::Shardwright);
    let (full_recipe, full) = legal(check(recipe, &request))?;
    if full.world > MOST_RANKS {
        return Err(vec![too_many(&full)]);
    }
    let small = shrink(recipe, &request, dims)?;
    let start = Start::new(ask, &full_recipe, full.mode)?;
    start.check_target(ask)?;
    let small = start.resized(ask, small)?;
    let (small_recipe, layout) = legal(check(&small.recipe, &small.request))?;
    start.check(&small_recipe, &layout)?;
    let alone = LayoutRequest {
        world: Some(1),
        // Adds gradients microbatch by microbatch, in the order in which replicas are added. Without it
        // the products of all microbatches go into one sum, and rounding differs from the first step on.
        zero: Some(ZeroStage::Two),
        micro_batch: Some(layout.micro_batch),
        global_batch: Some(layout.global_batch),
        sequence: Some(layout.sequence),
        vocab_multiple: Some(1),
        engine: Some(Engine::Shardwright),
        ..LayoutRequest::default()
    };
    // It takes the steps of that mode, whatever degree the mode is pinned to.
    let one = Layout { mode: layout.mode, ..legal(check(&small_recipe, &alone))?.1 };
    if let Some(finding) = ask.inject.and_then(|inject| inject.refuse(&small_recipe, &layout, ask.steps)) {
        return Err(vec![finding]);
    }
    let (recipe, changes) = (small_recipe, small.changes);
    let mut prepared = Prepared { recipe, layout, one, changes, notes, start, work: Work::default() };
    prepared.work = work(ask, &prepared, ask.steps);
    Ok(prepared)
}

fn legal(checked: Checked) -> Result<(Recipe, Layout), Vec<Finding>> {
    match checked.layout.clone().filter(|_| checked.is_legal()) {
        Some(layout) => Ok((checked.recipe, layout)),
        None => Err(checked.findings),
    }
}

/// The sizes asked for; a text needs 256 tokens, whatever was asked.
fn dims(ask: &Ask) -> Dims {
    let mut dims = ask.dims.clone();
    if matches!(ask.source, Source::Text(_)) && !dims.0.iter().any(|(d, v)| *d == Dim::Vocab && *v >= data::BYTES) {
        dims.0.retain(|(d, _)| *d != Dim::Vocab);
        dims.0.push((Dim::Vocab, data::BYTES));
    }
    dims
}

/// Under context parallelism the recurrent mixers of this engine hand their state on even where the
/// recipe says that its own implementation does not. Where no engine was named, the one that will train
/// may not, so the finding of `check` is shown as a note.
fn carried(ask: &Ask) -> Vec<Finding> {
    if ask.request.engine.is_some() {
        return Vec::new();
    }
    let refused = check(ask.recipe, ask.request).findings.into_iter().filter(|f| UNCARRIED_STATE.found(f));
    let note = |finding: Finding| {
        let message = format!("this engine's `{}` hands its state across a cut in time", finding.object);
        Finding::note("rehearse/state-carry", Blame::Recipe, finding.object.clone(), message).hint(format!(
            "`check` accepts cp with `--engine shardwright`, and for others once `{}.state_carry = true`",
            finding.object
        ))
    };
    refused.map(note).collect()
}

fn too_many(layout: &Layout) -> Finding {
    let world = layout.world;
    let message = format!("the layout has {world} ranks, and one machine rehearses at most {MOST_RANKS}");
    let replica = world / layout.dp.get();
    let hint = match replica <= MOST_RANKS {
        true => {
            let ep = if layout.ep.splits() { "; give ep a degree that fits them" } else { "" };
            let dp = (MOST_RANKS / replica).clamp(1, 2);
            format!("--dp {dp} (without --world) rehearses the same split with fewer replicas{ep}")
        }
        false => {
            let axes = [("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp)];
            let axes: Vec<&str> = axes.iter().filter(|(_, degree)| degree.splits()).map(|(axis, _)| *axis).collect();
            format!("one replica alone has {replica} ranks: lower {}", axes.join(" or "))
        }
    };
    Finding::error("rehearse/ranks", Blame::Layout, "world", message).hint(hint)
}
