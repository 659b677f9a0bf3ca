//! What lies outside the caching allocator: context, libraries, communicators.

use super::lines::{Amount, Basis, Entry};
use hardware::Device;
use layout::{Axis, Layout};

/// A communicator the engine makes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Communicator {
    /// Its axis, or what it is for.
    pub name: &'static str,
    /// Its ranks.
    pub ranks: u64,
}

/// The communicators of a layout: one for the world, and one for each group that talks. They are
/// made at first use, so an axis of one rank makes none.
pub fn communicators(layout: &Layout, has_experts: bool) -> Vec<Communicator> {
    let axis = |axis: Axis| (axis.name(), layout.degree(axis).get());
    let mut list = vec![("world", layout.world), axis(Axis::Tp), axis(Axis::Cp), axis(Axis::Pp)];
    list.push(("dp·cp", layout.dense_shards()));
    if has_experts {
        list.push(axis(Axis::Ep));
        list.push(("etp·ep", layout.etp.get() * layout.ep.get()));
        list.push(axis(Axis::Edp));
    }
    let talking = list.into_iter().filter(|(_, ranks)| *ranks > 1);
    talking.map(|(name, ranks)| Communicator { name, ranks }).collect()
}

/// Amounts outside the allocator; none where the device has not been measured.
pub(super) fn outside(device: &Device, layout: &Layout, has_experts: bool) -> Vec<Amount> {
    let Some(reserve) = &device.reserve else { return Vec::new() };
    let count = communicators(layout, has_experts).len() as u64;
    let talking = match count {
        0 => 0,
        n => reserve.first_communicator_bytes + (n - 1) * reserve.communicator_bytes,
    };
    let amount = |entry, bytes| Amount { entry, bytes, basis: Basis::Measured(reserve.source.clone()) };
    vec![
        amount(Entry::RuntimeReserve, reserve.context_bytes + reserve.libraries_bytes),
        amount(Entry::Communicators, talking),
    ]
}
