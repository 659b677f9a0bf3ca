//! One rank in motion: its sizes, its tape, and what its libraries keep once they have used it.

use super::config::Config;
use super::ops::Dummies;
use super::options::{GraphInputs, Handed};
use recipe::Mixer;
use replay::line::Line;
use replay::tape::{BF16, BYTE, INT32, Pace, Storage, Tape, Tensor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
/// Workspace of Transformer Engine's products on Hopper
/// (`transformer_engine/pytorch/cpp_extensions/gemm.py`).
const TE_WORKSPACE: u64 = 32 * MIB + 1024;
/// Streams of a grouped product, each with a workspace of its own (same file).
const GROUPED_STREAMS: usize = 4;
/// cuBLAS workspace of torch on Hopper, one for each thread that multiplies
/// (`aten/src/ATen/cuda/CublasHandlePool.cpp`).
const CUBLAS_WORKSPACE: u64 = 32 * MIB;

/// How fast a launch goes, which decides when gradients come back: the host's Python on a virtualised
/// Xeon (steps whose device waits for it, over their launches), bf16 products and memory of an H200,
/// and the driver's queue of 1024 launches. Launches for each allocation are counted in traces.
const PACE: Pace = Pace { host: 57e-6, launches: [7.0 / 6.0, 5.0 / 3.0], flops: 650e12, bytes: 1.3e12, queue: 1024.0 };

/// One rank in motion.
pub(super) struct Rank {
    pub config: Config,
    pub tape: Tape,
    kept: RefCell<Kept>,
    /// Forward passes so far; a recomputed one has the number of the first.
    pub pass: Cell<u64>,
    /// Whether the autograd thread runs, which has a cuBLAS handle of its own.
    pub is_backward: Cell<bool>,
    /// What stands in for weight gradients that products add to the buffer themselves.
    pub dummies: Option<Rc<Dummies>>,
    /// Where the documents of a microbatch begin.
    borders: RefCell<Option<Tensor>>,
    /// Bytes of segments beyond which the replay ends early.
    pub ceiling: Cell<Option<u64>>,
}

/// What stays after its first use.
#[derive(Default)]
struct Kept {
    te: Option<Rc<Storage>>,
    grouped: Vec<Rc<Storage>>,
    cublas_forward: Option<Rc<Storage>>,
    cublas_backward: Option<Rc<Storage>>,
    gathered: Option<Rc<Storage>>,
    /// Kernels that were tuned.
    tuned: BTreeSet<Tuned>,
}

/// Kernels that are timed when they are first used, after a buffer that empties the cache was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tuned {
    /// Adding the residual.
    Residual,
    /// An activation between projections.
    Activation,
    /// The scan's kernels.
    Scan,
}

impl Tuned {
    /// torch's compiler writes as much as the cache holds (`torch/_inductor/runtime/benchmarking.py`),
    /// Triton's autotuner 256 MiB (`triton/backends/nvidia/driver.py`).
    fn buffer(self) -> u64 {
        match self {
            Tuned::Residual | Tuned::Activation => 60 * MIB,
            Tuned::Scan => 256 * MIB,
        }
    }
}

impl Rank {
    pub fn new(config: Config, tape: Tape) -> Rc<Rank> {
        let kept = RefCell::default();
        let dummies = config.told.gradient_accumulation_fusion.then(Rc::default);
        if config.is_trained() {
            tape.take_gradients_over_late(PACE);
        }
        let (pass, is_backward, borders) = (Cell::new(0), Cell::new(false), RefCell::default());
        Rc::new(Rank { config, tape, kept, pass, is_backward, dummies, borders, ceiling: Cell::default() })
    }

    /// Whether the replay ends here: it holds more than it may. What is dropped from then on is not booked.
    pub fn is_over(&self) -> bool {
        let is_over = self.ceiling.get().is_some_and(|most| self.tape.read(|a| a.reserved()) > most);
        if is_over {
            self.tape.close();
        }
        is_over
    }

    /// Where the documents of a microbatch begin, which attention keeps; made with its tokens.
    pub fn borders(&self) -> Option<Tensor> {
        self.borders.borrow().clone()
    }

    /// A microbatch comes in: borders padded to a number a sequence, as samples are stacked, and those of all of them
    /// behind one another (`core/datasets/gpt_dataset.py`, `core/utils.py` flatten_batch_for_packed_sequences).
    pub fn take_documents(&self) -> Option<Tensor> {
        let config = &self.config;
        let documents = config.told.documents?;
        let padded = self.act_of(config.micro_batch * (config.sequence + 1), INT32, "padded borders of documents");
        let count = config.micro_batch * documents.count(config.sequence) + 1;
        *self.borders.borrow_mut() = Some(self.act_of(count, INT32, "borders of documents"));
        Some(padded)
    }

