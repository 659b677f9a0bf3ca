//! Room on each volume for what the plan and the policy put there, added up: two locations on one
//! volume share its room.

use super::machine::{Folder, Machine, Mount};
use super::plan::Plan;
use super::storage::{located, volume, volume_words};
use super::{Check, show};
use crate::policy::Policy;
use units::Bytes;

const RULE: &str = "preflight/free-space";

/// What is to be put on one volume.
struct Load<'a> {
    mount: &'a Mount,
    folder: &'a Folder,
    bytes: u64,
    parts: Vec<String>,
}

/// Judges every volume that something is asked of.
pub fn check(machine: &Machine, policy: &Policy, plan: Option<&Plan>, checks: &mut Vec<Check>) {
    let mut loads: Vec<Load> = Vec::new();
    for place in policy.storage.places() {
        let Some((bytes, part)) = wanted(place.key, policy, plan) else { continue };
        let here = located(machine, place.key).and_then(|folder| Ok((folder, volume(machine, folder)?)));
        let (folder, mount) = match here {
            Ok(both) => both,
            Err(why) => {
                let check = Check::pass(RULE, place.key, format!("`{}`: {why}", show::text(&place.path)), part);
                checks.push(check.unknown(format!("df -h {}", diag::quote::typed_bytes(place.path.as_bytes()))));
                continue;
            }
        };
        match loads.iter_mut().find(|load| load.mount.device == mount.device) {
            Some(load) => {
                load.bytes = load.bytes.saturating_add(bytes);
                load.parts.push(part);
            }
            None => loads.push(Load { mount, folder, bytes, parts: vec![part] }),
        }
    }
    checks.extend(loads.iter().map(judge));
}

/// Bytes a location needs, and of what: the policy's figure or the plan's, whichever is more.
fn wanted(key: &'static str, policy: &Policy, plan: Option<&Plan>) -> Option<(u64, String)> {
    let asked = policy.storage.free.get(key).map(|&bytes| (bytes, format!("{key} {} by the policy", Bytes(bytes))));
    let written = plan.filter(|_| key == "checkpoints").map(|plan| {
        let (count, one, all) = (plan.checkpoints, Bytes(plan.checkpoint), plan.checkpoint_space());
        let noun = if count == 1 { "checkpoint" } else { "checkpoints" };
        (all.0, format!("{key} {all} by the plan: {count} {noun} of {one}"))
    });
    asked.into_iter().chain(written).max_by_key(|(bytes, _)| *bytes)
}

fn judge(load: &Load) -> Check {
    let required = match load.parts.as_slice() {
        [one] => one.clone(),
        parts => format!("{} in all: {}", Bytes(load.bytes), parts.join("; ")),
    };
    let object = show::bytes(&load.mount.point);
    let volume = volume_words(load.mount);
    let word = diag::quote::typed_bytes(&load.mount.point);
    match &load.folder.space {
        Err(why) => Check::pass(RULE, object, format!("{volume}: {why}"), required).unknown(format!("df -h {word}")),
        Ok(space) => {
            let found = format!("{} free of {} on {volume}", Bytes(space.free), Bytes(space.total));
            let check = Check::pass(RULE, object, found, required);
            if space.free >= load.bytes {
                return check;
            }
            let short = Bytes(load.bytes - space.free);
            check
                .violation(format!("free {short}, name a larger volume, or keep fewer checkpoints (storage.keep_last)"))
        }
    }
}
