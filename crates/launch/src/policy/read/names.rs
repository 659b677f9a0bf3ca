//! Words of a policy that name something: paths, hosts, variables, what schedulers take on a line. What
//! would mean something else where it ends up is refused here.

use crate::policy::Environment;
use crate::preflight::show;
use diag::{Blame, Finding};
use reading::Section;
use std::net::{Ipv4Addr, Ipv6Addr};

fn refuse(section: &Section, rule: diag::RuleId, key: &'static str, message: String, hint: &str) {
    section.report(key, Finding::error(rule, Blame::Environment, key, message).hint(hint));
}

/// A text that says something.
pub fn filled(section: &mut Section, key: &'static str) -> Option<String> {
    let text = section.text(key)?;
    if !text.is_empty() {
        return Some(text.to_string());
    }
    refuse(section, "policy/name", key, format!("`{key}` is empty"), "leave it out, or say something");
    None
}

/// A name a scheduler takes on a line of its own.
pub fn optional_word(section: &mut Section, key: &'static str) -> Option<String> {
    let word = section.text(key)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return Some(word.to_string());
    }
    let message = format!("`{key}` is `{}`, no plain name", show::text(word));
    refuse(section, "policy/name", key, message, "letters, digits, `_`, `.` and `-` only");
    None
}

/// A path from the root, since what it is relative to would be another folder on another node.
pub fn optional_path(section: &mut Section, key: &'static str) -> Option<String> {
    let path = section.text(key)?;
    if path.starts_with('/') {
        return Some(path.to_string());
    }
    let message = format!("`{key}` is `{}`, no path from /", show::text(path));
    refuse(section, "policy/path", key, message, "write the whole path: it must mean the same on every node");
    None
}

pub fn path_or(section: &mut Section, key: &'static str, default: String) -> String {
    optional_path(section, key).unwrap_or(default)
}

/// Words that stand on an engine's or a starter's command line, where a leading dash is an option.
pub fn arguments(section: &Section, key: &'static str, words: &[String]) {
    for word in words.iter().filter(|word| word.starts_with('-') || word.is_empty()) {
        let message =
            format!("`{key}` has `{}`, which a command line takes for an option or for nothing", show::text(word));
        refuse(section, "policy/name", key, message, "a path may begin with `./`");
    }
}

/// One such word.
pub fn argument(section: &mut Section, key: &'static str) -> Option<String> {
    let word = section.text(key)?.to_string();
    arguments(section, key, std::slice::from_ref(&word));
    Some(word)
}

/// A host of the rendezvous: a name, an IPv4 address, or an IPv6 address with or without its brackets.
pub fn host(section: &mut Section, key: &'static str) -> Option<String> {
    let typed = section.text(key)?;
    match host_of(typed) {
        Ok(host) => Some(host),
        Err((why, hint)) => {
            refuse(section, "policy/host", key, format!("`{key}` is `{}`, {why}", show::text(typed)), hint);
            None
        }
    }
}

/// A host as it stands in front of its port, or why it is none.
fn host_of(typed: &str) -> Result<String, (&'static str, &'static str)> {
    let bare = typed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = bare.unwrap_or(typed);
    if inner.contains('%') {
        // torch 2.15, distributed/elastic/rendezvous/utils.py: hosts are `^[\w\.:-]+$`.
        return Err(("an address with a zone, which torchrun does not take", LINK_LOCAL));
    }
    if let Ok(address) = inner.parse::<Ipv6Addr>() {
        return match address.is_unicast_link_local() {
            // Connecting is refused by the kernel (EINVAL) where no zone says which interface is meant.
            true => Err(("an address of one link, which means nothing without its interface", LINK_LOCAL)),
            false => Ok(format!("[{address}]")),
        };
    }
    let is_label = |label: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        !label.is_empty() && label.len() <= 63 && label.chars().all(is_plain) && !label.starts_with('-')
    };
    let is_number = |label: &str| label.chars().all(|c| c.is_ascii_digit());
    let is_name = bare.is_none() && typed.len() <= 253 && typed.trim_end_matches('.').split('.').all(is_label);
    if !is_name {
        return Err((
            "no name and no address of a host",
            "a name, an IPv4 address, or an IPv6 address as `[fd00::7]`; the port is `job.port`",
        ));
    }
    // A last label of digits is an address to every resolver (RFC 1123, 2.1).
    let is_address = typed.trim_end_matches('.').rsplit('.').next().is_some_and(is_number);
    if is_address && typed.parse::<Ipv4Addr>().is_err() {
        return Err(("no IPv4 address", "four numbers of at most 255, or a name"));
    }
    Ok(typed.to_string())
}

