//! Why nothing was written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why nothing was written.
#[derive(Debug)]
pub enum Failure {
    /// A directory is promised under a name that something has.
    Exists(PathBuf),
    /// The target is something that a file must not replace: a device, a pipe, a directory.
    Special {
        /// The target as it was given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The machine refused.
    Machine {
        /// What was to be done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// Its words.
        error: io::Error,
    },
}

impl Failure {
    pub(crate) fn of(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
        let path = path.to_path_buf();
        move |error| Failure::Machine { doing, path, error }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Failure::Exists(_) => "give a name that is not there yet",
            Failure::Special { .. } => "give the name of a plain file, or /dev/stdout",
            Failure::Machine { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => "the folder it goes into must be there: `mkdir -p` makes one",
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room, or write to another volume",
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    "write where you may, or ask for the right to write there"
                }
                _ => "nothing was written under this name; try again, or write to another volume",
            },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Exists(path) => write!(f, "`{}` is there already, and nothing is overwritten", path.display()),
            Failure::Special { path, what } => {
                write!(f, "`{}` is {what}, and only plain files are replaced", path.display())
            }
            Failure::Machine { doing, path, error } => write!(f, "cannot {doing} `{}`: {error}", path.display()),
        }
    }
}

impl std::error::Error for Failure {}
