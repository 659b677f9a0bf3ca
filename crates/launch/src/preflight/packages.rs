//! What the plan's launch imports: the table that `launch.sh` checks too, with nothing imported here.

use super::machine::{Installed, Machine};
use super::{Check, show};

const RULE: &str = "preflight/packages";

/// Judges every package; one check where the machine did not say.
pub fn check(machine: &Machine, checks: &mut Vec<Check>) {
    match &machine.packages {
        Ok(found) => checks.extend(found.iter().map(judge)),
        Err(why) => {
            let check = Check::pass(RULE, "packages", why.clone(), "what the launch imports");
            checks.push(check.unknown("run `python3 packages.py` in the launch directory"));
        }
    }
}

fn judge(one: &Installed) -> Check {
    let check = Check::pass(RULE, show::text(&one.name), show::text(&one.found), show::text(&one.wanted));
    match one.state.as_str() {
        "ok" | "note" => check,
        _ => check.violation(show::text(&one.install)),
    }
}
