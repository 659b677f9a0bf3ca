//! What killed writers left, recognised and removed.

use crate::claim::{Claim, directory_of, label_of};
use crate::sys::{self, Lock};
use crate::{Failure, sync_folder};
use std::fs;
use std::io;
use std::path::Path;

/// Removes what killed writers left in a folder, for targets of these names (the first forty characters
/// of each). What cannot be read, is locked, or belongs to another user stays.
pub fn clean(folder: &Path, is_wanted: impl Fn(&str) -> bool) {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(label_of).is_some_and(&is_wanted) {
            let _ = remove(&entry.path());
        }
    }
}

/// Removes a claim and its directory, if its writer is gone.
fn remove(claim: &Path) -> io::Result<()> {
    let Some(file) = sys::open_own(claim) else { return Ok(()) };
    // Between the listing and the lock its writer may have finished; then the name is no longer this file's.
    if sys::lock(&file) != Lock::Held || !sys::is_at(&file, claim) {
        return Ok(());
    }
    remove_directory(claim)?;
    fs::remove_file(claim)
}

/// The directory goes first: without its claim nobody would know whose it was.
fn remove_directory(claim: &Path) -> io::Result<()> {
    let directory = directory_of(claim);
    match directory.symlink_metadata() {
        Ok(about) if about.is_dir() && sys::is_own(&about) => fs::remove_dir_all(&directory),
        Ok(_) => Err(io::Error::other("not a directory of this user's")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes a directory that its owner no longer wants, at once by name: killed on the way, it is something
/// left behind and no longer half of what it was.
pub fn discard(directory: &Path) -> Result<(), Failure> {
    let mut claim = Claim::beside(directory).map_err(Failure::of("remove", directory))?;
    let gone = directory_of(&claim.path);
    sys::rename_new(directory, &gone).map_err(Failure::of("remove", directory))?;
    claim.goes = false;
    sync_folder(directory.parent().unwrap_or(Path::new("")))?;
    fs::remove_dir_all(&gone).map_err(Failure::of("remove", &gone))?;
    claim.goes = true;
    Ok(())
}

/// Moves a file aside, durably, to a name that nothing has.
pub fn set_aside(file: &Path, to: &Path) -> Result<(), Failure> {
    sys::rename_new(file, to).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::Exists(to.to_path_buf()),
        _ => Failure::of("set aside", file)(error),
    })?;
    sync_folder(to.parent().unwrap_or(Path::new("")))?;
    sync_folder(file.parent().unwrap_or(Path::new("")))
}

/// Removes a file that is made of others and can be made again; one that is not there is gone already.
pub fn remove_derived(file: &Path) -> Result<(), Failure> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::of("remove", file)(error)),
        _ => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::claim::tests::Temp;
    use crate::{Directory, Kind};

    /// A claim whose writer was killed, with something in its directory.
    fn left(temp: &Temp, target: &str) -> String {
        let mut claim = Claim::beside(&temp.0.join(target)).unwrap();
        claim.goes = false;
        let directory = directory_of(&claim.path);
        fs::create_dir_all(directory.join("below")).unwrap();
        fs::write(directory.join("below/half"), "half").unwrap();
        claim.path.file_name().unwrap().to_str().unwrap().to_string()
    }

    #[test]
    fn what_the_killed_left_goes_and_what_the_living_hold_stays() {
        let temp = Temp::new("stale");
        left(&temp, "out");
        let other = left(&temp, "other");
        let living = Claim::beside(&temp.0.join("out")).unwrap();
        fs::create_dir(directory_of(&living.path)).unwrap();
        fs::write(temp.0.join(".out.tmp"), "a stranger's").unwrap();
        clean(&temp.0, |label| label == "out");
        let kept = living.path.file_name().unwrap().to_str().unwrap().to_string();
        let mut expected =
            vec![".out.tmp".to_string(), other.clone(), format!("{other}.d"), kept.clone(), format!("{kept}.d")];
        expected.sort();
        assert_eq!(temp.names(), expected);
    }

    /// Links under our names lead nowhere, and what is not a directory of ours is left with its claim.
    #[test]
    fn links_are_not_followed() {
        let temp = Temp::new("links");
        fs::create_dir(temp.0.join("precious")).unwrap();
        fs::write(temp.0.join("precious/x"), "x").unwrap();
        let claim = left(&temp, "out");
        fs::remove_dir_all(temp.0.join(format!("{claim}.d"))).unwrap();
        std::os::unix::fs::symlink(temp.0.join("precious"), temp.0.join(format!("{claim}.d"))).unwrap();
        clean(&temp.0, |_| true);
        assert!(temp.0.join("precious/x").exists() && temp.0.join(&claim).exists());
        let inside = left(&temp, "in");
        std::os::unix::fs::symlink(temp.0.join("precious"), temp.0.join(format!("{inside}.d/link"))).unwrap();
        clean(&temp.0, |label| label == "in");
        assert!(temp.0.join("precious/x").exists() && !temp.0.join(inside).exists());
    }

    #[test]
    fn what_is_set_aside_replaces_nothing() {
        let temp = Temp::new("aside");
        for name in ["a", "b"] {
            fs::write(temp.0.join(name), name).unwrap();
        }
        assert!(matches!(set_aside(&temp.0.join("a"), &temp.0.join("b")), Err(Failure::Exists(_))));
        set_aside(&temp.0.join("a"), &temp.0.join("c")).unwrap();
        assert_eq!((temp.names(), fs::read(temp.0.join("c")).unwrap()), (vec!["b".into(), "c".into()], b"a".to_vec()));
    }

    #[test]
    fn a_discarded_directory_leaves_nothing() {
        let temp = Temp::new("discard");
        let mut directory = Directory::new(&temp.0.join("step-1")).unwrap();
        directory.write("a/b", b"x", Kind::Plain).unwrap();
        directory.publish().unwrap();
        discard(&temp.0.join("step-1")).unwrap();
        assert_eq!(temp.names(), [""; 0]);
        assert!(discard(&temp.0.join("step-1")).is_err());
        assert_eq!(temp.names(), [""; 0]);
    }
}
