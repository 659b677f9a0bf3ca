//! Memory as a function of routing skew: what the rank whose experts are hot holds, and the share of tokens at which it
//! no longer fits.

use super::replays::{headroom_of_stage, replay_of_stage, twins};
use super::{Fit, HEADROOM, PooledFit, RankClass};
use crate::estimate::in_flight;
use case::{Case, Pooled};
use layout::Recompute;
use layout::request::RecomputeModule;
use recipe::Mixer;
use replay::Unmodelled;

/// The worst class at one overload factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtOverload {
    /// Tokens the rank's experts receive, over the balanced share.
    pub factor: f64,
    /// Everything the device must hold.
    pub total: u64,
    /// What is left; negative when it does not fit.
    pub headroom: i64,
}

/// Prices the worst class at each factor; a factor beyond the most a rank can receive counts as that. Nothing where the
/// model has no experts.
pub fn at_overloads(case: &Case, factors: &[f64]) -> Result<Vec<AtOverload>, Unmodelled> {
    let Some(most) = most(case) else { return Ok(Vec::new()) };
    let price = |factor: &f64| {
        let factor = factor.clamp(0.0, most);
        let fit = Fit::price(&case.with_options(|options| options.overload = factor), HEADROOM)?;
        let worst = fit.worst();
        Ok(AtOverload { factor, total: worst.total(), headroom: worst.headroom })
    };
    factors.iter().map(price).collect()
}

/// How uneven routing may become before a job no longer fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Overload {
    /// The most a rank can receive over its balanced share; one where routing changes nothing that ranks hold.
    pub most: f64,
    /// Where it breaks.
    pub breaks: Breaks,
    /// Operations of this machine that looking for it was predicted to take.
    pub operations: u64,
}

/// The share of tokens at which the fullest rank no longer fits.
#[derive(Clone, Debug, PartialEq)]
pub enum Breaks {
    /// The least hundredth that does not fit; one where even balanced experts do not.
    At(f64),
    /// It fits however tokens are routed.
    Never,
    /// The engine's ledger does not replay it.
    Unmodelled(Unmodelled),
    /// Looking for it takes more of this machine than is allowed.
    Untried,
}

impl Overload {
    /// Of a job that is priced, by so many operations of this machine at most; none where the model has no experts.
    pub fn of(case: &Case, fit: &Fit, allowed: u64) -> Option<Overload> {
        Job { first: case, case_of: &|_| case, classes: &fit.classes }.overload(allowed)
    }

    /// The same of a job over pools, every stage on its own pool's devices.
    pub fn of_pools(job: &Pooled, fit: &PooledFit, allowed: u64) -> Option<Overload> {
        let case_of = |stage: usize| &job.cases[job.pool_of[stage]];
        Job { first: job.first(), case_of: &case_of, classes: &fit.classes }.overload(allowed)
    }

    /// The least factor that does not fit, where there is one and it is known.
    pub fn breaks_at(&self) -> Option<f64> {
        match self.breaks {
            Breaks::At(factor) => Some(factor),
            Breaks::Never | Breaks::Unmodelled(_) | Breaks::Untried => None,
        }
    }

    /// In a sentence.
    pub fn words(&self) -> String {
        match &self.breaks {
            Breaks::At(factor) if *factor <= 1.0 => "does not fit with balanced experts either".to_string(),
            Breaks::At(factor) => format!(
                "no longer fits once a rank's experts receive {factor:.2} times their share (the most there is: {:.1})",
                self.most
            ),
            Breaks::Never if self.most <= 1.0 => "routing changes nothing that a rank holds".to_string(),
            Breaks::Never => {
                format!("fits even when every token chooses one rank's experts, {:.1} times their share", self.most)
            }
            Breaks::Unmodelled(why) => format!("how uneven routing may become is not known: {}", why.why),
            Breaks::Untried => {
                "how uneven routing may become was not looked for: its replays take more than is left of --work-limit"
                    .to_string()
            }
        }
    }
}

/// The largest factor there is; none without experts.
pub(super) fn most(case: &Case) -> Option<f64> {
    let moe = case.recipe.moe.as_ref().filter(|_| case.recipe.uses(Mixer::Moe))?;
    Some(moe.most_overload(case.layout.ep.get()))
}

/// Replays that the search for one stage takes, usually.
const TRIES: u64 = 8;

/// A stage with experts.
#[derive(Clone, Copy)]
struct Suspect {
    stage: usize,
    /// Bytes left with balanced experts.
    headroom: i64,
    /// Expert blocks whose rows are kept at once: of all microbatches in flight, or one's where rows are computed again.
    kept: u64,
}

