//! Parameters of one rank in Megatron's order: the order of `named_parameters`, which decides
//! where each lies in the gradient buffers.

use super::config::Config;
use recipe::kinds;
use recipe::precision::OptimizerPolicy;
use recipe::{Optimizer, Role};
use replay::line::Line;
use replay::tape::{Edge, Node, Storage};
use std::cell::RefCell;
use std::rc::Rc;

/// How a parameter comes to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It is built there in bf16.
    Device,
    /// It is built on the host and moved once the chunk stands (`transformer/moe/router.py`).
    Host,
    /// It is built in fp32 and cast once the chunk stands (`ssm/mamba_mixer.py`).
    Fp32,
    /// It is built while a weight of so many elements that it replaces is still there.
    Replacing(u64),
}

/// The shape of a matrix that Muon steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub rows: u64,
    pub columns: u64,
    /// Rows of queries, keys and values, which are orthogonalised apart (`muon_split_qkv`).
    pub parts: Option<[u64; 3]>,
}

/// One parameter of this rank.
pub(super) struct Param {
    pub elements: u64,
    /// Rows of a matrix; one of what is none.
    pub rows: u64,
    pub line: Line,
    pub origin: Origin,
    /// Whether it lies in the experts' own buffers.
    pub is_expert: bool,
    /// Weight decay: matrices have it, vectors do not, and they are grouped apart.
    pub decays: bool,
    /// Whether it is the norm in front of a block.
    pub is_block_norm: bool,
    /// Its shape, when Muon steps it; AdamW steps all else.
    pub muon: Option<Matrix>,
    pub data: RefCell<Option<Rc<Storage>>>,
    /// Whether it is the weight of one of Transformer Engine's projections, which may be kept in fp8.
    pub is_te: bool,
    /// Row and column copies that fp8 products keep; of a weight kept in fp8, all but its rows.
    pub fp8: RefCell<Vec<Rc<Storage>>>,
    accumulator: Rc<Node>,
}

impl Param {
    fn new(line: Line, elements: u64) -> Param {
        Param {
            elements,
            rows: 1,
            line,
            origin: Origin::Device,
            is_expert: false,
            decays: true,
            is_block_norm: false,
            muon: None,
            is_te: false,
            data: RefCell::default(),
            fp8: RefCell::default(),
            accumulator: Node::accumulator(None),
        }
    }

    /// Where its gradient goes.
    pub fn edge(&self) -> Option<Edge> {
        Some(Edge { node: self.accumulator.clone(), slot: 0 })
    }
}

/// A norm's scale, and its shift where it has one.
pub(super) struct Norm {
    pub weight: Rc<Param>,
    pub bias: Option<Rc<Param>>,
}

/// A projection's weight and bias.
pub(super) struct Linear {
    pub weight: Rc<Param>,
    pub bias: Option<Rc<Param>>,
}

/// A norm and the projection behind it. The bias is one that the product adds itself.
pub(super) struct NormLinear {
    pub norm: Norm,
    pub weight: Rc<Param>,
    pub bias: Option<Rc<Param>>,
}

/// Parameters in order.
pub(super) struct Params {
    pub all: Vec<Rc<Param>>,
    policy: OptimizerPolicy,
    norm: kinds::Norm,
    /// Whether routers are stepped as other matrices are: Megatron's own rule leaves out embeddings
    /// and heads alone (`optimizer/emerging_optimizers.py` `_is_nonlinear_or_embedding`).
    takes_routers: bool,
}

impl Params {
    /// No parameters yet; the policy says who steps those to come.
    pub fn new(c: &Config) -> Params {
        Params { all: Vec::new(), policy: c.optimizer.clone(), norm: c.norm, takes_routers: c.is_trained() }
    }

    fn add(&mut self, param: Param) -> Rc<Param> {
        let param = Rc::new(param);
        self.all.push(param.clone());
        param
    }

