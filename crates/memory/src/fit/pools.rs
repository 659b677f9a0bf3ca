//! A job over pools: every stage against the memory of its own pool's devices. Replays are the same whatever the device;
//! what lies outside the allocator and what a device shows are not.

use super::{Fit, HostUse, RankClass, Verdict, judge};
use case::Pooled;
use replay::Unmodelled;
use units::Bytes;

/// What a job over pools holds.
#[derive(Clone, Debug)]
pub struct PooledFit {
    /// One a stage, in order, each priced on its own pool's devices.
    pub classes: Vec<RankClass>,
    /// Index of the class with the least headroom.
    pub worst: usize,
    /// The worst class's verdict, or that of a host that is too small.
    pub verdict: Verdict,
    /// What the hosts of every pool hold.
    pub hosts: Vec<HostUse>,
    /// Memory to be left free, by pool.
    pub headroom: Vec<Bytes>,
    /// What no figure here covers.
    pub unmodelled: Vec<String>,
    operations: u64,
}

impl PooledFit {
    /// Prices every stage where it runs, leaving `headroom` free on the devices of each pool.
    pub fn price(job: &Pooled, headroom: &[Bytes]) -> Result<PooledFit, Unmodelled> {
        let first = Fit::price(job.first(), headroom[0])?;
        let mut fits = Vec::new();
        for case in &job.cases[1..] {
            fits.push(first.price_beside(case)?);
        }
        fits.insert(0, first);
        let classes: Vec<RankClass> =
            job.pool_of.iter().enumerate().map(|(stage, pool)| fits[*pool].classes[stage].clone()).collect();
        let worst = (0..classes.len()).min_by_key(|&i| classes[i].headroom).unwrap_or(0);
        let judged = classes.iter().zip(&job.pool_of).map(|(class, pool)| {
            let visible = job.pools[*pool].device.visible_bytes();
            judge(class.total(), visible, headroom[*pool])
        });
        let hosts: Vec<HostUse> = (0..job.pools.len()).map(|pool| host_of(job, pool, &classes)).collect();
        let is_over = hosts.iter().any(HostUse::is_over);
        let verdict = judged.max().filter(|_| !is_over).unwrap_or(Verdict::DoesNotFit);
        let mut unmodelled: Vec<String> = Vec::new();
        for line in fits.iter().flat_map(|fit| &fit.unmodelled) {
            if !unmodelled.contains(line) {
                unmodelled.push(line.clone());
            }
        }
        // Every pool has the first one's replays.
        let operations = fits[0].operations();
        Ok(PooledFit { classes, worst, verdict, hosts, headroom: headroom.to_vec(), unmodelled, operations })
    }

    /// Operations of this machine that its replays took.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// The class with the least headroom.
    pub fn worst(&self) -> &RankClass {
        &self.classes[self.worst]
    }
}

/// The node of a pool whose host holds most; nodes are counted from the pool's first rank.
fn host_of(job: &Pooled, pool: usize, classes: &[RankClass]) -> HostUse {
    let own = &classes[job.stages(pool)];
    HostUse::from(&job.pools[pool], own, own.first().map_or(0, |class| class.first_rank))
}
