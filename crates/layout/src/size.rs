//! The most bytes a rank of a job can come to, in integers that cannot overflow: what is above
//! [`MOST_BYTES`] is refused before anything is counted, priced, searched or run.
//!
//! It bounds every ledger from above and estimates none: no axis but cp is credited, every layer
//! keeps everything, and an element is [`EACH`] bytes. A property test holds the replays of all
//! engines below it.

use crate::layout::Layout;
use crate::request::{Balance, Schedule};
use diag::{Blame, Finding};
use recipe::kinds::linear::Linear;
use recipe::kinds::mamba::Mamba;
use recipe::{Mixer, Recipe};
use units::exact;

/// Bytes of a rank that are counted: a hundred thousand devices' worth, and low enough that sums
/// and differences of such figures, and their product with the 256 parts that microbatches in
/// flight are counted in, stay within 64 bits.
pub const MOST_BYTES: u128 = 1 << 54;

/// Bytes that all an engine keeps, makes for a moment and rounds up come to for one number a
/// projection reads or writes, or for one parameter.
const EACH: u128 = 64;

/// Libraries' workspaces and what does not depend on any size.
const FIXED: u128 = 1 << 36;

/// Tokens after which every scan keeps a state, unless the recipe says fewer.
const CHUNK: u64 = 64;

/// One product of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    what: &'static str,
    factors: Vec<(&'static str, u128)>,
}

impl Term {
    fn new(what: &'static str, factors: Vec<(&'static str, u128)>) -> Term {
        Term { what, factors }
    }

    fn elements(&self) -> u128 {
        self.factors.iter().map(|(_, size)| *size).fold(1, u128::saturating_mul)
    }

    fn words(&self) -> String {
        let factor = |(name, size): &(&str, u128)| format!("{} {name}", human(*size));
        let factors: Vec<_> = self.factors.iter().filter(|(_, size)| *size != 1).map(factor).collect();
        format!("{} of {}", self.what, factors.join(" × "))
    }
}

/// What a recipe's sizes multiply to, whatever the layout: read off once, then put under many.
#[derive(Clone, Debug)]
pub struct Sizes {
    hidden: u128,
    /// Numbers a token that go from layer to layer.
    residual: u128,
    vocab: u64,
    depth: u128,
    /// Prediction depths.
    predicted: u128,
    parameters: u128,
    blocks: Vec<Block>,
    /// Numbers a token that side embeddings look up.
    sides: u128,
    /// Tokens between two states that some scan keeps, at least.
    chunk: u64,
    /// What scans pad a sequence to a multiple of.
    padded: u64,
    /// Index heads and attention heads, with a sparse indexer; and the tokens it keeps.
    indexed: Option<(u128, u64)>,
}

/// One block of a mixer.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// How many there are, prediction depths included.
    count: u128,
    /// Numbers that its projections read and write for a token, and that it makes in between.
    a_token: u128,
    /// Numbers that experts read and write for a token that chose one.
    a_choice: u128,
    /// Choices of a token, where each expert has room for so many times its share.
    choices: (u128, f64),
    /// Numbers of its state.
    a_state: u128,
    /// Whether an indexer may stand on it.
    is_attention: bool,
}

impl Sizes {
    /// The sizes of a recipe, as its mode runs it.
    pub fn of(recipe: &Recipe) -> Sizes {
        let hidden = u128::from(recipe.hidden);
        let used = Mixer::ALL.into_iter().filter(|mixer| recipe.uses(*mixer));
        let sides = recipe.features.sides().map(|(_, side)| u128::from(side.lookups()) * u128::from(side.dim) + hidden);
        let branches = recipe.features.engram().map(|engram| {
            let numbers = u128::from(engram.lookups() + engram.found()) * 4 + 16 * hidden;
            numbers.saturating_mul(engram.layers.len() as u128)
        });
        let carried = recipe.recurrent.as_ref().and_then(|kind| kind.depth_carry);
        let heads = recipe.attention().map_or(0, |attention| attention.heads);
        Sizes {
            hidden,
            residual: recipe.residual_width().into(),
            vocab: recipe.vocab,
            depth: recipe.depth() as u128,
            predicted: recipe.features.mtp().map_or(0, |mtp| mtp.depth.into()),
            // Megatron builds latent attention's projection out anew behind a square one of the hidden width.
            parameters: parameters(recipe) + if recipe.is_latent() { hidden * hidden } else { 0 },
            blocks: used.map(|mixer| Block::of(recipe, mixer)).collect(),
            sides: sides.chain(branches).fold(0, u128::saturating_add),
            chunk: CHUNK.min(chunk(recipe)).min(carried.unwrap_or(CHUNK)),
            padded: chunk(recipe).max(CHUNK),
            indexed: recipe.features.dsa().map(|dsa| (u128::from(dsa.heads) + u128::from(heads) + 1, dsa.top_k)),
        }
    }

