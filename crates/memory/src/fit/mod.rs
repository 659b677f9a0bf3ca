//! Whether it fits: every rank class of a layout priced against a device, with the basis of each
//! number, the phase and block the peak stands in, and what would lower it.

mod checklist;
mod classes;
mod dispatch;
mod least;
mod levers;
mod lines;
mod margin;
mod offload;
mod overload;
mod pools;
mod replays;
mod reserve;
mod review;
mod routing;
mod scaling;

pub use checklist::{Item, checklist};
pub use classes::{Compile, PhasePeak, RankClass};
pub use dispatch::dispatch_bytes;
pub use least::Least;
pub use levers::{Lever, Levers, levers};
pub use lines::{Amount, Entry};
pub use margin::Margin;
pub use offload::Offload;
pub use overload::{AtOverload, Breaks, Overload, at_overloads};
pub use pools::PooledFit;
pub use replays::{Over, Recorded, most_headroom_of_stage, record, work, work_of_stage};
pub use reserve::{Communicator, Outside, communicator_bytes, communicators, outside};
pub use review::{Change, Review, review};
pub use routing::{LayerRouting, routing};
pub use scaling::{Knob, Scaling};

use case::Case;
use hardware::Cluster;
use ledger::Ledger;
use replay::Unmodelled;
use replays::Replays;
use std::sync::Arc;
use units::Bytes;

/// Memory to leave free unless told otherwise, for what nobody replays.
pub const HEADROOM: Bytes = Bytes(4 << 30);

/// A job being priced.
#[derive(Clone, Copy)]
struct Pricing<'a> {
    case: &'a Case,
    ledger: &'a Ledger,
}

/// The answer in a word, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// With the headroom asked for.
    Fits,
    /// Without it.
    Tight,
    /// Not at all.
    DoesNotFit,
}

impl Verdict {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Fits => "fits",
            Verdict::Tight => "tight",
            Verdict::DoesNotFit => "does not fit",
        }
    }
}

/// Every rank class priced.
#[derive(Clone, Debug)]
pub struct Fit {
    /// One a stage, in order.
    pub classes: Vec<RankClass>,
    /// Index of the class with the least headroom.
    pub worst: usize,
    /// The worst class's verdict.
    pub verdict: Verdict,
    /// What the hosts hold for their devices.
    pub host: HostUse,
    /// What was to be left free.
    pub margin: Margin,
    /// The class with the least headroom under the overload that was asked for; none where that changes nothing.
    pub overloaded: Option<Overloaded>,
    /// What no figure here covers.
    pub unmodelled: Vec<String>,
    replays: Arc<Replays>,
    overloaded_replays: Option<Arc<Replays>>,
}

/// The fullest rank under uneven routing.
#[derive(Clone, Debug)]
pub struct Overloaded {
    /// Copies of tokens that its experts receive, over their even share.
    pub factor: f64,
    /// What it holds.
    pub class: RankClass,
}

/// Host memory of the node that needs most of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HostUse {
    /// What its devices' ranks keep there.
    pub node_bytes: u64,
    /// What such a node usually has; none where nobody says.
    pub has_bytes: Option<u64>,
    /// What its devices' ranks keep on its drives.
    pub drive_bytes: u64,
    /// Room on all its drives; none where nobody says.
    pub drives_have: Option<u64>,
}

impl HostUse {
    fn of(case: &Case, classes: &[RankClass]) -> HostUse {
        HostUse::from(case.on(), classes, 0)
    }

