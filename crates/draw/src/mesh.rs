//! Ranks as a grid of nodes, coloured by pipeline stage; the groups of a picked rank outlined.

use crate::palette::{BLUE, Colour, GREEN, GREY, INK, LINE, ORANGE, PURPLE, SKY, SOFT, VERMILION, YELLOW};
use crate::svg::{About, Anchor, Canvas, Font, width};
use crate::{Options, Undrawn};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What is drawn of an answer of `mesh`.
#[derive(Deserialize)]
pub struct Mesh {
    world: u64,
    axes: Vec<Axis>,
    #[serde(default)]
    devices_per_node: Option<u64>,
    rank: Option<Picked>,
}

#[derive(Deserialize)]
struct Axis {
    axis: String,
    degree: u64,
    stride: u64,
}

#[derive(Deserialize)]
struct Picked {
    rank: u64,
    coordinates: BTreeMap<String, u64>,
    groups: BTreeMap<String, Group>,
}

#[derive(Deserialize, PartialEq)]
struct Group {
    start: u64,
    stride: u64,
    len: u64,
}

impl Group {
    fn holds(&self, ranks: std::ops::Range<u64>) -> bool {
        let stride = self.stride.max(1);
        let last = self.start.saturating_add(self.len.saturating_sub(1).saturating_mul(stride));
        let first = ranks.start.max(self.start);
        let next = self.start + (first - self.start).div_ceil(stride) * stride;
        next < ranks.end && next <= last
    }
}

/// Cells at most; of more ranks, a cell stands for several.
const MOST_CELLS: u64 = 1024;

/// Devices of a node where nobody says.
const USUAL_NODE: u64 = 8;

/// Colours of stages, in turn.
const STAGES: [Colour; 8] = [BLUE, ORANGE, GREEN, SKY, PURPLE, YELLOW, VERMILION, GREY];

/// Groups that are outlined at most, and how.
const DASHES: [&str; 7] = ["", "4 2", "1.5 2", "6 2 1.5 2", "8 3", "2 1", "3 3"];

/// Draws it.
pub fn draw(mesh: &Mesh, options: &Options) -> Result<String, Undrawn> {
    if mesh.world == 0 {
        return Err(Undrawn("a world of no ranks is not drawn".to_string()));
    }
    let node = mesh.devices_per_node.unwrap_or(USUAL_NODE).clamp(1, mesh.world);
    // So many ranks a cell that a node is whole cells, or a cell whole nodes.
    let most = if options.narrow { MOST_CELLS / 2 } else { MOST_CELLS };
    let each = match mesh.world.div_ceil(most) {
        1 => 1,
        many => many.div_ceil(node) * node,
    };
    let cells = mesh.world.div_ceil(each);
    let in_a_block = if each == 1 { node.min(16) } else { 8 };
    let mut canvas = Canvas::new(options);
    let (title, said) = words(mesh, node, each);
    let foot = canvas.heading(&title, &said);
    let size = cell_size(cells, in_a_block, canvas.width, options);
    let top = foot + 12.0;
    let bottom = grid(&mut canvas, mesh, Grid { node, each, cells, in_a_block, size, top });
    let end = legend(&mut canvas, mesh, bottom + 8.0);
    Ok(canvas.finish(end + 4.0, &title, &said))
}

/// Cells as large as lets all of them stand on a screen, and their rank's number stand in them.
fn cell_size(cells: u64, in_a_block: u64, wide: f64, options: &Options) -> f64 {
    let fits = (wide - 24.0 - 8.0) / in_a_block as f64;
    let wanted: f64 = match (cells, options.narrow) {
        (0..=64, _) => 34.0,
        (_, true) => 21.6,
        (..=512, _) => 27.6,
        _ => 18.0,
    };
    wanted.min(fits).max(6.0)
}

fn words(mesh: &Mesh, node: u64, each: u64) -> (String, String) {
    let degrees: Vec<String> =
        mesh.axes.iter().filter(|axis| axis.degree > 1).map(|axis| format!("{} {}", axis.axis, axis.degree)).collect();
    let split = if degrees.is_empty() { "no axis splits anything".to_string() } else { degrees.join(", ") };
    let title = format!("{} ranks: {split}", units::exact(mesh.world));
    let known = if mesh.devices_per_node.is_some() { "" } else { " (nobody said how many: --on)" };
    let mut said = format!("a box is a node of {node}{known}, its colour the pipeline stage");
    if each > 1 {
        said = format!("a cell is {each} ranks, its colour the pipeline stage of the first");
    }
    if let Some(picked) = &mesh.rank {
        let at: Vec<String> = picked.coordinates.iter().map(|(axis, at)| format!("{axis} {at}")).collect();
        said = format!("rank {} stands at {}; {said}", picked.rank, at.join(", "));
    }
    (title, said)
}

impl Mesh {
    fn stage(&self, rank: u64) -> u64 {
        let axis = self.axes.iter().find(|axis| axis.axis == "pp");
        axis.map_or(0, |axis| rank / axis.stride.max(1) % axis.degree.max(1))
    }

    fn stages(&self) -> u64 {
        self.axes.iter().find(|axis| axis.axis == "pp").map_or(1, |axis| axis.degree.max(1))
    }

    /// Groups of the picked rank that have others in them.
    fn groups(&self) -> Vec<(String, &Group)> {
        let order = |axis: &str| self.axes.iter().position(|known| known.axis == axis).unwrap_or(usize::MAX);
        let Some(picked) = &self.rank else { return Vec::new() };
        let mut of_axes: Vec<(&String, &Group)> = picked.groups.iter().filter(|(_, group)| group.len > 1).collect();
        of_axes.sort_by_key(|(axis, _)| order(axis));
        // Axes over the same ranks are one group.
        let mut groups: Vec<(String, &Group)> = Vec::new();
        for (axis, group) in of_axes {
            match groups.iter_mut().find(|(_, known)| *known == group) {
                Some((names, _)) => *names += &format!(" and {axis}"),
                None => groups.push((axis.clone(), group)),
            }
        }
        groups.truncate(DASHES.len());
        groups
    }
}