    /// The bound under a layout, whose routing deals a rank's experts `skew` times their share.
    pub fn under(&self, layout: &Layout, skew: f64) -> Bound {
        let wide = u128::from;
        let (tokens_whole, cp) = (wide(layout.micro_batch) * wide(layout.sequence), wide(layout.cp.get()));
        let part = layout.sequence.div_ceil(layout.cp.get()).next_multiple_of(self.padded);
        let tokens = wide(layout.micro_batch) * wide(part);
        let widths = self.widths(layout, skew);
        let flying = wide(in_flight(layout));
        let vocab = wide(layout.padded_vocab(self.vocab));
        let params = self.parameters.saturating_add(2 * vocab * self.hidden);
        let mut terms = vec![
            // Under DualPipe a rank holds two chunks of the depth.
            Term::new("weights, gradients and optimizer state", vec![("parameters", params), ("copies", 2)]),
            Term::new(
                "activations",
                vec![("tokens", tokens), ("numbers a token", widths.a_token), ("microbatches in flight", flying)],
            ),
            Term::new(
                "recurrent states",
                vec![
                    ("sequences", layout.micro_batch.into()),
                    ("states", wide(layout.sequence.div_ceil(self.chunk) + 2 * CHUNK)),
                    ("numbers a state", widths.a_state),
                    ("microbatches in flight", flying),
                ],
            ),
            Term::new("logits", vec![("tokens", tokens), ("vocabulary", vocab), ("predictions", 1 + self.predicted)]),
        ];
        if cp > 1 {
            // Keys and values of a sequence, or all of it for some heads, come together block by block.
            let whole = vec![("tokens", tokens_whole), ("numbers a token of a layer", widths.of_one)];
            terms.push(Term::new("gathered sequences", whole));
        }
        if let Some((heads, _)) = self.indexed {
            // Eager kernels keep scores of every head for backward, and make them again where they are computed again.
            let layers = self.layers_of_a_stage(layout).saturating_mul(flying).saturating_add(1);
            let pairs = vec![
                ("queries", tokens),
                ("keys", layout.sequence.into()),
                ("heads", heads),
                ("layers in flight", layers),
            ];
            terms.push(Term::new("index scores", pairs));
        }
        if layout.pp.splits() {
            // torch's stages have a buffer for each microbatch that arrives.
            let arriving =
                vec![("tokens", tokens), ("hidden", self.residual), ("microbatches", layout.microbatches.into())];
            terms.push(Term::new("received microbatches", arriving));
        }
        Bound { terms }
    }

    /// Refuses what is above [`MOST_BYTES`], naming its largest product and what to lower.
    pub fn refusal(&self, layout: &Layout, skew: f64) -> Option<Finding> {
        let bound = self.under(layout, skew);
        let bytes = bound.bytes();
        if bytes <= MOST_BYTES {
            return None;
        }
        let largest = bound.terms.iter().max_by_key(|term| term.elements())?;
        let message = format!(
            "a rank may come to {} bytes, and at most {} are counted: {}, at up to {EACH} bytes each",
            human(bytes),
            human(MOST_BYTES),
            largest.words(),
        );
        let remedies: Vec<String> = self
            .remedies(layout, skew)
            .iter()
            .map(|(key, most)| format!("{key} may be up to {}", exact(*most)))
            .collect();
        let hint = match remedies.is_empty() {
            true => "no batch is small enough: make the model narrower or shallower".to_string(),
            false => remedies.join(", or "),
        };
        Some(Finding::error("layout/bytes", Blame::Layout, "size", message).hint(hint))
    }

