//! What one launch consists of: arguments, environment, files, seams and the command, each with
//! where it came from.

use diag::quote;
use layout::Engine;
use recipe::{Mode, Seam};
use serde::Serialize;

/// Where an emitted value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The recipe says it: what the model is.
    RecipeNative,
    /// A mode says it: a built-in block with these values stands where the recipe has another.
    Mode,
    /// A patch point: what runs is not what the engine has built in.
    RuntimePatch,
    /// The layout says it: how the model is split.
    Layout,
    /// The storage, data or run policy says it, or the engine needs it to be said.
    Policy,
}

impl Kind {
    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::RecipeNative => "recipe-native",
            Kind::Mode => "mode",
            Kind::RuntimePatch => "runtime-patch",
            Kind::Layout => "layout",
            Kind::Policy => "policy",
        }
    }
}

/// One argument, or one key of an engine's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Argument {
    /// The option as the engine spells it: `--tensor-model-parallel-size`, `zero_optimization.stage`.
    pub flag: String,
    /// Its values; none for a switch.
    pub values: Vec<String>,
    /// The plan field it came from.
    pub from: String,
    /// The rule or reason.
    pub why: String,
    /// Whose word it is.
    pub kind: Kind,
}

impl Argument {
    /// A switch, or an option with values to be added.
    pub fn new(kind: Kind, flag: impl Into<String>, from: impl Into<String>, why: impl Into<String>) -> Argument {
        Argument { flag: flag.into(), values: Vec::new(), from: from.into(), why: why.into(), kind }
    }

    /// Adds a value.
    pub fn value(mut self, value: impl ToString) -> Argument {
        self.values.push(value.to_string());
        self
    }

    /// The words on a command line.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.flag.as_str()).chain(self.values.iter().map(String::as_str))
    }
}

/// An environment variable the run needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Why it is set.
    pub why: String,
}

impl EnvVar {
    /// A variable with its reason.
    pub fn new(name: impl Into<String>, value: impl ToString, why: impl Into<String>) -> EnvVar {
        EnvVar { name: name.into(), value: value.to_string(), why: why.into() }
    }
}

/// A file of the launch, below its directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct File {
    /// Path below the launch directory; plain components only.
    pub path: String,
    /// What it holds.
    pub contents: String,
    /// Whether it is to be run.
    pub executable: bool,
}

impl File {
    /// A file that is read.
    pub fn new(path: impl Into<String>, contents: impl Into<String>) -> File {
        File { path: path.into(), contents: contents.into(), executable: false }
    }

    /// A file that is run.
    pub fn script(path: impl Into<String>, contents: impl Into<String>) -> File {
        File { executable: true, ..File::new(path, contents) }
    }
}

/// What starts the processes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Starter {
    /// `torchrun`, one process a device.
    Torchrun,
    /// `python3`, one process a node that drives all its devices, as JAX and torch_xla SPMD do.
    Python,
}

/// The variable that names the folder of an engine's sources, for a launch and for a probe.
pub const ENGINE: &str = "SHARDWRIGHT_ENGINE";

/// Sources of an engine that no package installs. Where the policy names no folder, `launch.sh` looks for the script in
/// the variable, the Python path and the places that images have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Checkout {
    /// What it is, with its version.
    pub what: &'static str,
    /// The variable that names its folder.
    pub variable: &'static str,
    /// The script that shows that a folder is it.
    pub script: &'static str,
    /// Folders of common images.
    pub places: &'static [&'static str],
}

/// What an engine is to be told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Emission {
    /// The engine.
    #[serde(serialize_with = "by_name")]
    pub engine: Engine,
    /// The lane it runs in.
    pub lane: &'static str,
    /// The runtime mode, part of the run's identity.
    #[serde(serialize_with = "mode_by_name")]
    pub mode: Option<Mode>,
    /// What starts the processes.
    pub starter: Starter,
    /// The script or module the starter runs, and the words in front of the arguments.
    pub entry: Vec<String>,
    /// Where the entry's script is looked for; none when the policy names the folder, or the entry needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkout: Option<Checkout>,
    /// What it is told on the command line, or in its configuration (see `on_command_line`).
    pub arguments: Vec<Argument>,
    /// Whether the arguments stand on the command line; otherwise they are keys of a file.
    pub on_command_line: bool,
    /// The environment it needs.
    pub environment: Vec<EnvVar>,
    /// Files that go with it.
    pub files: Vec<File>,
    /// Where the recipe and what runs differ.
    pub seams: Vec<Seam>,
}

fn by_name<S: serde::Serializer>(engine: &Engine, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(engine.name())
}

fn mode_by_name<S: serde::Serializer>(mode: &Option<Mode>, serializer: S) -> Result<S::Ok, S::Error> {
    match mode {
        Some(mode) => serializer.serialize_some(mode.name()),
        None => serializer.serialize_none(),
    }
}

impl Checkout {
    /// The script in the folder that the policy names, or where it is looked for.
    pub fn entry(self, root: Option<&str>) -> (String, Option<Checkout>) {
        match root {
            Some(root) => (format!("{}/{}", root.trim_end_matches('/'), self.script), None),
            None => (self.script.to_string(), Some(self)),
        }
    }
}

impl Emission {
    /// The words behind the starter: the entry, and the arguments where they stand on the line.
    pub fn words(&self) -> Vec<String> {
        let mut words = self.entry.clone();
        if self.on_command_line {
            words.extend(self.arguments.iter().flat_map(Argument::words).map(str::to_string));
        }
        words
    }

    /// The words, quoted for a POSIX shell, one option a line.
    pub fn shell_words(&self) -> Vec<String> {
        // An entry that carries its keys as words (MaxText) has one a line too.
        let keys = self.entry.iter().position(|word| word.contains('=')).unwrap_or(self.entry.len());
        let (start, keys) = self.entry.split_at(keys);
        let is_theirs = self.checkout.is_some_and(|checkout| self.entry.first().is_some_and(|e| e == checkout.script));
        let checkout = if is_theirs { "\"$engine_root\"/" } else { "" };
        let mut lines = vec![format!("{checkout}{}", quote::shell_line(start))];
        lines.extend(keys.iter().map(|word| quote::shell(word)));
        if self.on_command_line {
            lines.extend(self.arguments.iter().map(|a| quote::shell_line(a.words())));
        }
        lines
    }

    /// The arguments of one kind.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(move |a| a.kind == kind)
    }
}
