//! Where things are kept: not on the root volume, not in memory what must last, and writable.

use super::machine::{Access, Folder, FolderKind, Known, Located, Machine, Mount, Writable};
use super::volume::{Relation, relation, volume_of};
use super::{Check, show};
use crate::policy::{Keeps, Place, Policy};

const ROOT: &str = "preflight/root-volume";
const VOLATILE: &str = "preflight/volatile";
const WRITABLE: &str = "preflight/not-writable";

/// Judges every location.
pub fn check(machine: &Machine, policy: &Policy, checks: &mut Vec<Check>) {
    let places = policy.storage.places();
    if policy.storage.forbid_root_volume {
        checks.extend(places.iter().map(|place| root_volume(machine, place)));
    }
    checks.extend(places.iter().filter(|p| p.keeps == Keeps::Lasting).map(|place| volatile(machine, place)));
    checks.extend(places.iter().map(|place| writable(machine, place)));
}

/// A location as looked up.
pub fn located<'a>(machine: &'a Machine, key: &str) -> Known<&'a Folder> {
    let found = machine.places.iter().find(|located| located.key == key);
    let Some(Located { at, .. }) = found else { return Err("it was not looked up".to_string()) };
    at.as_ref().map_err(String::clone)
}

/// The volume of a location.
pub fn volume<'a>(machine: &'a Machine, folder: &Folder) -> Known<&'a Mount> {
    let mounts = machine.mounts.as_ref().map_err(String::clone)?;
    volume_of(mounts, &folder.existing).ok_or_else(|| "no mount holds it".to_string())
}

/// A volume in a few words: `/mnt/data (ext4 on /dev/sdb1)`.
pub fn volume_words(mount: &Mount) -> String {
    format!("`{}` ({} on {})", show::bytes(&mount.point), show::bytes(&mount.kind), show::bytes(&mount.source))
}

/// Where a place lies, with where links lead.
fn place_words(place: &Place, folder: &Folder, mount: &Mount) -> String {
    let (written, existing, volume) = (show::text(&place.path), show::bytes(&folder.existing), volume_words(mount));
    if !folder.missing.is_empty() {
        return format!("`{written}` does not exist; `{existing}`, where it would be made, is on {volume}");
    }
    let is_same = folder.existing == place.path.trim_end_matches('/').as_bytes();
    let link = if is_same { String::new() } else { format!(", which is `{existing}`,") };
    format!("`{written}`{link} is on {volume}")
}

/// Both the folder and its volume, or why not.
fn on<'a>(machine: &'a Machine, place: &Place) -> Known<(&'a Folder, &'a Mount)> {
    let folder = located(machine, place.key)?;
    Ok((folder, volume(machine, folder)?))
}

const FIND_OUT: &str = "look at it yourself: findmnt --target";

fn root_volume(machine: &Machine, place: &Place) -> Check {
    let required = "a volume other than the root's";
    let check = |found: String| Check::pass(ROOT, place.key, found, required);
    let (folder, mount) = match on(machine, place) {
        Ok(both) => both,
        Err(why) => {
            let fix = format!("{FIND_OUT} {}", diag::quote::typed_bytes(place.path.as_bytes()));
            return check(format!("`{}`: {why}", show::text(&place.path))).unknown(fix);
        }
    };
    let mounts = machine.mounts.as_deref().unwrap_or_default();
    let found = place_words(place, folder, mount);
    match relation(mounts, mount) {
        Relation::Root => check(found).violation("mount a volume there, or name a folder on one in [storage]"),
        Relation::BesideContainer => {
            let why = "the same device as this container's own files: probably the host's root volume";
            let fix = format!("on the host, look which volume is mounted at `{}`", show::bytes(&mount.point));
            check(format!("{found}, {why}")).unknown(fix)
        }
        Relation::Memory | Relation::Own => check(found),
    }
}

fn volatile(machine: &Machine, place: &Place) -> Check {
    let check = |found: String| Check::pass(VOLATILE, place.key, found, "a volume that outlives a restart");
    match on(machine, place) {
        Err(why) => {
            let fix = format!("{FIND_OUT} {}", diag::quote::typed_bytes(place.path.as_bytes()));
            check(format!("`{}`: {why}", show::text(&place.path))).unknown(fix)
        }
        Ok((folder, mount)) if super::volume::is_memory(mount) => {
            let found = format!("{}, which is memory", place_words(place, folder, mount));
            check(found).violation("name a folder on a disk or a shared file system in [storage]")
        }
        Ok((_, mount)) => check(volume_words(mount)),
    }
}

fn writable(machine: &Machine, place: &Place) -> Check {
    let check = |found: String| Check::pass(WRITABLE, place.key, found, "a folder that takes files");
    let path = show::text(&place.path);
    let folder = match located(machine, place.key) {
        Ok(folder) => folder,
        Err(why) => return check(format!("`{path}`: {why}")).violation("mend the path, and let this user reach it"),
    };
    let existing = format!("`{}`", show::bytes(&folder.existing));
    let word = diag::quote::typed_bytes(&folder.existing);
    if folder.kind == FolderKind::Other {
        let fix = format!("move it away, or set storage.{} to a folder", place.key);
        return check(format!("{existing} is no folder")).violation(fix);
    }
    if volume(machine, folder).is_ok_and(|mount| mount.access == Access::ReadOnly) {
        let fix = format!("mount it for writing, or set storage.{} to another volume", place.key);
        return check(format!("{existing} is mounted read-only")).violation(fix);
    }
    let missing = if folder.missing.is_empty() { "" } else { ", where the rest can be made" };
    match &folder.writable {
        Ok(Writable::Proven) => check(format!("{existing} took a file{missing}")),
        Ok(Writable::Allowed) => check(format!("{existing} may be written{missing}")),
        Ok(Writable::Refused(why)) => {
            check(format!("{existing} refuses: {why}")).violation(format!("let this user write: ls -ld {word}"))
        }
        Err(why) => check(format!("{existing}: {why}")).unknown("ask again with --write-probe"),
    }
}