    /// What of a layout would do by itself, each with the most it may be.
    fn remedies(&self, layout: &Layout, skew: f64) -> Vec<(&'static str, u64)> {
        type Set = fn(&mut Layout, u64);
        let sizes: [(&str, u64, Set); 4] = [
            ("mbs", layout.micro_batch, |layout, size| layout.micro_batch = size),
            ("seq", layout.sequence, |layout, size| layout.sequence = size),
            ("microbatches", layout.microbatches, |layout, size| layout.microbatches = size),
            ("vocab-multiple", layout.vocab_multiple, |layout, size| layout.vocab_multiple = size),
        ];
        let mut other = layout.clone();
        let mut found = Vec::new();
        for (key, now, set) in sizes {
            let (mut most, mut beyond) = (0, now);
            while beyond - most > 1 {
                let middle = most + (beyond - most) / 2;
                set(&mut other, middle);
                *if self.under(&other, skew).bytes() <= MOST_BYTES { &mut most } else { &mut beyond } = middle;
            }
            set(&mut other, now);
            found.extend((most > 0).then_some((key, most)));
        }
        found
    }

    fn widths(&self, layout: &Layout, skew: f64) -> Widths {
        let most_layers = self.layers_of_a_stage(layout);
        let kept = self.indexed.map_or(0, |(_, top_k)| top_k.min(layout.sequence));
        let edges = (8 * self.residual * (1 + self.predicted)).saturating_add(self.sides);
        let mut widths = Widths { a_token: edges, of_one: 0, a_state: 0 };
        for block in &self.blocks {
            // A layer may hold a mixer more than once.
            let in_a_layer = block.count.div_ceil(self.depth.max(1));
            let count = block.count.min((most_layers + self.predicted).saturating_mul(in_a_layer));
            let (choices, room) = block.choices;
            let rows = choices.saturating_mul(room.max(skew).max(1.0).ceil() as u128);
            let rows = rows.saturating_mul(layout.etp.get().into());
            let index = if block.is_attention { u128::from(kept) } else { 0 };
            let token = block.a_token.saturating_add(index).saturating_add(rows.saturating_mul(block.a_choice));
            widths.of_one = widths.of_one.saturating_add(token);
            widths.a_token = widths.a_token.saturating_add(token.saturating_mul(count));
            widths.a_state = widths.a_state.saturating_add(block.a_state.saturating_mul(count));
        }
        widths
    }
}

impl Sizes {
    /// Layers of the largest stage, at most: a stage of DualPipe holds two chunks whatever vpp says.
    fn layers_of_a_stage(&self, layout: &Layout) -> u128 {
        let chunks = layout.vpp.get().max(2);
        let of_a_chunk = match (&layout.boundaries, layout.balance) {
            (Some(starts), _) => {
                let ends = starts.iter().map(|start| u128::from(*start)).chain([self.depth]);
                let starts = std::iter::once(0).chain(starts.iter().map(|start| u128::from(*start)));
                starts.zip(ends).map(|(start, end)| end.saturating_sub(start)).max().unwrap_or(self.depth)
            }
            (None, Balance::Layers) => self.depth / u128::from(layout.chunks()) + 1,
            // By weight, one chunk may hold all layers but one of each other.
            (None, _) => self.depth,
        };
        of_a_chunk.saturating_mul(chunks.into()).min(self.depth)
    }
}

/// Numbers a microbatch leaves on a rank.
struct Widths {
    /// For each token, over all layers the rank may hold.
    a_token: u128,
    /// For each token in one block of every kind.
    of_one: u128,
    /// For each state that scans keep, over all layers.
    a_state: u128,
}

