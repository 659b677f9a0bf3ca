//! One job over pools of unlike devices: pipeline stages are placed on pools, in the order of ranks. Stages lie
//! outermost among ranks, so that a pool holds a run of them; no other group leaves its pool.

use crate::{Asked, Case, Terms};
use diag::{Blame, Finding};
use hardware::{Cluster, check_pools};
use layout::{Engine, Schedule};
use recipe::Recipe;

/// A job over pools: the same case on a world of each pool's devices, and which stage is whose.
#[derive(Clone, Debug)]
pub struct Pooled {
    /// In the order of ranks.
    pub pools: Vec<Cluster>,
    /// The job as it would be were all devices those of the pool: of its stages alone anything holds.
    pub cases: Vec<Case>,
    /// The pool of every stage.
    pub pool_of: Vec<usize>,
}

impl Pooled {
    /// The job that was asked for. `on` is the text of the pools.
    pub fn new(asked: &Asked, recipe: &Recipe, pools: Vec<Cluster>, terms: Terms) -> Result<Pooled, Vec<Finding>> {
        let on = asked.on.as_deref().unwrap_or_default();
        check_pools(on, &pools).map_err(|finding| vec![finding])?;
        let cases = pools.iter().map(|pool| {
            let world = pools.iter().map(Cluster::devices).sum();
            Case::new(asked.clone(), recipe.clone(), pool.of_world(world), terms)
        });
        Pooled::of(pools.clone(), cases.collect::<Result<_, _>>()?).map_err(|finding| vec![finding])
    }

    /// Places the stages of a job that was made on each pool's devices.
    pub fn of(pools: Vec<Cluster>, cases: Vec<Case>) -> Result<Pooled, Finding> {
        let layout = &cases[0].layout;
        if let Some(finding) = refused(&cases[0]) {
            return Err(finding);
        }
        let sizes: Vec<u64> = pools.iter().map(Cluster::devices).collect();
        let each = layout.world / layout.pp.get();
        let Some(stages) = stages_of(&sizes, each) else { return Err(straddles(&pools, &cases[0], each)) };
        let pool_of = stages.iter().enumerate().flat_map(|(pool, &count)| vec![pool; count as usize]).collect();
        Ok(Pooled { pools, cases, pool_of })
    }

    /// The stages of a pool.
    pub fn stages(&self, pool: usize) -> std::ops::Range<usize> {
        let before = |other: usize| self.pool_of.iter().filter(|own| **own < other).count();
        before(pool)..before(pool + 1)
    }

    /// The job on its first pool's devices: layout, stages and recipe are the same on all.
    pub fn first(&self) -> &Case {
        &self.cases[0]
    }

    /// As typed: the pools in the order of their ranks.
    pub fn typed(&self) -> String {
        self.pools.iter().map(Cluster::typed).collect::<Vec<_>>().join("+")
    }
}

/// Whole stages of `each` devices on every pool.
pub fn stages_of(sizes: &[u64], each: u64) -> Option<Vec<u64>> {
    sizes.iter().map(|size| (each > 0 && size.is_multiple_of(each)).then(|| size / each)).collect()
}

