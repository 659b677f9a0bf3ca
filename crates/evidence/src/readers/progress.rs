//! Megatron-LM's `progress.txt`, beside its checkpoints. `megatron/training/utils/log_utils.py`, `append_to_progress_log`:
//! `f"{now:%Y-%m-%d %H:%M:%S}\tJob ID: {job_id}\t# GPUs: {num_gpus}\t{string}\n"`, where the string is `Starting job`,
//! `Saved checkpoint\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative throughput: {:.1f} TFLOP/s/GPU\t
//! Floating-point operations: {:.2e}\tTokens (in billions): {:.2f}` (`Saving async checkpoint` before it is committed),
//! `Saved async checkpoint\tIteration: {}` or `Deleted checkpoint\tIteration: {}`.

use super::log::Log;
use super::text::{Line, behind, leading, moment};
use crate::{Event, EventKind};

#[derive(Default)]
pub struct Reader;

pub fn looks_like(line: &Line) -> bool {
    moment(line.text).is_some() && line.has(b"\tJob ID: ") && line.has(b"\t# GPUs: ")
}

impl Reader {
    pub fn line(&mut self, line: &Line, log: &mut Log) -> bool {
        if !looks_like(line) {
            return false;
        }
        let at = moment(line.text);
        let mut fields = line.text.split(|b| *b == b'\t').skip(2);
        let gpus = fields.next().and_then(|field| field.strip_prefix(b"# GPUs: ")).and_then(leading);
        if let Some(gpus) = gpus {
            log.evidence.machine.insert("devices".to_string(), gpus.to_string());
        }
        let rest: Vec<&[u8]> = fields.collect();
        let words = rest.join(&b"; "[..]);
        let step = behind(&words, b"Iteration: ").and_then(leading);
        let kind = match rest.first().copied().unwrap_or_default() {
            b"Starting job" => {
                log.started(line, at, "Starting job");
                return true;
            }
            b"Saved checkpoint" | b"Saved async checkpoint" | b"Saved async local checkpoint" => {
                EventKind::CheckpointSaved
            }
            b"Saving async checkpoint" | b"Deleted checkpoint" => return true,
            _ => {
                log.unread(line, "an entry of no known kind");
                return true;
            }
        };
        if step.is_none() || gpus.is_none() {
            log.unread(line, "a checkpoint without its iteration");
        }
        log.push(Event { at, step, ..log.event(kind, line, &words) });
        true
    }
}
