//! A file that is replaced whole or not at all. A link is followed, and the file it leads to is replaced in
//! its own folder; standard streams, `/dev/null` and open descriptors are written to; every other target
//! that is not a plain file is refused.

use crate::claim::{Claim, label};
use crate::directory::{above, sync_folder};
use crate::{Failure, stale, sys};
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where bytes go.
enum Target {
    Stdout,
    Stderr,
    /// A device or a descriptor that takes what comes.
    Open(PathBuf),
    /// A plain file, with what is there now.
    Plain(PathBuf, Option<Metadata>),
}

/// Whether a path stands for standard output.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

fn is_stderr(path: &Path) -> bool {
    ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"].iter().any(|name| path == Path::new(name))
}

/// `/dev/null`, and what a shell writes for `>(command)`.
fn is_open(path: &Path) -> bool {
    let is_number = |name: &std::ffi::OsStr| name.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    let is_descriptor = ["/dev/fd", "/proc/self/fd"].iter().any(|folder| path.parent() == Some(Path::new(folder)));
    path == Path::new("/dev/null") || is_descriptor && path.file_name().is_some_and(is_number)
}

impl Target {
    fn of(path: &Path) -> Result<Target, Failure> {
        match path {
            _ if is_stdout(path) => return Ok(Target::Stdout),
            _ if is_stderr(path) => return Ok(Target::Stderr),
            _ if is_open(path) => return Ok(Target::Open(path.to_path_buf())),
            _ => {}
        }
        let special = |what| Failure::Special { path: path.to_path_buf(), what };
        let text = path.as_os_str().as_encoded_bytes();
        match fs::metadata(path) {
            Ok(about) if !about.is_file() => Err(special(sys::kind(&about))),
            Ok(about) => {
                let place = path.canonicalize().map_err(Failure::of("write", path))?;
                sys::check_writable(&place).map_err(Failure::of("write", path))?;
                Ok(Target::Plain(place, Some(about)))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::of("write", path)(error)),
            Err(_) if path.symlink_metadata().is_ok() => Err(special("a link that leads nowhere")),
            Err(_) if path.file_name().is_none() || text.ends_with(b"/") => Err(special("a directory's name")),
            Err(_) => Ok(Target::Plain(path.to_path_buf(), None)),
        }
    }
}

/// Writes a file. Killed or refused on the way, what was there before is there still. It has the rights of
/// the file it replaces, or those that the umask leaves.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let stream = |mut to: Box<dyn Write>| to.write_all(bytes).and_then(|()| to.flush());
    match Target::of(path)? {
        Target::Stdout => stream(Box::new(io::stdout())).map_err(Failure::of("write to", path)),
        Target::Stderr => stream(Box::new(io::stderr())).map_err(Failure::of("write to", path)),
        Target::Open(at) => {
            let opened = OpenOptions::new().append(true).open(at);
            opened.and_then(|file| stream(Box::new(file))).map_err(Failure::of("write to", path))
        }
        Target::Plain(place, old) => replace(&place, old.as_ref(), bytes).map_err(Failure::of("write", path))?,
    }
}

fn replace(place: &Path, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<Result<(), Failure>> {
    let label = label(place.file_name().unwrap_or_default());
    stale::clean(above(place), |other| *other == *label);
    let mut claim = Claim::beside(place)?;
    claim.file.write_all(bytes)?;
    if let Some(old) = old {
        sys::take_after(&claim.file, old)?;
    }
    claim.file.sync_all()?;
    fs::rename(&claim.path, place)?;
    claim.goes = false;
    Ok(sync_folder(above(place)))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::claim::tests::Temp;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn rights_stay_and_links_are_followed() {
        let temp = Temp::new("file");
        fs::create_dir(temp.0.join("elsewhere")).unwrap();
        let (real, link) = (temp.0.join("elsewhere/real"), temp.0.join("link"));
        fs::write(&real, "old").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("elsewhere/real", &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), b"new");
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        write(&temp.0.join("fresh"), b"x").unwrap();
        fs::write(temp.0.join("like"), "").unwrap();
        let mode = |name: &str| fs::metadata(temp.0.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("fresh"), mode("like"));
        assert_eq!(temp.names(), ["elsewhere", "fresh", "like", "link"]);
    }

    #[test]
    fn what_is_no_plain_file_is_refused_by_name() {
        let temp = Temp::new("special");
        symlink("gone", temp.0.join("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(temp.0.join("socket")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(temp.0.join("pipe")).status().unwrap();
        assert!(made.success());
        for (name, what) in [
            ("dangling", "a link that leads nowhere"),
            ("socket", "a socket"),
            ("pipe", "a named pipe"),
            ("", "a directory"),
            ("no/", "a directory's name"),
        ] {
            let failure = write(&temp.0.join(name), b"x").unwrap_err();
            assert!(failure.to_string().contains(what), "{name}: {failure}");
        }
        let device = write(Path::new("/dev/zero"), b"x").unwrap_err();
        assert!(device.to_string().contains("a device"), "{device}");
        assert_eq!(temp.names(), ["dangling", "pipe", "socket"]);
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(write(&temp.0.join("no/such"), b"").unwrap_err().hint().contains("mkdir -p"));
    }
}