/// Replicas would lie on unlike devices, and so would the other groups of a stage.
fn straddles(pools: &[Cluster], case: &Case, each: u64) -> Finding {
    let smallest = pools.iter().map(Cluster::devices).fold(0, gcd);
    let list: Vec<String> = pools.iter().map(|pool| format!("{} {}", pool.devices(), pool.device.name)).collect();
    let message = format!(
        "a stage has {each} ranks (tp × cp × dp), and {} are no whole numbers of them: a stage on unlike devices would \
         have replicas that wait for the slowest, and sums over the slower links, at every step",
        list.join(" and ")
    );
    let depth = case.recipe.depth() as u64;
    let fits = (1..=smallest).rev().find(|n| smallest.is_multiple_of(*n) && case.layout.world / n <= depth);
    let hint = match fits {
        Some(n) => {
            format!("--pp {} has stages of {n} ranks, each on one pool; `plan` looks for all", case.layout.world / n)
        }
        None => {
            format!("stages of {smallest} ranks or fewer are more stages than {depth} layers: plan each pool alone")
        }
    };
    Finding::error("pools/straddle", Blame::Layout, "pp", message).hint(hint)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The devices that divide every pool.
pub fn common_devices(pools: &[Cluster]) -> u64 {
    pools.iter().map(Cluster::devices).fold(0, gcd)
}

/// What cannot be placed on pools, whatever their sizes.
fn refused(case: &Case) -> Option<Finding> {
    let refuse = |rule, object: &str, message: String, hint: &str| {
        Some(Finding::error(rule, Blame::Layout, object, message).hint(hint))
    };
    let layout = &case.layout;
    if !layout.pp.splits() {
        let message = "one stage would lie on all pools: its replicas would wait for the slowest at every step";
        let hint = "--pp splits the depth, and stages lie on pools; engines without a pipeline run on one pool alone";
        return refuse("pools/replicas", "pp", message.to_string(), hint);
    }
    if matches!(layout.schedule, Schedule::DualPipe | Schedule::DualPipeV) {
        let message = format!("{} folds the depth: a stage holds both ends of it", layout.schedule.name());
        return refuse("pools/schedule", "schedule", message, "--schedule 1f1b runs along the pools");
    }
    if matches!(case.engine(), Engine::Nanotron | Engine::Maxtext) {
        let engine = case.engine().name();
        let message = format!("{engine} cuts the depth itself, as if all devices were as fast: it is told no cut");
        let hint = "--engine megatron, torchtitan or deepspeed is told every stage's layers";
        return refuse("pools/engine", "engine", message, hint);
    }
    if case.engine() == Engine::Shardwright {
        let message = "the project's own runtime computes on CPUs, of which there is one kind";
        return refuse("pools/engine", "engine", message.to_string(), "leave --engine out");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(on: &str, words: &[&str]) -> Result<Pooled, &'static str> {
        let typed: Vec<String> = ["llama3-8b", "--on", on].iter().chain(words).map(|w| w.to_string()).collect();
        let asked = Asked::parse(&typed).unwrap();
        let recipe = recipe::builtin::find("llama3-8b").unwrap();
        let pools = hardware::split_pools(on).unwrap().into_iter().map(|p| Cluster::parse(p).unwrap()).collect();
        Pooled::new(&asked, &recipe, pools, Terms::RUN).map_err(|findings| findings[0].rule)
    }

    #[test]
    fn stages_lie_whole_on_a_pool() {
        let job = pooled("16xH100+8xA100", &["--tp", "4", "--pp", "6", "--gbs", "24"]).unwrap();
        assert_eq!(job.pool_of, [0, 0, 0, 0, 1, 1]);
        assert_eq!((job.stages(0), job.stages(1)), (0..4, 4..6));
        assert_eq!(job.typed(), "2x8xH100@ndr400+1x8xA100@hdr200");
        assert_eq!([0, 1].map(|pool: usize| job.cases[pool].on().device.name.clone()), ["H100", "A100"]);
        assert!(job.cases.iter().all(|case| case.on().devices() == 24 && case.layout.world == 24));
    }

    #[test]
    fn unlike_replicas_are_refused() {
        assert_eq!(pooled("8xH100+8xA100", &["--pp", "1"]).unwrap_err(), "pools/replicas");
        assert_eq!(pooled("16xH100+8xA100", &["--pp", "2", "--tp", "4", "--gbs", "24"]).unwrap_err(), "pools/straddle");
        assert_eq!(pooled("8xH100+8xMI300X", &["--pp", "2"]).unwrap_err(), "pools/makers");
        let folded = ["--pp", "2", "--schedule", "dualpipev", "--vpp", "2", "--engine", "any"];
        assert_eq!(pooled("8xH100+8xA100", &folded).unwrap_err(), "pools/schedule");
    }
}