    /// A bf16 tensor of the forward pass.
    pub fn act(&self, elements: u64, name: &'static str) -> Tensor {
        self.act_of(elements, BF16, name)
    }

    /// A tensor of the forward pass.
    pub fn act_of(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::Activations, elements, width, name)
    }

    /// A tensor of routing.
    pub fn scratch(&self, elements: u64, width: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::RoutingScratch, elements, width, name)
    }

    /// A bf16 tensor that was gathered or received.
    pub fn comm(&self, elements: u64, name: &'static str) -> Tensor {
        self.tape.tensor(Line::Communication, elements, BF16, name)
    }

    fn workspace(&self, bytes: u64, name: &'static str) -> Rc<Storage> {
        self.tape.storage(Line::Workspaces, bytes, name)
    }

    /// What captured graphs read, for every layer and microbatch in flight.
    pub fn graph_inputs(&self) -> Vec<Rc<Storage>> {
        let GraphInputs::OfLayers { has_mask, hands } = self.config.told.graphs else { return Vec::new() };
        let config = &self.config;
        let in_flight = if config.pp == 1 { 1 } else { config.order.peak_in_flight(config.stage as u32) };
        let layers = || config.chunks.iter().flat_map(|chunk| &chunk.layers);
        // Passes in flight are over chunks, each of which has its share of the layers.
        let at_once = |layers: usize| (layers * in_flight as usize).div_ceil(config.chunks.len().max(1));
        let routed = layers().filter(|(_, mixers)| mixers.contains(&Mixer::Moe)).count();
        // A context rank has the scores of its own queries.
        let mask = config.tokens * config.full_sequence;
        let of = |_| {
            let input = self.workspace(config.local_tokens * config.hidden * BF16, "graph input");
            [Some(input), has_mask.then(|| self.workspace(mask, "graph mask"))]
        };
        let handed = || match hands {
            Handed::Nothing => Vec::new(),
            Handed::Permuted => {
                let rows = config.local_tokens * config.moe().top_k;
                let bytes = rows * config.expert_hidden() * BF16;
                (0..at_once(routed)).map(|_| self.workspace(bytes, "permuted tokens of a graph")).collect()
            }
            // The dispatcher of each layer holds those of one pass anyway.
            Handed::Scores => {
                let bytes = config.local_tokens * config.moe().experts * (config.moe().score_width + BYTE);
                (routed..at_once(routed)).map(|_| self.workspace(bytes, "scores and map of a graph")).collect()
            }
        };
        let mut inputs: Vec<_> = (0..at_once(layers().count())).flat_map(of).flatten().collect();
        if routed > 0 {
            inputs.extend(handed());
        }
        inputs
    }

    /// A Transformer Engine product runs.
    pub fn te_product(&self) {
        let kept = &mut *self.kept.borrow_mut();
        kept.te.get_or_insert_with(|| self.workspace(TE_WORKSPACE, "te gemm workspace"));
    }

    /// A grouped product runs.
    pub fn grouped_product(&self) {
        let kept = &mut *self.kept.borrow_mut();
        while kept.grouped.len() < GROUPED_STREAMS {
            kept.grouped.push(self.workspace(TE_WORKSPACE, "te grouped gemm workspace"));
        }
    }

    /// A kernel runs that is tuned at first.
    pub fn tunes(&self, kernel: Tuned) {
        if self.config.is_trained() && self.kept.borrow_mut().tuned.insert(kernel) {
            drop(self.workspace(kernel.buffer(), "tuning buffer"));
        }
    }

    /// Every kernel was tuned in a step before.
    pub fn tuned_before(&self) {
        self.kept.borrow_mut().tuned.extend([Tuned::Residual, Tuned::Activation, Tuned::Scan]);
    }

    /// A product of torch's runs, on the forward or on the autograd thread.
    pub fn torch_product(&self) {
        let kept = &mut *self.kept.borrow_mut();
        let handle = if self.is_backward.get() { &mut kept.cublas_backward } else { &mut kept.cublas_forward };
        handle.get_or_insert_with(|| self.workspace(CUBLAS_WORKSPACE, "cublas workspace"));
    }

    /// The global buffer that gathers share: one, regrown when it is too small
    /// (`megatron/core/utils.py` GlobalMemoryBuffer).
    pub fn gather_buffer(&self, elements: u64) -> Rc<Storage> {
        let kept = &mut *self.kept.borrow_mut();
        let bytes = elements * BF16;
        match &kept.gathered {
            Some(buffer) if buffer.bytes() >= bytes => buffer.clone(),
            _ => {
                let buffer = self.workspace(bytes, "global gather buffer");
                kept.gathered = Some(buffer.clone());
                buffer
            }
        }
    }
}
