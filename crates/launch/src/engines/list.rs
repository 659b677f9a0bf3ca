//! Building argument lists: each value beside where it came from and why.

use crate::emission::{Argument, Kind};

/// Arguments in the order they are emitted.
#[derive(Default)]
pub struct List {
    /// What has been added.
    pub arguments: Vec<Argument>,
}

impl List {
    /// Adds an option with one value.
    pub fn set(&mut self, kind: Kind, flag: &str, value: impl ToString, from: &str, why: &str) {
        self.arguments.push(Argument::new(kind, flag, from, why).value(value));
    }

    /// Adds a switch.
    pub fn switch(&mut self, kind: Kind, flag: &str, from: &str, why: &str) {
        self.arguments.push(Argument::new(kind, flag, from, why));
    }

    /// Adds an option with several values.
    pub fn many(
        &mut self,
        kind: Kind,
        flag: &str,
        values: impl IntoIterator<Item = impl ToString>,
        from: &str,
        why: &str,
    ) {
        let argument = Argument::new(kind, flag, from, why);
        self.arguments.push(values.into_iter().fold(argument, Argument::value));
    }
}

/// A number as its shortest text; whole numbers without a point.
pub fn number(x: f64) -> String {
    if x.fract() == 0.0 && x.abs() < 1e15 { format!("{x:.0}") } else { format!("{x:?}") }
}
