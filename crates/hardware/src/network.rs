//! Networks between islands, by the name a cluster is typed with.

use crate::{Link, read};
use diag::{Blame, Finding, did_you_mean};
use serde::Serialize;
use std::sync::LazyLock;

/// A network between islands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Network {
    /// As typed behind `@`.
    pub key: String,
    /// One device's share of it, in one direction.
    #[serde(flatten)]
    pub link: Link,
}

const NETWORKS: &str = include_str!("../../../data/hardware/networks.toml");

impl Network {
    /// The built-in networks, in the order of their file.
    pub fn all() -> Result<&'static [Network], Finding> {
        static ALL: LazyLock<Result<Vec<Network>, Vec<Finding>>> = LazyLock::new(|| read::networks(NETWORKS));
        ALL.as_deref().map_err(|findings| {
            let why = findings.first().map_or("unreadable", |finding| finding.message.as_str());
            Finding::error("hardware/file", Blame::Bug, "networks.toml", why)
        })
    }

    /// The built-in network of this name, whatever its case.
    pub fn find(key: &str) -> Result<Network, Finding> {
        let all = Network::all()?;
        if let Some(network) = all.iter().find(|network| network.key.eq_ignore_ascii_case(key)) {
            return Ok(network.clone());
        }
        let keys: Vec<&str> = all.iter().map(|network| network.key.as_str()).collect();
        let known = keys.join(", ");
        let hint = match did_you_mean(key, keys) {
            Some(close) => format!("did you mean `{close}`? known are {known}"),
            None => format!("known are {known}"),
        };
        let shown: String = key.chars().take(40).collect();
        Err(Finding::error("hardware/network", Blame::Usage, "network", format!("unknown network `{shown}`"))
            .hint(hint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rails, RailsJoined};
    use std::collections::BTreeSet;

    #[test]
    fn every_network_reads_once_and_moves_less_than_an_island() {
        let all = Network::all().unwrap();
        assert!(all.len() >= 12);
        let keys: BTreeSet<&str> = all.iter().map(|n| n.key.as_str()).collect();
        assert_eq!(keys.len(), all.len(), "a key stands twice");
        for Network { key, link } in all {
            assert!(key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{key}");
            assert!((1e9..2e11).contains(&link.bytes_per_second), "{key}");
            assert!((1e-6..1e-4).contains(&link.latency_seconds), "{key}");
        }
    }

    #[test]
    fn rates_are_what_the_names_say() {
        for (key, gigabits) in [("ndr400", 400.0), ("hdr200", 200.0), ("xdr800", 800.0), ("roce100", 100.0)] {
            assert_eq!(Network::find(key).unwrap().link.bytes_per_second * 8.0, gigabits * 1e9, "{key}");
        }
        for (key, node_gigabits) in [("efa3200", 3200.0), ("efa400", 400.0), ("tcpx", 800.0), ("tcpxo", 1600.0)] {
            assert_eq!(Network::find(key).unwrap().link.bytes_per_second * 64.0, node_gigabits * 1e9, "{key}");
        }
    }

    #[test]
    fn rails_are_read_and_sums_need_them() {
        let rails = |key: &str| Network::find(key).unwrap().link.rails;
        assert_eq!(rails("ndr400"), None);
        assert_eq!(rails("ndr400-rails"), Some(Rails { joined: RailsJoined::Optimised, pxn: true }));
        assert_eq!(Network::find("ndr400-sharp").unwrap().link.sharp_groups, Some(256));
        let read = |besides: &str| {
            let port =
                "key = \"mine\"\nname = \"mine\"\nbytes_per_second = 5e10\nlatency_seconds = 5e-6\nsource = \"here\"";
            read::networks(&format!("[[network]]\n{port}\n{besides}\n"))
        };
        let only = read("rails = \"only\"\npxn = false").unwrap();
        assert_eq!(only[0].link.rails, Some(Rails { joined: RailsJoined::Only, pxn: false }));
        let wrong = |besides: &str| read(besides).unwrap_err()[0].message.clone();
        assert_eq!(wrong("sharp_groups = 8"), "`sharp_groups` needs `rails`: switches add up one flow a rail");
        assert_eq!(wrong("pxn = false"), "`pxn` says how rails are changed, and `rails` is not said");
        assert_eq!(wrong("rails = \"none\""), "`network.rails` cannot be `none`");
    }

    #[test]
    fn a_slip_is_answered() {
        let finding = Network::find("roce40").unwrap_err();
        assert_eq!(finding.message, "unknown network `roce40`");
        assert!(finding.hint.unwrap().starts_with("did you mean `roce400`? known are ndr400,"));
    }
}
