//! Memory that this process may still take: what the kernel calls available, the control groups it runs
//! in, and its own limit on addresses; the least of them.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes, or nothing where the machine does not say. `proc` and `groups` are `/proc` and
/// `/sys/fs/cgroup`, or ones that a test made up.
pub fn memory(proc: &Path, groups: &Path) -> Option<u64> {
    [available(proc), in_groups(proc, groups), addresses(proc)].into_iter().flatten().min()
}

fn available(proc: &Path) -> Option<u64> {
    let text = read_to_string(proc.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What the tightest group leaves. A group's limit holds for everything below it, so that every folder on
/// the way up counts; page cache that is not in use is given back before anything is refused.
fn in_groups(proc: &Path, groups: &Path) -> Option<u64> {
    let listed = read_to_string(proc.join("self/cgroup")).ok()?;
    let mut least = None;
    for line in listed.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (root, version) = match controllers {
            "" => (groups.to_path_buf(), &V2),
            list if list.split(',').any(|c| c == "memory") => (groups.join("memory"), &V1),
            _ => continue,
        };
        // Inside a container the path is the host's; then the root is the container's own group.
        let own = root.join(path.trim_start_matches('/'));
        for folder in own.ancestors().take_while(|folder| folder.starts_with(&root)) {
            least = [least, version.left(folder)].into_iter().flatten().min();
        }
    }
    least
}

/// Names of a group's files.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Page cache that is not in use, in `memory.stat`.
    cache: &'static str,
}

const V2: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file " };
const V1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file " };

impl Files {
    fn left(&self, folder: &Path) -> Option<u64> {
        let number = |name: &str| read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        // `max` is no number: no limit here.
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|line| line.strip_prefix(self.cache)?.trim().parse::<u64>().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    }
}

/// What `ulimit -v` leaves.
fn addresses(proc: &Path) -> Option<u64> {
    let limits = read_to_string(proc.join("self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit = line.split_whitespace().next()?.parse::<u64>().ok()?;
    let status = read_to_string(proc.join("self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    Some(limit.saturating_sub(used.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_least_of_what_is_free_counts() {
        let root = std::env::temp_dir().join(format!("shardwright-free-{}", std::process::id()));
        let (proc, groups) = (root.join("proc"), root.join("groups"));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(memory(&proc, &groups), None);
        write("proc/meminfo", "MemTotal: 64 kB\nMemAvailable:      40 kB\n");
        assert_eq!(memory(&proc, &groups), Some(40 << 10));
        write("proc/self/cgroup", "5:cpu:/x\n0::/a/b\n");
        write("groups/a/b/memory.max", "max\n");
        write("groups/a/b/memory.current", "100\n");
        assert_eq!(memory(&proc, &groups), Some(40 << 10), "a group without a limit");
        write("groups/a/memory.max", "30000\n");
        write("groups/a/memory.current", "20000\n");
        write("groups/a/memory.stat", "anon 12000\ninactive_file 8000\n");
        assert_eq!(memory(&proc, &groups), Some(18_000), "a group above, less what it uses, cache apart");
        write("proc/self/cgroup", "4:cpu,memory:/c\n");
        write("groups/memory/c/memory.limit_in_bytes", "7000\n");
        write("groups/memory/c/memory.usage_in_bytes", "1000\n");
        assert_eq!(memory(&proc, &groups), Some(6000), "the first version's files");
        write("proc/self/limits", "Max address space         10240                unlimited            bytes\n");
        write("proc/self/status", "Name: x\nVmSize:\t       8 kB\n");
        assert_eq!(memory(&proc, &groups), Some(2048));
        fs::remove_dir_all(root).unwrap();
    }
}
