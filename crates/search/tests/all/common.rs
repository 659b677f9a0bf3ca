//! Small questions.

use hardware::Cluster;
use layout::{Layout, LayoutRequest};
use ledger::Ledger;
use recipe::Recipe;
use replay::Unmodelled;
use search::{OffloadChoice, Question, Reach, Space, lay_out};
use units::Bytes;

fn megatron(recipe: &Recipe, _: &Layout) -> Result<Ledger, Unmodelled> {
    Ok(Ledger::Megatron(ledger::megatron::MegatronOptions::of(recipe)))
}

fn own(recipe: &Recipe, layout: &Layout) -> Result<Ledger, Unmodelled> {
    Ledger::of(layout.engine, recipe, layout)
}

/// The same question, priced by the ledger of its engine.
#[allow(dead_code)]
pub fn by_its_engine(question: Question) -> Question {
    Question { ledger: &own, ..question }
}

/// A question with nothing typed but what is pinned; Megatron's ledger prices it, whatever the engine.
pub fn question<'a>(
    recipe: &'a Recipe,
    cluster: &'a Cluster,
    pinned: &'a LayoutRequest,
    headroom: Bytes,
) -> Question<'a> {
    Question {
        recipe,
        cluster,
        pinned,
        headroom,
        caution: Bytes(0),
        offload: OffloadChoice::Free,
        reach: Reach::Anywhere,
        ledger: &megatron,
        options: cost::Options::of(pinned.engine, recipe),
    }
}

/// The space of a question; panics where there is none.
pub fn space<'a>(question: Question<'a>) -> Space<'a> {
    lay_out(question).unwrap_or_else(|findings| panic!("{findings:?}"))
}
