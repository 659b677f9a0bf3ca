//! Layers over pipeline chunks.

use super::{Case, refuse};
use crate::request::Balance;
use crate::stages::{StageSeam, ranges};
use diag::{Blame, Finding};

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let depth = case.recipe.depth() as u64;
    let (pp, vpp) = (layout.pp.get(), layout.vpp.get());
    if pp > depth {
        let message = format!("{depth} layers do not fill {pp} stages");
        let finding = refuse("pp/depth", "pp", message).fix("pp", (1..=depth).collect());
        findings.push(Finding { hint: Some(format!("pp may be 1 to {depth}")), ..finding });
        return;
    }
    if vpp > depth / pp {
        let message = format!("{depth} layers do not fill pp {pp} × vpp {vpp} chunks");
        let finding = refuse("vpp/depth", "vpp", message).fix("vpp", (1..=depth / pp).collect());
        findings.push(Finding { hint: Some(format!("vpp may be 1 to {}", depth / pp)), ..finding });
        return;
    }
    let chunks = match ranges(case.recipe, layout, None) {
        Ok(chunks) => chunks,
        Err(finding) => return findings.push(finding),
    };
    let counts: Vec<usize> = chunks.iter().map(|layers| layers.len()).collect();
    let (least, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    if least != most && layout.boundaries.is_none() && layout.balance == Balance::Layers {
        let message = format!("{depth} layers over {} chunks come out uneven: {least} to {most} a chunk", counts.len());
        let note = Finding::note("pp/uneven", Blame::Layout, "pp", message);
        findings.push(note.hint("spare layers go to the middle; --balance or --boundaries say otherwise"));
    }
    let seams = chunks.iter().skip(1).filter_map(|layers| StageSeam::at(case.recipe, layers.start, layout.sequence));
    for seam in seams.filter(|s| s.state_elements > 0) {
        let message = format!("the cut before layer {} carries recurrent state: {}", seam.before, seam.contract);
        findings.push(Finding::note("pp/state-seam", Blame::Layout, "recurrent", message));
    }
}
