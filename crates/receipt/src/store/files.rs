//! The files of a store: written once, under the hash of what they hold. A file that does not hold what its name says
//! goes to `quarantine/` with the reason beside it, and is never removed.

use crate::canonical::sha256;
use ::store::{Failure, make_folders, set_aside, sync_folder, write};
use diag::{Blame, Finding, quote};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A folder of a store whose files are named by their hash.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    name: &'static str,
}

/// What a file turned out to be.
pub enum Content {
    /// What its name says.
    Whole(String),
    /// Something else, and why.
    Damaged(String),
    /// It is not there any more.
    Gone,
}

/// Digits of a name.
const DIGITS: usize = 64;

/// The hash in a file's name; none for every other name.
pub fn id_of(name: &str) -> Option<&str> {
    let id = name.strip_suffix(".json")?;
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (id.len() == DIGITS && id.bytes().all(is_digit)).then_some(id)
}

/// A refusal of the machine's, about a store.
pub fn refused(root: &Path, failure: &Failure) -> Finding {
    let message = format!("nothing was recorded: {failure}");
    let hint = format!("{}; --store DIR or SHARDWRIGHT_STORE names another store", failure.hint());
    Finding::error("receipt/store", Blame::Environment, root.display().to_string(), message).hint(hint)
}

impl Folder {
    pub fn new(root: &Path, name: &'static str) -> Folder {
        Folder { root: root.to_path_buf(), name }
    }

    pub fn path(&self) -> PathBuf {
        self.root.join(self.name)
    }

    pub fn file(&self, id: &str) -> PathBuf {
        self.path().join(format!("{id}.json"))
    }

    /// Names in it, sorted; none where there is no folder yet.
    pub fn ids(&self) -> Result<Vec<String>, Finding> {
        let refuse = |error: io::Error| {
            let message = format!("the store's `{}` cannot be listed: {error}", quote::shown(&self.path()));
            Finding::error("receipt/store", Blame::Environment, self.root.display().to_string(), message)
                .hint("--store DIR or SHARDWRIGHT_STORE names the store")
        };
        let entries = match fs::read_dir(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(refuse)?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(refuse)?.file_name();
            ids.extend(name.to_str().and_then(id_of).map(str::to_string));
        }
        ids.sort();
        Ok(ids)
    }

    /// A file, held to its name.
    pub fn read(&self, id: &str) -> Result<Content, Finding> {
        let bytes = match fs::read(self.file(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::Gone),
            Err(error) => {
                let message = format!("cannot read `{}`: {error}", quote::shown(&self.file(id)));
                return Err(Finding::error("receipt/store", Blame::Environment, id, message));
            }
            Ok(bytes) => bytes,
        };
        Ok(match sha256(&bytes) {
            hash if hash != id => Content::Damaged(format!("its hash is {hash}")),
            _ => {
                String::from_utf8(bytes).map_or_else(|_| Content::Damaged("it is no text".to_string()), Content::Whole)
            }
        })
    }

    /// Writes a text under its hash, durable when this returns. Whoever writes the same at the same time agrees.
    pub fn put(&self, id: &str, text: &str) -> Result<Put, Finding> {
        let refuse = |failure: Failure| refused(&self.root, &failure);
        let mut notes = Vec::new();
        make_folders(&self.path()).map_err(refuse)?;
        match self.read(id)? {
            Content::Whole(_) => {
                sync_folder(&self.path()).map_err(refuse)?;
                return Ok(Put { is_new: false, notes });
            }
            Content::Damaged(why) => notes.push(self.quarantine(id, &why)),
            Content::Gone => {}
        }
        write(&self.file(id), text.as_bytes()).map_err(refuse)?;
        Ok(Put { is_new: true, notes })
    }

    /// Moves a damaged file aside, and says so.
    pub fn quarantine(&self, id: &str, why: &str) -> Finding {
        let (from, aside) = (self.file(id), self.root.join("quarantine"));
        let note = |message: String| Finding::warning("receipt/damaged", Blame::Environment, id, message);
        let shown = quote::shown(&from);
        let moved = make_folders(&aside).and_then(|()| {
            // A name that is taken is one of before.
            for again in 0.. {
                let ending = if again == 0 { String::new() } else { format!(".{again}") };
                let to = aside.join(format!("{id}.json{ending}"));
                match set_aside(&from, &to) {
                    Err(Failure::Exists(_)) => continue,
                    other => return other.map(|()| to),
                }
            }
            unreachable!("names do not run out")
        });
        let to = match moved {
            Ok(to) => to,
            Err(failure) => return note(format!("`{shown}` is damaged ({why}) and stays where it is: {failure}")),
        };
        // Somebody may have put it back whole between the look and the move.
        if fs::read(&to).is_ok_and(|bytes| sha256(&bytes) == id) && why.starts_with("its hash is") {
            let _ = set_aside(&to, &from);
            return note(format!("`{shown}` was damaged, and somebody has written it again"));
        }
        let mut reason = to.clone().into_os_string();
        reason.push(".why");
        let _ = write(Path::new(&reason), format!("{why}\n").as_bytes());
        note(format!("`{shown}` is damaged ({why}): moved to `{}`", quote::shown(&to)))
            .hint("a copy of it elsewhere can be put back under the same name; `receipt rebuild` reads it in")
    }

    /// Puts back what is whole after all, as a process that was killed while it moved may have left it.
    pub fn restore(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("quarantine")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let back = |name: String| {
            let id = id_of(&name)?.to_string();
            let at = self.root.join("quarantine").join(&name);
            let is_whole = fs::read(&at).is_ok_and(|bytes| sha256(&bytes) == id);
            let why = self.root.join("quarantine").join(format!("{name}.why"));
            (is_whole && !why.exists() && set_aside(&at, &self.file(&id)).is_ok()).then_some(id)
        };
        names.filter_map(back).collect()
    }
}

/// What became of a write.
#[derive(Clone, Debug)]
pub struct Put {
    /// Whether it was not there before.
    pub is_new: bool,
    /// What a reader should know.
    pub notes: Vec<Finding>,
}