/// A job whose stages are priced with balanced experts.
struct Job<'a> {
    first: &'a Case,
    /// The job as the devices of a stage have it.
    case_of: &'a dyn Fn(usize) -> &'a Case,
    classes: &'a [RankClass],
}

impl Job<'_> {
    fn overload(&self, allowed: u64) -> Option<Overload> {
        let most = most(self.first)?;
        let suspects = self.suspects();
        let known = |breaks| Some(Overload { most, breaks, operations: 0 });
        if self.classes.iter().any(|class| class.headroom < 0) {
            return known(Breaks::At(1.0));
        }
        if most <= 1.0 || suspects.is_empty() {
            return known(Breaks::Never);
        }
        let operations = self.operations(&suspects);
        if operations > allowed {
            return known(Breaks::Untried);
        }
        let breaks = self.breaks(&suspects, most).unwrap_or_else(Breaks::Unmodelled);
        Some(Overload { most, breaks, operations })
    }

    /// What looking for it is predicted to take.
    fn operations(&self, suspects: &[Suspect]) -> u64 {
        let of = |suspect: &Suspect| {
            replay_of_stage((self.case_of)(suspect.stage), suspect.stage).map_or(0, |work| work.operations)
        };
        let first = suspects.first().map_or(0, of).saturating_mul(TRIES);
        suspects.iter().skip(1).map(of).fold(first, u64::saturating_add)
    }

    /// The first of several stages that no longer fits, and where.
    fn breaks(&self, suspects: &[Suspect], most: f64) -> Result<Breaks, Unmodelled> {
        let Some((first, others)) = suspects.split_first() else { return Ok(Breaks::Never) };
        let headroom = |stage: usize| {
            move |hundredths: u64| {
                let factor = (hundredths as f64 / 100.0).min(most);
                headroom_of_stage(&(self.case_of)(stage).with_options(|options| options.overload = factor), stage)
            }
        };
        let top = (most * 100.0).ceil() as u64;
        let mut curve = Curve::new(first.headroom);
        let mut least = curve.search(top, headroom(first.stage))?;
        for other in others {
            let fits_until = least.map_or(top, |least| least - 1);
            if fits_until == 100 || !curve.may_break([first, other], fits_until) {
                continue;
            }
            let mut own = Curve::new(other.headroom);
            if !own.add(fits_until, headroom(other.stage)(fits_until)?) {
                least = own.search(fits_until, headroom(other.stage))?;
            }
        }
        Ok(least.map_or(Breaks::Never, |hundredths| Breaks::At(hundredths as f64 / 100.0)))
    }

    /// Stages with experts, those with the least headroom first; of those that hold the same, one.
    fn suspects(&self) -> Vec<Suspect> {
        let (case, last) = (self.first, self.first.stages.chunks.len() - 1);
        let suffix = case.recipe.features.mtp().filter(|mtp| mtp.layer.has(Mixer::Moe)).map_or(0, |mtp| mtp.depth);
        let is_computed_again = match &case.layout.recompute {
            Recompute::None => false,
            Recompute::Selective(modules) => modules.contains(&RecomputeModule::Moe),
            Recompute::Full => true,
        };
        let suspect = |stage: usize| {
            let layers = case.stages.layers_of_stage(stage);
            let blocks = |layer: usize| case.recipe.layers[layer].mixers().filter(|mixer| *mixer == Mixer::Moe).count();
            let behind = if case.stages.by_stage[stage].contains(&last) { suffix } else { 0 };
            let experts = layers.map(blocks).sum::<usize>() as u64 + behind;
            let kept = if is_computed_again { experts.min(1) } else { experts * in_flight(&case.layout, stage as u64) };
            Suspect { stage, headroom: self.classes[stage].headroom, kept }
        };
        let twins = twins(&case.stages);
        let mut all: Vec<Suspect> = (0..self.classes.len()).map(suspect).filter(|suspect| suspect.kept > 0).collect();
        all.sort_by_key(|suspect| (suspect.headroom, twins[suspect.stage]));
        all.dedup_by_key(|suspect| (suspect.headroom, twins[suspect.stage]));
        all
    }
}

/// Bytes left on a stage at hundredths of the balanced share, as far as they were replayed. They fall faster the fuller
/// the rank is: the highest point moves to where experts hold most.
struct Curve {
    /// By hundredths.
    points: Vec<(u64, i64)>,
}

/// Hundredths between two points below which the allocator's roundings hide their slope.
const APART: u64 = 5;