impl Block {
    fn of(recipe: &Recipe, mixer: Mixer) -> Block {
        let (mut a_token, mut a_choice) = (0, 0);
        for tensor in recipe.block_tensors(mixer) {
            let banks = usize::from(tensor.acting.is_some());
            let sides: u128 = tensor.dims[banks..].iter().map(|dim| u128::from(dim.len())).sum();
            *if banks > 0 { &mut a_choice } else { &mut a_token } += sides;
        }
        let moe = recipe.moe.as_ref();
        let (inside, a_state) = scanned(recipe, mixer);
        // Streams as they are mixed, and what Sinkhorn's iterations keep while backward goes through them.
        let mixed = recipe.features.mhc().map_or(0, |mhc| {
            let matrix = u128::from(mhc.streams * (mhc.streams + 1));
            4 * u128::from(recipe.residual_width()) + 8 * u128::from(mhc.sinkhorn) * matrix
        });
        Block {
            count: recipe.count_with_suffix(mixer).into(),
            a_token: a_token + inside + mixed,
            a_choice,
            choices: moe.map_or((0, 1.0), |moe| (moe.top_k.into(), moe.capacity_factor.unwrap_or(1.0))),
            a_state,
            is_attention: mixer == Mixer::Attention,
        }
    }
}

/// What a rank can come to at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    terms: Vec<Term>,
}

impl Bound {
    /// Bytes, at most.
    pub fn bytes(&self) -> u128 {
        let of = |term: &Term| term.elements().saturating_mul(EACH);
        self.terms.iter().map(of).fold(FIXED, u128::saturating_add)
    }
}

/// All digits where they fit a figure that people count in, a power of two else.
fn human(n: u128) -> String {
    match u64::try_from(n) {
        Ok(n) if n < 1 << 48 => exact(n),
        _ => format!("2^{:.1}", (n as f64).log2()),
    }
}

/// Microbatches in flight on any stage, at most: `order`'s loops keep no more than twice the stages,
/// but for gpipe, which keeps all.
fn in_flight(layout: &Layout) -> u64 {
    match layout.schedule {
        Schedule::GPipe => layout.microbatches,
        _ => layout.microbatches.min(2 * layout.pp.get() + 1),
    }
}

/// Tokens of a chunk of Mamba's scan.
fn chunk(recipe: &Recipe) -> u64 {
    match &recipe.mamba {
        Some(Mamba::Two(mamba)) => mamba.chunk,
        Some(Mamba::Three(mamba)) => mamba.chunk,
        Some(Mamba::One(_)) | None => CHUNK,
    }
}

/// Numbers a token that a mixer makes between its projections, beyond their widths, and those of its
/// state.
fn scanned(recipe: &Recipe, mixer: Mixer) -> (u128, u128) {
    let wide = u128::from;
    match mixer {
        Mixer::Attention => (recipe.attention().map_or(0, |attention| wide(attention.heads)), 0),
        Mixer::Moe => recipe.moe.as_ref().map_or((0, 0), |moe| (4 * wide(moe.experts) + 4 * wide(moe.top_k), 0)),
        Mixer::Mamba => match &recipe.mamba {
            Some(Mamba::One(m)) => (0, wide(m.inner) * wide(m.state)),
            Some(Mamba::Two(m)) => {
                let heads = wide(m.heads) * (2 * wide(m.state) + wide(m.chunk.max(CHUNK)));
                (heads, wide(m.heads) * wide(m.head_dim) * wide(m.state))
            }
            Some(Mamba::Three(m)) => {
                let turned = 2 * wide(m.state) + wide(m.angles) + wide(m.chunk.max(CHUNK));
                let cell = wide(m.head_dim) * wide(m.state) + wide(m.angles) + wide(m.state) + wide(m.head_dim);
                (wide(m.heads) * turned * wide(m.mimo_rank), wide(m.heads) * cell * wide(m.mimo_rank))
            }
            None => (0, 0),
        },
        Mixer::Recurrent => recipe.recurrent.as_ref().map_or((0, 0), |m| {
            let square = wide(m.value_dim) * wide(m.value_dim);
            (wide(m.heads) * (wide(m.key_dim) + 8), wide(m.heads) * (wide(m.key_dim) * wide(m.value_dim) + square))
        }),
        Mixer::GatedDelta => recipe.gated_delta.as_ref().map_or((0, 0), |m| {
            let heads = wide(m.value_heads);
            (heads * (wide(m.key_dim) + wide(2 * CHUNK)), heads * wide(m.key_dim) * wide(m.value_dim))
        }),
        Mixer::Linear => recipe.linear.as_ref().map_or((0, 0), |m| {
            let (state, tail) = m.state_elements(recipe.hidden);
            // Decays, gates and their gradients in fp32, and the triangles of a chunk.
            let wider = match m {
                Linear::Kda(m) => 24 * wide(m.heads) * (wide(m.head_dim) + wide(CHUNK)),
                Linear::Rwkv7(m) => 24 * wide(m.heads) * (wide(m.head_dim) + wide(m.v_dim) + wide(CHUNK)),
                _ => 0,
            };
            (wide(2 * CHUNK) * 64 + 4 * wide(recipe.hidden) + wider, wide(state) + wide(tail))
        }),
        Mixer::Mlp => (0, 0),
        // What the layers' own projections do not show: the shared ones'.
        Mixer::Shared => recipe.shared.as_ref().map_or((0, 0), |m| {
            let sides = wide(m.inner()) + 2 * wide(m.kv()) + wide(m.fc1()) + wide(m.ffn) + 6 * wide(recipe.hidden);
            (4 * sides + wide(m.heads), 0)
        }),
    }
}

