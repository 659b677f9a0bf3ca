//! Locations on this machine: where links lead, what exists, whether it takes files, how much room
//! there is.

use launch::policy::Place;
use launch::preflight::machine::{Folder, FolderKind, Known, Located, Space, Writable};
use std::path::{Path, PathBuf};
use store::Failure;

/// How to find out whether a folder takes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Ask the system (access(2)): nothing is changed, and a full quota is not noticed.
    Ask,
    /// Write a file of one block, and remove it.
    Write,
}

/// Looks a location up.
pub fn locate(place: &Place, probe: Probe) -> Located {
    Located { key: place.key, at: folder(Path::new(&place.path), probe) }
}

fn folder(path: &Path, probe: Probe) -> Known<Folder> {
    let (existing, missing) = nearest(path)?;
    let kind = if existing.is_dir() { FolderKind::Folder } else { FolderKind::Other };
    let writable = match kind {
        FolderKind::Other => Ok(Writable::Refused("not a folder".to_string())),
        FolderKind::Folder => match probe {
            Probe::Ask => ask(&existing),
            Probe::Write => Ok(write(&existing)),
        },
    };
    let space = space(&existing);
    Ok(Folder {
        existing: existing.as_os_str().as_encoded_bytes().to_vec(),
        missing: missing.as_os_str().as_encoded_bytes().to_vec(),
        kind,
        writable,
        space,
    })
}

/// The deepest part of a path that exists, links resolved, and the rest.
fn nearest(path: &Path) -> Known<(PathBuf, PathBuf)> {
    for existing in path.ancestors() {
        match existing.canonicalize() {
            Ok(resolved) => {
                let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
                if missing.components().any(|part| part == std::path::Component::ParentDir) {
                    return Err("it goes up (`..`) through a folder that does not exist".to_string());
                }
                return Ok((resolved, missing.to_path_buf()));
            }
            // A link that leads nowhere exists, and what it will lead to is not known.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if existing.symlink_metadata().is_ok_and(|m| m.is_symlink()) {
                    return Err("a symbolic link on the way leads nowhere".to_string());
                }
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("nothing of it exists".to_string())
}

#[cfg(unix)]
fn ask(folder: &Path) -> Known<Writable> {
    use rustix::fs::{Access, access};
    // Making a file in a folder takes the right to write and to search it.
    Ok(match access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Writable::Allowed,
        Err(error) => Writable::Refused(std::io::Error::from(error).to_string()),
    })
}

#[cfg(not(unix))]
fn ask(_folder: &Path) -> Known<Writable> {
    Err("this system is not asked without writing".to_string())
}

/// Writes a file of one block, and removes it.
fn write(folder: &Path) -> Writable {
    match store::probe(folder, 4096) {
        Ok(()) => Writable::Proven,
        Err(Failure::Machine { error, .. }) => Writable::Refused(error.to_string()),
        Err(other) => Writable::Refused(other.to_string()),
    }
}

/// Room on the volume of a path.
#[cfg(unix)]
pub fn space(path: &Path) -> Known<Space> {
    let stat = rustix::fs::statvfs(path).map_err(|error| std::io::Error::from(error).to_string())?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    // What root alone may fill (`f_bfree` less `f_bavail`) is not counted on.
    Ok(Space { total: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
}

/// Room on the volume of a path.
#[cfg(not(unix))]
pub fn space(_path: &Path) -> Known<Space> {
    Err("this system is not asked".to_string())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    /// A folder of this test's own, empty.
    fn tree(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("shardwright-folders-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        root.canonicalize().unwrap()
    }

    #[test]
    fn links_are_followed_and_odd_names_are_only_names() {
        let root = tree("odd");
        let odd = root.join(std::ffi::OsStr::from_bytes(b"new\nline $(touch x) '\"` \xff\xfe"));
        fs::create_dir(&odd).unwrap();
        symlink(&odd, root.join("link")).unwrap();
        let folder = folder(&root.join("link/below/it"), Probe::Ask).unwrap();
        assert_eq!(folder.existing, odd.as_os_str().as_bytes());
        assert_eq!(folder.missing, b"below/it");
        assert!(!Path::new("x").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_probe_leaves_nothing_behind() {
        let root = tree("probe");
        assert_eq!(folder(&root, Probe::Write).unwrap().writable, Ok(Writable::Proven));
        assert_eq!(folder(&root, Probe::Ask).unwrap().writable, Ok(Writable::Allowed));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_leads_nowhere_is_not_guessed() {
        let root = tree("nowhere");
        symlink(root.join("gone"), root.join("dangling")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        assert!(folder(&root.join("dangling/x"), Probe::Ask).unwrap_err().contains("leads nowhere"));
        assert!(folder(&root.join("loop"), Probe::Ask).is_err());
        assert!(folder(&root.join("a/../../b"), Probe::Ask).unwrap_err().contains("goes up"));
        assert_eq!(folder(&root.join("file"), Probe::Ask).unwrap().kind, FolderKind::Other);
        fs::remove_dir_all(root).unwrap();
    }
}
