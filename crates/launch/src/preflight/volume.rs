//! On which volume a path lies, by the kernel's own walk over its mounts.

use super::machine::Mount;

/// Where the container engines put files of a container's own beside its layers (Docker's
/// `daemon/container_operations_unix.go` and the kubelet mount these three by default).
const OWN_FILES: [&[u8]; 3] = [b"/etc/hosts", b"/etc/hostname", b"/etc/resolv.conf"];

/// The mount a path lies on; symbolic links must be resolved before. The walk starts at the root
/// and steps onto whatever is mounted first on the way, so that a mount hidden under a later one is
/// not taken for the visible one.
pub fn volume_of<'a>(mounts: &'a [Mount], path: &[u8]) -> Option<&'a Mount> {
    let is_listed = |id: u64| mounts.iter().any(|mount| mount.id == id);
    let starts = |mount: &&Mount| mount.point == b"/" && (mount.parent == mount.id || !is_listed(mount.parent));
    let mut at = mounts.iter().find(starts)?;
    // Each step goes to another mount; more steps than mounts is a table that makes no sense.
    for _ in 0..mounts.len() {
        let onto = |mount: &&Mount| {
            mount.parent == at.id && mount.id != at.id && holds(&mount.point, path) && holds(&at.point, &mount.point)
        };
        match mounts.iter().filter(onto).min_by_key(|mount| mount.point.len()) {
            Some(next) => at = next,
            None => return Some(at),
        }
    }
    None
}

/// Whether a path is a folder or lies in it.
fn holds(folder: &[u8], path: &[u8]) -> bool {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// How a volume relates to the root volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is the root volume, or another mount of the same file system.
    Root,
    /// The root is a container's layers, and this volume holds other files the container engine
    /// keeps: probably the host's root, which cannot be seen from inside.
    BesideContainer,
    /// Memory, lost with the machine's power.
    Memory,
    /// A volume of its own.
    Own,
}

/// How the volume of a path relates to the root volume.
pub fn relation(mounts: &[Mount], volume: &Mount) -> Relation {
    let Some(root) = volume_of(mounts, b"/") else { return Relation::Own };
    if volume.id == root.id || volume.device == root.device {
        return Relation::Root;
    }
    if is_memory(volume) {
        return Relation::Memory;
    }
    let own_files = mounts.iter().filter(|mount| OWN_FILES.contains(&mount.point.as_slice()));
    if root.kind == b"overlay" && own_files.into_iter().any(|mount| mount.device == volume.device) {
        return Relation::BesideContainer;
    }
    Relation::Own
}

/// Whether a volume is memory.
pub fn is_memory(volume: &Mount) -> bool {
    matches!(volume.kind.as_slice(), b"tmpfs" | b"ramfs" | b"devtmpfs")
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// The id of the mount a path lies on.
    fn id(mounts: &[Mount], path: &str) -> Option<u64> {
        volume_of(mounts, path.as_bytes()).map(|mount| mount.id)
    }

    #[test]
    fn the_deepest_visible_mount_holds_a_path() {
        let mounts = parse::mountinfo(
            b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
              21 20 8:17 / /mnt rw - ext4 /dev/sdb1 rw\n\
              22 21 8:33 / /mnt/a rw - xfs /dev/sdc1 rw\n\
              23 20 8:49 / /mnt2 rw - xfs /dev/sdd1 rw\n\
              24 21 8:65 / /mnt rw - xfs /dev/sde1 rw\n",
        );
        assert_eq!(id(&mounts, "/"), Some(20));
        assert_eq!(id(&mounts, "/mntx"), Some(20));
        assert_eq!(id(&mounts, "/mnt2/x"), Some(23));
        // Mount 24 was put over /mnt later: /mnt/a (22) is hidden under it.
        assert_eq!(id(&mounts, "/mnt/a/b"), Some(24));
    }

    #[test]
    fn senseless_tables_end() {
        let circle = parse::mountinfo(b"1 2 8:1 / / rw - ext4 a rw\n2 1 8:1 / / rw - ext4 a rw\n");
        assert_eq!(id(&circle, "/x"), None);
        assert_eq!(id(&[], "/x"), None);
        let own_parent = parse::mountinfo(b"1 1 0:2 / / rw - rootfs rootfs rw\n");
        assert_eq!(id(&own_parent, "/x"), Some(1));
    }

    #[test]
    fn bind_mounts_of_the_root_are_the_root_and_containers_are_seen() {
        let mounts = parse::mountinfo(
            b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n21 20 8:1 /var/data /mnt/data rw - ext4 /dev/sda1 rw\n",
        );
        assert_eq!(relation(&mounts, volume_of(&mounts, b"/mnt/data/x").unwrap()), Relation::Root);
        let container = parse::mountinfo(
            b"500 400 0:99 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u\n\
              501 500 259:1 /var/lib/docker/containers/x/hosts /etc/hosts rw - ext4 /dev/nvme0n1p1 rw\n\
              502 500 259:1 /home/me/out /out rw - ext4 /dev/nvme0n1p1 rw\n\
              503 500 0:80 / /dev/shm rw - tmpfs shm rw\n\
              504 500 0:81 / /data rw - lustre mgs:/fs rw\n",
        );
        let of = |path: &[u8]| relation(&container, volume_of(&container, path).unwrap());
        assert_eq!(of(b"/tmp"), Relation::Root);
        assert_eq!(of(b"/out/checkpoints"), Relation::BesideContainer);
        assert_eq!(of(b"/dev/shm"), Relation::Memory);
        assert_eq!(of(b"/data/x"), Relation::Own);
    }
}
