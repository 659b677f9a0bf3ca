//! Memory as a function of routing skew: what the rank whose experts are hot holds, and the
//! factor at which it no longer fits.

use super::Fit;
use case::Case;
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

/// Memory at several factors, and where it breaks.
#[derive(Clone, Debug, PartialEq)]
pub struct Overload {
    /// In the order asked for.
    pub at: Vec<AtOverload>,
    /// The least factor that does not fit, to two digits; none when even the most does.
    pub breaks_at: Option<f64>,
    /// The most a rank can receive: every token of every peer, on its experts.
    pub most: f64,
}

/// Prices the worst class at each factor, and finds the one at which it breaks.
pub fn at_overloads(case: &Case, factors: &[f64]) -> Result<Option<Overload>, Unmodelled> {
    let Some(most) = most_overload(case) else { return Ok(None) };
    let price = |factor: f64| -> Result<AtOverload, Unmodelled> {
        let skewed = case.with_options(|options| options.overload = factor);
        let fit = Fit::price(&skewed, super::HEADROOM)?;
        let worst = fit.worst();
        Ok(AtOverload { factor, total: worst.total(), headroom: worst.headroom })
    };
    let at = factors.iter().map(|factor| price(factor.clamp(0.0, most))).collect::<Result<Vec<_>, _>>()?;
    let breaks_at = if price(most)?.headroom >= 0 {
        None
    } else {
        let (mut low, mut high) = (0.0, most);
        while high - low > 0.005 {
            let middle = (low + high) / 2.0;
            if price(middle)?.headroom >= 0 { low = middle } else { high = middle }
        }
        Some((high * 100.0).round() / 100.0)
    };
    Ok(Some(Overload { at, breaks_at, most }))
}

/// The largest factor there is: each token can choose a rank's experts at most `min(top_k, local
/// experts)` times, on every peer at once.
fn most_overload(case: &Case) -> Option<f64> {
    let moe = case.recipe.moe.as_ref().filter(|_| case.recipe.uses(recipe::Mixer::Moe))?;
    let ep = case.layout.ep.get();
    let local = moe.experts / ep;
    (ep > 1).then(|| ep as f64 * moe.top_k.min(local) as f64 / moe.top_k as f64)
}
