//! Builds and settings of an engine that a row does not tell apart, one of which waits for reasons no layout explains.
//!
//! nanotron's sweep of winter 2024/25 ran over months, and its table mixes what ran:
//!
//! - Pipelines in two builds. One (huggingface/nanotron 67c5ebb, branch `nouamane/bench2`,
//!   `parallel/pipeline_parallel/p2p.py`) asks every 0.1 s whether the two descriptions that go before each tensor have
//!   been sent or received. The sweep's script keeps pipelines only from one job on (`scripts/scaling_benchmarks.py` of
//!   main: `job_id >= 14097150`); the table has both.
//! - Jobs with and without `TORCH_DISTRIBUTED_DEBUG=DETAIL`, inferred: the script of its December runs does not set it
//!   (67c5ebb, `run_multinode.sh`), the next one of the same author does (77f54c1, `examples/mamba/run_multinode.sh`).
//!   Before every collective the host then meets all members one by one over TCP.
//!
//! A step shorter than either takes did without it. A longer one may be of either kind; where that would decide its
//! time, the row is undecided.

use super::engine::Family;
use super::need;
use serde_json::Value;

/// Seconds between two looks at a message.
const NAP: f64 = 0.1;

/// Descriptions that go before a tensor: how many dimensions it has, then which.
const DESCRIPTIONS: f64 = 2.0;

/// Seconds a stage of the build that sleeps does so for each microbatch at least, where it receives most: hidden states
/// and their mask at the last of two, the gradient of the former as well in between (`models/llama.py`, the inputs of a
/// decoder block). What is received is never there at the first look; what is sent may be gone.
fn slept(stages: u64) -> f64 {
    let tensors = match stages {
        0 | 1 => 0.0,
        2 => 2.0,
        _ => 3.0,
    };
    tensors * DESCRIPTIONS * NAP
}

/// Collectives over tp in a layer, both passes: two gathers and two reductions; in backward the same turned around, and
/// both gathers once more (`parallel/tensor_parallel/functional.py`).
const COLLECTIVES: f64 = 10.0;

/// Matrices of a layer, and bytes of weights up to which `DistributedDataParallel` reduces several at once.
const MATRICES: f64 = 4.0;
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

/// Seconds a check takes for each member, at least and at most: all of them go to the first rank and back, then twice
/// around for what is compared (torch `ProcessGroupWrapper.cpp` runCollectiveChecks, `ProcessGroupGloo.cpp`
/// monitoredBarrier). 380, 260 and 234 µs with 2, 4 and 8 processes of one machine (`tools/measure_checks.py`); hosts
/// need 0.4 to 1.2 of its time (`data/hardware/host.toml`).
const CHECK: [f64; 2] = [0.4 * 234e-6, 1.2 * 380e-6];

/// Members that checked collectives of a step have, all collectives together, on a stage with the fewest layers: over
/// tp in every layer and microbatch; over replicas for each bucket of gradients, or under ZeRO 1 for their sum and for
/// the weights.
fn members(row: &Value, layers: u64, microbatches: u64) -> Result<f64, String> {
    let (layout, model) = (&row["layout"], &row["model"]);
    let several = |key: &str| need(layout, key).map(|degree| if degree > 1 { degree as f64 } else { 0.0 });
    let (tp, replicas) = (several("tp")?, several("dp")?);
    let hidden = need(model, "hidden")? as f64;
    let matrices = hidden * (4.0 * hidden + 3.0 * need(model, "ffn")? as f64) / tp.max(1.0);
    let once = match layout["zero"].as_u64() {
        Some(0) | None => layers as f64 * (2.0 * matrices / BUCKET).min(MATRICES),
        Some(_) => 2.0,
    };
    Ok(tp * COLLECTIVES * layers as f64 * microbatches as f64 + replicas * once)
}

/// That a row may have slept or checked, where it would decide its time. Measured and priced are seconds.
pub(super) fn undecided(
    row: &Value,
    family: Family,
    [measured, priced]: [f64; 2],
) -> Result<Option<&'static str>, String> {
    if family != Family::Nanotron {
        return Ok(None);
    }
    let microbatches = need(&row["batch"], "grad_accum")?;
    let stages = row["layout"]["pp"].as_u64().unwrap_or(1).max(1);
    if stages > 1 && measured >= slept(stages) * microbatches as f64 {
        return Ok(Some("whether its build of nanotron sleeps between messages of stages"));
    }
    let members = members(row, need(&row["model"], "layers")? / stages, microbatches)?;
    let [least, most] = CHECK.map(|each| each * members);
    let is_open = members > 0.0 && measured >= least && priced < most;
    Ok(is_open.then_some("whether torch checked every collective before it ran"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(stages: u64, tp: u64, dp: u64, zero: u64) -> Value {
        json!({
            "model": { "layers": 32, "hidden": 4096, "ffn": 14336 },
            "layout": { "pp": stages, "tp": tp, "dp": dp, "zero": zero },
            "batch": { "grad_accum": 32 },
        })
    }

    #[test]
    fn a_step_shorter_than_its_sleep_did_not_sleep() {
        assert!((slept(2) - 0.4).abs() < 1e-12 && (slept(8) - 0.6).abs() < 1e-12);
        let passes = |stages, family, seconds| undecided(&row(stages, 1, 1, 0), family, [seconds, 1.0]) == Ok(None);
        assert!(passes(2, Family::Nanotron, 12.7) && !passes(2, Family::Nanotron, 12.9));
        assert!(passes(8, Family::Nanotron, 19.1) && !passes(8, Family::Nanotron, 19.3));
        assert!(passes(1, Family::Nanotron, 1e3) && passes(8, Family::Megatron, 1e3));
    }

    #[test]
    fn checks_count_where_they_would_decide() {
        // Ten collectives of eight members in 32 layers and microbatches: 7.7 to 37.4 s.
        let passes = |measured, priced| undecided(&row(1, 8, 1, 0), Family::Nanotron, [measured, priced]) == Ok(None);
        assert!(passes(7.0, 3.0), "too short to have checked");
        assert!(!passes(30.0, 5.0), "checks may be why it is long");
        assert!(passes(40.0, 38.0), "a device that is busy for longer hides them");
        assert_eq!(undecided(&row(1, 1, 1, 0), Family::Nanotron, [1e3, 1.0]), Ok(None), "one rank has nobody to meet");
    }

    #[test]
    fn replicas_meet_for_every_bucket_unless_the_optimizer_is_shared_out() {
        // Four matrices of 32 layers, each larger than a bucket; or gradients and weights once.
        assert_eq!(members(&row(1, 1, 64, 0), 32, 32), Ok(64.0 * 128.0));
        assert_eq!(members(&row(1, 1, 64, 1), 32, 32), Ok(64.0 * 2.0));
    }
}
