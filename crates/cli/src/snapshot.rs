//! A recorded replay as the pickle that torch's memory viewer opens (`pytorch.org/memory_viz`, or
//! `python -m torch.cuda._memory_viz trace_plot FILE`): the keys are those of
//! `torch.cuda.memory._snapshot()` (torch 2.11, `torch/csrc/cuda/Module.cpp`). What stands where a stack
//! would is the ledger's own: the line and the tensor, the place in the model, the phase.
//!
//! There are no times in a replay: `time_us` counts events.

use checkpoint::pickle::{Memo, Writer};
use replay::allocator::{Action, BlockState};
use replay::record::{Block, Event, Label, LabelId, Recording, Segment};
use replay::{Line, Origin, PhaseKind};
use std::collections::HashMap;

/// Bytes of one event as written here, at most.
const EVENT_BYTES: usize = 64;

/// Events that are written at most: a file the viewer opens without waiting.
pub const MOST_EVENTS: usize = (20 << 20) / EVENT_BYTES;

/// The snapshot; `job` is what was replayed, as it is typed.
pub fn pickle(recording: &Recording, job: &str) -> Vec<u8> {
    let mut out = Writer::default();
    let mut known = Known::default();
    out.dict(|out| {
        // First, so that names every event has are among those that take two bytes from then on.
        known.text(out, "shardwright");
        out.dict(|out| {
            known.word(out, "job", job);
            known.text(out, "lines");
            out.list_of(Line::ALL, |out, line| known.text(out, line.name()));
        });
        known.text(out, "device_traces");
        out.list(|out| known.trace(out, recording));
        known.text(out, "segments");
        out.list_of(&recording.segments, |out, segment| known.segment(out, recording, segment));
    });
    out.finish()
}

/// What was written before and is only named from then on.
#[derive(Default)]
struct Known {
    texts: HashMap<String, Memo>,
    frames: HashMap<(LabelId, Option<PhaseKind>), Memo>,
}

impl Known {
    fn text(&mut self, out: &mut Writer, text: &str) {
        match self.texts.get(text) {
            Some(memo) => out.recall(*memo),
            None => {
                out.text(text);
                self.texts.insert(text.to_string(), out.remember());
            }
        }
    }

    fn number(&mut self, out: &mut Writer, key: &str, value: u64) {
        self.text(out, key);
        out.int(value);
    }

    fn word(&mut self, out: &mut Writer, key: &str, value: &str) {
        self.text(out, key);
        self.text(out, value);
    }

    /// The history of the one device, and the moment it was taken.
    fn trace(&mut self, out: &mut Writer, recording: &Recording) {
        let number = recording.events.len();
        let last = recording.phases.last().map_or(0, |(_, end)| end - recording.forgotten) as usize;
        let events = (0..number.min(last)).map(|at| (at, Some(&recording.events[at])));
        out.list_of(events.chain([(number, None)]), |out, (at, event)| {
            out.dict(|out| match event {
                Some(event) => self.event(out, recording, at, event),
                None => self.taken_here(out, at),
            });
        });
    }

    fn event(&mut self, out: &mut Writer, recording: &Recording, at: usize, event: &Event) {
        self.word(out, "action", action(event.action));
        self.number(out, "addr", event.address);
        self.number(out, "size", event.bytes);
        self.number(out, "stream", event.stream as u64);
        self.number(out, "time_us", at as u64);
        self.word(out, "category", recording.labels[event.label].line.name());
        self.text(out, "frames");
        self.frames(out, recording, event.label, recording.phase_of(at));
    }

    /// The viewer colours by category only where one is `unknown`, which is this event's.
    fn taken_here(&mut self, out: &mut Writer, at: usize) {
        self.word(out, "action", "snapshot");
        for key in ["addr", "size", "stream"] {
            self.number(out, key, 0);
        }
        self.number(out, "time_us", at as u64);
        self.word(out, "category", "unknown");
        self.text(out, "frames");
        out.list(|_| {});
    }

