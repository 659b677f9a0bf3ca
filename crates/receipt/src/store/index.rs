//! The index: SQLite over what the files say. Every row is made of one file, so that it can be made again at any time,
//! and nothing is lost with it.

use super::row::{Retraction, Row};
use ::store::{Guard, Sharing, lock, remove_derived};
use rusqlite::{Connection, ErrorCode, params};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of the tables below; another is made again.
const VERSION: i64 = 1;

/// How long a writer waits for another.
const PATIENCE: Duration = Duration::from_secs(20);

const TABLES: &str = "
    CREATE TABLE receipts (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, recorded TEXT NOT NULL, recipe TEXT NOT NULL,
        content_sha256 TEXT NOT NULL, launch_id TEXT, row TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX by_content ON receipts (content_sha256);
    CREATE TABLE retractions (name TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID;
";

/// An open index. While it is open nobody removes its file.
pub struct Index {
    connection: Connection,
    _guard: Option<Guard>,
}

/// Why there is no index on disk.
pub enum Closed {
    /// It is damaged, or of another version: it can be removed and made again.
    Damaged(String),
    /// It cannot be opened or written here.
    Refused(String),
}

impl Closed {
    fn of(error: rusqlite::Error) -> Closed {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged) => {
                Closed::Damaged(error.to_string())
            }
            // `no such table`, a column of another version.
            Some(ErrorCode::Unknown) | None => Closed::Damaged(error.to_string()),
            _ => Closed::Refused(error.to_string()),
        }
    }
}

type Result<T> = std::result::Result<T, Closed>;

fn place(root: &Path, name: &str) -> PathBuf {
    root.join(name)
}

impl Index {
    /// The index of a store, made where it is missing.
    pub fn open(root: &Path) -> Result<Index> {
        let guard = lock(&place(root, "index.lock"), Sharing::Shared, PATIENCE)
            .map_err(|failure| Closed::Refused(failure.to_string()))?
            .ok_or_else(|| Closed::Refused("it is being made again by another process".to_string()))?;
        // Switching to the write-ahead log does not wait for others, whatever the timeout.
        let until = Instant::now() + PATIENCE;
        loop {
            match Index::opened(&place(root, "index.sqlite")) {
                Err(error) if is_busy(&error) && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(Closed::of(error)),
                Ok((connection, VERSION)) => return Ok(Index { connection, _guard: Some(guard) }),
                Ok((_, version)) => return Err(Closed::Damaged(format!("its version is {version}, not {VERSION}"))),
            }
        }
    }

    fn opened(path: &Path) -> rusqlite::Result<(Connection, i64)> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let version = |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get(0));
        if version(&connection)? == 0 {
            let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            // Another process may have been first.
            if version(&transaction)? == 0 {
                transaction.execute_batch(TABLES)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            transaction.commit()?;
        }
        let version = version(&connection)?;
        Ok((connection, version))
    }

    /// An index in memory, for a store that cannot be written.
    pub fn in_memory() -> Result<Index> {
        let connection = Connection::open_in_memory().map_err(Closed::of)?;
        connection.execute_batch(TABLES).map_err(Closed::of)?;
        Ok(Index { connection, _guard: None })
    }

    /// Removes a damaged index, once nobody has it open; it is made again when it is next opened.
    pub fn remove(root: &Path) -> std::result::Result<(), String> {
        let alone =
            lock(&place(root, "index.lock"), Sharing::Alone, PATIENCE).map_err(|failure| failure.to_string())?;
        let _alone = alone.ok_or("other processes have it open")?;
        // The log first: without the file it belongs to it would be taken for the next one's.
        for name in ["index.sqlite-wal", "index.sqlite-shm", "index.sqlite"] {
            remove_derived(&place(root, name)).map_err(|failure| failure.to_string())?;
        }
        Ok(())
    }

    /// Whether every page of it holds together.
    pub fn check(&self) -> Result<()> {
        let said: String =
            self.connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(Closed::of)?;
        if said == "ok" { Ok(()) } else { Err(Closed::Damaged(said)) }
    }

    /// Names of receipts and of retractions in it.
    pub fn names(&self) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let of = |query: &str| {
            let mut statement = self.connection.prepare(query)?;
            statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<String>>>()
        };
        let both = of("SELECT id FROM receipts").and_then(|ids| Ok((ids, of("SELECT name FROM retractions")?)));
        both.map_err(Closed::of)
    }

    /// Puts rows in and takes names out, all or nothing.
    pub fn change(&mut self, change: &Change) -> Result<()> {
        self.changed(change).map_err(Closed::of)
    }

    fn changed(&mut self, change: &Change) -> rusqlite::Result<()> {
        let all = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        if change.from_nothing {
            all.execute_batch("DELETE FROM receipts; DELETE FROM retractions")?;
        }
        for id in &change.gone {
            all.execute("DELETE FROM receipts WHERE id = ?1", params![id])?;
            all.execute("DELETE FROM retractions WHERE name = ?1", params![id])?;
        }
        for row in &change.receipts {
            let words = serde_json::to_value(row.kind).unwrap_or_default();
            let values = params![
                row.id,
                words.as_str().unwrap_or_default(),
                row.recorded,
                row.recipe,
                row.content_sha256,
                row.launch_id,
                serde_json::to_string(row).unwrap_or_default()
            ];
            all.execute("INSERT OR REPLACE INTO receipts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", values)?;
        }
        for (name, retraction) in &change.retractions {
            all.execute("INSERT OR REPLACE INTO retractions VALUES (?1, ?2)", params![name, retraction.text()])?;
        }
        all.commit()
    }

    /// Every receipt, in the order of names.
    pub fn rows(&self) -> Result<Vec<Row>> {
        self.read("SELECT row FROM receipts ORDER BY id", &[])
    }

    /// Names of receipts that say the same of their run.
    pub fn saying(&self, content: &str) -> Result<Vec<String>> {
        let rows: Vec<Row> = self.read("SELECT row FROM receipts WHERE content_sha256 = ?1 ORDER BY id", &[content])?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Every retraction, in the order of names.
    pub fn retractions(&self) -> Result<Vec<Retraction>> {
        self.read("SELECT row FROM retractions ORDER BY name", &[])
    }

    fn read<T: serde::de::DeserializeOwned>(&self, query: &str, values: &[&str]) -> Result<Vec<T>> {
        let mut statement = self.connection.prepare(query).map_err(Closed::of)?;
        let texts = statement
            .query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(0))
            .and_then(Iterator::collect::<rusqlite::Result<Vec<String>>>)
            .map_err(Closed::of)?;
        let read = |text: &String| serde_json::from_str(text).map_err(|error| Closed::Damaged(error.to_string()));
        texts.iter().map(read).collect()
    }
}

/// What is to be done to an index at once.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Whether what is in it goes first.
    pub from_nothing: bool,
    /// Names whose file is gone.
    pub gone: Vec<String>,
    /// Receipts to put in.
    pub receipts: Vec<Row>,
    /// Retractions to put in, by the name of their file.
    pub retractions: Vec<(String, Retraction)>,
}

impl Change {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.from_nothing && self.gone.is_empty() && self.receipts.is_empty() && self.retractions.is_empty()
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
