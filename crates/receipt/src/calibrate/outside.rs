//! Memory that is measured again: what lies outside the allocator, and models that ran out of it.

use crate::record::{Kind, Receipt};
use evidence::{EventKind, MemoryKind};
use hardware::{Device, Headroom};

/// Memory outside the allocator as receipts have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// Median of what a device held beyond what the allocator had taken.
    pub bytes: u64,
    /// What is said of the same.
    pub said: u64,
    /// Probes it was read off.
    pub receipts: u64,
}

/// Context and libraries as probes have them. Runs say nothing of them: a communicator's buffers are in the same
/// figure.
pub fn outside<'a>(receipts: impl IntoIterator<Item = &'a Receipt>, device: &Device) -> Option<Outside> {
    let mut seen: Vec<u64> = receipts.into_iter().filter(|r| r.kind == Kind::Probe).filter_map(beyond).collect();
    seen.sort_unstable();
    let reserve = device.outside().reserve;
    let bytes = *seen.get(seen.len() / 2)?;
    Some(Outside { bytes, said: reserve.context_bytes + reserve.libraries_bytes, receipts: seen.len() as u64 })
}

fn beyond(receipt: &Receipt) -> Option<u64> {
    let used = |kind| receipt.evidence.most(kind, None).map(|memory| memory.bytes);
    let device = used(MemoryKind::DeviceUsedPeak).or_else(|| used(MemoryKind::DeviceUsed))?;
    device.checked_sub(used(MemoryKind::ReservedPeak).or_else(|| used(MemoryKind::Reserved))?)
}

/// Models that ran out of memory although they were said to fit, each with what was said to be left.
pub fn headrooms<'a>(receipts: impl IntoIterator<Item = (&'a str, &'a Receipt)>, device: &Device) -> Vec<Headroom> {
    let mut found: Vec<Headroom> = Vec::new();
    for (id, receipt) in receipts {
        let ran_out = receipt.evidence.events.iter().any(|event| event.kind == EventKind::OutOfMemory);
        let Some(promised) = receipt.prediction.as_ref().filter(|p| ran_out && p.verdict != "does not fit") else {
            continue;
        };
        let Some(most) = promised.ranks.iter().map(|rank| rank.reserved_peak + rank.outside).max() else { continue };
        let Some(left) = device.visible_bytes().checked_sub(most) else { continue };
        let Some(parameters) = parameters(receipt) else { continue };
        let model = receipt.identity.recipe.clone();
        let headroom = Headroom { model, parameters, bytes: left, receipt: id.to_string() };
        let is_same = |known: &&mut Headroom| known.model == headroom.model && known.parameters == parameters;
        match found.iter_mut().find(is_same) {
            Some(known) if known.bytes < headroom.bytes => *known = headroom,
            Some(_) => {}
            None => found.push(headroom),
        }
    }
    found
}

fn parameters(receipt: &Receipt) -> Option<u64> {
    let text = receipt.case.as_ref()?["recipe"]["toml"].as_str()?;
    recipe::Recipe::parse(text).ok().map(|recipe| recipe.counts().all.total)
}
