//! The parameters of one rank: exactly the parts the ownership table gives it, by tensor path. Initial
//! values are a function of path, index in the whole tensor and seed, so that every rank initialises its
//! part without the others, and any two layouts start from the same model.

use crate::mat::Mat;
use crate::real::Real;
use diag::{Blame, Finding};
use layout::mesh::Coordinates;
use layout::ownership::{Part, Row, copies_of_unit};
use layout::rules::How;
use layout::{Axis, Layout, OwnershipTable};
use recipe::{Role, Surface, Tensor};
use std::collections::HashMap;

/// Index of a parameter in [`Shelf::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub usize);

/// How the gradients that tensor-parallel ranks compute of a parameter add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Not at all: the parameter is cut, or lives on the expert mesh.
    Own,
    /// Each is the gradient of the rank's own tokens under SP, to be summed; without SP each is whole.
    Tokens,
    /// Each is the gradient of the rank's own heads, to be summed always.
    Heads,
}

/// A parameter, the elements of it that this rank holds, and how their gradient adds up.
#[derive(Clone, Debug)]
pub struct Param {
    /// The row of the table that says who owns what.
    pub row: Row,
    /// The elements this rank holds.
    pub part: Part,
    /// How its gradient adds up over the tensor axis.
    pub sum: Sum,
    /// Stages that hold it: several for tied tables, and all under DualPipe.
    pub holders: Vec<usize>,
}

impl Param {
    /// Rows and columns of the local part: all dimensions but the last, and the last.
    pub fn shape(&self) -> (usize, usize) {
        let shape = self.part.shape();
        let cols = *shape.last().unwrap_or(&1) as usize;
        (shape.iter().product::<u64>() as usize / cols.max(1), cols)
    }

    /// Whether it lives on the expert mesh.
    pub fn is_expert(&self) -> bool {
        self.row.tensor.acting.is_some()
    }

    /// Whether every rank of an expert-mesh axis holds all of it: a bias added after a sum over that
    /// axis.
    pub fn is_copied_over(&self, layout: &Layout, axis: Axis) -> bool {
        self.is_expert() && layout.degree(axis).splits() && !self.row.cuts.iter().any(|c| c.axis == axis)
    }

    /// Local row ranges that tensor neighbours hold copies of, with the number of holders.
    pub fn shared_rows(&self, layout: &Layout) -> Option<(Vec<std::ops::Range<usize>>, usize)> {
        let cut = self.row.cuts.iter().find(|c| c.axis == Axis::Tp && c.how == How::Units)?;
        let degree = layout.tp.get();
        let segments = &self.row.tensor.dims[cut.dim].0;
        let copies = segments.iter().map(|s| copies_of_unit(s, degree)).max().filter(|c| *c > 1)?;
        let mut start = 0;
        let mut ranges = Vec::new();
        for (segment, range) in segments.iter().zip(&self.part.dims[cut.dim]) {
            let len = (range.end - range.start) as usize;
            if copies_of_unit(segment, degree) > 1 {
                ranges.push(start..start + len);
            }
            start += len;
        }
        Some((ranges, copies as usize))
    }
}

/// All parameters of a rank.
pub struct Shelf {
    /// In the order of the table.
    pub params: Vec<Param>,
    /// What the model's norms add under the root.
    pub norm_eps: f64,
    by_path: HashMap<String, Id>,
}

impl Shelf {
    /// The parameters of the rank at these coordinates: those of its stage's chunks.
    pub fn new(table: &OwnershipTable, layout: &Layout, at: &Coordinates, norm_eps: f64) -> Result<Shelf, Finding> {
        let mut params = Vec::new();
        let mut by_path = HashMap::new();
        let stage = at.on(Axis::Pp) as usize;
        for row in &table.rows {
            let holders: Vec<usize> =
                (0..table.stages.by_stage.len()).filter(|s| table.copies_on_stage(row, *s) > 0).collect();
            if !holders.contains(&stage) {
                continue;
            }
            if let Some(cut) = row.cuts.iter().find(|c| c.how == How::Rows) {
                let message = format!(
                    "`{}` is cut by rows over {}, and this runtime keeps heads whole",
                    row.tensor.path, cut.axis
                );
                return Err(Finding::error("runtime/rows", Blame::Layout, row.tensor.path.clone(), message).hint(
                    "ask for `--engine shardwright`, under which each rank keeps a copy of its group's KV head",
                ));
            }
            by_path.insert(row.tensor.path.clone(), Id(params.len()));
            let cut_over_tp = row.cuts.iter().any(|c| c.axis == Axis::Tp);
            let sum = if cut_over_tp || row.tensor.acting.is_some() { Sum::Own } else { Sum::Tokens };
            params.push(Param { row: row.clone(), part: row.part(layout, at), sum, holders });
        }
        Ok(Shelf { params, norm_eps, by_path })
    }

    /// The parameter of a path, if the model has it.
    pub fn find(&self, path: &str) -> Option<Id> {
        self.by_path.get(path).copied()
    }

