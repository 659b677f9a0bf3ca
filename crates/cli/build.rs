//! The version with the commit it is built from: git's where this is a checkout, that of the file `COMMIT` where it
//! is a source archive, none otherwise.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let archived = root.join("COMMIT");
    // A file to watch that is not there would have cargo build anew every time.
    let watch = |file: &Path| {
        if file.exists() {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    };
    println!("cargo:rerun-if-changed=build.rs");
    watch(&archived);
    let git = |words: &[&str]| {
        let out = Command::new("git").arg("-C").arg(&root).args(words).output().ok()?;
        out.status
            .success()
            .then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
            .filter(|said| !said.is_empty())
    };
    // A checkout inside somebody else's repository has their commits.
    let is_ours = || git(&["ls-files", "crates/cli/build.rs"]).is_some();
    let commit = std::fs::read_to_string(&archived).ok().map(|text| text.trim().to_string());
    let commit = commit
        .filter(|text| !text.is_empty())
        .or_else(|| is_ours().then(|| git(&["rev-parse", "--short=12", "HEAD"]))?);
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        watch(&root.join(log));
    }
    let version = env!("CARGO_PKG_VERSION");
    let version = commit.map_or(version.to_string(), |commit| format!("{version} ({commit})"));
    println!("cargo:rustc-env=SHARDWRIGHT_VERSION={version}");
}
