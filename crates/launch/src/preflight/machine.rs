//! A snapshot of a machine: what was read, and why what was not. Paths, names and values are
//! bytes: Linux promises nothing more about them.

use crate::policy::Limit;
use std::collections::BTreeMap;

/// Something the machine said, or why it did not.
pub type Known<T> = Result<T, String>;

/// What is to be judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Locations of the policy, looked up.
    pub places: Vec<Located>,
    /// What is mounted where, in the kernel's order.
    pub mounts: Known<Vec<Mount>>,
    /// The environment that a process started here inherits.
    pub environment: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Every process that can be seen.
    pub processes: Known<Vec<Process>>,
    /// Our own process, whose ancestors are no strangers.
    pub own_pid: u32,
    /// Sockets that accept connections.
    pub listeners: Known<Vec<Listener>>,
    /// Limits of this process.
    pub limits: Known<Vec<(Resource, Limit)>>,
    /// Bytes of the host's memory.
    pub memory: Known<u64>,
    /// `/dev/shm`.
    pub shared_memory: Known<Space>,
    /// Whether the clock is synchronised.
    pub clock: Known<ClockState>,
    /// NVIDIA devices.
    pub gpus: Known<Vec<Gpu>>,
    /// What a plan's launch imports, as Python finds it.
    pub packages: Known<Vec<Installed>>,
}

/// What `packages.py` says of one package or file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Installed {
    /// As pip calls it.
    pub name: String,
    /// `ok`, `note`, `missing`, `old` or `broken`.
    pub state: String,
    /// Its version, or what is wrong.
    pub found: String,
    /// Which versions do, and what for.
    pub wanted: String,
    /// How to install it.
    pub install: String,
}

/// One location of the policy on this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// Its key in `[storage]`.
    pub key: &'static str,
    /// What is there.
    pub at: Known<Folder>,
}

/// The nearest thing to a location that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct Folder {
    /// The deepest part that exists, symbolic links resolved.
    pub existing: Vec<u8>,
    /// The part below it that does not; empty when all of it exists.
    pub missing: Vec<u8>,
    /// What exists.
    pub kind: FolderKind,
    /// Whether we may write there, and how we know.
    pub writable: Known<Writable>,
    /// How much room there is.
    pub space: Known<Space>,
}

/// What stands where a folder should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderKind {
    /// A folder.
    Folder,
    /// Something else.
    Other,
}

/// Whether a folder takes files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writable {
    /// The system says so; nothing was written.
    Allowed,
    /// A file was written and removed.
    Proven,
    /// It refused, in the system's words.
    Refused(String),
}

/// Room on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that we may still write.
    pub free: u64,
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its number.
    pub id: u64,
    /// The mount it stands on.
    pub parent: u64,
    /// The device, `major:minor`. Two mounts of one file system share it.
    pub device: (u32, u32),
    /// Which part of the file system is mounted; `/` unless it is a bind mount or subvolume.
    pub root: Vec<u8>,
    /// Where.
    pub point: Vec<u8>,
    /// Its type.
    pub kind: Vec<u8>,
    /// What was mounted.
    pub source: Vec<u8>,
    /// Whether the mount or its file system is read-only.
    pub access: Access,
}

/// Whether a mount takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It does.
    ReadWrite,
    /// It does not.
    ReadOnly,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its command line, word by word.
    pub words: Vec<Vec<u8>>,
}

/// A socket that accepts connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its port.
    pub port: u16,
    /// The socket's number.
    pub inode: u64,
    /// The process that holds it, where that may be read.
    pub owner: Option<u32>,
}

/// What a process has a limit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Open files.
    OpenFiles,
    /// Bytes locked in memory.
    LockedMemory,
    /// Processes and threads of the user.
    Processes,
}

/// What the clock is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockState {
    /// Whether it is held to a reference.
    pub synchronized: bool,
    /// Who said so.
    pub source: &'static str,
}

/// An NVIDIA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number.
    pub index: u64,
    /// Its stable name.
    pub uuid: String,
    /// What it is.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// Bytes in all; a device that shares the host's memory does not say.
    pub total: Option<u64>,
    /// Bytes free, likewise.
    pub free: Option<u64>,
    /// Processes that compute on it, with the bytes each holds where that may be read.
    pub users: Vec<(u32, Option<u64>)>,
}