const LINK_LOCAL: &str = "name the host, or give an address that is routed: `fd00::7`";

/// Variables that bash gives values of its own: what is set does not arrive, or ends the script
/// (bash 5.2 manual, "Bash Variables"; the first six are readonly).
const SHELLS_OWN: &[&str] = &[
    "BASHOPTS",
    "BASH_VERSINFO",
    "EUID",
    "PPID",
    "SHELLOPTS",
    "UID",
    "BASH",
    "BASHPID",
    "BASH_ALIASES",
    "BASH_ARGC",
    "BASH_ARGV",
    "BASH_ARGV0",
    "BASH_CMDS",
    "BASH_COMMAND",
    "BASH_LINENO",
    "BASH_REMATCH",
    "BASH_SOURCE",
    "BASH_SUBSHELL",
    "BASH_VERSION",
    "COPROC",
    "DIRSTACK",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "FUNCNAME",
    "GROUPS",
    "HISTCMD",
    "LINENO",
    "OLDPWD",
    "OPTARG",
    "OPTIND",
    "PIPESTATUS",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHLVL",
    "SRANDOM",
    "_",
];

/// Variables that change how any shell reads or starts a script, `launch.sh` among them.
const CHANGES_SCRIPTS: &[&str] = &[
    "BASH_COMPAT",
    "BASH_ENV",
    "BASH_LOADABLES_PATH",
    "BASH_XTRACEFD",
    "CDPATH",
    "ENV",
    "EXECIGNORE",
    "FUNCNEST",
    "GLOBIGNORE",
    "GLOBSORT",
    "IFS",
    "POSIXLY_CORRECT",
    "PS4",
    "TMOUT",
];

/// Variables that `launch.sh` sets; a test compares them with the script.
const SCRIPTS_OWN: &[&str] = &[
    "JAX_COORDINATOR_IP",
    "JAX_COORDINATOR_PORT",
    "NNODES",
    "NODE_RANK",
    "RDZV_HOST",
    "SHARDWRIGHT_CHECKPOINTS",
    "SHARDWRIGHT_ENGINE",
    "SHARDWRIGHT_LAUNCH_ID",
    "SHARDWRIGHT_LOGS",
    "adopts",
    "attempts",
    "cause",
    "child",
    "ended",
    "ended_with",
    "engine_root",
    "first",
    "folder",
    "found",
    "free",
    "held",
    "here",
    "host",
    "identity",
    "interpreter",
    "log",
    "mine",
    "needed",
    "node",
    "place",
    "places",
    "program",
    "python",
    "restarts",
    "signal",
    "started",
    "starter",
    "state",
    "status",
    "summary",
    "tee",
    "watcher",
];

/// Why a variable cannot be carried, and what does the same.
fn uncarried(name: &str, value: &str) -> Option<(&'static str, &'static str)> {
    let is_path = |folder: &str| folder.starts_with('/');
    match name {
        "RDZV_HOST" => Some(("launch.sh sets it", "say `job.host`")),
        "JAX_COORDINATOR_PORT" => Some(("launch.sh sets it", "say `job.port`")),
        "SHARDWRIGHT_ENGINE" => Some(("launch.sh sets it", "say `job.engine_root`")),
        name if SCRIPTS_OWN.contains(&name) => Some(("launch.sh sets it", "take it out: every node has its own")),
        name if SHELLS_OWN.contains(&name) => Some(("bash gives it a value of its own", "take it out")),
        name if CHANGES_SCRIPTS.contains(&name) => {
            Some(("it changes how shells read launch.sh", "take it out; what the image or a profile does stays there"))
        }
        // Values are not expanded: `$PATH` would be a folder of that name.
        "PATH" if !value.split(':').all(is_path) => Some((
            "its folders are not all from /",
            "write every folder out, /usr/bin among them: values are not expanded",
        )),
        name if name.starts_with("BASH_FUNC_") => Some(("bash takes it for a function", "take it out")),
        _ => None,
    }
}

