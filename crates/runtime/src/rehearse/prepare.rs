//! From what was asked to a small recipe, the layout to rehearse, and the layout of one rank to compare
//! with.

use super::resume::Start;
use super::{Ask, Source, data};
use crate::shrink::{Change, Dim, Dims, shrink};
use crate::supported::unsupported;
use diag::{Blame, Finding};
use layout::legality::UNCARRIED_STATE;
use layout::{Checked, Engine, Layout, LayoutRequest, ZeroStage, check};
use recipe::Recipe;

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
}

/// Shrinks and checks; refuses by name what cannot be rehearsed.
pub fn prepare(ask: &Ask) -> Result<Prepared, Vec<Finding>> {
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
    let small = shrink(recipe, &request, &dims(ask))?;
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
    Ok(Prepared { recipe: small_recipe, layout, one, changes: small.changes, notes, start })
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
        true => format!(
            "--dp {} (without --world) rehearses the same split with fewer replicas; give ep a degree that fits them",
            (MOST_RANKS / replica).clamp(1, 2)
        ),
        false => format!("one replica alone has {replica} ranks: lower tp, cp, pp or ep"),
    };
    Finding::error("rehearse/ranks", Blame::Layout, "world", message).hint(hint)
}
