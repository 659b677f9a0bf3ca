//! Everything that reads text or bytes of others, as a fuzzer calls it: bytes in, and a panic where
//! the reader breaks a promise. `fuzz/` drives these with libFuzzer, `tests/all.rs` with a few
//! thousand seeded changes of the corpus on every run of the tests.

mod files;
mod mutate;
mod readers;
mod request;

pub use mutate::Mutator;
pub use readers::READERS;

use std::path::PathBuf;

/// One reader.
pub struct Reader {
    /// Name of its target and of its folder in the corpus.
    pub name: &'static str,
    /// Reads, and panics where what was read or refused is not as promised.
    pub run: fn(&[u8]),
    /// What it reads when nobody attacks.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Reader {
    /// The reader of a target.
    pub fn find(name: &str) -> Option<&'static Reader> {
        READERS.iter().find(|reader| reader.name == name)
    }

    /// The seeds, and what fuzzing found to reach further.
    pub fn corpus(&self) -> Vec<Vec<u8>> {
        let mut all = (self.seeds)();
        let folder = root().join("fuzz/corpus").join(self.name);
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        found.sort();
        all.extend(found.into_iter().filter_map(|path| std::fs::read(path).ok()));
        all
    }
}

/// What a target does with an input.
pub fn run(name: &str, bytes: &[u8]) {
    let reader = Reader::find(name).unwrap_or_else(|| panic!("no reader is called `{name}`"));
    (reader.run)(bytes);
}

fn root() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", ".."].iter().collect()
}
