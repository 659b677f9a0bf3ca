//! Claims: how a living writer is told from one that was killed.

use crate::sys::{self, Lock};
use crate::{Failure, stale};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const ENDING: &str = ".shardwright";

/// Digits of a token.
const DIGITS: usize = 32;

/// Characters of a target's name that its claim repeats, so that a long one has a name as well.
const MOST: usize = 40;

/// A file that this process made and has locked, where the file system has locks.
#[derive(Debug)]
pub struct Claim {
    pub file: File,
    pub path: PathBuf,
    /// Whether it goes with this value: not when it has become the target, or guards what could not be removed.
    pub goes: bool,
}

/// What claims of a target are called after.
pub fn label(name: &OsStr) -> OsString {
    name.to_string_lossy().chars().take(MOST).collect::<String>().into()
}

/// The label a claim's name holds; `None` for every other name.
pub fn label_of(name: &str) -> Option<&str> {
    let (label, token) = name.strip_prefix('.')?.strip_suffix(ENDING)?.rsplit_once('.')?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (token.len() == DIGITS && token.bytes().all(is_digit)).then_some(label)
}

/// The directory that is written under a claim.
pub fn directory_of(claim: &Path) -> PathBuf {
    let mut name = claim.as_os_str().to_owned();
    name.push(".d");
    name.into()
}

impl Claim {
    /// A new one in a target's folder.
    pub fn beside(target: &Path) -> io::Result<Claim> {
        let label = label(target.file_name().unwrap_or_default());
        // Once in practice: somebody who cleans up may see the file before it is locked, and take it.
        for _ in 0..64 {
            let mut name = OsString::from(".");
            name.push(&label);
            name.push(format!(".{}{ENDING}", sys::token()?));
            let path = target.with_file_name(name);
            let file = match sys::create_new(&path, 0o666) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            let claim = Claim { file, path, goes: true };
            if sys::lock(&claim.file) != Lock::Taken && sys::is_at(&claim.file, &claim.path) {
                return Ok(claim);
            }
        }
        Err(io::Error::other("every new file was taken away at once"))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.goes && sys::is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a file of so many bytes into a folder, through to the disk so that a full quota shows, and
/// removes it.
pub fn probe(folder: &Path, bytes: usize) -> Result<(), Failure> {
    let target = folder.join("probe");
    stale::clean(folder, |label| label == "probe");
    let mut claim = Claim::beside(&target).map_err(Failure::of("write into", folder))?;
    let written = claim.file.write_all(&vec![0; bytes]).and_then(|()| claim.file.sync_all());
    written.map_err(Failure::of("write into", folder))?;
    claim.goes = false;
    fs::remove_file(&claim.path).map_err(Failure::of("remove what was written into", folder))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A folder of a test's own, removed at its end.
    pub struct Temp(pub PathBuf);

    impl Temp {
        pub fn new(name: &str) -> Temp {
            let path = std::env::temp_dir().join(format!("shardwright-store-{name}-{}", sys::token().unwrap()));
            fs::create_dir(&path).unwrap();
            Temp(path.canonicalize().unwrap())
        }

        pub fn names(&self) -> Vec<String> {
            let all = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = all.collect();
            names.sort();
            names
        }
    }

    impl Drop for Temp {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_of_claims_and_of_nothing_else() {
        let temp = Temp::new("names");
        let long = "é".repeat(120);
        for name in ["a", "a.b.c", ".hidden", "x.shardwright", &long] {
            let claim = Claim::beside(&temp.0.join(name)).unwrap();
            let at = claim.path.file_name().unwrap().to_str().unwrap().to_string();
            assert_eq!(label_of(&at).map(OsStr::new), Some(label(OsStr::new(name)).as_os_str()), "{at}");
            assert!(directory_of(&claim.path).file_name().unwrap().len() <= 255);
        }
        assert_eq!(temp.names(), [""; 0], "a claim goes with its writer");
        let token = "0".repeat(DIGITS);
        for name in ["a".to_string(), ".a.shardwright".to_string(), format!(".a.{token}"), format!("a.{token}{ENDING}")]
        {
            assert_eq!(label_of(&name), None, "{name}");
        }
        assert_eq!(label_of(&format!(".a.{}{ENDING}", "G".repeat(DIGITS))), None);
    }

    /// What a cleaner took before it was locked is not held on to.
    #[test]
    fn a_claim_that_was_taken_away_removes_nobody_elses() {
        let temp = Temp::new("taken");
        let claim = Claim::beside(&temp.0.join("x")).unwrap();
        fs::remove_file(&claim.path).unwrap();
        fs::write(&claim.path, "a stranger's").unwrap();
        let path = claim.path.clone();
        drop(claim);
        assert_eq!(fs::read(&path).unwrap(), b"a stranger's");
    }
}