    /// The node of a cluster whose ranks of these classes keep most; its first rank is `start`.
    fn from(cluster: &Cluster, classes: &[RankClass], start: u64) -> HostUse {
        let each = cluster.devices_per_node;
        let most = |bytes: &dyn Fn(&RankClass) -> u64| {
            let of_rank = |rank: u64| {
                let own = |class: &&RankClass| (0..class.num_ranks).contains(&rank.wrapping_sub(class.first_rank));
                classes.iter().find(own).map_or(0, bytes)
            };
            let node =
                |node: u64| (node * each..(node + 1) * each).map(|at| of_rank(start + at)).fold(0, u64::saturating_add);
            let is_used = classes.iter().any(|class| bytes(class) > 0);
            if is_used { (0..cluster.nodes).map(node).max().unwrap_or(0) } else { 0 }
        };
        HostUse {
            node_bytes: most(&|class| class.offload.host_bytes),
            has_bytes: cluster.device.host.as_ref().map(|host| host.memory_bytes),
            drive_bytes: most(&|class| class.offload.drive_bytes),
            drives_have: cluster.device.drives.as_ref().map(|drives| drives.count.saturating_mul(drives.bytes)),
        }
    }

    /// Whether a node's host or its drives are known to be too small.
    pub fn is_over(&self) -> bool {
        let over = |bytes: u64, has: Option<u64>| has.is_some_and(|has| bytes > has);
        over(self.node_bytes, self.has_bytes) || over(self.drive_bytes, self.drives_have)
    }
}

impl Fit {
    /// Prices every rank class of a job, leaving a margin for compile peaks, fragmentation and uneven routing.
    pub fn price(case: &Case, margin: impl Into<Margin>) -> Result<Fit, Unmodelled> {
        Fit::priced(case, margin.into(), [None, None])
    }

    /// The same where it may fit: replays end once a stage is known to leave less than the margin's headroom.
    pub fn price_within(case: &Case, margin: Margin) -> Result<Result<Fit, Over>, Unmodelled> {
        let within = |case: &Case| {
            let ledger = Ledger::of_case(case)?;
            let replays = Replays::within(Pricing { case, ledger: &ledger }, Some(margin.headroom))?;
            Ok(replays.map(Arc::new))
        };
        let here = match within(case)? {
            Ok(replays) => replays,
            Err(over) => return Ok(Err(over)),
        };
        let overloaded = match margin.overloaded(case).map(|case| within(&case)).transpose()? {
            Some(Err(over)) => {
                let operations = over.operations.saturating_add(here.operations());
                return Ok(Err(Over { operations, ..over }));
            }
            Some(Ok(replays)) => Some(replays),
            None => None,
        };
        Fit::priced(case, margin, [Some(&here), overloaded.as_ref()]).map(Ok)
    }

    /// Operations of this machine that its replays took.
    pub fn operations(&self) -> u64 {
        let overloaded = self.overloaded_replays.as_ref().map_or(0, |replays| replays.operations());
        self.replays.operations().saturating_add(overloaded)
    }

    /// Prices another job with the replays of this one, where they are the same.
    fn price_beside(&self, case: &Case) -> Result<Fit, Unmodelled> {
        Fit::priced(case, self.margin, [Some(&self.replays), self.overloaded_replays.as_ref()])
    }

    /// Operations that pricing another job beside this one takes; none where the replays are the same.
    fn work_beside(&self, case: &Case) -> u64 {
        let is_known = |ledger: &Ledger| self.replays.are_of(Pricing { case, ledger });
        match Ledger::of_case(case) {
            Ok(ledger) if !is_known(&ledger) => self.margin.work(case).map_or(0, |work| work.operations),
            _ => 0,
        }
    }

