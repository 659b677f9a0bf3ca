//! Reading the machine for `preflight`: files of `/proc`, the file system, and three programs that
//! only report (`nvidia-smi`, `timedatectl`, `chronyc`). Nothing is changed, unless a write probe was
//! asked for; nothing is ended but those programs; no text from the machine is ever run.

mod folders;
mod free;
mod proc;
#[cfg(unix)]
mod program;
mod tools;

pub use folders::Probe;

use launch::policy::Place;
use launch::preflight::Machine;
use launch::preflight::machine::{Installed, Known};
use std::path::Path;

/// Bytes of memory that this process may still take, where the machine says.
pub fn free_memory() -> Option<u64> {
    free::memory(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// Which packages of a launch's table Python finds here; none is imported.
pub fn packages(table: &str) -> Known<Vec<Installed>> {
    tools::packages(table)
}

/// Takes the snapshot.
pub fn read(places: &[Place], probe: Probe) -> Machine {
    // Looking at a path may mount it (autofs), so the mounts are read after.
    let places = places.iter().map(|place| folders::locate(place, probe)).collect();
    let proc = Path::new("/proc");
    let environment = std::env::vars_os()
        .map(|(name, value)| (name.as_encoded_bytes().to_vec(), value.as_encoded_bytes().to_vec()))
        .collect();
    Machine {
        places,
        mounts: proc::mounts(proc),
        environment,
        processes: proc::processes(proc),
        own_pid: std::process::id(),
        listeners: proc::listeners(proc),
        limits: proc::limits(proc),
        memory: proc::memory(proc),
        shared_memory: folders::space(Path::new("/dev/shm")),
        clock: tools::clock(),
        gpus: tools::gpus(),
        packages: Err("no plan was named".to_string()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use launch::policy::Storage;
    use launch::preflight::volume_of;

    #[test]
    fn this_machine_is_read() {
        let here = std::env::temp_dir().canonicalize().unwrap();
        let storage = Storage { temporary: here.to_str().unwrap().to_string(), ..Storage::default() };
        let machine = read(&storage.places(), Probe::Ask);
        let mounts = machine.mounts.as_ref().unwrap();
        let root = volume_of(mounts, b"/").expect("a root volume");
        assert_eq!(root.point, b"/");
        assert_eq!(volume_of(mounts, b"/proc/self").unwrap().kind, b"proc");
        let processes = machine.processes.as_ref().unwrap();
        let own = processes.iter().find(|p| p.pid == std::process::id()).expect("our own process");
        assert!(!own.words.is_empty() && processes.iter().any(|p| p.pid == own.parent || own.parent == 0));
        assert_eq!(machine.limits.as_ref().unwrap().len(), 3);
        let temporary = machine.places.iter().find(|p| p.key == "temporary").unwrap().at.as_ref().unwrap();
        assert!(temporary.missing.is_empty());
        let space = temporary.space.as_ref().unwrap();
        assert!(space.free <= space.total && space.total > 0);
    }

    #[test]
    fn a_port_that_is_listened_at_is_found_with_its_process() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let listeners = proc::listeners(Path::new("/proc")).unwrap();
        let found = listeners.iter().find(|l| l.port == port).expect("our socket");
        assert_eq!(found.owner, Some(std::process::id()));
    }
}
