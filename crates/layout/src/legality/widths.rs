//! Feed-forward columns, the prediction join and the vocabulary over the tensor axis.

use super::{Case, must_divide};
use diag::{Blame, Finding};
use recipe::Mixer;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let (recipe, layout) = (case.recipe, case.layout);
    let tp = layout.tp.get();
    if let Some(mlp) = recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)) {
        must_divide(findings, "tp/ffn", "mlp", "columns", mlp.ffn, "tp", tp);
    }
    let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
    if let Some(shared) = moe.and_then(|m| m.shared.as_ref()) {
        must_divide(findings, "tp/shared-expert", "moe.shared", "columns", shared.ffn, "tp", tp);
    }
    if recipe.features.mtp().is_some() {
        must_divide(findings, "tp/mtp-join", "mtp", "hidden columns", recipe.hidden, "tp", tp);
    }
    let padded = layout.padded_vocab(recipe.vocab);
    if padded != recipe.vocab {
        let message = format!(
            "the vocabulary is padded from {} to {padded} rows, a multiple of tp {tp} × {}",
            recipe.vocab, layout.vocab_multiple
        );
        let note = Finding::note("tp/vocab-padding", Blame::Layout, "vocab", message);
        findings.push(note.hint("per-rank counts include the padding; --vocab-multiple sets the step"));
    }
}
