//! Our own format, as `runtime` saves it.

use super::{Copy, Failure, Plan};
use crate::files::{self, Crc, Item as Header};
use crate::index::{self, Entry, Index, Piece, Written};
use crate::own;
use diag::Finding;
use serde_json::Map;
use std::collections::BTreeMap;
use std::io::Write;

pub fn write(copy: &mut Copy, plan: &Plan) -> Result<(), Finding> {
    let mut tensors: BTreeMap<String, Entry> = BTreeMap::new();
    let mut dtype = "F32";
    for (rank, items) in plan.ranks.iter().enumerate() {
        let kinds = items.iter().filter_map(|item| own::parse(item.key).and_then(|(path, kind)| Some((path, kind?))));
        let kinds: Vec<_> = kinds.collect();
        let headers: Vec<Header> = items
            .iter()
            .zip(&kinds)
            .map(|(item, (path, kind))| Header {
                name: format!("{kind}/{path}{}", item.at),
                dtype: item.tensor.dtype.name(),
                shape: item.at.shape(),
                bytes: item.bytes(),
            })
            .collect();
        let header = files::header(&headers, Map::new());
        let (file, mut start, mut pieces) = (format!("rank-{rank:05}.safetensors"), header.len() as u64, Vec::new());
        copy.file(&file, |copy, out| {
            out.write_all(&header)?;
            for item in items {
                let mut summed = Summed { out, crc: Crc::default() };
                copy.body(item, &mut summed)?;
                let crc32 = summed.crc.finish();
                pieces.push(Piece { file: file.clone(), at: item.at.clone(), start, bytes: item.bytes(), crc32 });
                start += item.bytes();
            }
            Ok::<(), Failure>(())
        })?;
        for ((item, (path, kind)), piece) in items.iter().zip(kinds).zip(pieces) {
            dtype = item.tensor.dtype.name();
            let entry = tensors.entry(path.to_string()).or_default();
            entry.shape = item.tensor.shape.clone();
            entry.pieces_mut(kind).push(piece);
        }
    }
    let about = &copy.about;
    let index = Index {
        step: about.step.unwrap_or_default(),
        seed: about.seed.unwrap_or_default(),
        sequences: about.data_position.unwrap_or_default(),
        dtype: dtype.to_string(),
        mode: about.mode.clone(),
        recipe: about.recipe.as_ref().map(|of| of.lines.clone()).unwrap_or_default(),
        expert_bias: about.expert_bias.clone(),
        layout: Written { world: plan.ranks.len() as u64, flags: about.layout.clone().unwrap_or_default() },
        tensors,
    };
    copy.fresh.write(index::NAME, &index.to_json())
}

struct Summed<'o, W> {
    out: &'o mut W,
    crc: Crc,
}

impl<W: Write> Write for Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.crc.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
