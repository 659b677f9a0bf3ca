//! Files: what seeds are read from, and checkpoints of which one file is not what it was.

use crate::root;
use checkpoint::{open, verify};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Every file of a folder of the project with this ending, in order.
pub fn text_files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap_or_default()).collect()
}

/// The file of a committed checkpoint that is replaced.
#[derive(Clone, Copy)]
pub enum Spoilt {
    /// What torch's distributed checkpoint says of itself: a pickle.
    Metadata,
    /// One of its files of tensors: a zip.
    Payload,
    /// A safetensors file that is a part of several tensors.
    Shard,
    /// The list of which file holds which tensor.
    Index,
}

impl Spoilt {
    fn at(self) -> (&'static str, &'static str) {
        match self {
            Spoilt::Metadata => ("dcp", ".metadata"),
            Spoilt::Payload => ("dcp", "__0_0.distcp"),
            Spoilt::Shard => ("shards", "shard-00002-model-00001-of-00001.safetensors"),
            Spoilt::Index => ("index", "model.safetensors.index.json"),
        }
    }

    /// The file as it should be.
    pub fn seeds(self) -> Vec<Vec<u8>> {
        let (folder, file) = self.at();
        vec![fs::read(root().join("data/checkpoints").join(folder).join(file)).unwrap_or_default()]
    }

    /// Opens and verifies the checkpoint with these bytes in the file's place.
    pub fn open(self, bytes: &[u8]) {
        let (name, file) = self.at();
        let folder = copies().join(name);
        fs::write(folder.join(file), bytes).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let findings = match open(&folder) {
            Ok(checkpoint) => verify(&checkpoint, None),
            Err(finding) => vec![finding],
        };
        assert!(findings.iter().all(|f| f.rule.starts_with("checkpoint/") && !f.message.is_empty()), "{findings:?}");
    }
}

/// Copies of the committed checkpoints that are this process's own.
fn copies() -> &'static PathBuf {
    static COPIES: OnceLock<PathBuf> = OnceLock::new();
    COPIES.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm");
        let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let to = base.join(format!("shardwright-fuzz-{}", std::process::id()));
        for name in ["dcp", "shards", "index"] {
            let _ = fs::create_dir_all(to.join(name));
            for entry in fs::read_dir(root().join("data/checkpoints").join(name)).into_iter().flatten().flatten() {
                let _ = fs::copy(entry.path(), to.join(name).join(entry.file_name()));
            }
        }
        to
    })
}
