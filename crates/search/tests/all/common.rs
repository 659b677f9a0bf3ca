//! Small questions.

use case::{Asked, Options};
use hardware::Cluster;
use layout::LayoutRequest;
use recipe::Recipe;
use search::{Effort, Offered, OffloadChoice, Question, Reach, Space, lay_out};
use std::sync::LazyLock;
use units::Bytes;
use work::Limit;

/// Cases that come out are typed along with this.
static ASKED: LazyLock<Asked> = LazyLock::new(Asked::default);

static UNLIMITED: LazyLock<Limit> = LazyLock::new(Limit::none);

/// A question with nothing typed but what is pinned.
pub fn question<'a>(
    recipe: &'a Recipe,
    cluster: &'a Cluster,
    pinned: &'a LayoutRequest,
    headroom: Bytes,
) -> Question<'a> {
    Question {
        asked: &ASKED,
        recipe,
        cluster,
        pinned,
        headroom,
        overload: 1.0,
        offload: OffloadChoice::Free,
        reach: Reach::Anywhere,
        options: Options::of(pinned.engine, recipe),
        offered: Offered::Searched,
        limit: &UNLIMITED,
    }
}

/// The space of a question; panics where there is none.
pub fn space<'a>(question: Question<'a>) -> Space<'a> {
    lay_out(question, Effort::Bounded).unwrap_or_else(|findings| panic!("{findings:?}"))
}
