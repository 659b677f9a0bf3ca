//! Training state shared out over replicas, as the `shardwright` engine does it: parameters of one
//! place of the model, one mesh and one set of stages lie end to end in a buffer, and each rank of
//! the sharing group holds an equal run of it, the larger runs first.

use crate::axis::Axis;
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::ownership::{OwnershipTable, Row};
use crate::request::ZeroStage;
use recipe::Place;
use std::collections::HashMap;
use std::ops::Range;

/// Parameters whose state one rank shares out together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where in the model they stand.
    pub place: Place,
    /// Whether they live on the expert mesh.
    pub is_expert: bool,
    /// Stages that hold them: more than one for a tied table, and for everything under DualPipe.
    pub stages: Vec<usize>,
    /// Rows of the table, in the order they lie.
    pub rows: Vec<usize>,
    /// Where each row's part lies.
    pub spans: Vec<Range<u64>>,
    /// Elements of all of them on this rank.
    pub len: u64,
    /// Ranks that share it out.
    pub members: u64,
    /// The run this rank steps; everything where nothing is shared out.
    pub held: Range<u64>,
}

impl Buffer {
    /// The axis its group is named after.
    pub fn axis(&self) -> Axis {
        if self.is_expert { Axis::Edp } else { Axis::Dp }
    }

    /// Elements of the held run.
    pub fn held_len(&self) -> u64 {
        self.held.end - self.held.start
    }

    /// Elements of the held run that belong to rows of which `is_meant` holds.
    pub fn held_of(&self, table: &OwnershipTable, is_meant: impl Fn(&Row) -> bool) -> u64 {
        let rows = self.rows.iter().zip(&self.spans).filter(|(row, _)| is_meant(&table.rows[**row]));
        rows.map(|(_, span)| span.end.min(self.held.end).saturating_sub(span.start.max(self.held.start))).sum()
    }
}

/// The buffers of a rank, in the order its parameters are listed.
pub fn buffers(table: &OwnershipTable, layout: &Layout, mesh: &Mesh, rank: u64) -> Vec<Buffer> {
    let stage = mesh.coordinates(rank).on(Axis::Pp) as usize;
    let mut out: Vec<Buffer> = Vec::new();
    let mut known: HashMap<(Place, bool, Vec<usize>), usize> = HashMap::new();
    for (index, row) in table.rows.iter().enumerate() {
        let stages: Vec<usize> =
            (0..table.stages.by_stage.len()).filter(|s| table.copies_on_stage(row, *s) > 0).collect();
        if !stages.contains(&stage) {
            continue;
        }
        let (place, is_expert) = (row.tensor.place, row.tensor.acting.is_some());
        let at = *known.entry((place, is_expert, stages.clone())).or_insert_with(|| {
            let (rows, spans) = (Vec::new(), Vec::new());
            out.push(Buffer { place, is_expert, stages, rows, spans, len: 0, members: 1, held: 0..0 });
            out.len() - 1
        });
        let (buffer, elements) = (&mut out[at], row.part_elements(layout));
        buffer.rows.push(index);
        buffer.spans.push(buffer.len..buffer.len + elements);
        buffer.len += elements;
    }
    let groups = [false, true].map(|is_expert| group(mesh, rank, is_expert));
    for buffer in &mut out {
        let (place, members) = groups[usize::from(buffer.is_expert)];
        buffer.members = members;
        buffer.held = if layout.zero == ZeroStage::Zero { 0..buffer.len } else { share(buffer.len, place, members) };
    }
    out
}

/// A rank's place in the group that shares out state, and the group's size: ranks that hold the
/// same parts, whichever tokens they see.
fn group(mesh: &Mesh, rank: u64, is_expert: bool) -> (u64, u64) {
    let axes: &[Axis] = if is_expert { &[Axis::Ep, Axis::Etp, Axis::Pp] } else { &[Axis::Tp, Axis::Pp] };
    let mine = mesh.coordinates(rank);
    let is_member = |other: &u64| {
        let theirs = mesh.coordinates(*other);
        axes.iter().all(|axis| theirs.on(*axis) == mine.on(*axis))
    };
    let before = (0..rank).filter(is_member).count() as u64;
    (before, before + (rank..mesh.world()).filter(is_member).count() as u64)
}

/// The run of one member.
fn share(len: u64, place: u64, members: u64) -> Range<u64> {
    let (each, more) = (len / members, len % members);
    let start = place * each + place.min(more);
    start..start + each + u64::from(place < more)
}
