//! torch_xla SPMD: one compiled program over a mesh of ("data", "expert", "model"); the compiler
//! places collectives, so there is nothing to schedule.

use super::unsupported;
use crate::legality::Case;
use crate::request::ZeroStage;
use diag::Finding;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    for (key, degree, what) in [("pp", layout.pp, "pipeline stages"), ("cp", layout.cp, "context parts")] {
        if degree.splits() {
            let message = format!("the mesh is (data, expert, model), and has no axis for {what}");
            findings.push(unsupported("xla-spmd/mesh", key, message).fix(key, vec![1]));
        }
    }
    if layout.zero != ZeroStage::Three {
        let message = format!("annotated weights are sharded over data, and zero is {}", layout.zero);
        findings.push(unsupported("xla-spmd/zero", "zero", message).fix("zero", vec![3]));
    }
}
