//! Attention heads over the tensor axis.

mod kv;
pub(crate) mod kv_shared;
mod qkv_rows;
mod query;

use super::Rule;
use recipe::kinds::attention::{Attention, AttentionKind};

/// Grouped-query attention on a tensor axis of some degree.
struct Grouped {
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    /// Rows of the query projection a head has, over the head's width: two with an output gate.
    per_head: u64,
}

impl Grouped {
    fn of(attention: &Attention) -> Option<Grouped> {
        let AttentionKind::Gqa { kv_heads, head_dim } = attention.kind else { return None };
        let per_head = 1 + u64::from(attention.output_gate);
        Some(Grouped { heads: attention.heads, kv_heads, head_dim, per_head })
    }

    /// Whether every rank has whole KV heads, or whole ranks share one.
    fn shares(&self, tp: u64) -> bool {
        self.kv_heads.is_multiple_of(tp) || tp.is_multiple_of(self.kv_heads)
    }

    /// Whether the packed rows of queries, keys and values divide evenly.
    fn rows_divide(&self, tp: u64) -> bool {
        ((self.heads * self.per_head + 2 * self.kv_heads) * self.head_dim).is_multiple_of(tp)
    }
}

/// In the order their findings are listed.
pub(super) const RULES: &[&Rule] = &[&query::RULE, &kv::RULE, &kv_shared::RULE, &qkv_rows::RULE];