impl Curve {
    /// Nothing known but what balanced experts leave.
    fn new(headroom: i64) -> Curve {
        Curve { points: vec![(100, headroom)] }
    }

    /// Takes a point in. Whether it fits.
    fn add(&mut self, hundredths: u64, headroom: i64) -> bool {
        let at = self.points.partition_point(|point| point.0 < hundredths);
        self.points.insert(at, (hundredths, headroom));
        headroom >= 0
    }

    /// The least of the hundredths up to `top` that does not fit, with the one before it replayed as well.
    fn search<E>(&mut self, top: u64, mut headroom: impl FnMut(u64) -> Result<i64, E>) -> Result<Option<u64>, E> {
        for round in 0.. {
            let broken = self.points.partition_point(|point| point.1 >= 0);
            let (fits, breaks) = (self.points[broken - 1], self.points.get(broken).copied());
            match breaks {
                None if fits.0 >= top => return Ok(None),
                Some(breaks) if breaks.0 - fits.0 <= 1 => return Ok(Some(breaks.0)),
                _ => {}
            }
            let next = self.guess(broken, top, round);
            self.add(next, headroom(next)?);
        }
        Ok(None)
    }

    /// Where to look next. The curve bends down: a line from the last point that fits to the first that does not ends
    /// before it, one through the last two that fit behind it. Where it falls in steps, the middle helps.
    fn guess(&self, broken: usize, top: u64, round: u64) -> u64 {
        let fits = self.points[broken - 1];
        let before = broken.checked_sub(2).map(|at| self.points[at]).filter(|before| before.1 > fits.1);
        let behind = before.map(|before| before.0 + root(before, fits).saturating_add(1));
        let Some(&breaks) = self.points.get(broken) else {
            let doubled = if broken == 1 { 2 * fits.0 } else { top };
            return behind.unwrap_or(doubled).clamp(fits.0 + 1, top);
        };
        let next = match (round % 6, behind) {
            (0 | 2 | 4, _) => fits.0 + root(fits, breaks),
            (1 | 3, Some(behind)) => behind,
            _ => fits.0.midpoint(breaks.0),
        };
        next.clamp(fits.0 + 1, breaks.0 - 1)
    }

    /// Whether another stage may break before so many hundredths: with each it loses no more than this one did at most,
    /// for every expert block whose rows it keeps.
    fn may_break(&self, [own, other]: [&Suspect; 2], hundredths: u64) -> bool {
        let slope = |from: &(u64, i64)| {
            let to = self.points.iter().find(|point| point.0 >= from.0 + APART)?;
            Some((from.1 - to.1) as f64 / (to.0 - from.0) as f64)
        };
        let most = self.points.iter().filter_map(slope).fold(0.0, f64::max);
        let more = (other.kept as f64 / own.kept as f64).max(1.0);
        most == 0.0 || other.headroom as f64 <= most * more * (hundredths - 100) as f64
    }
}

/// Hundredths from a point to where the line through it and a later one reaches nothing.
fn root(from: (u64, i64), to: (u64, i64)) -> u64 {
    (from.1 as f64 * (to.0 - from.0) as f64 / (from.1 - to.1) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// What the search finds of a curve, and how many points it asks for.
    fn search(top: u64, curve: impl Fn(u64) -> i64) -> (Option<u64>, u64) {
        let mut asked = 0;
        let headroom = |hundredths| {
            asked += 1;
            Ok::<i64, Infallible>(curve(hundredths))
        };
        let Ok(least) = Curve::new(curve(100)).search(top, headroom);
        (least, asked)
    }

    /// Straight ones, those that bend, and those that fall in steps, as an allocator's do.
    #[test]
    fn a_search_finds_the_least_that_does_not_fit_in_few_points() {
        let bends = |n: i64| if n < 180 { 4000 } else { 4000 - (n - 180) * 37 };
        let curves: [&dyn Fn(i64) -> i64; 5] =
            [&|n| 9000 - n * 40, &|n| 90_000 - n * n, &bends, &|n| (9000 - n * 40).div_euclid(500) * 500, &|n| {
                2500 - n * 17
            }];
        for (index, curve) in curves.iter().enumerate() {
            for top in [101, 120, 147, 148, 200, 226, 301, 400, 3200] {
                let (found, asked) = search(top, |n| curve(n as i64));
                assert_eq!(found, (101..=top).find(|n| curve(*n as i64) < 0), "{index} up to {top}");
                assert!(asked <= 12, "{index} up to {top}: {asked}");
            }
        }
        assert_eq!(search(400, |_| 1), (None, 2));
    }
}