/// How cells are laid out.
struct Grid {
    node: u64,
    each: u64,
    cells: u64,
    in_a_block: u64,
    size: f64,
    top: f64,
}

/// The cells; gives where they end.
fn grid(canvas: &mut Canvas, mesh: &Mesh, grid: Grid) -> f64 {
    let Grid { node, each, cells, in_a_block, size, top } = grid;
    let rows_of_block = if each == 1 { node.div_ceil(in_a_block) } else { 1 };
    let a_block = if each == 1 { node } else { in_a_block };
    let blocks = cells.div_ceil(a_block);
    let (wide, tall) = (in_a_block as f64 * size + 10.0, rows_of_block as f64 * size + 10.0);
    let across = (((canvas.width - 24.0 + 2.0) / wide) as u64).clamp(1, blocks.max(1));
    let groups = mesh.groups();
    for block in 0..blocks {
        let (x, y) = (12.0 + (block % across) as f64 * wide, top + (block / across) as f64 * tall);
        let here = (cells - block * a_block).min(a_block);
        if each == 1 {
            let around = [x - 2.0, y - 2.0, here.min(in_a_block) as f64 * size + 4.0, tall - 6.0];
            canvas.outline(around, LINE, "", &About::tip([format!("node {block}")]).data("node", block));
        }
        for at in 0..here {
            let cell = block * a_block + at;
            let place = [x + (at % in_a_block) as f64 * size, y + (at / in_a_block) as f64 * size];
            draw_cell(canvas, mesh, &groups, cell * each..((cell + 1) * each).min(mesh.world), place, size, node);
        }
    }
    top + blocks.div_ceil(across) as f64 * tall
}

fn draw_cell(
    canvas: &mut Canvas,
    mesh: &Mesh,
    groups: &[(String, &Group)],
    ranks: std::ops::Range<u64>,
    [x, y]: [f64; 2],
    size: f64,
    node: u64,
) {
    let stage = mesh.stage(ranks.start);
    let colour = STAGES[(stage % STAGES.len() as u64) as usize];
    let name = match ranks.end - ranks.start {
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {}-{}", ranks.start, ranks.end - 1),
    };
    let inside: Vec<&str> =
        groups.iter().filter(|(_, group)| group.holds(ranks.clone())).map(|(axis, _)| axis.as_str()).collect();
    let shared = match &mesh.rank {
        Some(picked) if !inside.is_empty() => format!("in the {} group of rank {}", inside.join(", "), picked.rank),
        _ => String::new(),
    };
    let about = About::tip([format!("{name}: stage {stage}, node {}", ranks.start / node), shared])
        .data("rank", ranks.start)
        .data("stage", stage);
    let is_picked = mesh.rank.as_ref().is_some_and(|picked| ranks.contains(&picked.rank));
    let is_dim = mesh.rank.is_some() && inside.is_empty() && !is_picked;
    let [fill, text] = if is_dim { [crate::palette::FREE, SOFT] } else { [colour.fill, colour.text] };
    let cell = [x + 0.5, y + 0.5, size - 1.0, size - 1.0];
    canvas.rect(cell, fill, &about);
    if is_dim && size > 8.0 {
        canvas.rect([x + 0.5, y + size - 3.5, size - 1.0, 3.0], colour.fill, &about);
    }
    for (at, axis) in inside.iter().enumerate().filter(|_| !is_picked) {
        let Some(dash) = groups.iter().position(|(known, _)| known == axis).map(|at| DASHES[at]) else { continue };
        let inset = 2.0 + at as f64 * 3.0;
        canvas.outline([x + inset, y + inset, size - 2.0 * inset, size - 2.0 * inset], colour.text, dash, &about);
    }
    if is_picked {
        canvas.outline([x - 1.0, y - 1.0, size + 2.0, size + 2.0], INK, "", &about);
        canvas.outline([x + 0.2, y + 0.2, size - 0.4, size - 0.4], INK, "", &about);
    }
    let words = ranks.start.to_string();
    if ranks.end - ranks.start == 1 && width(&words, 10.0) + 2.0 <= size {
        let font = Font { size: 10.0, anchor: Anchor::Middle, fill: text, ..Font::default() };
        canvas.text(x + size / 2.0, y + size / 2.0 + 3.6, font, &words);
    }
}

/// Stages by colour and groups by line; gives where it ends.
fn legend(canvas: &mut Canvas, mesh: &Mesh, y: f64) -> f64 {
    let stages = mesh.stages();
    let shown = stages.min(STAGES.len() as u64);
    let more = |stage: u64| if stages > shown && stage + 1 == shown { ", and again every 8" } else { "" };
    let entries: Vec<(&str, String)> =
        (0..shown).map(|stage| (STAGES[stage as usize].fill, format!("stage {stage}{}", more(stage)))).collect();
    let mut end = canvas.legend(12.0, y, canvas.width - 12.0, &entries);
    for (at, (axis, group)) in mesh.groups().into_iter().enumerate() {
        canvas.line([12.0, end + 6.0, 40.0, end + 6.0], INK, 1.5, DASHES[at]);
        let words = format!("its {axis} group: {} ranks, {} apart", group.len, group.stride);
        canvas.text_within(48.0, end + 10.5, Font::default(), &words, canvas.width - 60.0);
        end += 19.0;
    }
    end
}
