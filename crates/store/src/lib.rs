//! Writing whole or not at all: a file replaces another by one rename, a directory appears by one, and
//! where neither happened nothing has changed.
//!
//! What is being written lies beside its target. A file of the name `.TARGET.TOKEN.shardwright` is the
//! claim of one living writer, who holds a lock on it; for a file it is what will be renamed, for a
//! directory the directory stands beside it with `.d` at the end. Tokens come from the system, so that
//! nobody can lie in wait under a name. A claim that nobody has locked is what a killed writer left: the
//! next writer to the same target removes it with its directory. Nothing else is ever removed but what
//! the same process made.
//!
//! Not here: what a finding about it is called, and whether an output is also an input. On a file system
//! without locks nothing is taken for left behind.

mod claim;
mod directory;
mod failure;
mod file;
mod lock;
mod stale;
mod sys;

pub use claim::probe;
pub use directory::{Directory, Kind, create_new, make_folders, sync_folder};
pub use failure::Failure;
pub use file::{is_stdout, write};
pub use lock::{Guard, Sharing, lock};
pub use stale::{clean, discard, remove_derived, set_aside};
pub use sys::Identity;