/// Names of variables, wherever they stand, and whether those that are set arrive.
pub fn variables(section: &Section, environment: &Environment) {
    let lists = [("required", &environment.required), ("forbidden", &environment.forbidden)];
    let listed = lists.into_iter().flat_map(|(key, names)| names.iter().map(move |name| (key, name)));
    let maps = [("set", &environment.set), ("expected", &environment.expected)];
    let mapped = maps.into_iter().flat_map(|(key, names)| names.keys().map(move |name| (key, name)));
    for (key, name) in listed.chain(mapped).filter(|(_, name)| !is_variable(name)) {
        let message = format!("`{}` is no name of a variable", show::text(name));
        refuse(section, "policy/name", key, message, "letters, digits and `_`, no digit first");
    }
    for (name, value) in &environment.set {
        if let Some((why, hint)) = uncarried(name, value) {
            let message = format!("`{}` cannot be set: {why}", show::text(name));
            refuse(section, "policy/variable", "set", message, hint);
        }
    }
}

/// Whether a shell and every process take it as a variable's name.
fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    #[test]
    fn hosts_are_what_they_say() {
        let host = |text: &str| host_of(text).map_err(|(why, _)| why);
        for (typed, read) in [
            ("node_0", "node_0"),
            ("gpu-01.cluster.local", "gpu-01.cluster.local"),
            ("10.0.0.7", "10.0.0.7"),
            ("::1", "[::1]"),
            ("[::1]", "[::1]"),
            ("2001:db8:0:0::7", "[2001:db8::7]"),
        ] {
            assert_eq!(host(typed).as_deref(), Ok(read));
        }
        for typed in ["", "a b", "$(x)", "-x", "a:29500", "[node]", "[::1]:29500", "a..b", "256.0.0.1", "1.2.3", "é"] {
            assert!(host(typed).is_err(), "{typed}");
        }
        assert!(host("fe80::1").unwrap_err().contains("interface"));
        assert!(host("fe80::1%eth0").unwrap_err().contains("zone"));
    }

    #[test]
    fn variables_that_do_not_arrive_are_refused() {
        let rule = |name: &str, value: &str| {
            let text = format!("[environment.set]\n\"{name}\" = \"{value}\"\n");
            Policy::parse(&text).map_err(|findings| findings[0].rule)
        };
        for name in SHELLS_OWN.iter().chain(CHANGES_SCRIPTS).chain(SCRIPTS_OWN) {
            assert_eq!(rule(name, "/x").unwrap_err(), "policy/variable", "{name}");
        }
        for name in ["A-B", "1A", "", "A=B", "BASH_FUNC_x%%"] {
            assert_eq!(rule(name, "x").unwrap_err(), "policy/name", "{name}");
        }
        for path in ["/opt/bin:$PATH", "", ".", "/usr/bin:"] {
            assert_eq!(rule("PATH", path).unwrap_err(), "policy/variable", "{path}");
        }
        for (name, value) in [
            ("PATH", "/opt/bin:/usr/bin"),
            ("LD_PRELOAD", "libjemalloc.so"),
            ("PYTHONPATH", "/x"),
            ("NCCL_DEBUG", "INFO"),
        ] {
            assert!(rule(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        let rule = |text: &str| Policy::parse(text).unwrap_err()[0].rule;
        for hidden in ["\\u0000", "\\n", "\\u001b[2J", "\\u202e"] {
            for text in [
                format!("[data]\ntokenizer = \"a{hidden}\""),
                format!("[data]\npaths = [\"a{hidden}\"]"),
                format!("[environment.set]\nA = \"a{hidden}\""),
                format!("[job]\nname = \"a{hidden}\""),
                format!("[job]\nengine_root = \"/a{hidden}\""),
                format!("[storage]\nlogs = \"/a{hidden}\""),
                format!("[seams]\nmodel = \"a{hidden}\""),
                format!("[pins]\ntorch = \"a{hidden}\""),
                format!("[tuned.\"a{hidden}\"]\nsource = \"b\""),
                format!("[kubernetes]\nnode_selector = {{ a = \"{hidden}\" }}"),
                format!("[slurm]\ncontainer_mounts = [\"/a{hidden}:/b\"]"),
            ] {
                assert_eq!(rule(&text), "policy/text", "{text}");
            }
        }
        assert_eq!(rule("[data]\ntokenizer = \"--exit-interval\""), "policy/name");
        assert_eq!(rule("[data]\npaths = [\"-x\"]"), "policy/name");
        assert_eq!(rule("[job]\nscript = \"-m\""), "policy/name");
        assert!(Policy::parse("[run]\nengine_args = \"\"\"\n--a 1\n\t--b 2\"\"\"\n").is_ok());
    }
}
