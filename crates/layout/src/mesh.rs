//! Ranks and coordinates. Dense tensors live on (tp, cp, dp, pp), expert tensors on
//! (etp, ep, edp, pp); both meshes number the same ranks. Groups are strides, never stored lists,
//! so a hundred thousand ranks cost nothing until somebody asks for one.

use crate::axis::Axis;
use crate::layout::Layout;
use diag::{Blame, Finding};

/// How ranks run through the axes, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Megatron-Core's default `tp-cp-ep-dp-pp`: stages outermost.
    Megatron,
    /// Megatron-Core with `--use-tp-pp-dp-mapping`: `tp-cp-ep-pp-dp`, replicas outermost.
    MegatronTpPpDp,
    /// A torch DeviceMesh of `(pp, dp, cp, tp)`: the same numbers, named outermost first.
    DeviceMesh,
}

impl Order {
    /// Every order with the word it is typed as.
    pub const ALL: [(&'static str, Order); 3] = [
        ("megatron", Order::Megatron),
        ("megatron-tp-pp-dp", Order::MegatronTpPpDp),
        ("devicemesh", Order::DeviceMesh),
    ];

    /// As typed.
    pub fn name(self) -> &'static str {
        Order::ALL.iter().find(|(_, o)| *o == self).map_or("", |(name, _)| name)
    }

    /// Axes innermost first, for one of the two meshes.
    pub fn axes(self, mesh: Kind) -> [Axis; 4] {
        let [a, b, c] = match mesh {
            Kind::Dense => [Axis::Tp, Axis::Cp, Axis::Dp],
            Kind::Expert => [Axis::Etp, Axis::Ep, Axis::Edp],
        };
        match self {
            Order::Megatron | Order::DeviceMesh => [a, b, c, Axis::Pp],
            Order::MegatronTpPpDp => [a, b, Axis::Pp, c],
        }
    }
}

/// Which tensors a mesh is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Everything but experts.
    Dense,
    /// Routed experts.
    Expert,
}

impl Kind {
    /// The mesh an axis belongs to; stages are the same on both.
    pub fn of(axis: Axis) -> Kind {
        if matches!(axis, Axis::Ep | Axis::Etp | Axis::Edp) { Kind::Expert } else { Kind::Dense }
    }
}

/// The two meshes of a layout.
#[derive(Clone, Debug)]
pub struct Mesh {
    world: u64,
    /// Axis, degree and stride, innermost first.
    dense: [(Axis, u64, u64); 4],
    expert: [(Axis, u64, u64); 4],
}

/// Where a rank stands on one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Position on each axis of [`Axis::ALL`].
    at: [u64; 7],
}

impl Coordinates {
    /// Position on an axis.
    pub fn on(&self, axis: Axis) -> u64 {
        self.at[axis as usize]
    }
}

/// A set of ranks that communicate: `start + i·stride` for each of `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Lowest rank.
    pub start: u64,
    /// Distance of neighbours.
    pub stride: u64,
    /// Number of ranks.
    pub len: u64,
}

impl Group {
    /// The ranks, in the order of their coordinate.
    pub fn ranks(self) -> impl Iterator<Item = u64> {
        (0..self.len).map(move |i| self.start + i * self.stride)
    }
}

impl Mesh {
    /// The meshes of a layout. Refuses a world that the degrees do not fill, and an order under
    /// which the two meshes would put stages on different ranks.
    pub fn new(layout: &Layout, order: Order, with_experts: bool) -> Result<Mesh, Finding> {
        let strided = |kind| {
            let mut stride = 1;
            order.axes(kind).map(|axis| {
                let degree = layout.degree(axis).get();
                let here = (axis, degree, stride);
                stride *= degree;
                here
            })
        };
        let mesh = Mesh { world: layout.world, dense: strided(Kind::Dense), expert: strided(Kind::Expert) };
        for (kind, axes) in [(Kind::Dense, &mesh.dense), (Kind::Expert, &mesh.expert)] {
            let product: u64 = axes.iter().map(|(_, degree, _)| degree).product();
            if product != mesh.world && (kind == Kind::Dense || with_experts) {
                let text = axes.iter().map(|(axis, n, _)| format!("{axis} {n}")).collect::<Vec<_>>().join(" · ");
                let message = format!("{text} = {product} ranks, and the world has {}", mesh.world);
                return Err(Finding::error("mesh/world", Blame::Layout, "world", message));
            }
        }
        let stage_stride = |axes: &[(Axis, u64, u64); 4]| axes.iter().find(|a| a.0 == Axis::Pp).map(|a| (a.1, a.2));
        let differs = stage_stride(&mesh.dense) != stage_stride(&mesh.expert);
        if with_experts && layout.pp.splits() && differs {
            let message = format!("under order `{}` the expert mesh puts stages on other ranks", order.name());
            return Err(Finding::error("mesh/order", Blame::Layout, "order", message)
                .quote("When not using pp-last rank ordering, the data parallel size of the attention and moe layers must be the same")
                .hint("use `--order megatron`, or degrees with dp = edp"));
        }
        Ok(mesh)
    }

