//! Where receipts are kept. Files are the truth: `receipts/ID.json`, each named by its own hash, written once and
//! never changed, and `retractions/`, which say what is no longer believed. `index.sqlite` is made of them, and made
//! again whenever it is missing, damaged or behind.
//!
//! Not here: what a receipt says (`record`), and who may be compared with whom.

mod files;
mod index;
mod row;

pub use row::{RETRACTION, Retraction, Row};

use crate::canonical::{canonical, sha256};
use crate::record::{Receipt, Superseded, Unread};
use diag::{Blame, Finding, quote};
use files::{Content, Folder};
use index::{Change, Closed, Index};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A store of receipts.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    receipts: Folder,
    retractions: Folder,
}

/// A receipt that was put in.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name.
    pub id: String,
    /// Whether it was not there before, under whichever time.
    pub is_new: bool,
    /// What a reader should know.
    pub notes: Vec<Finding>,
}

/// Every receipt, and what is no longer believed.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// By time recorded, then by name.
    pub rows: Vec<Row>,
    /// By name of the receipt that is no longer believed: which one is instead, and why.
    pub superseded: BTreeMap<String, (Option<String>, String)>,
    /// What a reader should know.
    pub notes: Vec<Finding>,
}

/// What looking at every file came to.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// Receipts that are what their name says.
    pub receipts: usize,
    /// Retractions likewise.
    pub retractions: usize,
    /// Receipts that were put back from quarantine.
    pub restored: Vec<String>,
    /// What was found.
    pub notes: Vec<Finding>,
}

