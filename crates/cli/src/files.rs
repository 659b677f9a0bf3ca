//! Reading recipes from names and paths, and writing files whole or not at all.

use crate::call::{self, is_touched, touched};
use crate::hub;
use crate::outcome::Refusal;
use diag::{Blame, Finding};
use hardware::{Cluster, ClusterText, Device, check_pools, is_path, split_pools};
use launch::Policy;
use recipe::import::hf;
use recipe::{Recipe, builtin, limits};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use store::{Directory, Failure, Identity, Kind};

/// The recipe a name or path stands for.
pub fn load_recipe(name: &str) -> Result<Recipe, Refusal> {
    if let Some(text) = call::text(name) {
        return recipe_from(text, Some(name), name);
    }
    let path = Path::new(name);
    if builtin::RECIPES.iter().any(|(known, _)| *known == name) {
        return builtin::find(name).map_err(Refusal::from);
    }
    if call::may_read(path) && path.is_dir() {
        return recipe_at(&path.join("config.json"));
    }
    if call::may_read(path) && path.exists() {
        return recipe_at(path);
    }
    if !hub::is_name(name) || !call::may_read(&hub::folder()) {
        return builtin::find(name).map_err(Refusal::from);
    }
    let repository = hub::repository(&hub::folder(), name);
    match hub::config(&repository) {
        Some(config) => recipe_at(&config),
        None => Err(not_in_cache(name, &repository).into()),
    }
}

/// A recipe file, or a config.json as the recipe that its place names.
fn recipe_at(path: &Path) -> Result<Recipe, Refusal> {
    let text = read_text(path)?;
    recipe_from(text, place(path).as_deref(), &path.display().to_string())
}

/// A recipe's text, or a config.json's.
fn recipe_from(text: String, place: Option<&str>, called: &str) -> Result<Recipe, Refusal> {
    let asked = hf::Asked { place, ..hf::Asked::default() };
    let parsed = match text.trim_start().starts_with('{') {
        true => hf::import(&text, &asked).map(|imported| imported.recipe),
        false => Recipe::parse(&text),
    };
    parsed.map_err(|findings| Refusal { findings, source: Some((called.to_string(), text)) })
}

/// A model that could be meant by its name on the hub, and is not here.
fn not_in_cache(name: &str, repository: &Path) -> Finding {
    let message = format!(
        "there is no built-in recipe `{name}`, no file or folder `{name}`, and no config.json of one revision below `{}`",
        repository.display()
    );
    let hint = format!(
        "nothing is downloaded: `hf download {name} config.json` fetches it, or give the path of a config.json"
    );
    Finding::error("recipe/unknown", Blame::Usage, name, message).hint(hint)
}

/// The cluster a text stands for; its device may be built in or a file.
pub fn load_cluster(on: &str) -> Result<Cluster, Refusal> {
    let typed = ClusterText::parse(on)?;
    Ok(typed.on(load_device(typed.device)?)?)
}

/// The pools a text with `+` stands for.
pub fn load_pools(on: &str) -> Result<Vec<Cluster>, Refusal> {
    let pools =
        split_pools(on).unwrap_or_else(|| vec![on]).into_iter().map(load_cluster).collect::<Result<Vec<_>, _>>()?;
    check_pools(on, &pools)?;
    Ok(pools)
}

/// The device a name or path stands for.
pub fn load_device(name: &str) -> Result<Device, Refusal> {
    if !is_path(name) {
        return Ok(Device::find(name)?);
    }
    let text = read_text(Path::new(name))?;
    Device::parse(&text).map_err(|findings| Refusal { findings, source: Some((name.to_string(), text)) })
}

/// Reads a policy.
pub fn load_policy(path: &Path) -> Result<Policy, Refusal> {
    let text = read_text(path)?;
    Policy::parse(&text).map_err(|findings| Refusal { findings, source: Some((path.display().to_string(), text)) })
}

/// The `config.json` of a model's folder; any other path stands for itself.
pub fn config_in(path: &Path) -> PathBuf {
    let inside = path.join("config.json");
    if path.is_dir() && inside.is_file() { inside } else { path.to_path_buf() }
}

/// What the place of a config calls the model: the folder of a `config.json`, the repository in Hugging
/// Face's cache (`models--org--name/snapshots/…`), or the file's own name.
pub fn place(path: &Path) -> Option<String> {
    let name = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
    if path.file_name().is_some_and(|file| file != "config.json") {
        return path.file_stem().map(name);
    }
    let whole = path.canonicalize().ok()?;
    let cached = whole.components().find_map(|part| {
        name(part.as_os_str()).strip_prefix("models--").and_then(|rest| Some(rest.rsplit_once("--")?.1.to_string()))
    });
    cached.or_else(|| whole.parent()?.file_name().map(name))
}

