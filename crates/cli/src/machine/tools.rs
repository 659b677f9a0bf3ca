//! Programs that report about the machine. Each is started with fixed words, waited for so long and
//! no longer, and its silence is reported as not known.

use launch::preflight::machine::{ClockState, Gpu, Known};
use launch::preflight::parse;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take. A driver that hangs makes nvidia-smi hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often to look whether it has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// What a program prints, or why there is nothing.
fn ask(program: &str, words: &[&str]) -> Known<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no {program} here"),
        _ => format!("{program} cannot be started: {error}"),
    })?;
    let mut pipe = child.stdout.take().ok_or("it has no output")?;
    let reader = std::thread::spawn(move || {
        let mut out = Vec::new();
        pipe.read_to_end(&mut out).map(|_| out)
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            _ => {
                // Our own child, which would otherwise be left running.
                let _ = child.kill();
                return Err(format!("{program} did not answer within {} s", PATIENCE.as_secs()));
            }
        }
    };
    if !status.success() {
        return Err(format!("{program} failed ({status})"));
    }
    reader.join().ok().and_then(Result::ok).ok_or_else(|| format!("{program} printed nothing readable"))
}

/// NVIDIA devices.
pub fn gpus() -> Known<Vec<Gpu>> {
    let form = "--format=csv,noheader,nounits";
    let devices = ask("nvidia-smi", &["--query-gpu=index,uuid,name,driver_version,memory.total,memory.free", form])?;
    let apps = ask("nvidia-smi", &["--query-compute-apps=gpu_uuid,pid,used_memory", form])?;
    let gpus = parse::gpus(&devices, &apps);
    if gpus.is_empty() { Err("nvidia-smi lists no device".to_string()) } else { Ok(gpus) }
}

/// The clock. systemd-timesyncd leaves a file; timedatectl reads the kernel's own flag, whoever sets
/// it; chronyd answers for itself. Where none does, nothing is guessed.
pub fn clock() -> Known<ClockState> {
    if Path::new("/run/systemd/timesync/synchronized").exists() {
        return Ok(ClockState { synchronized: true, source: "systemd-timesyncd" });
    }
    if let Ok(answer) = ask("timedatectl", &["show", "--property=NTPSynchronized", "--value"]) {
        match answer.trim_ascii() {
            b"yes" => return Ok(ClockState { synchronized: true, source: "timedatectl" }),
            b"no" => return Ok(ClockState { synchronized: false, source: "timedatectl" }),
            _ => {}
        }
    }
    if let Ok(answer) = ask("chronyc", &["-c", "tracking"]) {
        // The last field of the report is the leap status.
        if let Some(status) = answer.trim_ascii().rsplit(|b| *b == b',').next().filter(|s| !s.is_empty()) {
            return Ok(ClockState { synchronized: status != b"Not synchronised", source: "chronyc" });
        }
    }
    Err("neither timesyncd, timedatectl nor chronyc answers here".to_string())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn programs_answer_fail_or_are_missing() {
        assert_eq!(ask("echo", &["$(x)", "`y`"]).unwrap(), b"$(x) `y`\n");
        assert!(ask("false", &[]).unwrap_err().contains("failed"));
        assert_eq!(ask("no-such-program-here", &[]).unwrap_err(), "there is no no-such-program-here here");
    }
}