/// Parameters of the whole model.
fn parameters(recipe: &Recipe) -> u128 {
    let elements = |tensors: Vec<recipe::Tensor>| {
        let of = |t: &recipe::Tensor| t.dims.iter().map(|d| u128::from(d.len())).fold(1, u128::saturating_mul);
        tensors.iter().map(of).fold(0, u128::saturating_add)
    };
    let blocks = |mixer: &Mixer| {
        let count = u128::from(recipe.count_with_suffix(*mixer));
        if count == 0 { 0 } else { count.saturating_mul(elements(recipe.block_tensors(*mixer))) }
    };
    Mixer::ALL.iter().map(blocks).fold(elements(recipe.edge_tensors()), u128::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Needs, settle};
    use crate::legality::example::request;
    use recipe::builtin::RECIPES;

    fn layout_of(recipe: &Recipe, words: &str) -> Layout {
        settle(&request(words), Needs::of(recipe)).expect("sizes").0
    }

    /// What is refused of a recipe under a layout, and each remedy tried.
    fn check(recipe: &Recipe, words: &str, expect: &[&str]) {
        let (sizes, layout) = (Sizes::of(recipe), layout_of(recipe, words));
        let remedies = sizes.remedies(&layout, 1.0);
        assert_eq!(remedies.iter().map(|(key, _)| *key).collect::<Vec<_>>(), expect, "{words}");
        assert_eq!(sizes.refusal(&layout, 1.0).map(|finding| finding.rule), Some("layout/bytes"));
        for (key, most) in remedies {
            let set = |size: u64| {
                let mut other = layout.clone();
                match key {
                    "mbs" => other.micro_batch = size,
                    "seq" => other.sequence = size,
                    "microbatches" => other.microbatches = size,
                    _ => other.vocab_multiple = size,
                }
                sizes.refusal(&other, 1.0).is_none()
            };
            assert!(set(most) && !set(most + 1), "{words}: {key} {most}");
        }
    }

    #[test]
    fn a_refusal_names_what_would_do() {
        let llama = recipe::builtin::find("llama3-70b").unwrap();
        check(&llama, "seq=4294967296", &["seq"]);
        check(&llama, "seq=1048576 mbs=65536", &["mbs", "seq"]);
        check(&llama, "pp=2 schedule=gpipe microbatches=16777216 mbs=16", &["microbatches"]);
        check(&llama, "tp=65536 vocab-multiple=1048576", &["vocab-multiple"]);
    }

    #[test]
    fn every_model_we_know_is_counted_at_any_length_that_was_trained() {
        for (name, _) in RECIPES {
            let recipe = recipe::builtin::find(name).unwrap();
            let sizes = Sizes::of(&recipe);
            for words in ["mbs=1 seq=1048576", "mbs=64 seq=8192", "pp=16 mbs=8 seq=131072 cp=8 microbatches=1024"] {
                let refused = sizes.refusal(&layout_of(&recipe, words), 1.0);
                assert!(refused.is_none(), "{name} {words}: {refused:?}");
            }
        }
    }

    #[test]
    fn a_product_reads_with_its_factors() {
        let llama = recipe::builtin::find("llama3-8b").unwrap();
        let finding = Sizes::of(&llama).refusal(&layout_of(&llama, "seq=4294967296"), 1.0).unwrap();
        assert!(finding.message.contains("activations of 4,294,967,296 tokens × "), "{}", finding.message);
    }
}
