//! Which blocks of a step are kept: all of them, or the first and last of every stage, with what lies
//! between them summed up.

use super::Detail;
use crate::simulate::{Event, Observe};
use std::ops::ControlFlow;

/// Blocks of one stage that are one slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Folded {
    /// How many.
    pub blocks: u32,
    /// Seconds they compute.
    pub busy: f64,
    /// Seconds the stage does nothing but send behind them.
    pub sending: f64,
    /// Seconds it waits before them.
    pub idle: f64,
}

/// Something on a stage's schedule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    /// A block, and how long the stage only sends behind it; in how much detail it is drawn.
    Block { event: Event, sending: f64, in_parts: bool },
    /// Blocks between, from when to when.
    Folded { from: f64, to: f64, folded: Folded },
}

/// One stage as it is seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub kept: Vec<Kept>,
    blocks: u32,
    seen: u32,
    clock: f64,
}

/// Sees a simulation.
pub(super) struct Keeper<'a> {
    pub stages: Vec<Seen>,
    detail: Detail,
    /// Seconds a stage only sends behind a block.
    sending: &'a dyn Fn(&Event) -> f64,
}

impl<'a> Keeper<'a> {
    /// For stages of so many blocks.
    pub fn new(blocks: impl Iterator<Item = u32>, detail: Detail, sending: &'a dyn Fn(&Event) -> f64) -> Keeper<'a> {
        Keeper { stages: blocks.map(|blocks| Seen { blocks, ..Seen::default() }).collect(), detail, sending }
    }
}

impl Observe for Keeper<'_> {
    fn block(&mut self, _: usize, event: Event) -> ControlFlow<()> {
        let sending = (self.sending)(&event);
        let stage = &mut self.stages[event.stage as usize];
        let is_edge = |edge: u32| stage.seen < edge || stage.seen >= stage.blocks.saturating_sub(edge);
        match self.detail {
            Detail::Folded { edge } if !is_edge(edge) => stage.fold(&event, sending),
            Detail::Whole => stage.kept.push(Kept::Block { event, sending, in_parts: true }),
            Detail::Plain { edge } | Detail::Folded { edge } => {
                let in_parts = is_edge(edge);
                stage.kept.push(Kept::Block { event, sending, in_parts });
            }
        }
        stage.seen += 1;
        stage.clock = event.end + sending;
        ControlFlow::Continue(())
    }
}

impl Seen {
    fn fold(&mut self, event: &Event, sending: f64) {
        let (busy, idle) = (event.end - event.start, event.start - self.clock);
        match self.kept.last_mut() {
            Some(Kept::Folded { to, folded, .. }) => {
                folded.blocks += 1;
                folded.busy += busy;
                folded.sending += sending;
                folded.idle += idle;
                *to = event.end + sending;
            }
            _ => {
                let folded = Folded { blocks: 1, busy, sending, idle };
                self.kept.push(Kept::Folded { from: self.clock, to: event.end + sending, folded });
            }
        }
    }
}