    fn matrix_on(&self, line: Line, role: Role, rows: u64, columns: u64) -> Param {
        let stepped_as = if role == Role::Router && self.takes_routers { Role::Matrix } else { role };
        let is_muon = self.policy.of(stepped_as, true) == Optimizer::Muon;
        let muon = is_muon.then_some(Matrix { rows, columns, parts: None });
        let is_te = matches!(role, Role::Matrix | Role::Expert);
        Param { muon, is_te, rows, ..Param::new(line, rows * columns) }
    }

    /// A matrix cut over tensor-parallel ranks.
    pub fn matrix(&mut self, role: Role, rows: u64, columns: u64) -> Rc<Param> {
        let param = self.matrix_on(Line::TpParams, role, rows, columns);
        self.add(param)
    }

    /// The packed projection into heads, of which Muon steps queries, keys and values apart.
    pub fn qkv(&mut self, parts: [u64; 3], columns: u64) -> Rc<Param> {
        let mut param = self.matrix_on(Line::TpParams, Role::Matrix, parts.iter().sum(), columns);
        param.muon = param.muon.map(|matrix| Matrix { parts: Some(parts), ..matrix });
        self.add(param)
    }

    /// The same with an origin of its own.
    pub fn matrix_from(&mut self, origin: Origin, rows: u64, columns: u64) -> Rc<Param> {
        let param = self.matrix_on(Line::TpParams, Role::Matrix, rows, columns);
        self.add(Param { origin, ..param })
    }

    /// A matrix that every rank holds whole.
    pub fn whole_matrix(&mut self, role: Role, rows: u64, columns: u64) -> Rc<Param> {
        let origin = if role == Role::Router { Origin::Host } else { Origin::Device };
        let param = self.matrix_on(Line::ReplicatedParams, role, rows, columns);
        self.add(Param { origin, ..param })
    }

    /// The same of a projection that is not Transformer Engine's.
    pub fn whole_plain_matrix(&mut self, rows: u64, columns: u64) -> Rc<Param> {
        let param = self.matrix_on(Line::ReplicatedParams, Role::Matrix, rows, columns);
        self.add(Param { is_te: false, ..param })
    }

    /// A matrix of a routed expert.
    pub fn expert(&mut self, is_expert: bool, rows: u64, columns: u64) -> Rc<Param> {
        let param = self.matrix_on(Line::ExpertParams, Role::Expert, rows, columns);
        self.add(Param { is_expert, ..param })
    }

    /// A bias of a routed expert.
    pub fn expert_vector(&mut self, is_expert: bool, elements: u64) -> Rc<Param> {
        self.add(Param { is_expert, decays: false, ..Param::new(Line::ExpertParams, elements) })
    }

    /// A cut tensor that is no matrix but decays as one: a convolution, a bias by head.
    pub fn bank(&mut self, elements: u64, origin: Origin) -> Rc<Param> {
        self.add(Param { origin, ..Param::new(Line::TpParams, elements) })
    }

    /// A norm in front of a block, of the model's kind.
    pub fn block_norm(&mut self, elements: u64) -> Norm {
        let weight = self.head_norm(elements);
        let bias = (self.norm == kinds::Norm::LayerNorm).then(|| self.whole_vector(elements));
        Norm { weight, bias }
    }

    /// An RMSNorm inside a block.
    pub fn head_norm(&mut self, elements: u64) -> Rc<Param> {
        let param = Param::new(Line::ReplicatedParams, elements);
        self.add(Param { decays: false, is_block_norm: true, ..param })
    }

    /// A norm that stands elsewhere, of the model's kind.
    pub fn norm(&mut self, elements: u64) -> Norm {
        let weight = self.whole_vector(elements);
        let bias = (self.norm == kinds::Norm::LayerNorm).then(|| self.whole_vector(elements));
        Norm { weight, bias }
    }

    /// A vector that every rank holds whole.
    pub fn whole_vector(&mut self, elements: u64) -> Rc<Param> {
        self.add(Param { decays: false, ..Param::new(Line::ReplicatedParams, elements) })
    }

    /// A vector cut over tensor-parallel ranks.
    pub fn vector(&mut self, elements: u64, origin: Origin) -> Rc<Param> {
        self.add(Param { decays: false, origin, ..Param::new(Line::TpParams, elements) })
    }
}
