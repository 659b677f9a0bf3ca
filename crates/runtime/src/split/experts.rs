//! Sends tokens to the ranks that own their experts, and back. Counts travel first, then rows, and only
//! those there are; ranks of the expert-tensor axis then gather each other's rows. The way back is the
//! transpose of each, in reverse.
//!
//! What receives rows for the local experts, and what takes their outputs back, has the size of what
//! comes where nothing is dropped. With a capacity factor both are made before the exchange, as large as
//! the factor allows, and filled from the front.

use crate::mat::Mat;
use crate::rank::Rank;
use crate::real::Real;
use comm::{Call, Result};
use layout::Axis;
use layout::activations::{Room, Routed};

const COUNTS: Call = Call::new("ep", "counts before dispatch");
const DISPATCH: Call = Call::new("ep", "dispatch");
const COMBINE: Call = Call::new("ep", "combine");
const ETP_COUNTS: Call = Call::new("etp", "counts of the expert-tensor group");
const ETP_IN: Call = Call::new("etp", "into experts");
const ETP_OUT: Call = Call::new("etp", "out of experts");

/// Who sends how many rows to whom, and in which order they are computed.
pub(crate) struct Plan {
    /// Rows this rank sends to each member of the expert axis; below, rows it gets from each.
    send: Vec<usize>,
    receive: Vec<usize>,
    /// Rows each member of the expert-tensor axis brings.
    members: Vec<usize>,
    /// For each row sorted by expert, its index among the rows as they arrived.
    order: Vec<usize>,
    /// Rows of each local expert.
    pub per_expert: Vec<usize>,
    /// Rows that buffers are made for, where a capacity factor says so.
    room: Option<Room>,
}

impl Plan {
    /// Plans the exchange of `counts` rows for each expert; each owner has an equal run of experts.
    pub fn new(rank: &Rank, counts: &[u64], room: Option<Room>) -> Result<Plan> {
        let (owners, experts) = (rank.ep.len(), counts.len());
        let local = experts / owners;
        let all = rank.comm.all_gather(&rank.ep, COUNTS, counts.to_vec())?;
        let first = rank.on(Axis::Ep) * local;
        let mine: Vec<u64> = all.chunks_exact(experts).flat_map(|c| c[first..first + local].iter().copied()).collect();
        let total = |c: &[u64]| c.iter().sum::<u64>() as usize;
        let send = counts.chunks_exact(local).map(total).collect();
        let receive = mine.chunks_exact(local).map(total).collect();
        // Rows arrive in runs of one expert, ordered by member, source, expert.
        let runs = rank.comm.all_gather(&rank.etp, ETP_COUNTS, mine)?;
        let members = runs.chunks_exact(owners * local).map(total).collect();
        let mut starts = Vec::with_capacity(runs.len());
        let mut at = 0;
        for run in &runs {
            starts.push(at);
            at += *run as usize;
        }
        let runs_of = |expert: usize| (expert..runs.len()).step_by(local);
        let order = (0..local)
            .flat_map(|e| runs_of(e).flat_map(|i| starts[i]..starts[i] + runs[i] as usize).collect::<Vec<_>>())
            .collect();
        let per_expert = (0..local).map(|e| runs_of(e).map(|i| runs[i] as usize).sum()).collect();
        let plan = Plan { send, receive, members, order, per_expert, room };
        let rows = plan.rows();
        let fits = |room: Room| rows.sent <= room.sent && rows.arrived <= room.arrived && rows.came <= room.came;
        assert!(room.is_none_or(fits), "routers let through {rows:?}, and there is room for {room:?}");
        Ok(plan)
    }

    /// Rows sent, received and gathered, for predictions.
    pub fn rows(&self) -> Routed {
        let total = |rows: &[usize]| rows.iter().sum::<usize>() as u64;
        Routed { sent: total(&self.send), arrived: total(&self.receive), came: total(&self.per_expert) }
    }

    fn scaled(rows: &[usize], width: usize) -> Vec<usize> {
        rows.iter().map(|r| r * width).collect()
    }

    /// From rows sorted by destination expert on the sender, to rows sorted by local expert on the
    /// owner.
    pub fn dispatch<R: Real>(&self, rank: &Rank, rows: Mat<R>) -> Result<Mat<R>> {
        let width = rows.cols;
        let mut data = self.room.map_or(Vec::new(), |room| Vec::with_capacity(room.came as usize * width));
        let (send, receive) = (Self::scaled(&self.send, width), Self::scaled(&self.receive, width));
        let came = rank.comm.all_to_all(&rank.ep, DISPATCH, rows.data, &send, &receive)?;
        let came = Mat::of(width, rank.comm.all_gather_uneven(&rank.etp, ETP_IN, came)?.0);
        if self.room.is_none() {
            data.reserve_exact(came.data.len());
        }
        self.order.iter().for_each(|&at| data.extend_from_slice(came.row(at)));
        Ok(Mat::of(width, data))
    }

    /// Transpose of [`Plan::dispatch`]: from rows of local experts, summed over the expert-tensor axis,
    /// back to the order in which this rank sent them. Forward uses it to combine.
    pub fn combine<R: Real>(&self, rank: &Rank, rows: &Mat<R>) -> Result<Mat<R>> {
        let width = rows.cols;
        let returned = self.room.map(|room| Vec::with_capacity(room.sent as usize * width));
        let mut data = vec![R::ZERO; rows.data.len()];
        for (row, &at) in self.order.iter().enumerate() {
            data[at * width..(at + 1) * width].copy_from_slice(rows.row(row));
        }
        let members = Self::scaled(&self.members, width);
        let mine = rank.comm.reduce_scatter_uneven(&rank.etp, ETP_OUT, data, &members)?;
        let (send, receive) = (Self::scaled(&self.receive, width), Self::scaled(&self.send, width));
        let came = rank.comm.all_to_all(&rank.ep, COMBINE, mine, &send, &receive)?;
        Ok(Mat::of(
            width,
            match returned {
                None => came,
                Some(mut returned) => {
                    returned.extend_from_slice(&came);
                    returned
                }
            },
        ))
    }
}