impl Store {
    /// The store in a folder, which need not be there yet.
    pub fn at(root: &Path) -> Store {
        Store {
            root: root.to_path_buf(),
            receipts: Folder::new(root, "receipts"),
            retractions: Folder::new(root, "retractions"),
        }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Keeps a receipt: on return its file is on the disk under its name. One that says the same of its run as another
    /// is that one, whenever it was recorded. An index that cannot be written is noted, and made again by who can.
    pub fn put(&self, receipt: &Receipt) -> Result<Kept, Finding> {
        if let Some(id) = self.same(receipt) {
            return Ok(Kept { id, is_new: false, notes: Vec::new() });
        }
        let (text, id) = (receipt.text(), receipt.id());
        if let Err(Unread::Damaged(why) | Unread::Later(why)) = Receipt::read(&text) {
            let message = format!("this receipt would not read back: {why}");
            return Err(Finding::error("receipt/format", Blame::Bug, "receipt", message));
        }
        let put = self.receipts.put(&id, &text)?;
        let mut notes = put.notes;
        let change = Change { receipts: vec![Row::of(&id, receipt)], ..Change::default() };
        notes.extend(self.index(&change));
        Ok(Kept { id, is_new: put.is_new, notes })
    }

    /// The receipt that says the same, whenever it was recorded.
    fn same(&self, receipt: &Receipt) -> Option<String> {
        if !self.receipts.path().is_dir() {
            return None;
        }
        let ids = Index::open(&self.root).ok()?.saying(&receipt.content_sha256()).ok()?;
        ids.into_iter().find(|id| matches!(self.receipts.read(id), Ok(Content::Whole(_))))
    }

    /// Says that a receipt is no longer believed, and which one is instead.
    pub fn retract(&self, retraction: &Retraction) -> Result<Kept, Finding> {
        let text = retraction.text();
        let name = sha256(&text);
        let put = self.retractions.put(&name, &text)?;
        let mut notes = put.notes;
        let change = Change { retractions: vec![(name.clone(), retraction.clone())], ..Change::default() };
        notes.extend(self.index(&change));
        Ok(Kept { id: name, is_new: put.is_new, notes })
    }

    /// Changes the index; a note where that could not be done.
    fn index(&self, change: &Change) -> Option<Finding> {
        match Index::open(&self.root).and_then(|mut index| index.change(change)) {
            Ok(()) => None,
            Err(Closed::Damaged(why) | Closed::Refused(why)) => Some(behind(&why)),
        }
    }

    /// The one receipt whose name begins so.
    pub fn find(&self, prefix: &str) -> Result<(String, Receipt), Finding> {
        let refuse = |message: String, hint: &str| {
            Err(Finding::error("receipt/id", Blame::Usage, prefix, message).hint(hint.to_string()))
        };
        let shown = quote::terminal(prefix);
        let is_hex = prefix.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
        if prefix.is_empty() || !is_hex {
            return refuse(
                format!("`{shown}` is no beginning of a receipt's name"),
                "`shardwright receipt list` lists names",
            );
        }
        let ids: Vec<String> = self.receipts.ids()?.into_iter().filter(|id| id.starts_with(prefix)).collect();
        match ids.as_slice() {
            [id] => match self.load(id)? {
                Loaded::Whole(receipt) => Ok((id.clone(), *receipt)),
                Loaded::Not(finding) => Err(Finding { severity: diag::Severity::Error, ..finding }),
                Loaded::Gone => refuse(format!("receipt `{shown}` was moved while it was read"), "try again"),
            },
            [] => {
                let message = format!("there is no receipt `{shown}` in `{}`", quote::shown(&self.root));
                refuse(message, "`shardwright receipt list` lists names; --store DIR names another store")
            }
            many => {
                let names: Vec<&str> = many.iter().take(4).map(|id| &id[..id.len().min(prefix.len() + 6)]).collect();
                refuse(format!("`{shown}` begins {} receipts: {}", many.len(), names.join(", ")), "give more digits")
            }
        }
    }

    /// A receipt by its whole name; what is damaged is moved to quarantine.
    fn load(&self, id: &str) -> Result<Loaded, Finding> {
        Ok(match self.receipts.read(id)? {
            Content::Gone => Loaded::Gone,
            Content::Damaged(why) => Loaded::Not(self.receipts.quarantine(id, &why)),
            Content::Whole(text) => match Receipt::read(&text) {
                Ok(receipt) => Loaded::Whole(Box::new(receipt)),
                Err(Unread::Damaged(why)) => Loaded::Not(self.receipts.quarantine(id, &why)),
                Err(Unread::Later(schema)) => {
                    let message = format!("receipt `{id}` is `{schema}`, which this version does not read");
                    let note = Finding::warning("receipt/later", Blame::Environment, id, message);
                    Loaded::Not(note.hint("it is left where it is: read it with the version that wrote it"))
                }
            },
        })
    }

    /// Every receipt, the index brought up to the files first.
    pub fn list(&self) -> Result<Listed, Finding> {
        let mut notes = Vec::new();
        let index = self.open(&mut notes);
        let index = match index {
            Some(index) => index,
            None => return self.list_from_files(notes),
        };
        match self.listed(index, &mut notes) {
            Ok(listed) => Ok(Listed { notes, ..listed? }),
            Err(Closed::Damaged(why) | Closed::Refused(why)) => {
                notes.push(aside(&why));
                self.list_from_files(notes)
            }
        }
    }

    /// An index in memory, for a store that has none or can have none.
    fn list_from_files(&self, mut notes: Vec<Finding>) -> Result<Listed, Finding> {
        let listed = Index::in_memory().and_then(|index| self.listed(index, &mut notes));
        match listed {
            Ok(listed) => Ok(Listed { notes, ..listed? }),
            Err(Closed::Damaged(why) | Closed::Refused(why)) => {
                Err(Finding::error("receipt/index", Blame::Bug, "index", format!("no index in memory: {why}")))
            }
        }
    }

    /// The index on the disk, damaged ones removed; none where the store cannot be written.
    fn open(&self, notes: &mut Vec<Finding>) -> Option<Index> {
        if !self.root.is_dir() {
            return None;
        }
        let opened = || {
            let index = Index::open(&self.root)?;
            index.check()?;
            Ok(index)
        };
        let why = match opened() {
            Ok(index) => return Some(index),
            Err(Closed::Damaged(why)) => why,
            Err(Closed::Refused(why)) => {
                notes.push(aside(&why));
                return None;
            }
        };
        match Index::remove(&self.root).map(|()| opened()) {
            Ok(Ok(index)) => {
                notes.push(
                    Finding::note(
                        "receipt/index",
                        Blame::Environment,
                        "index",
                        format!("the index was damaged ({why})"),
                    )
                    .hint("it was made again from the files; nothing is lost"),
                );
                Some(index)
            }
            Ok(Err(Closed::Damaged(why) | Closed::Refused(why))) | Err(why) => {
                notes.push(aside(&why));
                None
            }
        }
    }

    /// Rows of an index that has what the files have.
    fn listed(&self, mut index: Index, notes: &mut Vec<Finding>) -> Result<Result<Listed, Finding>, Closed> {
        let known = index.names()?;
        let change = match self.difference(&known.0, &known.1, notes) {
            Ok(change) => change,
            Err(finding) => return Ok(Err(finding)),
        };
        if !change.is_empty() {
            index.change(&change)?;
        }
        let mut rows = index.rows()?;
        let mut superseded = BTreeMap::new();
        for row in &rows {
            if let (Some(old), Some(why)) = (&row.supersedes, &row.because) {
                superseded.insert(old.clone(), (Some(row.id.clone()), why.clone()));
            }
        }
        for retraction in index.retractions()? {
            superseded.insert(retraction.id, (retraction.with, retraction.because));
        }
        // Of one second, what was superseded came first.
        rows.sort_by_cached_key(|row| (row.recorded.clone(), !superseded.contains_key(&row.id), row.id.clone()));
        Ok(Ok(Listed { rows, superseded, notes: Vec::new() }))
    }

    /// What an index with these names lacks of the files, and has too much.
    fn difference(&self, ids: &Names, retracted: &Names, notes: &mut Vec<Finding>) -> Result<Change, Finding> {
        let (files, others) = (self.receipts.ids()?, self.retractions.ids()?);
        let mut change = Change::default();
        let gone = |known: &Names, there: &[String]| -> Vec<String> {
            known.iter().filter(|name| there.binary_search(name).is_err()).cloned().collect()
        };
        change.gone = gone(ids, &files);
        change.gone.extend(gone(retracted, &others));
        for id in files.iter().filter(|id| !ids.contains(*id)) {
            match self.load(id)? {
                Loaded::Whole(receipt) => change.receipts.push(Row::of(id, &receipt)),
                Loaded::Not(finding) => notes.push(finding),
                Loaded::Gone => {}
            }
        }
        for name in others.iter().filter(|name| !retracted.contains(*name)) {
            match self.retractions.read(name)? {
                Content::Whole(text) => match Retraction::read(&text) {
                    Ok(read) => change.retractions.push((name.clone(), read)),
                    Err(why) => notes.push(self.retractions.quarantine(name, &why)),
                },
                Content::Damaged(why) => notes.push(self.retractions.quarantine(name, &why)),
                Content::Gone => {}
            }
        }
        Ok(change)
    }

    /// Reads every file again and moves aside what is damaged; gives what an index is made of.
    fn look(&self) -> Result<(Looked, Change), Finding> {
        if !self.root.is_dir() {
            let message = format!("there is no store `{}`", quote::shown(&self.root));
            return Err(Finding::error("receipt/store", Blame::Usage, self.root.display().to_string(), message)
                .hint("--store DIR or SHARDWRIGHT_STORE names the store; `receipt record` makes one"));
        }
        for folder in [&self.receipts, &self.retractions] {
            ::store::clean(&folder.path(), |_| true);
        }
        let mut looked = Looked { restored: self.receipts.restore(), ..Looked::default() };
        let change = self.difference(&Names::new(), &Names::new(), &mut looked.notes)?;
        (looked.receipts, looked.retractions) = (change.receipts.len(), change.retractions.len());
        Ok((looked, Change { from_nothing: true, ..change }))
    }

    /// Holds every file to its name, and the index to the files; changes nothing but for what is damaged, which goes
    /// to quarantine.
    pub fn verify(&self) -> Result<Looked, Finding> {
        let (mut looked, wanted) = self.look()?;
        let held = Index::open(&self.root).and_then(|index| {
            index.check()?;
            Ok((index.rows()?, index.retractions()?.len()))
        });
        let why = match held {
            Ok((rows, retractions)) => {
                let is_same = rows == wanted.receipts && retractions == wanted.retractions.len();
                (!is_same).then(|| "it does not hold what the files hold".to_string())
            }
            Err(Closed::Damaged(why) | Closed::Refused(why)) => Some(why),
        };
        looked.notes.extend(why.map(|why| {
            Finding::note("receipt/index", Blame::Environment, "index", format!("the index is not up to date: {why}"))
                .hint("`shardwright receipt rebuild` makes it again; nothing is lost")
        }));
        Ok(looked)
    }

    /// Makes the index again, from nothing but the files.
    pub fn rebuild(&self) -> Result<Looked, Finding> {
        let (looked, change) = self.look()?;
        let refuse = |why: String| {
            let message = format!("the index could not be made again: {why}");
            Finding::error("receipt/index", Blame::Environment, "index", message)
                .hint("receipts are untouched, and are read without it; make the store writable for an index")
        };
        let made = || Index::open(&self.root).and_then(|mut index| index.change(&change));
        let made = match made() {
            Err(Closed::Damaged(_)) => {
                Index::remove(&self.root).map_err(refuse)?;
                made()
            }
            other => other,
        };
        match made {
            Ok(()) => Ok(looked),
            Err(Closed::Damaged(why) | Closed::Refused(why)) => Err(refuse(why)),
        }
    }

    /// Everything in the index as text, the same for the same files.
    pub fn dump(&self) -> Result<String, Finding> {
        let Listed { mut rows, .. } = self.list()?;
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        let line = |row: &Row| canonical(&serde_json::to_value(row).unwrap_or_default()) + "\n";
        let mut text: String = rows.iter().map(line).collect();
        let retractions = Index::open(&self.root).ok().and_then(|index| index.retractions().ok());
        text.extend(retractions.into_iter().flatten().map(|retraction| retraction.text()));
        Ok(text)
    }

    /// The last receipt of the same launch that this one goes on from: everything that it says of the run, this one
    /// says as well.
    pub fn earlier(&self, receipt: &Receipt) -> Option<Superseded> {
        let launch = receipt.identity.launch_id.as_deref()?;
        let listed = self.list().ok()?;
        let of_launch = listed.rows.iter().rev().filter(|row| row.launch_id.as_deref() == Some(launch));
        let mut standing = of_launch.filter(|row| !listed.superseded.contains_key(&row.id));
        standing.find_map(|row| {
            let Ok(Loaded::Whole(old)) = self.load(&row.id) else { return None };
            goes_on(&old, receipt).then(|| Superseded {
                id: row.id.clone(),
                reason: "the launch went on: this one has its steps and more".to_string(),
            })
        })
    }
}

type Names = std::collections::BTreeSet<String>;

/// A file, read.
enum Loaded {
    Whole(Box<Receipt>),
    /// No receipt, or one of a later version.
    Not(Finding),
    Gone,
}

/// Whether a receipt holds all that an earlier one of its launch holds.
fn goes_on(old: &Receipt, new: &Receipt) -> bool {
    let step = |step: &evidence::Step| {
        (step.attempt, step.number, step.seconds.map(f64::to_bits), step.loss.map(f64::to_bits))
    };
    let has: std::collections::BTreeSet<_> = new.evidence.steps.iter().map(step).collect();
    let ends = |receipt: &Receipt| receipt.evidence.events.len();
    old.kind == new.kind
        && old.evidence.steps.iter().all(|old| has.contains(&step(old)))
        && old.evidence.memory.iter().all(|held| {
            new.evidence.memory.iter().any(|now| (now.rank, now.kind, now.bytes) == (held.rank, held.kind, held.bytes))
        })
        && (ends(new), has.len()) > (ends(old), old.evidence.steps.len())
}

fn behind(why: &str) -> Finding {
    Finding::note("receipt/index", Blame::Environment, "index", format!("the index was not written: {why}"))
        .hint("the receipt itself is on the disk; `receipt list` reads it in")
}

fn aside(why: &str) -> Finding {
    Finding::note("receipt/index", Blame::Environment, "index", format!("the index on the disk is not used: {why}"))
        .hint("what is listed is read from the receipts themselves")
}
