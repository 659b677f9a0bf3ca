//! Number formats and optimizers by tensor role: never one choice, and never one multiplier, for
//! the whole model.

use crate::tensor::{Dtype, Optimizer, Role};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// Formats of what training holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Precision {
    /// Weights without a format of their own.
    pub weights: Dtype,
    /// The router's weight.
    pub router: Dtype,
    /// State-space and recurrent scalars.
    pub scalars: Dtype,
    /// Gradients as accumulated.
    pub gradients: Dtype,
    /// The optimizer's own copy of the weights.
    pub main: Dtype,
    /// Optimizer moments.
    pub moments: Dtype,
}

impl Default for Precision {
    /// Mixed bf16 training as Megatron-Core and FSDP2 default to it.
    fn default() -> Precision {
        Precision {
            weights: Dtype::Bf16,
            router: Dtype::Bf16,
            scalars: Dtype::Fp32,
            gradients: Dtype::Fp32,
            main: Dtype::Fp32,
            moments: Dtype::Fp32,
        }
    }
}

impl Precision {
    /// The storage format of a weight of this role.
    pub fn of(&self, role: Role) -> Dtype {
        match role {
            Role::Router => self.router,
            Role::Scalar => self.scalars,
            _ => self.weights,
        }
    }

    /// Reads `[precision]`.
    pub(crate) fn read(section: Option<Section>) -> Precision {
        let default = Precision::default();
        let Some(mut section) = section else { return default };
        let mut pick = |key, dtype| section.choice(key, Dtype::ALL, dtype);
        let precision = Precision {
            weights: pick("weights", default.weights),
            router: pick("router", default.router),
            scalars: pick("scalars", default.scalars),
            gradients: pick("gradients", default.gradients),
            main: pick("main", default.main),
            moments: pick("moments", default.moments),
        };
        section.finish();
        precision
    }

    /// Writes `[precision]`, if it is not the default.
    pub(crate) fn write(&self, toml: &mut Toml) {
        let default = Precision::default();
        toml.optional_table("precision");
        for (key, value, usual) in [
            ("weights", self.weights, default.weights),
            ("router", self.router, default.router),
            ("scalars", self.scalars, default.scalars),
            ("gradients", self.gradients, default.gradients),
            ("main", self.main, default.main),
            ("moments", self.moments, default.moments),
        ] {
            toml.word_unless(key, value.name(), usual.name());
        }
    }
}

/// Which optimizer steps which role.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerPolicy {
    by_role: Vec<Optimizer>,
}

impl Default for OptimizerPolicy {
    /// AdamW throughout.
    fn default() -> OptimizerPolicy {
        OptimizerPolicy { by_role: vec![Optimizer::AdamW; Role::ALL.len()] }
    }
}

/// Roles whose tensors are matrices, which Muon can orthogonalise.
const MATRIX_ROLES: [Role; 3] = [Role::Matrix, Role::Expert, Role::Router];

impl OptimizerPolicy {
    /// Muon for matrices and experts; AdamW for embeddings, head, norms, routers and scalars.
    pub fn muon() -> OptimizerPolicy {
        let mut policy = OptimizerPolicy::default();
        policy.by_role[Role::Matrix as usize] = Optimizer::Muon;
        policy.by_role[Role::Expert as usize] = Optimizer::Muon;
        policy
    }

    /// The optimizer of a tensor. What is not a matrix is never Muon's, whatever its role.
    pub fn of(&self, role: Role, is_matrix: bool) -> Optimizer {
        match self.by_role[role as usize] {
            Optimizer::Muon if !is_matrix => Optimizer::AdamW,
            optimizer => optimizer,
        }
    }

    /// Reads `[optimizer]`: one key a role.
    pub(crate) fn read(section: Option<Section>) -> OptimizerPolicy {
        let mut policy = OptimizerPolicy::default();
        let Some(mut section) = section else { return policy };
        for &(word, role) in Role::ALL {
            let chosen = section.choice(word, Optimizer::ALL, Optimizer::AdamW);
            if chosen == Optimizer::Muon && !MATRIX_ROLES.contains(&role) {
                let message = format!("Muon steps matrices, and `{word}` tensors are not");
                let finding =
                    Finding::error("optimizer/muon-matrix", Blame::Recipe, format!("optimizer.{word}"), message);
                section.report(word, finding.hint("it may be `adamw` or `sgd`"));
            }
            policy.by_role[role as usize] = chosen;
        }
        section.finish();
        policy
    }

    /// Writes `[optimizer]`, if it is not the default.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.optional_table("optimizer");
        for &(word, role) in Role::ALL {
            toml.word_unless(word, self.by_role[role as usize].name(), Optimizer::AdamW.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn muon_never_steps_a_vector() {
        let policy = OptimizerPolicy::muon();
        assert_eq!(policy.of(Role::Matrix, true), Optimizer::Muon);
        assert_eq!(policy.of(Role::Matrix, false), Optimizer::AdamW);
        assert_eq!(policy.of(Role::Embedding, true), Optimizer::AdamW);
        assert_eq!(policy.of(Role::Scalar, true), Optimizer::AdamW);
    }
}