    /// The parameter of a path that the recipe is known to have.
    pub fn id(&self, path: &str) -> Id {
        self.find(path).unwrap_or_else(|| panic!("no tensor `{path}`"))
    }

    /// The same for a parameter that each tensor rank applies to its own heads, so that gradients must
    /// be summed.
    pub fn id_of_heads(&mut self, path: &str) -> Id {
        let id = self.id(path);
        if self.params[id.0].sum == Sum::Tokens {
            self.params[id.0].sum = Sum::Heads;
        }
        id
    }

    /// Local widths of the segments of a parameter's first dimension.
    pub fn segments(&self, id: Id) -> Vec<usize> {
        let param = &self.params[id.0];
        if param.row.cuts.iter().any(|c| c.dim == 0) {
            return param.part.dims[0].iter().map(|r| (r.end - r.start) as usize).collect();
        }
        param.row.tensor.dims[0].0.iter().map(|s| s.len() as usize).collect()
    }

    /// Zeros of every local shape.
    pub fn zeros<R: Real>(&self) -> Vec<Mat<R>> {
        self.params.iter().map(|p| Mat::zeros(p.shape().0, p.shape().1)).collect()
    }

    /// Initial values of every local part.
    pub fn initial<R: Real>(&self, seed: u64) -> Vec<Mat<R>> {
        self.params.iter().map(|p| initial(&p.row.tensor, &p.part, seed)).collect()
    }
}

/// The index in the whole tensor of every element of a part, in order.
pub fn global_indices(tensor: &Tensor, part: &Part) -> Vec<u64> {
    let mut indices = vec![0u64];
    for (dim, ranges) in tensor.dims.iter().zip(&part.dims) {
        let along: Vec<u64> = ranges.iter().cloned().flatten().collect();
        // Allocated at its exact size: what nested loops collect grows by doubling, and that would be
        // counted.
        let mut all = Vec::with_capacity(indices.len() * along.len());
        all.extend(indices.iter().flat_map(|i| along.iter().map(move |j| i * dim.len() + j)));
        indices = all;
    }
    indices
}

fn initial<R: Real>(tensor: &Tensor, part: &Part, seed: u64) -> Mat<R> {
    let shape = part.shape();
    let cols = *shape.last().unwrap_or(&1) as usize;
    let key = hash(
        seed,
        tensor.path.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)),
    );
    let rule = Start::of(tensor);
    let indices = global_indices(tensor, part);
    // Collected straight away, the numbers would inherit the room the indices grew into.
    let mut data = Vec::with_capacity(indices.len());
    data.extend(indices.into_iter().map(|i| R::of(rule.value(key, i))));
    Mat::of(cols.max(1), data)
}

/// Distribution of a tensor's initial values.
enum Start {
    /// Mean and spread.
    Near(f64, f64),
    /// Logarithm of a number drawn between two.
    Log(f64, f64),
    /// Inverse softplus of a step drawn between two.
    Step(f64, f64),
}

impl Start {
    /// Norms start at one, matrices small, state-space scalars as in state-spaces/mamba
    /// `modules/mamba2.py`. Everything gets some noise, so that no gradient is zero by symmetry.
    fn of(tensor: &Tensor) -> Start {
        let name = tensor.path.rsplit('.').find(|w| *w != "weight").unwrap_or("");
        let fan_in = tensor.dims.last().map_or(1, |d| d.len()) as f64;
        match (tensor.role, name) {
            (_, "A_log") => Start::Log(1.0, 16.0),
            (_, "dt_bias") => Start::Step(1e-3, 1e-1),
            (Role::Norm, "bias") | (Role::Bias, _) => Start::Near(0.0, 0.02),
            (Role::Norm, _) | (_, "D" | "B_bias" | "C_bias") => Start::Near(1.0, 0.1),
            (Role::Embedding, "proj") => Start::Near(0.0, 1.0 / fan_in.sqrt()),
            (Role::Embedding, _) => Start::Near(0.0, 1.0),
            _ if tensor.surface == Surface::OutputHead => Start::Near(0.0, 1.0 / fan_in.sqrt()),
            _ => Start::Near(0.0, 1.0 / fan_in.sqrt()),
        }
    }

    fn value(&self, key: u64, index: u64) -> f64 {
        let bits = hash(key, index);
        let uniform = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        match self {
            Start::Near(mean, spread) => {
                let (u, v) = (uniform(bits), uniform(hash(bits, 1)));
                mean + spread * (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
            }
            Start::Log(low, high) => (low + (high - low) * uniform(bits)).ln(),
            Start::Step(low, high) => {
                let step = (low.ln() + (high.ln() - low.ln()) * uniform(bits)).exp();
                step + (-(-step).exp_m1()).ln()
            }
        }
    }
}

/// SplitMix64's finaliser over a counter: every output bit depends on every input bit.
pub(crate) fn hash(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
