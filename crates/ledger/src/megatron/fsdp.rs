//! ZeRO 2 and 3: Megatron-FSDP (`megatron/core/distributed/fsdp/src/megatron_fsdp/`
//! `param_and_grad_buffer.py`, `megatron_fsdp.py`), its strategies `optim_grads` and
//! `optim_grads_params` without double buffers.
//!
//! A layer is a unit. Under `optim_grads_params` a unit's weights are gathered before its forward
//! and again before its backward, those behind it ahead of time up to [`AHEAD`] elements, and freed
//! after each; what stands outside layers is gathered at its first use and stays until the step's
//! passes are over. Under both, a unit's gradients are made in a whole buffer, reduced into this
//! rank's part, and freed once more than [`AHEAD`] elements wait behind them.
//!
//! The prediction suffix counts as outside. Modelled from source, no measured row shows it. Not
//! replayed: collectives' own scratch, padding
//! beyond that of the distributed optimizer, and the allocator's second stream.

use super::params::Param;
use super::rank::Rank;
use super::supported::Sharding;
use replay::line::Line;
use replay::tape::{BF16, Storage, Tensor};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

/// Elements gathered ahead, or reduced behind, of the unit at work: at least this
/// (`suggested_communication_unit_size`).
pub const AHEAD: u64 = 1_000_000_000;

/// The units of one chunk and what of them is whole now.
pub(super) struct Units {
    elements: Vec<u64>,
    outside: u64,
    whole: RefCell<BTreeMap<usize, Rc<Storage>>>,
    edges: RefCell<Option<Rc<Storage>>>,
    /// Gradients of what stands outside layers: the head's come first, the table's last.
    edge_gradients: RefCell<Option<Rc<Storage>>>,
    gradients: RefCell<BTreeMap<usize, Rc<Storage>>>,
    reducing: RefCell<VecDeque<Rc<Storage>>>,
}

impl Units {
    /// One unit a layer, of the parameters in its range.
    pub fn new(params: &[Rc<Param>], layers: &[Range<usize>]) -> Units {
        let sum = |params: &[Rc<Param>]| params.iter().map(|param| param.elements).sum::<u64>();
        let elements: Vec<u64> = layers.iter().map(|range| sum(&params[range.clone()])).collect();
        let outside = sum(params) - elements.iter().sum::<u64>();
        Units {
            elements,
            outside,
            whole: RefCell::default(),
            edges: RefCell::default(),
            edge_gradients: RefCell::default(),
            gradients: RefCell::default(),
            reducing: RefCell::default(),
        }
    }

    fn limit(&self) -> u64 {
        let each = self.elements.iter().sum::<u64>() / self.elements.len().max(1) as u64;
        AHEAD.max(2 * each)
    }

    /// Makes a unit whole, and those after it in the order of `next` up to the limit.
    fn gather(&self, c: &Rank, next: impl Iterator<Item = usize>) {
        if c.config.sharding != Sharding::Everything {
            return;
        }
        let mut whole = self.whole.borrow_mut();
        let mut ahead = 0;
        for unit in next {
            if ahead >= self.limit() {
                break;
            }
            ahead += self.elements[unit];
            let bytes = self.elements[unit] * BF16;
            whole.entry(unit).or_insert_with(|| c.tape.storage(Line::Communication, bytes, "gathered weights"));
        }
    }

    /// What stands outside layers is gathered once; its gradients of the microbatch before are
    /// reduced by now.
    pub fn gather_edges(&self, c: &Rank) {
        self.edge_gradients.take();
        if c.config.sharding == Sharding::Everything && self.outside > 0 {
            let gathered = || c.tape.storage(Line::Communication, self.outside * BF16, "gathered weights");
            self.edges.borrow_mut().get_or_insert_with(gathered);
        }
    }

    /// After the step's passes nothing is whole, and all gradients are reduced.
    pub fn finish(&self) {
        self.whole.borrow_mut().clear();
        self.edges.take();
        self.edge_gradients.take();
        self.gradients.borrow_mut().clear();
        self.reducing.borrow_mut().clear();
    }

    /// A unit's gradients are all made: they wait for their reduction, and older ones are freed.
    fn reduce(&self, unit: usize, grad_width: u64) {
        let Some(made) = self.gradients.borrow_mut().remove(&unit) else { return };
        let mut reducing = self.reducing.borrow_mut();
        reducing.push_back(made);
        while reducing.len() > 1 && reducing.iter().map(|s| s.bytes()).sum::<u64>() > self.limit() * grad_width {
            reducing.pop_front();
        }
    }
}

/// Runs a unit between its hooks. Backward meets the later hook first: it gathers and makes room for
/// gradients; the earlier one frees and reduces.
pub(super) fn around(
    c: &Rc<Rank>,
    units: &Rc<Units>,
    unit: usize,
    x: &Tensor,
    run: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    if !c.config.sharding.is_fsdp() {
        return run(x);
    }
    units.gather(c, unit..units.elements.len());
    let entered = x.alias();
    let (rank, all) = (c.clone(), units.clone());
    c.tape.record(vec![x.edge()], &[&entered], Vec::new(), move |_, grads, _| {
        all.whole.borrow_mut().remove(&unit);
        all.reduce(unit, rank.config.grad_width);
        grads
    });
    let out = run(&entered);
    drop(entered);
    units.whole.borrow_mut().remove(&unit);
    let left = out.alias();
    let (rank, all) = (c.clone(), units.clone());
    c.tape.record(vec![out.edge()], &[&left], Vec::new(), move |t, grads, _| {
        all.gather(&rank, (0..=unit).rev());
        let width = rank.config.grad_width;
        if unit + 1 == all.elements.len() && all.outside > 0 {
            let gradients = t.storage(Line::Gradients, all.outside * width, "edge gradients");
            all.edge_gradients.replace(Some(gradients));
        }
        let bytes = all.elements[unit] * width;
        all.gradients.borrow_mut().insert(unit, t.storage(Line::Gradients, bytes, "unit gradients"));
        grads
    });
    left
}
