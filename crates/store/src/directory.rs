//! A directory that appears whole or not at all.

use crate::Failure;
use crate::claim::{Claim, directory_of, label};
use crate::stale;
use crate::sys;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// To be read.
    Plain,
    /// To be run.
    Executable,
}

/// A directory being written. Dropped before it is published, it takes back what it made.
#[derive(Debug)]
pub struct Directory {
    claim: Claim,
    /// Where it is until it has its name.
    at: PathBuf,
    target: PathBuf,
    /// Files and folders in it, in the order they were made.
    made: Vec<PathBuf>,
    is_published: bool,
}

impl Directory {
    /// A directory to be called `target`, which nothing is yet.
    pub fn new(target: &Path) -> Result<Directory, Failure> {
        match target.symlink_metadata() {
            Ok(_) => return Err(Failure::Exists(target.to_path_buf())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::of("look at", target)(error)),
        }
        let Some(name) = target.file_name() else {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a directory");
            return Err(Failure::of("create", target)(error));
        };
        let label = label(name);
        stale::clean(above(target), |other| *other == *label);
        let claim = Claim::beside(target).map_err(Failure::of("create", target))?;
        let at = directory_of(&claim.path);
        fs::create_dir(&at).map_err(Failure::of("create", target))?;
        Ok(Directory { claim, at, target: target.to_path_buf(), made: Vec::new(), is_published: false })
    }

    /// Where it is until it has its name. Other processes of the run write there, with [`create_new`].
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Files that other processes of the run write into it: they are taken back with the rest.
    pub fn expect(&mut self, names: impl IntoIterator<Item = String>) {
        self.made.extend(names.into_iter().map(|name| self.at.join(name)));
    }

    /// A new file in it, with the folders on its way.
    pub fn file(&mut self, name: &str, kind: Kind) -> Result<(File, PathBuf), Failure> {
        let path = self.at.join(name);
        if !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "the name leads elsewhere");
            return Err(Failure::of("create", &path)(error));
        }
        let inside = path.ancestors().skip(1).take_while(|folder| *folder != self.at);
        for folder in inside.map(Path::to_path_buf).collect::<Vec<_>>().into_iter().rev() {
            if !self.made.contains(&folder) {
                fs::create_dir(&folder).map_err(Failure::of("create", &folder))?;
                self.made.push(folder);
            }
        }
        let file = open_new(&path, kind)?;
        self.made.push(path.clone());
        Ok((file, path))
    }

    /// A new file with this content, durable.
    pub fn write(&mut self, name: &str, bytes: &[u8], kind: Kind) -> Result<(), Failure> {
        let (mut file, path) = self.file(name, kind)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Failure::of("write", &path))
    }

    /// Gives it its name, for good. A failure after that says so, and what has the name is whole.
    pub fn publish(mut self) -> Result<(), Failure> {
        for folder in self.made.iter().filter(|path| path.is_dir()) {
            sync_folder(folder)?;
        }
        sync_folder(&self.at)?;
        // A plain rename, where there is no other, says of a name that was just taken what has it.
        sys::rename_new(&self.at, &self.target).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
                Failure::Exists(self.target.clone())
            }
            _ => Failure::of("give its name to", &self.target)(error),
        })?;
        self.is_published = true;
        let folder = above(&self.target).to_path_buf();
        drop(self);
        sync_folder(&folder)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        for path in self.made.iter().rev() {
            let _ = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
        // The claim stays with what could not be removed, and the next writer finds both.
        let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        self.claim.goes = fs::remove_dir(&self.at).map_or_else(is_gone, |()| true);
    }
}

/// A file that was not there, in a directory that another process of the run is to publish.
pub fn create_new(path: &Path) -> Result<File, Failure> {
    open_new(path, Kind::Plain)
}

fn open_new(path: &Path, kind: Kind) -> Result<File, Failure> {
    let mode = if kind == Kind::Executable { 0o777 } else { 0o666 };
    sys::create_new(path, mode).map_err(Failure::of("create", path))
}

/// Makes a folder and those above it, as far as they are missing, durably.
pub fn make_folders(path: &Path) -> Result<(), Failure> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => {
                return Err(Failure::of("create", folder)(error));
            }
            _ => sync_folder(above(folder))?,
        }
    }
    Ok(())
}

/// Makes the names in a folder durable.
pub fn sync_folder(path: &Path) -> Result<(), Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Failure::of("make durable", path))
}

/// The folder a path lies in; empty where that is the current one.
pub(crate) fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::tests::Temp;

    #[test]
    fn a_directory_appears_whole_and_replaces_nothing() {
        let temp = Temp::new("whole");
        let target = temp.0.join("out");
        let mut directory = Directory::new(&target).unwrap();
        directory.write("a/b/c", b"deep", Kind::Plain).unwrap();
        directory.write("a/run", b"#!/bin/sh\n", Kind::Executable).unwrap();
        assert!(!target.exists());
        assert!(directory.write("a/run", b"again", Kind::Plain).is_err());
        for bad in ["../x", "/etc/x", "a/../../x", "."] {
            assert!(directory.write(bad, b"", Kind::Plain).is_err(), "{bad}");
        }
        // Somebody is faster.
        let mut slower = Directory::new(&target).unwrap();
        slower.write("x", b"", Kind::Plain).unwrap();
        directory.publish().unwrap();
        assert!(matches!(slower.publish(), Err(Failure::Exists(_))));
        assert!(matches!(Directory::new(&target), Err(Failure::Exists(_))));
        assert_eq!(temp.names(), ["out"]);
        assert_eq!(fs::read(target.join("a/b/c")).unwrap(), b"deep");
    }

    /// An empty directory is a stranger's as well.
    #[test]
    fn an_empty_directory_is_not_replaced() {
        let temp = Temp::new("empty");
        let target = temp.0.join("out");
        let directory = Directory::new(&target).unwrap();
        fs::create_dir(&target).unwrap();
        assert!(matches!(directory.publish(), Err(Failure::Exists(_))));
        assert_eq!(temp.names(), ["out"]);
    }

    #[test]
    fn what_a_stranger_put_there_is_not_taken_back() {
        let temp = Temp::new("stranger");
        let mut directory = Directory::new(&temp.0.join("out")).unwrap();
        directory.write("mine", b"", Kind::Plain).unwrap();
        let at = directory.path().to_path_buf();
        fs::write(at.join("theirs"), "x").unwrap();
        drop(directory);
        assert!(at.join("theirs").exists() && !at.join("mine").exists());
        assert_eq!(temp.names().len(), 2, "the claim stays with it");
    }

    #[cfg(unix)]
    #[test]
    fn rights_are_what_the_umask_leaves() {
        use std::os::unix::fs::PermissionsExt;
        let temp = Temp::new("rights");
        fs::write(temp.0.join("like"), "").unwrap();
        let like = fs::metadata(temp.0.join("like")).unwrap().permissions().mode() & 0o777;
        let mut directory = Directory::new(&temp.0.join("out")).unwrap();
        directory.write("plain", b"", Kind::Plain).unwrap();
        directory.write("run", b"", Kind::Executable).unwrap();
        directory.publish().unwrap();
        let mode = |name: &str| fs::metadata(temp.0.join("out").join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("plain"), like);
        assert_eq!(mode("run"), like | ((like & 0o444) >> 2));
    }
}
