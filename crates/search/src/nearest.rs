//! Where nothing fits, the layout that misses by least: looked for only where it is shown.

use crate::answer::Left;
use crate::point::Point;
use crate::price::{NEAR, Pricer, Tally};
use crate::search::Found;
use crate::space::Space;
use case::Case;
use memory::fit::Fit;
use rayon::prelude::*;

/// The layout that misses by least.
pub struct Nearest {
    /// Bytes that it misses.
    pub missing: i64,
    /// Which layout.
    pub point: Point,
    /// The job with its memory, replayed; none where that takes more than is left, and the sums say what it misses.
    pub replayed: Option<Box<(Case, Fit)>>,
}

/// Layouts that are priced to find the one that misses by least; fewer where each may take replays.
const NEAREST: usize = 2000;
const DEAR_NEAREST: usize = 48;

/// The nearest of a search that found nothing; none where nothing has a price.
pub fn nearest(space: &Space, pricers: &[Pricer], found: &mut Found, left: &mut Left) -> Option<Nearest> {
    look_among_the_hopeless(space, pricers, &mut found.tally);
    let mut near = found.tally.near.clone();
    near.extend(found.verdicts.misses());
    near.sort_unstable();
    near.truncate(NEAR);
    let mut jobs = Vec::new();
    for (_, point) in &near {
        let Ok(case) = space.case(point) else { continue };
        if left.take(space, pricers, &case).is_ok() {
            jobs.push((*point, case));
        }
    }
    let margin = space.question.margin();
    let replay = |(point, case): (Point, Case)| {
        let fit = Fit::price(&case, margin).ok()?;
        let missing = margin.headroom.0 as i64 - fit.tightest().headroom;
        Some(Nearest { missing, point, replayed: Some(Box::new((case, fit))) })
    };
    let replayed = jobs.into_par_iter().filter_map(replay).min_by_key(|nearest| (nearest.missing, nearest.point));
    let summed = || near.first().map(|&(missing, point)| Nearest { missing, point, replayed: None });
    replayed.or_else(summed)
}

/// Prices layouts whose state alone is too much in the order of what it misses, as long as one of them may miss by less
/// than the nearest.
fn look_among_the_hopeless(space: &Space, pricers: &[Pricer], tally: &mut Tally) {
    let mut tried = 0;
    for (least, point) in std::mem::take(&mut tally.hopeless) {
        let pricer = &pricers[point.mode];
        let most = if pricer.is_dear() { DEAR_NEAREST } else { NEAREST };
        if tried >= most || tally.near.first().is_some_and(|(missing, _)| *missing <= least) {
            break;
        }
        let alike: Vec<Point> = match pricer.is_dear() {
            true => vec![point],
            false => alike(space, point).filter(|point| pricer.is_legal(point)).collect(),
        };
        tried += alike.len();
        let priced: Vec<Tally> = alike.par_iter().map(|point| pricer.price_one(0.0, *point).0).collect();
        for priced in priced {
            tally.add(&Tally { near: priced.near, ..Tally::default() });
        }
    }
}

/// A layout under every policy and cut of its schedule.
fn alike<'s>(space: &'s Space, point: Point) -> impl Iterator<Item = Point> + 's {
    let mode = &space.modes[point.mode];
    let shapes = mode.shapes[&point.pp].iter().enumerate();
    let shapes = shapes.filter(move |(_, shape)| shape.order.schedule == point.order.schedule);
    shapes.flat_map(move |(shape, other)| {
        let order = other.order;
        (0..mode.recompute.len()).map(move |recompute| Point { recompute, shape, order, ..point })
    })
}
