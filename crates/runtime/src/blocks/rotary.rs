//! Rotary positions: column `i` of a head is rotated with column `i + half`, by an angle that grows with
//! position.

use crate::mat::Mat;
use crate::real::Real;
use recipe::{Positions, Recipe};

/// Which columns of a head turn, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotary {
    theta: f64,
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
    /// The model's rotation, if its positions are rotary.
    pub fn new(recipe: &Recipe, skip: usize, width: usize) -> Option<Rotary> {
        match recipe.positions {
            Positions::Rope { theta } => Some(Rotary { theta, skip, width }),
            _ => None,
        }
    }

    /// Rotates every head of `head` columns in place; `Turn::Back` is the transpose. Rows go through
    /// `positions`, with one row for each sequence at each.
    pub fn turn<R: Real>(&self, positions: &[usize], x: &mut Mat<R>, head: usize, turn: Turn) {
        let (half, batch) = (self.width / 2, x.rows / positions.len().max(1));
        let rates: Vec<f64> = (0..half).map(|i| self.theta.powf(-2.0 * i as f64 / self.width as f64)).collect();
        for (s, position) in positions.iter().enumerate() {
            let turns: Vec<(R, R)> = rates.iter().map(|rate| R::of(*position as f64 * rate).sin_cos()).collect();
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