/// Files of a folder whose names end so, as paths in the order of their names.
pub fn names_in(folder: &Path, ending: &str) -> Result<Vec<String>, Refusal> {
    let object = folder.display().to_string();
    let refuse = |error: std::io::Error| {
        let message = format!("cannot list `{object}`: {error}");
        Refusal::from(Finding::error("file/read", Blame::Environment, object.clone(), message))
    };
    if !call::may_read(folder) {
        return Err(refuse(std::io::ErrorKind::PermissionDenied.into()));
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(refuse)? {
        let path = entry.map_err(refuse)?.path();
        names.extend(path.to_str().filter(|name| name.ends_with(ending)).map(str::to_string));
    }
    names.sort();
    Ok(names)
}

/// Reads a text file of bounded size.
pub fn read_text(path: &Path) -> Result<String, Refusal> {
    let refuse = |message: String| {
        Refusal::from(Finding::error("file/read", Blame::Environment, path.display().to_string(), message))
    };
    if !call::may_read(path) {
        return Err(refuse(format!("`{}` is not below the folder that may be read here", path.display())));
    }
    let file = fs::File::open(path).map_err(|e| refuse(format!("cannot read `{}`: {e}", path.display())))?;
    touched(Identity::at(path));
    let mut bytes = Vec::new();
    let most = limits::FILE_BYTES as u64 + 1;
    file.take(most).read_to_end(&mut bytes).map_err(|e| refuse(format!("cannot read `{}`: {e}", path.display())))?;
    if bytes.len() > limits::FILE_BYTES {
        return Err(refuse(format!("`{}` has more than {} bytes", path.display(), limits::FILE_BYTES)));
    }
    String::from_utf8(bytes).map_err(|_| refuse(format!("`{}` is not UTF-8 text", path.display())))
}

/// Rows of a measured file: one JSON object a line; which line is wrong is said.
pub fn read_rows(path: &Path) -> Result<Vec<(usize, serde_json::Value)>, Refusal> {
    let text = read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(number, line)| {
            serde_json::from_str(line).map(|row| (number + 1, row)).map_err(|error| {
                let message = format!("line {} of `{}` is not JSON: {error}", number + 1, path.display());
                Refusal::from(Finding::error("file/rows", Blame::Usage, path.display().to_string(), message))
            })
        })
        .collect()
}

/// Writes a new directory whole or not at all.
pub fn write_folder(path: &Path, files: &[launch::File]) -> Result<(), Refusal> {
    writable(path)?;
    let written = Directory::new(path).and_then(|mut folder| {
        for file in files {
            let kind = if file.executable { Kind::Executable } else { Kind::Plain };
            folder.write(&file.path, file.contents.as_bytes(), kind)?;
        }
        folder.publish()
    });
    written.map_err(|failure| {
        let hint = match failure {
            Failure::Exists(_) => "a record is never written twice: --out names a directory that is not there yet",
            _ => failure.hint(),
        };
        Finding::error("launch/out", Blame::Environment, path.display().to_string(), failure.to_string())
            .hint(hint)
            .into()
    })
}

/// Refuses to write on behalf of a call that may not.
fn writable(path: &Path) -> Result<(), Refusal> {
    if call::may_write() {
        return Ok(());
    }
    let message = "nothing is written here".to_string();
    Err(Finding::error("file/write", Blame::Usage, path.display().to_string(), message).into())
}

/// Writes a text whole or not at all, or to standard output where that is what the path says.
pub fn write_file(path: &Path, text: &str) -> Result<(), Refusal> {
    write_bytes(path, text.as_bytes())
}

/// The same of what is no text.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Refusal> {
    writable(path)?;
    let object = path.display().to_string();
    if is_touched(path) {
        let message = format!("`{object}` is a file that this command reads or has just written");
        let finding = Finding::error("file/input", Blame::Usage, object, message);
        return Err(finding.hint("give the output a name of its own").into());
    }
    store::write(path, bytes).map_err(|failure| {
        let rule = if matches!(failure, Failure::Special { .. }) { "file/special" } else { "file/write" };
        Finding::error(rule, Blame::Environment, object, failure.to_string()).hint(failure.hint())
    })?;
    touched(Identity::at(path));
    Ok(())
}
