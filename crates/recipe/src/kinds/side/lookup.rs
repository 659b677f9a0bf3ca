//! Which row a token's lookup finds: a hash of the last tokens, the same in every program that has
//! the recipe.

use super::SideEmbedding;
use std::ops::Range;

/// One lookup of a token: which rows of the tables it may select, and which tokens decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    /// The rows it may select.
    pub rows: Range<u64>,
    /// Which of the concatenated tables' columns it is added to.
    pub table: u64,
    /// Which component's scale weighs it.
    pub component: u64,
    /// One odd factor for each token of the n-gram, the latest first; below 2³², so that products of
    /// token numbers stay positive in 64 bits with a sign.
    pub factors: Vec<u64>,
    /// Mixed into every hash; below 2³².
    pub bias: u64,
}

impl Lookup {
    /// Every lookup of a side embedding.
    pub fn all(name: &str, side: &SideEmbedding) -> Vec<Lookup> {
        (0..side.lookups()).map(|index| Lookup::new(name, side, index)).collect()
    }

    fn new(name: &str, side: &SideEmbedding, index: u64) -> Lookup {
        let (table, component) = (index / side.components(), index % side.components());
        let key = mix(name.bytes().fold(0, |key, byte| mix(key, u64::from(byte))), index);
        Lookup {
            rows: side.share(index),
            table,
            component,
            factors: (0..order(name, side, table)).map(|back| mix(key, back) >> 32 | 1).collect(),
            bias: mix(key, u64::MAX) >> 32,
        }
    }

    /// The row: exclusive-or of the products of ids and factors. `id` gives the token so many places
    /// back, zero before the start of a sequence.
    pub fn row(&self, id: impl Fn(usize) -> u64) -> u64 {
        let products = self.factors.iter().enumerate().map(|(back, factor)| factor.wrapping_mul(id(back)));
        let hashed = products.fold(self.bias, |sum, product| sum ^ product);
        self.rows.start + hashed % (self.rows.end - self.rows.start)
    }
}

/// How many tokens decide a lookup: the first half of the hash tables reads pairs, the other triples, as
/// cppmega's `orders = (2, 3)`. Where the data carries no structure, the token alone decides.
fn order(name: &str, side: &SideEmbedding, table: u64) -> u64 {
    match name {
        "ngram_hash" if 2 * table < side.tables => 2,
        "ngram_hash" => 3,
        _ => 1,
    }
}

/// SplitMix64's finaliser over a counter: every output bit depends on every input bit.
fn mix(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
