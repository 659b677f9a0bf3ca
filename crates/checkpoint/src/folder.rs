//! A folder that appears whole or not at all: written beside its place under a name of its own, renamed
//! at the end. Nothing that was there before is replaced or removed.

use crate::files::failed;
use diag::{Blame, Finding};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A folder being written.
pub struct Fresh {
    temporary: PathBuf,
    target: PathBuf,
    files: Vec<PathBuf>,
    is_done: bool,
}

fn exists(path: &Path) -> Finding {
    let message = format!("`{}` is there already, and nothing is overwritten", path.display());
    let finding = Finding::error("checkpoint/exists", Blame::Usage, path.display().to_string(), message);
    finding.hint("give --out a name that is not there yet")
}

impl Fresh {
    /// A folder to be called `target`.
    pub fn new(target: &Path) -> Result<Fresh, Finding> {
        if target.symlink_metadata().is_ok() {
            return Err(exists(target));
        }
        let name = target.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        for turn in 0..1000 {
            let temporary = target.with_file_name(format!(".{name}.{}-{turn}.partial", std::process::id()));
            match fs::create_dir(&temporary) {
                Ok(()) => {
                    return Ok(Fresh { temporary, target: target.to_path_buf(), files: Vec::new(), is_done: false });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed("create", &temporary, &e)),
            }
        }
        Err(exists(&target.with_file_name(format!(".{name}.*.partial"))))
    }

    /// A new file in it.
    pub fn file(&mut self, name: &str) -> Result<(File, PathBuf), Finding> {
        let path = self.temporary.join(name);
        let file = File::create_new(&path).map_err(|e| failed("create", &path, &e))?;
        self.files.push(path.clone());
        Ok((file, path))
    }

    /// A new file with this content, durable.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Finding> {
        let (mut file, path) = self.file(name)?;
        let written = std::io::Write::write_all(&mut file, bytes).and_then(|()| file.sync_all());
        written.map_err(|e| failed("write", &path, &e))
    }

    /// Gives it its name.
    pub fn finish(mut self) -> Result<(), Finding> {
        let sync =
            |path: &Path| File::open(path).and_then(|f| f.sync_all()).map_err(|e| failed("make durable", path, &e));
        sync(&self.temporary)?;
        self.rename()?;
        self.is_done = true;
        sync(self.target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    }

    /// A plain rename replaces an empty folder; this one does not, where the system has one that does not.
    fn rename(&self) -> Result<(), Finding> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            match renameat_with(CWD, &self.temporary, CWD, &self.target, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::EXIST) => return Err(exists(&self.target)),
                // A file system without the flag.
                Err(_) => {}
            }
        }
        if self.target.symlink_metadata().is_ok() {
            return Err(exists(&self.target));
        }
        fs::rename(&self.temporary, &self.target).map_err(|e| failed("name", &self.target, &e))
    }
}

impl Drop for Fresh {
    /// Takes back what it made, file by file.
    fn drop(&mut self) {
        if !self.is_done {
            self.files.iter().for_each(|file| drop(fs::remove_file(file)));
            let _ = fs::remove_dir(&self.temporary);
        }
    }
}
