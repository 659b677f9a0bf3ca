//! How far a step's time is to be trusted: an interval from how far priced steps lay from published ones of the
//! same class, and what two layouts of one model on one machine must differ by to be told apart.
//!
//! The residuals are data (`data/time/residuals.toml`), written by `fidelity --residuals` and never by hand.
//! A class with few rows takes those of its nearest relatives, and says so. Nothing here moves a price.

mod class;
mod residuals;

pub use class::{Class, DeviceClass, EngineClass, FormatClass, ModelClass, Scale};
pub use residuals::{Group, Pairs, Residuals};

use serde::Serialize;
use std::sync::LazyLock;

/// Of comparable runs, the share that an interval holds.
pub const SHARE: f64 = 0.8;

/// What a step is expected to take, between which seconds, and what says so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// As little as this.
    pub low: f64,
    /// As much as this.
    pub high: f64,
    /// Of runs like it, the share between the two.
    pub share: f64,
    /// Published runs it is made from.
    pub rows: usize,
    /// What they have in common with the job.
    pub class: String,
}

/// What two layouts of one model on one machine must differ by, as a share of the faster one's time, to be told
/// apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Apart {
    /// Below this they are called equal.
    pub share: f64,
    /// Pairs of measured layouts it is made from.
    pub pairs: usize,
    /// What they have in common with the job.
    pub class: String,
}

static SHIPPED: LazyLock<Residuals> = LazyLock::new(|| {
    let text = include_str!("../../../data/time/residuals.toml");
    Residuals::parse(text).unwrap_or_else(|error| panic!("data/time/residuals.toml: {error}"))
});

/// How far a step lies from what it is where a device's curves are those of its nearest relative, as a logarithm: eight
/// of ten devices and jobs whose own curves are known and were left out lay nearer. `data/time/transfer.toml` has all of
/// them, and a test measures them again.
pub fn transfer() -> f64 {
    #[derive(serde::Deserialize)]
    struct File {
        eight_of_ten: f64,
    }
    static TRANSFER: LazyLock<f64> = LazyLock::new(|| {
        let text = include_str!("../../../data/time/transfer.toml");
        toml::from_str::<File>(text).unwrap_or_else(|error| panic!("data/time/transfer.toml: {error}")).eight_of_ten
    });
    *TRANSFER
}

/// The interval of a priced step.
pub fn interval(class: &Class, seconds: f64) -> Interval {
    SHIPPED.interval(class, None, seconds)
}

/// What tells two layouts of a class apart.
pub fn apart(class: &Class) -> Apart {
    SHIPPED.apart(class)
}

/// The most that [`apart`] says of any class.
pub fn most_apart() -> f64 {
    static MOST: LazyLock<f64> = LazyLock::new(|| {
        let classes = SHIPPED.pairs.iter().map(|pairs| pairs.class);
        // A class that no pair is of falls back to pairs of others, the last time to all of them.
        let shares = classes.flat_map(Class::relatives).map(|class| SHIPPED.apart(&class).share);
        shares.fold(0.0, f64::max)
    });
    *MOST
}

/// The residuals that are compiled in.
pub fn shipped() -> &'static Residuals {
    &SHIPPED
}