    /// Ranks in all.
    pub fn world(&self) -> u64 {
        self.world
    }

    fn axes(&self, kind: Kind) -> &[(Axis, u64, u64); 4] {
        match kind {
            Kind::Dense => &self.dense,
            Kind::Expert => &self.expert,
        }
    }

    fn axis(&self, axis: Axis) -> (u64, u64) {
        let found = self.axes(Kind::of(axis)).iter().find(|a| a.0 == axis);
        found.map_or((1, 1), |&(_, degree, stride)| (degree, stride))
    }

    /// Coordinates of a rank.
    pub fn coordinates(&self, rank: u64) -> Coordinates {
        let mut at = [0; 7];
        for axis in Axis::ALL {
            let (degree, stride) = self.axis(axis);
            at[axis as usize] = rank / stride % degree;
        }
        Coordinates { at }
    }

    /// The rank with these coordinates on one mesh.
    pub fn rank(&self, kind: Kind, coordinates: &Coordinates) -> u64 {
        self.axes(kind).iter().map(|&(axis, _, stride)| coordinates.on(axis) * stride).sum()
    }

    /// The group of an axis that a rank stands in.
    pub fn group(&self, axis: Axis, rank: u64) -> Group {
        let (degree, stride) = self.axis(axis);
        let at = rank / stride % degree;
        Group { start: rank - at * stride, stride, len: degree }
    }

    /// Every group of an axis, by lowest rank.
    pub fn groups(&self, axis: Axis) -> impl Iterator<Item = Group> + '_ {
        let (degree, stride) = self.axis(axis);
        let count = self.world / degree;
        (0..count).map(move |i| Group { start: i / stride * stride * degree + i % stride, stride, len: degree })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Needs, settle};
    use crate::request::LayoutRequest;

    fn mesh(order: Order, set: impl Fn(&mut LayoutRequest)) -> Result<Mesh, Finding> {
        let mut request = LayoutRequest::default();
        set(&mut request);
        let recipe = recipe::builtin::find("nam56r-mini").unwrap();
        Mesh::new(&settle(&request, Needs::of(&recipe)).unwrap().0, order, true)
    }

    #[test]
    fn megatron_numbers_tp_fastest_and_stages_slowest() {
        let mesh = mesh(Order::Megatron, |r| {
            (r.world, r.tp, r.pp, r.ep, r.etp) = (Some(16), Some(2), Some(2), Some(4), Some(1));
        })
        .unwrap();
        let ranks = |axis, rank| mesh.group(axis, rank).ranks().collect::<Vec<_>>();
        assert_eq!(ranks(Axis::Tp, 5), [4, 5]);
        assert_eq!(ranks(Axis::Dp, 5), [1, 3, 5, 7]);
        assert_eq!(ranks(Axis::Pp, 5), [5, 13]);
        assert_eq!(ranks(Axis::Ep, 5), [4, 5, 6, 7]);
        assert_eq!(ranks(Axis::Edp, 5), [1, 5]);
    }

    #[test]
    fn a_hundred_thousand_ranks_each_stand_in_one_group_of_each_axis() {
        let mesh = mesh(Order::Megatron, |r| {
            (r.world, r.tp, r.cp, r.pp, r.ep) = (Some(131_072), Some(8), Some(4), Some(16), Some(16));
        })
        .unwrap();
        for axis in Axis::ALL {
            let mut seen = vec![false; 131_072];
            for rank in mesh.groups(axis).flat_map(Group::ranks) {
                assert!(!std::mem::replace(&mut seen[rank as usize], true), "{axis} holds {rank} twice");
            }
            assert!(seen.iter().all(|s| *s), "{axis} leaves ranks out");
        }
    }

    #[test]
    fn stages_must_agree_between_the_meshes() {
        let set = |r: &mut LayoutRequest| {
            (r.world, r.tp, r.pp, r.ep, r.etp) = (Some(16), Some(2), Some(2), Some(4), Some(1));
        };
        let refusal = mesh(Order::MegatronTpPpDp, set).unwrap_err();
        assert_eq!(refusal.rule, "mesh/order");
        assert_eq!(refusal.message, "under order `megatron-tp-pp-dp` the expert mesh puts stages on other ranks");
    }

    #[test]
    fn degrees_must_make_the_world() {
        let refusal = mesh(Order::Megatron, |r| (r.world, r.tp, r.etp) = (Some(9), Some(2), Some(1))).unwrap_err();
        assert_eq!(refusal.rule, "mesh/world");
        assert_eq!(refusal.message, "tp 2 · cp 1 · dp 4 · pp 1 = 8 ranks, and the world has 9");
    }
}
