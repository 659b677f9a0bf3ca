//! Pools: clusters of unlike devices in one job, typed `8x8xH100+4x8xA100`. Ranks are counted pool by pool, in the
//! order typed.

use crate::Cluster;
use diag::{Blame, Finding};

/// Most pools of one job: all their orders are looked at.
pub const MOST_POOLS: usize = 3;

/// The clusters of a text with `+` between them; none where it is one cluster.
pub fn split_pools(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices('+') {
        if ends_one(&text[start..at]) && starts_one(&text[at + 1..]) {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    (parts.len() > 1).then_some(parts)
}

/// Whether a cluster may end here: a path with a `+` in it goes on until its `.toml`.
fn ends_one(text: &str) -> bool {
    let device = text.rsplit_once('@').map_or(text, |(device, _)| device);
    !text.is_empty() && (!text.contains(['/', '\\']) || device.ends_with(".toml") || text.ends_with(".toml"))
}

/// Whether another cluster may begin here: with a count, or a path.
fn starts_one(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let counted = digits > 0 && text[digits..].starts_with(['x', 'X', '×']);
    let is_path =
        text.starts_with(['.', '/', '\\']) || text.split('+').next().is_some_and(|part| part.contains(".toml"));
    counted || is_path
}

impl Cluster {
    /// Nodes of this kind, as many as make up a world.
    pub fn of_world(&self, world: u64) -> Option<Cluster> {
        let nodes = world / self.devices_per_node;
        (nodes * self.devices_per_node == world).then(|| Cluster { nodes, ..self.clone() })
    }
}

/// Refuses pools that no job can span.
pub fn check_pools(text: &str, pools: &[Cluster]) -> Result<(), Finding> {
    let shown: String = text.chars().take(80).collect();
    let refuse = |rule, message: String, hint: &str| Err(Finding::error(rule, Blame::Usage, "on", message).hint(hint));
    if pools.len() > MOST_POOLS {
        let message = format!("`{shown}` has {} pools, and at most {MOST_POOLS} are placed", pools.len());
        return refuse("pools/many", message, "leave the smallest out, or plan them as jobs of their own");
    }
    let first = &pools[0];
    if let Some(other) = pools.iter().find(|pool| pool.device.vendor != first.device.vendor) {
        let (one, two) = (&first.device.name, &other.device.name);
        let message = format!("`{shown}`: no library of collectives joins {one} and {two}, which are of other makers");
        return refuse("pools/makers", message, "plan each pool alone");
    }
    if let Some(sliced) = pools.iter().find(|pool| pool.slice.is_some()) {
        let message =
            format!("`{shown}`: {} comes in slices, and a job over slices has one kind of them", sliced.device.name);
        return refuse("pools/slices", message, "plan each pool alone");
    }
    for (index, pool) in pools.iter().enumerate() {
        if let Some(same) = pools[..index].iter().find(|other| other.device == pool.device) {
            let name = &same.device.name;
            let message = format!("`{shown}`: {name} stands there twice with the same network, which is one pool");
            return refuse("pools/twice", message, "add their nodes up, as `12x8xH100`");
        }
    }
    let world: u64 = pools.iter().map(Cluster::devices).sum();
    if let Some(odd) = pools.iter().find(|pool| pool.of_world(world).is_none()) {
        let message = format!(
            "`{shown}` has {world} devices, which are no whole nodes of {} {}: ranks would not begin with a node",
            odd.devices_per_node, odd.device.name
        );
        return refuse("pools/nodes", message, "take another node, or leave one out");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pools_are_told_from_paths() {
        assert_eq!(split_pools("8x8xH100+4x8xA100"), Some(vec!["8x8xH100", "4x8xA100"]));
        assert_eq!(
            split_pools("8xH100@roce400+./a+b.toml+2x8xA100"),
            Some(vec!["8xH100@roce400", "./a+b.toml", "2x8xA100"])
        );
        assert_eq!(split_pools("8x./c.toml@roce400+8xH100"), Some(vec!["8x./c.toml@roce400", "8xH100"]));
        for one in ["8xH100", "8x./a+8xb.toml", "8xH100+A100", "+8xH100", "8xH100+"] {
            assert_eq!(split_pools(one), None, "{one}");
        }
    }

    fn refused(text: &str) -> &'static str {
        let pools: Vec<Cluster> = split_pools(text).unwrap().into_iter().map(|p| Cluster::parse(p).unwrap()).collect();
        check_pools(text, &pools).unwrap_err().rule
    }

    #[test]
    fn what_no_job_spans_is_refused() {
        assert_eq!(refused("8xH100+8xA100+8xH200+8xB200"), "pools/many");
        assert_eq!(refused("8xH100+8xMI300X"), "pools/makers");
        assert_eq!(refused("8xTPU-v5e+8xTPU-v6e"), "pools/slices");
        assert_eq!(refused("8xH100+16xH100"), "pools/twice");
        assert_eq!(refused("8xH100+1x4xGB200"), "pools/nodes");
    }

    #[test]
    fn a_pool_stands_for_the_world() {
        let pool = Cluster::parse("4x8xA100").unwrap();
        assert_eq!(pool.of_world(96).map(|c| (c.nodes, c.devices())), Some((12, 96)));
        assert_eq!(pool.of_world(12), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9x×+@]{0,6}(H100|\\./a\\.toml|\\PC{0,3})[+0-9x×@]{0,6}(A100|b\\.toml|)") {
            let _ = split_pools(&text);
        }
    }
}
