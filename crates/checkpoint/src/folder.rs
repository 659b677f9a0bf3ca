//! The folder of a checkpoint, which appears whole or not at all.

use crate::files::failed_to;
use diag::{Blame, Finding};
use std::fs::File;
use std::path::{Path, PathBuf};
use store::{Directory, Failure, Kind};

/// A folder being written.
pub struct Fresh(Directory);

/// What kept a checkpoint from its name.
pub fn unwritten(failure: Failure) -> Finding {
    match &failure {
        Failure::Exists(path) => {
            let finding =
                Finding::error("checkpoint/exists", Blame::Usage, path.display().to_string(), failure.to_string());
            finding.hint("give a name that is not there yet, or remove what is there")
        }
        _ => failed_to(&failure),
    }
}

impl Fresh {
    /// A folder to be called `target`.
    pub fn new(target: &Path) -> Result<Fresh, Finding> {
        Directory::new(target).map(Fresh).map_err(unwritten)
    }

    /// A new file in it.
    pub fn file(&mut self, name: &str) -> Result<(File, PathBuf), Finding> {
        self.0.file(name, Kind::Plain).map_err(unwritten)
    }

    /// A new file with this content, durable.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Finding> {
        self.0.write(name, bytes, Kind::Plain).map_err(unwritten)
    }

    /// Gives it its name.
    pub fn finish(self) -> Result<(), Finding> {
        self.0.publish().map_err(unwritten)
    }
}
