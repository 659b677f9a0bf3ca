//! What programs report about the machine; the silence of one is reported as not known.

#[cfg(unix)]
use super::program::ask;
use launch::preflight::machine::{ClockState, Gpu, Installed, Known};
use launch::preflight::parse;
use std::path::Path;

/// Without process groups a program could not be ended for certain.
#[cfg(not(unix))]
fn ask(_program: &str, _words: &[&str]) -> Known<Vec<u8>> {
    Err("programs are not asked on this system".to_string())
}

/// NVIDIA devices.
pub fn gpus() -> Known<Vec<Gpu>> {
    let form = "--format=csv,noheader,nounits";
    let devices = ask("nvidia-smi", &["--query-gpu=index,uuid,name,driver_version,memory.total,memory.free", form])?;
    let apps = ask("nvidia-smi", &["--query-compute-apps=gpu_uuid,pid,used_memory", form])?;
    let gpus = parse::gpus(&devices, &apps);
    if gpus.is_empty() { Err("nvidia-smi lists no device".to_string()) } else { Ok(gpus) }
}

/// Packages of a launch's table, looked for and not imported.
pub fn packages(table: &str) -> Known<Vec<Installed>> {
    let answer = ask("python3", &["-c", launch::packages::PROGRAM, "--quick", "--json", "--table", table])?;
    serde_json::from_slice(&answer).map_err(|error| format!("python3 answered what cannot be read: {error}"))
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
