//! Least squares with priors, and weights that fall with distance: the linear half of a fit.

/// Figures as a linear function of factors, all as logarithms.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// How much each figure grows with each factor.
    pub slopes: Vec<Vec<f64>>,
    /// Priced over measured, at the factors below.
    pub off: Vec<f64>,
    /// The factors it was linearised at.
    pub at: Vec<f64>,
    /// Spread of each factor around zero before anything is seen.
    pub priors: Vec<f64>,
    /// Spread of figures around their price.
    pub noise: f64,
}

/// Distance, in noises, from which on a figure weighs less (Huber's usual choice).
const HUBER: f64 = 1.345;
/// Times that weights are made again from what they led to.
const REWEIGHTED: usize = 20;

/// The factors that explain the figures best, one left out where one is named.
pub fn solve(problem: &Problem, left_out: Option<usize>) -> Vec<f64> {
    let size = problem.at.len();
    let mut factors = problem.at.clone();
    for _ in 0..REWEIGHTED {
        let mut matrix = vec![vec![0.0; size]; size];
        let mut right = vec![0.0; size];
        for (i, prior) in problem.priors.iter().enumerate() {
            matrix[i][i] += 1.0 / (prior * prior);
        }
        for (figure, row) in problem.slopes.iter().enumerate().filter(|(i, _)| Some(*i) != left_out) {
            // Where the line meets a figure: off + slope · (factors - at) = 0.
            let constant = problem.off[figure] - dot(row, &problem.at);
            let distance = (constant + dot(row, &factors)).abs() / problem.noise;
            let weight = if distance <= HUBER { 1.0 } else { HUBER / distance } / (problem.noise * problem.noise);
            for i in 0..size {
                right[i] -= weight * row[i] * constant;
                for j in 0..size {
                    matrix[i][j] += weight * row[i] * row[j];
                }
            }
        }
        let next = eliminate(matrix, right);
        let step = next.iter().zip(&factors).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        factors = next;
        if step < 1e-9 {
            break;
        }
    }
    factors
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Gauss' elimination of a positive definite matrix, which priors make it.
fn eliminate(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for pivot in 0..size {
        for row in pivot + 1..size {
            let share = matrix[row][pivot] / matrix[pivot][pivot];
            let above = matrix[pivot].clone();
            matrix[row].iter_mut().zip(&above).for_each(|(below, above)| *below -= share * above);
            right[row] -= share * right[pivot];
        }
    }
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|column| matrix[row][column] * right[column]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(off: &[f64]) -> Problem {
        let slopes = vec![vec![1.0, 0.0], vec![0.5, 0.5], vec![0.0, 1.0], vec![0.8, 0.2]];
        Problem { slopes, off: off.to_vec(), at: vec![0.0; 2], priors: vec![10.0; 2], noise: 0.05 }
    }

    #[test]
    fn factors_that_explain_everything_are_found() {
        // The first kind of work takes e^0.2 as long, the second e^-0.1: prices are off the other way.
        let found = solve(&problem(&[-0.2, -0.05, 0.1, -0.14]), None);
        assert!((found[0] - 0.2).abs() < 1e-4 && (found[1] + 0.1).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn one_wild_figure_does_not_bend_the_rest() {
        let found = solve(&problem(&[-0.2, -0.05, 0.1, 3.0]), None);
        assert!((found[0] - 0.2).abs() < 0.08 && (found[1] + 0.1).abs() < 0.08, "{found:?}");
        let without = solve(&problem(&[-0.2, -0.05, 0.1, 3.0]), Some(3));
        assert!((without[0] - 0.2).abs() < 1e-4);
    }

    #[test]
    fn what_nothing_is_known_of_stays() {
        let mut nothing = problem(&[-0.2, -0.2, 0.0, -0.2]);
        nothing.slopes.iter_mut().for_each(|row| row[1] = 0.0);
        assert_eq!(solve(&nothing, None)[1], 0.0);
    }
}
