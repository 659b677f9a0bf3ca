//! Files of `/proc`; the folder is a parameter so that tests can make one up.

use launch::policy::Limit;
use launch::preflight::machine::{Known, Listener, Mount, Process, Resource};
use launch::preflight::parse;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

fn bytes(path: &Path) -> Known<Vec<u8>> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// What is mounted.
pub fn mounts(proc: &Path) -> Known<Vec<Mount>> {
    Ok(parse::mountinfo(&bytes(&proc.join("self/mountinfo"))?))
}

/// Limits of this process.
pub fn limits(proc: &Path) -> Known<Vec<(Resource, Limit)>> {
    Ok(parse::limits(&bytes(&proc.join("self/limits"))?))
}

/// Bytes of memory, as the kernel counts them.
pub fn memory(proc: &Path) -> Known<u64> {
    let text = bytes(&proc.join("meminfo"))?;
    parse::memory_total(&text).ok_or_else(|| "meminfo does not say MemTotal".to_string())
}

/// Folders of processes, by number.
fn folders(proc: &Path) -> Known<Vec<(u32, PathBuf)>> {
    let entries = fs::read_dir(proc).map_err(|error| format!("cannot read {}: {error}", proc.display()))?;
    let numbered =
        entries.flatten().filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    let mut all: Vec<(u32, PathBuf)> = numbered.collect();
    all.sort_unstable();
    Ok(all)
}

/// Every process that has a command line: kernel threads and the dead have none. One that ends
/// while it is read is left out.
pub fn processes(proc: &Path) -> Known<Vec<Process>> {
    let read = |(pid, folder): (u32, PathBuf)| {
        let words = parse::command_line(&fs::read(folder.join("cmdline")).ok()?);
        let parent = parse::parent(&fs::read(folder.join("stat")).ok()?).unwrap_or(0);
        (!words.is_empty()).then_some(Process { pid, parent, words })
    };
    Ok(folders(proc)?.into_iter().filter_map(read).collect())
}

/// Sockets that accept connections, with who holds them where that may be read.
pub fn listeners(proc: &Path) -> Known<Vec<Listener>> {
    let mut all = parse::listeners(&bytes(&proc.join("net/tcp"))?);
    // A kernel without IPv6 has no second table.
    if let Ok(table) = bytes(&proc.join("net/tcp6")) {
        all.extend(parse::listeners(&table));
    }
    let owners = owners(proc);
    for listener in &mut all {
        listener.owner = owners.get(&listener.inode).copied();
    }
    Ok(all)
}

/// The process behind each socket, of those this user may look into.
fn owners(proc: &Path) -> HashMap<u64, u32> {
    let mut owners = HashMap::new();
    for (pid, folder) in folders(proc).unwrap_or_default() {
        for descriptor in fs::read_dir(folder.join("fd")).into_iter().flatten().flatten() {
            let link = fs::read_link(descriptor.path()).unwrap_or_default();
            if let Some(inode) = parse::socket_inode(link.as_os_str().as_encoded_bytes()) {
                owners.entry(inode).or_insert(pid);
            }
        }
    }
    owners
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_made_up_tree_is_read() {
        let root = std::env::temp_dir().join(format!("shardwright-proc-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["net", "self", "42/fd", "43", "44", "not-a-pid"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("self/mountinfo"), "1 0 8:1 / / rw - ext4 /dev/sda rw\n").unwrap();
        fs::write(root.join("net/tcp"), "head\n 0: 00000000:733C 0:0 0A 0:0 0:0 0 0 0 777 1\n").unwrap();
        fs::write(root.join("42/cmdline"), b"python3\0/x/pretrain_gpt.py\0--name\0$(x)\n\xff\0").unwrap();
        fs::write(root.join("42/stat"), "42 (pt main) S 7 1 1").unwrap();
        symlink("socket:[777]", root.join("42/fd/3")).unwrap();
        fs::write(root.join("43/cmdline"), "").unwrap();
        assert_eq!(mounts(&root).unwrap().len(), 1);
        let found = processes(&root).unwrap();
        assert_eq!(found.len(), 1, "kernel threads and what has gone are left out");
        assert_eq!((found[0].pid, found[0].parent), (42, 7));
        assert_eq!(found[0].words[3], b"$(x)\n\xff");
        assert_eq!(listeners(&root).unwrap(), [Listener { port: 29500, inode: 777, owner: Some(42) }]);
        assert!(limits(&root).unwrap_err().contains("cannot read"));
        fs::remove_dir_all(root).unwrap();
    }
}
