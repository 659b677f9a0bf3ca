//! What is asked of the system. Elsewhere than on Unix there are no locks, so that nothing counts as left
//! behind.

use crate::lock::Sharing;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::Path;

/// Which file it is, whatever its name: two hard links to one have the same identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(Inner);

#[cfg(unix)]
type Inner = (u64, u64);
#[cfg(not(unix))]
type Inner = std::path::PathBuf;

impl Identity {
    /// Of what a path leads to, where that is a plain file.
    pub fn at(path: &Path) -> Option<Identity> {
        let about = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        #[cfg(unix)]
        return Some(Identity(numbers(&about)));
        #[cfg(not(unix))]
        return path.canonicalize().ok().map(Identity);
    }

    /// Of what standard input reads, where that is a plain file.
    #[cfg(unix)]
    pub fn of_stdin() -> Option<Identity> {
        use std::os::fd::AsFd;
        let file = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
        let about = file.metadata().ok().filter(Metadata::is_file)?;
        Some(Identity(numbers(&about)))
    }

    /// Not known here.
    #[cfg(not(unix))]
    pub fn of_stdin() -> Option<Identity> {
        None
    }
}

#[cfg(unix)]
fn numbers(about: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (about.dev(), about.ino())
}

/// What a lock attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    Held,
    /// Somebody alive has it.
    Taken,
    /// The file system has no locks.
    Unknown,
}

#[cfg(unix)]
mod unix {
    use super::*;
    use rustix::fs::{Access, FlockOperation, OFlags, access, flock};
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};

    /// Unpredictable digits.
    pub fn token() -> io::Result<String> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
    }

    /// A file that was not there, not even as a link. The process's umask narrows `mode`.
    pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
    }

    /// A lock that ends with the process, whichever way that ends. NFS wants it on a file open for writing.
    pub fn lock(file: &File) -> Lock {
        lock_as(file, Sharing::Alone)
    }

    /// The same, alone or with others.
    pub fn lock_as(file: &File, sharing: Sharing) -> Lock {
        let how = match sharing {
            Sharing::Shared => FlockOperation::NonBlockingLockShared,
            Sharing::Alone => FlockOperation::NonBlockingLockExclusive,
        };
        loop {
            match flock(file, how) {
                Ok(()) => return Lock::Held,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Lock::Taken,
                Err(_) => return Lock::Unknown,
            }
        }
    }

    /// A file that exists to be locked, made where it is missing.
    pub fn open_lock(path: &Path) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW.bits() as i32;
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o666).custom_flags(flags).open(path)
    }

    /// Whether a path, not followed, is the name of this open file.
    pub fn is_at(file: &File, path: &Path) -> bool {
        let there = path.symlink_metadata().map(|about| numbers(&about));
        matches!((file.metadata(), there), (Ok(mine), Ok(there)) if numbers(&mine) == there)
    }

    /// A plain file of this user's, open for a lock.
    pub fn open_own(path: &Path) -> Option<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path).ok()?;
        let about = file.metadata().ok()?;
        (about.is_file() && is_own(&about)).then_some(file)
    }

    pub fn is_own(about: &Metadata) -> bool {
        about.uid() == rustix::process::geteuid().as_raw()
    }

    /// Refuses a file that could not be written in place: a rename would not ask.
    pub fn check_writable(path: &Path) -> io::Result<()> {
        access(path, Access::WRITE_OK).map_err(io::Error::from)
    }

    /// Gives a new file the rights of the one it replaces, and its owner where that is allowed.
    pub fn take_after(file: &File, old: &Metadata) -> io::Result<()> {
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            let _ = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
        }
        file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o777))
    }

    /// What a path that is no plain file is.
    pub fn kind(about: &Metadata) -> &'static str {
        use std::os::unix::fs::FileTypeExt;
        let kind = about.file_type();
        match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a named pipe",
            () if kind.is_socket() => "a socket",
            () if kind.is_char_device() || kind.is_block_device() => "a device",
            () => "no plain file",
        }
    }

    /// Renames a directory without replacing anything. Where the file system does not have that (NFS), the
    /// name is looked at first; a plain rename never replaces more than an empty directory.
    pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            use rustix::io::Errno;
            match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
                other => return other.map_err(io::Error::from),
            }
        }
        super::rename_unless_there(from, to)
    }
}

#[cfg(unix)]
pub use unix::*;

/// The way without a call of the system's own for it.
fn rename_unless_there(from: &Path, to: &Path) -> io::Result<()> {
    match to.symlink_metadata() {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::rename(from, to),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
mod other {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    /// Unpredictable digits: hashers are seeded by the system.
    pub fn token() -> io::Result<String> {
        let half = || RandomState::new().hash_one(0);
        Ok(format!("{:016x}{:016x}", half(), half()))
    }

    pub fn create_new(path: &Path, _mode: u32) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).open(path)
    }

    pub fn lock(_file: &File) -> Lock {
        Lock::Unknown
    }

    pub fn lock_as(_file: &File, _sharing: Sharing) -> Lock {
        Lock::Unknown
    }

    pub fn open_lock(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).open(path)
    }

    pub fn is_at(_file: &File, path: &Path) -> bool {
        path.symlink_metadata().is_ok()
    }

    pub fn open_own(_path: &Path) -> Option<File> {
        None
    }

    pub fn is_own(_about: &Metadata) -> bool {
        false
    }

    pub fn check_writable(path: &Path) -> io::Result<()> {
        match path.metadata()?.permissions().readonly() {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        }
    }

    pub fn take_after(_file: &File, _old: &Metadata) -> io::Result<()> {
        Ok(())
    }

    pub fn kind(about: &Metadata) -> &'static str {
        if about.is_dir() { "a directory" } else { "no plain file" }
    }

    pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
        super::rename_unless_there(from, to)
    }
}

#[cfg(not(unix))]
pub use other::*;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::tests::Temp;

    /// A file system without RENAME_NOREPLACE: what has anything in it is not replaced either way.
    #[test]
    fn the_fallback_replaces_nothing() {
        let temp = Temp::new("fallback");
        let (from, to) = (temp.0.join("from"), temp.0.join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        assert_eq!(rename_unless_there(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(rename_new(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(to.join("x"), "").unwrap();
        assert!(std::fs::rename(&from, &to).is_err(), "a full directory is never replaced");
        std::fs::remove_file(to.join("x")).unwrap();
        std::fs::remove_dir(&to).unwrap();
        rename_unless_there(&from, &to).unwrap();
        assert!(to.is_dir());
    }
}
