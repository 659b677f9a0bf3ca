//! `mesh`: coordinates and groups.

use crate::args::MeshArgs;
use crate::files::load_cluster;
use crate::outcome::{Outcome, Refusal, Report};
use crate::pictures;
use crate::table::{Table, heading};
use case::wrong_world;
use diag::{Blame, Finding};
use draw::Picture;
use layout::legality::world::{Typed, fill};
use layout::mesh::Group;
use layout::{Axis, Layout, Mesh, Needs, Order, settle};
use serde_json::{Map, Value, json};

pub fn run(args: &MeshArgs) -> Outcome {
    let mut request = args.layout.request();
    let cluster = args.on.as_deref().map(load_cluster).transpose()?;
    if let (Some(cluster), Some(on)) = (&cluster, &args.on) {
        let devices = cluster.devices();
        if let Some(world) = request.world.replace(devices).filter(|world| *world != devices) {
            return Err(wrong_world(world, devices, on).into());
        }
    }
    let experts = request.ep.is_some() || request.etp.is_some();
    let (layout, _) = settle(&request, Needs { experts, sequence: 4096 }).map_err(Refusal::from)?;
    let partial = fill(&layout, experts, Typed::of(&request));
    if !partial.is_empty() {
        return Err(partial.into());
    }
    let order = Order::from(args.order);
    let mesh = Mesh::new(&layout, order, experts)?;
    if let Some(rank) = args.rank.filter(|r| *r >= layout.world) {
        let message = format!("rank {rank} is not among the {} ranks", layout.world);
        return Err(Finding::error("mesh/rank", Blame::Usage, "rank", message)
            .hint(format!("ranks are 0 to {}", layout.world - 1))
            .into());
    }
    let axes: Vec<Axis> =
        Axis::ALL.into_iter().filter(|a| experts || !Axis::EXPERT.contains(a) || *a == Axis::Pp).collect();
    let mut text = format!(
        "\x1b[1m{} ranks\x1b[0m, order {} (innermost first: {})\n",
        layout.world,
        order.name(),
        order_text(order, experts)
    );
    text += &axes_text(&axes, &layout, &mesh);
    let mut json = json!({
        "world": layout.world, "order": order.name(),
        "axes": axes.iter().map(|a| axis_json(*a, &layout, &mesh)).collect::<Vec<_>>(),
    });
    if let Some(rank) = args.rank {
        text += &rank_text(rank, &axes, &mesh);
        json["rank"] = rank_json(rank, &axes, &mesh);
    }
    if let Some(cluster) = &cluster {
        json["nodes"] = json!(cluster.nodes);
        json["devices_per_node"] = json!(cluster.devices_per_node);
    }
    pictures::write(&args.pictures, Picture::Mesh, &json)?;
    Ok(Report::new(text, json))
}

fn order_text(order: Order, experts: bool) -> String {
    let names = |kind| order.axes(kind).map(Axis::name).join("-");
    let dense = names(layout::mesh::Kind::Dense);
    if experts { format!("{dense}; experts {}", names(layout::mesh::Kind::Expert)) } else { dense }
}

fn ranks_text(group: Group) -> String {
    const SHOWN: u64 = 8;
    let shown: Vec<String> = group.ranks().take(SHOWN as usize).map(|r| r.to_string()).collect();
    let last = group.start + (group.len - 1) * group.stride;
    if group.len > SHOWN { format!("{} … {last}", shown.join(" ")) } else { shown.join(" ") }
}

fn axes_text(axes: &[Axis], layout: &Layout, mesh: &Mesh) -> String {
    let mut table = Table::new(&["axis", "degree", "groups", "stride", "first group"]).right(&[1, 2, 3]);
    for axis in axes {
        let degree = layout.degree(*axis).get();
        let group = mesh.group(*axis, 0);
        table.row([
            axis.name(),
            &degree.to_string(),
            &(layout.world / degree).to_string(),
            &group.stride.to_string(),
            &ranks_text(group),
        ]);
    }
    heading("Axes") + &table.render()
}

fn axis_json(axis: Axis, layout: &Layout, mesh: &Mesh) -> Value {
    let degree = layout.degree(axis).get();
    json!({ "axis": axis.name(), "degree": degree, "groups": layout.world / degree, "stride": mesh.group(axis, 0).stride })
}

fn rank_text(rank: u64, axes: &[Axis], mesh: &Mesh) -> String {
    let at = mesh.coordinates(rank);
    let mut table = Table::new(&["axis", "at", "its group"]).right(&[1]);
    for axis in axes {
        table.row([axis.name(), &at.on(*axis).to_string(), &ranks_text(mesh.group(*axis, rank))]);
    }
    heading(&format!("Rank {rank}"))
        + &table.render()
        + &format!("  dense gradients reduce over {} ranks (dp·cp)\n", gradient_ranks(rank, mesh))
}

/// Ranks are listed up to this many; beyond it start, stride and length say the same.
const LISTED: u64 = 1024;

fn group_json(group: Group) -> Value {
    let mut json = json!({ "start": group.start, "stride": group.stride, "len": group.len });
    if group.len <= LISTED {
        json["ranks"] = json!(group.ranks().collect::<Vec<_>>());
    }
    json
}

fn rank_json(rank: u64, axes: &[Axis], mesh: &Mesh) -> Value {
    let at = mesh.coordinates(rank);
    let coordinates: Map<String, Value> = axes.iter().map(|a| (a.name().to_string(), json!(at.on(*a)))).collect();
    let groups: Map<String, Value> =
        axes.iter().map(|a| (a.name().to_string(), group_json(mesh.group(*a, rank)))).collect();
    json!({ "rank": rank, "coordinates": coordinates, "groups": groups, "gradient_ranks": gradient_ranks(rank, mesh) })
}

/// Ranks that dense gradients are reduced over: replicas of every context part.
fn gradient_ranks(rank: u64, mesh: &Mesh) -> u64 {
    mesh.group(Axis::Dp, rank).len * mesh.group(Axis::Cp, rank).len
}
