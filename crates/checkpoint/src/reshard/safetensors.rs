//! Safetensors: one file for one rank; for several the shards torch's HuggingFaceStorageReader reads, in
//! whose headers stands where each begins. A file has a key once, so the boxes a rank holds of one tensor
//! lie in as many files.

use super::{Copy, Failure, Item, Plan};
use crate::files::{self, Item as Header};
use crate::safetensors::{SHARDING, SUFFIX};
use diag::Finding;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::Write;

pub fn write(copy: &mut Copy, plan: &Plan) -> Result<(), Finding> {
    let split: Vec<Vec<Vec<&Item>>> = plan.ranks.iter().map(|items| by_turn(items)).collect();
    let most = split.iter().map(Vec::len).max().unwrap_or(0);
    let is_whole = plan.ranks.len() == 1 && most <= 1;
    for (rank, turns) in split.iter().enumerate() {
        for (turn, items) in turns.iter().enumerate() {
            let name = match is_whole {
                true => format!("model{SUFFIX}"),
                false => format!("shard-{:05}-model-{:05}-of-{most:05}{SUFFIX}", rank + 1, turn + 1),
            };
            file(copy, &name, items, is_whole)?;
        }
    }
    copy.write_about()
}

/// Boxes with each key once, then those with a key a second time, and so on.
fn by_turn<'i, 'a>(items: &'i [Item<'a>]) -> Vec<Vec<&'i Item<'a>>> {
    let (mut turns, mut seen) = (Vec::new(), HashMap::new());
    for item in items {
        let turn = seen.entry(item.key).or_insert(0usize);
        if *turn == turns.len() {
            turns.push(Vec::new());
        }
        turns[*turn].push(item);
        *turn += 1;
    }
    turns
}

fn file(copy: &mut Copy, name: &str, items: &[&Item], is_whole: bool) -> Result<(), Finding> {
    let headers: Vec<Header> = items
        .iter()
        .map(|item| Header {
            name: item.key.to_string(),
            dtype: item.tensor.dtype.name(),
            shape: item.at.shape(),
            bytes: item.bytes(),
        })
        .collect();
    let mut about = Map::new();
    about.insert("format".to_string(), json!("pt"));
    if !is_whole {
        let starts = |item: &&Item| item.at.0.iter().map(|r| r.start).collect::<Vec<u64>>();
        let offsets: Map<String, Value> =
            items.iter().map(|item| (item.key.to_string(), json!({ "saved_offsets": starts(item) }))).collect();
        about.insert(SHARDING.to_string(), json!(Value::from(offsets).to_string()));
        about.insert("DCP_VERSION".to_string(), json!("1.0"));
    }
    let header = files::header(&headers, about);
    copy.file(name, |copy, out| {
        out.write_all(&header)?;
        items.iter().try_for_each(|item| copy.body(item, out))?;
        Ok::<(), Failure>(())
    })
}
