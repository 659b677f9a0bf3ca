//! What interrupts runs, what a restart takes and what storage takes in: published figures, or a user's own.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Seconds of a day.
pub const DAY: f64 = 86_400.0;

/// How a fleet fails and recovers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failures {
    /// Wall-clock seconds of one node between interruptions of a job, in the mean.
    pub node_seconds: f64,
    /// From an interruption to the first new step.
    pub restart_seconds: f64,
    /// What one node writes of a checkpoint where all write at once.
    pub write_bytes_per_second: f64,
    /// Where each figure comes from: interruptions, restart, storage.
    pub sources: [String; 3],
    /// Whether interruptions are another device's.
    pub is_borrowed: bool,
}

/// What a user says of a fleet of one's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Typed {
    /// Days of one node between interruptions.
    pub node_days: Option<f64>,
    /// Seconds from an interruption to the first new step.
    pub restart_seconds: Option<f64>,
    /// Bytes a second of all nodes together.
    pub write_bytes_per_second: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    interruptions: Vec<Interruptions>,
    restart: Restart,
    storage: Storage,
}

/// Interruptions of one fleet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interruptions {
    /// What the fleet is called here.
    pub key: String,
    /// Devices it stands for.
    pub devices: Vec<String>,
    /// Node-days between interruptions.
    pub node_days: f64,
    /// Who says so.
    pub source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    seconds: f64,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Storage {
    write_bytes_per_second: f64,
    source: String,
}

static SHIPPED: LazyLock<File> = LazyLock::new(|| {
    let text = include_str!("../../../data/hardware/failures.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("data/hardware/failures.toml: {error}"))
});

/// The fleets whose interruptions were published.
pub fn published() -> &'static [Interruptions] {
    &SHIPPED.interruptions
}

impl Failures {
    /// What is published of a device, or of the first fleet where nothing is; what was typed goes before both.
    pub fn of(device: &str, nodes: u64, typed: &Typed) -> Failures {
        let own = SHIPPED.interruptions.iter().find(|one| one.devices.iter().any(|name| name == device));
        let used = own.unwrap_or(&SHIPPED.interruptions[0]);
        let here = |is_typed: bool, source: &str| if is_typed { "as typed".to_string() } else { source.to_string() };
        Failures {
            node_seconds: typed.node_days.unwrap_or(used.node_days) * DAY,
            restart_seconds: typed.restart_seconds.unwrap_or(SHIPPED.restart.seconds),
            write_bytes_per_second: typed
                .write_bytes_per_second
                .map_or(SHIPPED.storage.write_bytes_per_second, |all| all / nodes.max(1) as f64),
            sources: [
                here(typed.node_days.is_some(), &used.source),
                here(typed.restart_seconds.is_some(), &SHIPPED.restart.source),
                here(typed.write_bytes_per_second.is_some(), &SHIPPED.storage.source),
            ],
            is_borrowed: own.is_none() && typed.node_days.is_none(),
        }
    }

    /// Wall-clock seconds between interruptions of a job on so many nodes.
    pub fn between(&self, nodes: u64) -> f64 {
        self.node_seconds / nodes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_has_its_own_rate_or_says_whose() {
        let none = Typed::default();
        let hopper = Failures::of("H100", 2048, &none);
        // 54 days between 466 interruptions.
        assert!((hopper.between(2048) - 54.0 * DAY / 466.0).abs() < 60.0, "{}", hopper.between(2048));
        assert!(!hopper.is_borrowed && Failures::of("MI300X", 8, &none).is_borrowed);
        assert!((Failures::of("A100", 1, &none).between(1000) - DAY / 6.5).abs() < 60.0);
        let typed = Typed { node_days: Some(100.0), write_bytes_per_second: Some(8e9), ..none };
        let own = Failures::of("MI300X", 8, &typed);
        assert_eq!((own.between(8), own.write_bytes_per_second), (12.5 * DAY, 1e9));
        assert!(!own.is_borrowed && own.sources[0] == "as typed" && own.sources[1].contains("2602.00277"));
    }
}
