//! What a launch imports besides the standard library, with the versions it was written for. `launch.sh` has it checked
//! by `packages.py` before it starts anything, and `preflight` asks the same. Knows no host and installs nothing.

mod megatron;
mod programs;

use crate::emission::{Emission, File};
use crate::engines;
use crate::job::{Frontend, Job};
use crate::tree;
use layout::Engine;
use serde::Serialize;
use serde_json::{Value, json};

/// The program that checks a table.
pub const PROGRAM: &str = include_str!("../../assets/node/packages.py");

/// The program that finds what a run failed of.
const CAUSE: &str = include_str!("../../assets/node/cause.py");

/// One package that a launch imports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Package {
    /// As pip calls it.
    pub name: String,
    /// What is imported.
    pub module: &'static str,
    /// Modules in it whose import shows that its kernels are built for what is installed.
    pub imports: Vec<&'static str>,
    /// A file that must be in the folder of a package: its name, and the file's.
    pub file: Option<(&'static str, &'static str)>,
    /// A folder of a package, and how the name of a file in it begins, with which this is not needed.
    pub unless: Option<(&'static str, &'static str)>,
    /// The least version; none where any does.
    pub at_least: Option<String>,
    /// The first version that is too new.
    pub below: Option<&'static str>,
    /// How to install it.
    pub install: String,
    /// What asks for it.
    pub why: String,
    /// What runs instead where it is missing; none where it is needed.
    pub fallback: Option<String>,
}

impl Package {
    /// A package whose module has its name, in any version.
    fn new(name: &'static str, why: impl Into<String>) -> Package {
        Package {
            name: name.to_string(),
            module: name,
            imports: Vec::new(),
            file: None,
            unless: None,
            at_least: None,
            below: None,
            install: format!("pip install {name}"),
            why: why.into(),
            fallback: None,
        }
    }

    fn module(self, module: &'static str) -> Package {
        Package { module, ..self }
    }

    fn imports(self, imports: &[&'static str]) -> Package {
        Package { imports: imports.to_vec(), ..self }
    }

    fn file(self, folder: &'static str, file: &'static str) -> Package {
        Package { file: Some((folder, file)), ..self }
    }

    fn unless(self, built: (&'static str, &'static str)) -> Package {
        Package { unless: Some(built), ..self }
    }

    /// At least one version; pip is given another where that is the one that was tried.
    fn since(self, at_least: &str, tried: &str) -> Package {
        let install = format!("pip install {}=={tried}", self.name);
        Package { at_least: Some(at_least.to_string()), install, ..self }
    }

    fn below(self, below: &'static str) -> Package {
        Package { below: Some(below), ..self }
    }

    fn install(self, how: impl Into<String>) -> Package {
        Package { install: how.into(), ..self }
    }

    fn or(self, fallback: impl Into<String>) -> Package {
        Package { fallback: Some(fallback.into()), ..self }
    }

    /// In pip's words: `mamba_ssm>=2.3.2`.
    pub fn requirement(&self) -> String {
        let at_least = self.at_least.as_ref().map_or(String::new(), |version| format!(">={version}"));
        let below = self.below.map_or(String::new(), |version| format!(",<{version}"));
        let bounds = format!("{at_least}{below}");
        format!("{}{}", self.name, bounds.trim_start_matches(','))
    }
}

/// A program that the engine runs as it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tool {
    /// What is run.
    pub name: &'static str,
    /// A variable that names another one to run.
    pub variable: Option<&'static str>,
    /// A folder of a package, and how the name of a file in it begins, with which this is not run.
    pub unless: Option<(&'static str, &'static str)>,
    /// What asks for it.
    pub why: &'static str,
    /// How to install it.
    pub install: &'static str,
}

/// A file that the launch starts and that is not its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Needed {
    /// Where it is.
    pub path: String,
    /// What it is.
    pub why: String,
    /// How it gets there.
    pub install: String,
}

/// Every package of a launch, the engine's own first; a version that the policy pins is the one that is asked for.
pub fn of(job: &Job, emission: &Emission) -> Vec<Package> {
    let mut all = match emission.engine {
        Engine::Megatron => megatron::packages(job, emission),
        engine => programs::packages(job, engine),
    };
    for package in &mut all {
        if let Some(pinned) = job.policy.pins.get(&package.name) {
            package.install = format!("pip install {}=={pinned}", package.name);
            package.at_least = Some(pinned.clone());
        }
    }
    all
}

/// Programs that the engine runs as it starts.
pub fn tools(engine: Engine) -> Vec<Tool> {
    if engine == Engine::Megatron { megatron::tools() } else { Vec::new() }
}

/// Scripts of the engine that the launch starts.
fn files_of(job: &Job, emission: &Emission) -> Vec<Needed> {
    let is_below = |root: &str, word: &str| word.starts_with(&format!("{}/", root.trim_end_matches('/')));
    let root = job.policy.job.engine_root.as_deref();
    let script = match emission.engine {
        Engine::Megatron if job.frontend == Frontend::MegatronLm => engines::megatron::named_script(job),
        _ => emission.entry.first().filter(|word| root.is_some_and(|root| is_below(root, word))).cloned(),
    };
    let version = crate::record::version(job).unwrap_or("the engine");
    let needed = |path: String| Needed {
        path,
        why: format!("the engine's script ({version})"),
        install: "put the engine's sources there, or name their folder as job.engine_root in the policy".to_string(),
    };
    script.map(needed).into_iter().collect()
}

/// The table as `packages.py` reads it.
pub fn table(job: &Job, emission: &Emission) -> Value {
    let files = files_of(job, emission);
    // Python puts the folder of the script it runs before everything else.
    let folder = |file: &Needed| file.path.rsplit_once('/').map(|(folder, _)| folder.to_string());
    let path: Vec<String> = files.iter().filter_map(folder).collect();
    json!({
        "schema": "shardwright/packages/1", "path": path, "files": files, "tools": tools(emission.engine),
        "packages": of(job, emission),
    })
}

/// What stands beside `launch.sh` for it: the check with its table, and who finds causes.
pub fn files(job: &Job, emission: &Emission) -> Vec<File> {
    let table = File::new("packages.json", tree::json(&table(job, emission)));
    vec![File::new("packages.py", PROGRAM), table, File::new("cause.py", CAUSE)]
}
