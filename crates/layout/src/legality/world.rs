//! Ranks: the world holds a whole number of dense replicas, and of expert replicas.

use super::{Case, multiples_near, refuse};
use diag::Finding;
use recipe::Mixer;
use units::gcd;

pub fn check(case: &Case, findings: &mut Vec<Finding>) {
    let layout = case.layout;
    let dense = layout.tp.get() * layout.cp.get() * layout.pp.get();
    if layout.world != dense * layout.dp.get() {
        let (world, dp) = (layout.world, layout.dp);
        let message = if world.is_multiple_of(dense) {
            format!("dp={dp} with tp·cp·pp = {dense} makes {} ranks, and the world has {world}", dense * dp.get())
        } else {
            format!("world {world} is not a multiple of tp·cp·pp = {dense}")
        };
        let finding = refuse("world/dense", "world", message);
        // A typed dp settles the world; otherwise any multiple does.
        findings.push(if world.is_multiple_of(dense) {
            finding.fix("dp", vec![world / dense])
        } else if world / dense == dp.get() || world < dense {
            finding.fix("world", multiples_near(world, dense))
        } else {
            finding.fix("world", vec![dense * dp.get()])
        });
    }
    let expert = layout.etp.get() * layout.ep.get() * layout.pp.get();
    if case.recipe.uses(Mixer::Moe) && !layout.world.is_multiple_of(expert) {
        let message = format!("world {} is not a multiple of etp·ep·pp = {expert}", layout.world);
        let both = expert / gcd(expert, dense) * dense;
        let finding = refuse("world/expert", "world", message);
        findings.push(finding.fix("world", multiples_near(layout.world, both)));
    }
}