    fn segment(&mut self, out: &mut Writer, recording: &Recording, segment: &Segment) {
        let in_use = |block: &&Block| block.state != BlockState::Free;
        let held = |block: &&Block| block.state == BlockState::Held;
        let size = |blocks: &mut dyn Iterator<Item = &Block>| blocks.map(|block| block.bytes).sum::<u64>();
        let asked = segment.blocks.iter().filter_map(|block| block.held).map(|(bytes, _)| bytes).sum();
        out.dict(|out| {
            self.number(out, "device", 0);
            self.number(out, "address", segment.address);
            self.number(out, "total_size", size(&mut segment.blocks.iter()));
            self.number(out, "allocated_size", size(&mut segment.blocks.iter().filter(held)));
            self.number(out, "active_size", size(&mut segment.blocks.iter().filter(in_use)));
            self.number(out, "requested_size", asked);
            self.number(out, "stream", segment.stream as u64);
            self.word(out, "segment_type", if segment.is_small { "small" } else { "large" });
            self.text(out, "segment_pool_id");
            out.tuple(|out| [0, 0].into_iter().for_each(|id| out.int(id)));
            self.text(out, "is_expandable");
            out.bool(segment.is_expandable);
            self.text(out, "frames");
            out.list(|_| {});
            self.text(out, "blocks");
            out.list_of(&segment.blocks, |out, block| self.block(out, recording, block));
        });
    }

    fn block(&mut self, out: &mut Writer, recording: &Recording, block: &Block) {
        let state = match block.state {
            BlockState::Held => "active_allocated",
            BlockState::Late => "active_pending_free",
            BlockState::Free => "inactive",
        };
        out.dict(|out| {
            self.number(out, "address", block.address);
            self.number(out, "size", block.bytes);
            self.number(out, "requested_size", block.held.map_or(0, |(bytes, _)| bytes));
            self.word(out, "state", state);
            self.text(out, "frames");
            match block.held {
                Some((_, label)) => self.frames(out, recording, label, None),
                None => out.list(|_| {}),
            }
        });
    }

    /// What a stack would say, innermost first.
    fn frames(&mut self, out: &mut Writer, recording: &Recording, label: LabelId, phase: Option<PhaseKind>) {
        if let Some(memo) = self.frames.get(&(label, phase)) {
            return out.recall(*memo);
        }
        out.list_of(stack(&recording.labels[label], phase), |out, (file, line, name)| {
            out.dict(|out| {
                self.word(out, "filename", &file);
                self.number(out, "line", line);
                self.word(out, "name", &name);
            });
        });
        self.frames.insert((label, phase), out.remember());
    }
}

/// File, line and function: ledger line and tensor, place and direction, phase and what runs in it. A line is the
/// layer, or the step, and 0 where there is none.
fn stack(label: &Label, phase: Option<PhaseKind>) -> Vec<(String, u64, String)> {
    let share = |(line, bytes): &(Line, u64)| (line.to_string(), 0, format!("{}: {bytes} bytes", label.name));
    let mut stack: Vec<_> = match label.shares.as_slice() {
        [] => vec![(label.line.to_string(), 0, label.name.to_string())],
        shares => shares.iter().map(share).collect(),
    };
    let layer = match label.origin {
        Origin::Layer { index, .. } => u64::from(index),
        Origin::Indexer { layer } => u64::from(layer),
        Origin::Prediction { depth } => u64::from(depth),
        _ => 0,
    };
    let direction = match (label.is_backward, label.origin) {
        (true, _) => "backward",
        (false, Origin::Setup | Origin::Optimizer | Origin::Pipeline) => "outside the passes",
        (false, _) => "forward",
    };
    stack.push((label.origin.to_string(), layer, direction.to_string()));
    if let Some(phase) = phase {
        let step = if let PhaseKind::Passes(step) | PhaseKind::Update(step) = phase { step } else { 0 };
        stack.push((phase.to_string(), u64::from(step), phase.what().to_string()));
    }
    stack
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Segment => "segment_alloc",
        Action::Pages => "segment_map",
        Action::Taken => "alloc",
        Action::Returned => "free_requested",
        Action::Free => "free_completed",
    }
}
