//! One figure of a row: what was measured, what we say.

use std::fmt;
use units::Bytes;

/// A number and what it counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantity {
    /// Bytes on one rank.
    Bytes(u64),
    /// Seconds of one step.
    Seconds(f64),
}

impl Quantity {
    /// The number alone.
    pub fn number(self) -> f64 {
        match self {
            Quantity::Bytes(bytes) => bytes as f64,
            Quantity::Seconds(seconds) => seconds,
        }
    }

    /// As machines read it: whole bytes, or seconds.
    pub fn json(self) -> serde_json::Value {
        match self {
            Quantity::Bytes(bytes) => bytes.into(),
            Quantity::Seconds(seconds) => seconds.into(),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Bytes(bytes) => Bytes(*bytes).fmt(f),
            Quantity::Seconds(seconds) if *seconds < 10.0 => f.pad(&format!("{seconds:.3} s")),
            Quantity::Seconds(seconds) => f.pad(&format!("{seconds:.1} s")),
        }
    }
}

/// One figure of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// `static`, `allocated`, `reserved`, `kernel_time` or `step_time`.
    pub name: &'static str,
    /// As measured.
    pub measured: Quantity,
    /// As predicted.
    pub predicted: Quantity,
}

impl Figure {
    /// Names in the order they are listed.
    pub const NAMES: [&'static str; 5] = ["static", "allocated", "reserved", "kernel_time", "step_time"];

    /// A figure in bytes.
    pub fn bytes(name: &'static str, measured: u64, predicted: u64) -> Figure {
        Figure { name, measured: Quantity::Bytes(measured), predicted: Quantity::Bytes(predicted) }
    }

    /// The time of a step.
    pub fn step_time(measured: f64, predicted: f64) -> Figure {
        let (measured, predicted) = (Quantity::Seconds(measured), Quantity::Seconds(predicted));
        Figure { name: "step_time", measured, predicted }
    }

    /// The time in which kernels of a step run.
    pub fn kernel_time(measured: f64, predicted: f64) -> Figure {
        Figure { name: "kernel_time", ..Figure::step_time(measured, predicted) }
    }

    /// Prediction over measurement, less one.
    pub fn error(&self) -> f64 {
        let least = if matches!(self.measured, Quantity::Bytes(_)) { 1.0 } else { 1e-9 };
        self.predicted.number() / self.measured.number().max(least) - 1.0
    }
}
