//! The key/value cache: elements of a token, contiguous and paged allocation, and what paging
//! wastes. Who owns slots is the attention-layer map's to say.

use super::map::{AttentionLayerMap, AttentionSlot};
use super::{ServeRequest, Substrate, countable, stored};
use diag::Finding;
use layout::Layout;
use recipe::Recipe;
use recipe::kinds::attention::AttentionKind;
use serde::Serialize;
use units::Bytes;

/// The two ways to allocate the cache, side by side, every sequence at full context. Contiguous
/// room is reserved whether a sequence uses it or not; pages are given back when it ends, so
/// paging pays as soon as sequences are shorter than the context, at the price of `waste`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheComparison {
    /// One run of slots a sequence and layer.
    pub contiguous: Bytes,
    /// Whole blocks.
    pub paged: Bytes,
    /// Tokens of a block.
    pub block: u64,
    /// Blocks that the sequences' whole context takes in one layer.
    pub blocks: u64,
    /// Allocated and not used: the unfilled end of last blocks.
    pub waste: Bytes,
    /// What allocating for every layer of the stage would have cost more, contiguous.
    pub saved_by_map: Bytes,
}

/// What one token costs in one slot, on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenElements {
    /// Keys and values, or the latent that stands for both.
    pub keys_values: u64,
    /// The indexer's key, in slots that have an indexer.
    pub index: u64,
}

impl TokenElements {
    pub fn new(recipe: &Recipe, layout: &Layout) -> TokenElements {
        let keys_values = match recipe.attention().map(|a| a.kind) {
            // Below one head a rank, neighbours hold the same head.
            Some(AttentionKind::Gqa { kv_heads, head_dim }) => 2 * kv_heads.div_ceil(layout.tp.get()) * head_dim,
            // One latent serves every head, so every tensor-parallel rank holds it whole.
            Some(AttentionKind::Mla(mla)) => mla.kv_rank + mla.rope_dim,
            None => 0,
        };
        TokenElements { keys_values, index: recipe.features.dsa().map_or(0, |dsa| dsa.head_dim) }
    }
}

/// Token rows over all slots of a stage, of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SequenceRows {
    all: u128,
    indexed: u128,
}

/// Bytes of keys and values and of the indexer's keys, under the substrate asked for.
pub(super) fn bytes(
    map: &AttentionLayerMap,
    token: TokenElements,
    request: &ServeRequest,
    cp: u64,
) -> Result<(Bytes, Bytes), Finding> {
    let rows = sequence_rows(map, request, cp, request.substrate);
    let batch = u128::from(request.batch);
    let keys_values = stored(rows.all * batch * u128::from(token.keys_values), request.cache);
    let index = stored(rows.indexed * batch * u128::from(token.index), request.cache);
    Ok((countable(keys_values)?, countable(index)?))
}

/// Both substrates, keys, values and indexer together.
pub(super) fn compare(
    map: &AttentionLayerMap,
    token: TokenElements,
    request: &ServeRequest,
    cp: u64,
) -> Result<CacheComparison, Finding> {
    let total = |substrate| {
        let asked = ServeRequest { substrate, ..*request };
        let (keys_values, index) = bytes(map, token, &asked, cp)?;
        countable(u128::from(keys_values.0) + u128::from(index.0))
    };
    let (contiguous, paged) = (total(Substrate::Contiguous)?, total(Substrate::Paged)?);
    let context = request.context.div_ceil(cp);
    let saved_rows = map.saved_layers() as u128 * u128::from(context) * u128::from(request.batch);
    Ok(CacheComparison {
        contiguous,
        paged,
        block: request.block,
        blocks: request.batch.saturating_mul(context.div_ceil(request.block)),
        waste: Bytes(paged.0 - contiguous.0),
        saved_by_map: countable(stored(saved_rows * u128::from(token.keys_values), request.cache))?,
    })
}

fn sequence_rows(map: &AttentionLayerMap, request: &ServeRequest, cp: u64, substrate: Substrate) -> SequenceRows {
    let context = request.context.div_ceil(cp);
    let mut rows = SequenceRows::default();
    for slot in map.slots() {
        let here = u128::from(match substrate {
            Substrate::Contiguous => slot.window.map_or(context, |w| context.min(w)),
            Substrate::Paged => paged_rows(slot, context, request.block),
        });
        rows.all += here;
        rows.indexed += if slot.indexed { here } else { 0 };
    }
    rows
}

/// Rows of the blocks that a sequence touches. A window rarely starts on a block's edge, so it
/// may touch one block more than it fills.
fn paged_rows(slot: &AttentionSlot, context: u64, block: u64) -> u64 {
    let whole = context.div_ceil(block);
    let touched = slot.window.map_or(whole, |w| whole.min((w.max(1) - 1).div_ceil(block) + 1));
    touched * block
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(window: Option<u64>) -> AttentionSlot {
        AttentionSlot { layer: 0, window, indexed: false }
    }

    #[test]
    fn a_window_touches_at_most_one_block_more() {
        assert_eq!(paged_rows(&slot(None), 100, 16), 112);
        assert_eq!(paged_rows(&slot(Some(32)), 1000, 16), 48);
        assert_eq!(paged_rows(&slot(Some(33)), 1000, 16), 48);
        assert_eq!(paged_rows(&slot(Some(34)), 1000, 16), 64);
        assert_eq!(paged_rows(&slot(Some(1)), 1000, 16), 16);
        // A context that fits the window starts where a block does.
        assert_eq!(paged_rows(&slot(Some(32)), 32, 16), 32);
    }
}
