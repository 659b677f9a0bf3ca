//! Rotary positions: column `i` of a head is rotated with column `i + half`, by an angle that grows with
//! position.

use crate::mat::Mat;
use crate::real::Real;
use recipe::{Recipe, Rope, Scaling};

/// Which columns of a head turn, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotary {
    rope: Rope,
    /// Columns of a head before the rotated ones.
    skip: usize,
    /// Rotated columns.
    width: usize,
}

/// Which way to turn.
#[derive(Clone, Copy)]
pub(crate) enum Turn {
    Forward,
    Back,
}

impl Rotary {
    /// The model's rotation of `width` columns behind the first `skip` ones, if its positions are rotary. Where a
    /// share of a head turns, it is the first columns of those.
    pub fn new(recipe: &Recipe, skip: usize, width: usize) -> Option<Rotary> {
        let rope = *recipe.positions.rope()?;
        Some(Rotary { rope, skip, width: rope.width(width as u64) as usize })
    }

    fn rates(&self) -> Vec<f64> {
        let plain = |i| self.rope.theta.powf(-2.0 * i as f64 / self.width as f64);
        match &self.rope.scaling {
            Some(scaling) => scaling.rates(self.rope.theta, self.width),
            None => (0..self.width / 2).map(plain).collect(),
        }
    }

    /// What turned columns are multiplied with: YaRN's.
    fn amplitude(&self) -> f64 {
        match &self.rope.scaling {
            Some(Scaling::Yarn(yarn)) => yarn.amplitude(),
            _ => 1.0,
        }
    }

    /// Rotates every head of `head` columns in place; `Turn::Back` is the transpose. Rows go through
    /// `positions`, with one row for each sequence at each.
    pub fn turn<R: Real>(&self, positions: &[usize], x: &mut Mat<R>, head: usize, turn: Turn) {
        let (half, batch) = (self.width / 2, x.rows / positions.len().max(1));
        let (rates, amplitude) = (self.rates(), R::of(self.amplitude()));
        for (s, position) in positions.iter().enumerate() {
            let turns = rates.iter().map(|rate| R::of(*position as f64 * rate).sin_cos());
            let turns: Vec<(R, R)> = turns.map(|(sin, cos)| (sin * amplitude, cos * amplitude)).collect();
            for b in 0..batch {
                for head in x.row_mut(s * batch + b).chunks_exact_mut(head) {
                    let (low, high) = head[self.skip..self.skip + self.width].split_at_mut(half);
                    for ((a, b), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                        let sin = match turn {
                            Turn::Forward => *sin,
                            Turn::Back => -*sin,
                        };
                        (*a, *b) = (*a * *cos - *b * sin, *b * *cos + *a * sin);
                    }
                }
            }
        }
    }
}