    /// Prices a job as it is and overloaded, each with what is known of its replays.
    fn priced(case: &Case, margin: Margin, known: [Option<&Arc<Replays>>; 2]) -> Result<Fit, Unmodelled> {
        let ledger = Ledger::of_case(case)?;
        let pricing = Pricing { case, ledger: &ledger };
        let (classes, replays) = priced_classes(pricing, known[0])?;
        let overloaded = margin.overloaded(case).map(|case| {
            let ledger = Ledger::of_case(&case)?;
            let (classes, replays) = priced_classes(Pricing { case: &case, ledger: &ledger }, known[1])?;
            let fullest = classes.into_iter().min_by_key(|class| class.headroom);
            Ok((fullest.map(|class| Overloaded { factor: case.options.overload, class }), replays))
        });
        let (overloaded, overloaded_replays) = overloaded.transpose()?.unzip();
        let overloaded = overloaded.flatten();
        let worst = (0..classes.len()).min_by_key(|&i| classes[i].headroom).unwrap_or(0);
        let host = HostUse::of(case, &classes);
        let visible = case.on().device.visible_bytes();
        let judged = classes.iter().map(|class| judge(class.total(), visible, margin.headroom));
        // What holds a balanced step only lacks the margin.
        let uneven =
            overloaded.iter().map(|fullest| judge(fullest.class.total(), visible, margin.headroom).min(Verdict::Tight));
        let verdict = judged.chain(uneven).max().filter(|_| !host.is_over()).unwrap_or(Verdict::DoesNotFit);
        let unmodelled = unmodelled(pricing);
        Ok(Fit { classes, worst, verdict, host, margin, overloaded, unmodelled, replays, overloaded_replays })
    }

    /// The class with the least headroom.
    pub fn worst(&self) -> &RankClass {
        &self.classes[self.worst]
    }

    /// The same under the routing that was asked for.
    pub fn tightest(&self) -> &RankClass {
        let overloaded = self.overloaded.as_ref().map(|fullest| &fullest.class);
        overloaded.filter(|class| class.headroom < self.worst().headroom).unwrap_or(self.worst())
    }
}

/// Every stage of a job, and the replays that say what it holds.
fn priced_classes(
    pricing: Pricing,
    known: Option<&Arc<Replays>>,
) -> Result<(Vec<RankClass>, Arc<Replays>), Unmodelled> {
    let known = known.filter(|replays| replays.are_of(pricing)).cloned();
    let replays = known.map_or_else(|| Replays::new(pricing).map(Arc::new), Ok)?;
    let class = |stage: usize| {
        let (twin, replay) = replays.of(stage);
        RankClass::price(pricing, twin, replay).at_stage(stage)
    };
    let classes = (0..pricing.case.layout.pp.get() as usize).map(class).collect();
    Ok((classes, replays))
}

/// The verdict on a rank, the only one there is: what it holds against what it sees.
fn judge(held: u64, visible: u64, wanted: Bytes) -> Verdict {
    match visible.checked_sub(held) {
        None => Verdict::DoesNotFit,
        Some(left) if left < wanted.0 => Verdict::Tight,
        Some(_) => Verdict::Fits,
    }
}

/// What is left out of every total, by name.
fn unmodelled(pricing: Pricing) -> Vec<String> {
    if matches!(pricing.ledger, Ledger::Shardwright(_)) {
        return vec![
            "this project's runtime computes on CPUs: the device only says how much memory there is".to_string(),
            "names, tables and batches, and what product kernels take for the length of a call".to_string(),
        ];
    }
    let mut list = vec![
        "compile peaks, and graphs captured of blocks other than attention and feed-forward, which are refused"
            .to_string(),
        "checkpoint saving and data loading on the device".to_string(),
        "kernel autotuning buffers of the first step".to_string(),
    ];
    if !matches!(pricing.ledger, Ledger::Megatron(_)) {
        list.push("expandable segments: replayed for Megatron-Core, refused under this engine".to_string());
    }
    let device = &pricing.case.on().device;
    if device.reserve.is_none() {
        list.push(format!("memory outside the allocator on {}: the H200's stands in for it", device.name));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_its_headroom() {
        assert_eq!(judge(8, 7, Bytes(0)), Verdict::DoesNotFit);
        assert_eq!(judge(u64::MAX, 7, Bytes(0)), Verdict::DoesNotFit);
        assert_eq!(judge(2, 7, Bytes(6)), Verdict::Tight);
        assert_eq!(judge(7, 7, Bytes(0)), Verdict::Fits);
        assert_eq!(judge(1, 7, Bytes(6)), Verdict::Fits);
    }
}
