//! What one call may read, and how it is stopped: nothing of it is typed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::Identity;

/// Files that a call may read and write.
#[derive(Clone, Debug, Default)]
pub enum Reads {
    /// Any, as a person at the keyboard may.
    #[default]
    Anything,
    /// Those below this folder, links followed; none is written.
    Below(PathBuf),
    /// None; none is written.
    Nothing,
}

/// How far a search is: done, of.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// One call.
#[derive(Clone, Default)]
pub struct Call {
    /// What may be read besides `texts`.
    pub reads: Reads,
    /// Recipes by the name the words call them: a recipe's text or a config.json.
    pub texts: BTreeMap<String, String>,
    /// Set by whoever no longer waits for the answer.
    pub stop: Arc<AtomicBool>,
    /// Told how far a search is.
    pub progress: Option<Progress>,
}

/// The call, and what it has come across.
#[derive(Clone, Default)]
struct Scope {
    call: Call,
    /// Files it has read or written, by what they are and not by name.
    touched: Vec<Identity>,
    /// Panics of this process before it began.
    panics: usize,
}

thread_local! {
    static SCOPE: RefCell<Scope> = RefCell::default();
}

/// Runs a call, and says whether it read a file; commands ask below what it may do.
pub fn scope<T>(call: Call, run: impl FnOnce() -> T) -> (T, bool) {
    let before = SCOPE.replace(Scope { call, touched: Vec::new(), panics: crate::panics::seen() });
    let out = run();
    let after = SCOPE.replace(before);
    (out, !after.touched.is_empty())
}

/// The text that this call gave a name.
pub fn text(name: &str) -> Option<String> {
    SCOPE.with_borrow(|scope| scope.call.texts.get(name).cloned())
}

/// Whether this call may read a file.
pub fn may_read(path: &Path) -> bool {
    SCOPE.with_borrow(|scope| match &scope.call.reads {
        Reads::Anything => true,
        Reads::Nothing => false,
        Reads::Below(folder) => path
            .canonicalize()
            .ok()
            .zip(folder.canonicalize().ok())
            .is_some_and(|(path, folder)| path.starts_with(folder)),
    })
}

/// Whether this call may write at all.
pub fn may_write() -> bool {
    SCOPE.with_borrow(|scope| matches!(scope.call.reads, Reads::Anything))
}

/// What whoever no longer waits sets.
pub fn stop() -> Arc<AtomicBool> {
    SCOPE.with_borrow(|scope| scope.call.stop.clone())
}

/// Whom to tell how far a search is.
pub fn progress() -> Option<Progress> {
    SCOPE.with_borrow(|scope| scope.call.progress.clone())
}

/// Remembers a file that this call has read or written.
pub fn touched(file: Option<Identity>) {
    SCOPE.with_borrow_mut(|scope| scope.touched.extend(file));
}

/// Whether it is a file that this call has read or written: an answer never overwrites one. Here and not in
/// every command, so that none can forget it.
pub fn is_touched(path: &Path) -> bool {
    Identity::at(path).is_some_and(|file| SCOPE.with_borrow(|scope| scope.touched.contains(&file)))
}

/// Panics of this process before this call.
pub fn panics_before() -> usize {
    SCOPE.with_borrow(|scope| scope.panics)
}
