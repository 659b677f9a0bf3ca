//! What lies outside the caching allocator: context, libraries, communicators.

use super::lines::Entry;
use hardware::{Device, Reserve};
use layout::{Axis, Layout};
use units::Basis;

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

/// Bytes of so many communicators.
pub fn communicator_bytes(reserve: &Reserve, count: u64) -> u64 {
    match count {
        0 => 0,
        n => reserve.first_communicator_bytes + (n - 1) * reserve.communicator_bytes,
    }
}

/// Something outside the allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct Outside {
    /// Its line.
    pub entry: Entry,
    /// How large.
    pub bytes: u64,
    /// Where the number comes from.
    pub basis: Basis,
}

/// What lies outside the allocator: measured on the device, or the H200's where nobody has.
/// `dispatch` is what kernels of an exchange have besides.
pub fn outside(device: &Device, layout: &Layout, has_experts: bool, dispatch: u64) -> Vec<Outside> {
    let found = device.outside();
    let reserve = &found.reserve;
    let talking = communicator_bytes(reserve, communicators(layout, has_experts).len() as u64);
    let basis = match found.is_measured {
        true => Basis::Measured(reserve.source.clone()),
        false => Basis::Modelled("the H200's, nobody has measured this device"),
    };
    let amount = |entry, bytes| Outside { entry, bytes, basis: basis.clone() };
    vec![
        amount(Entry::RuntimeReserve, reserve.context_bytes + reserve.libraries_bytes),
        match dispatch {
            0 => amount(Entry::Communicators, talking),
            _ => Outside {
                entry: Entry::Communicators,
                bytes: talking + dispatch,
                basis: Basis::Modelled(
                    "communicators as measured, and the exchange's buffers by its library's own sizes",
                ),
            },
        },
    ]
}
