//! Reading recipes from names and paths, and writing files whole or not at all.

use crate::hub;
use crate::outcome::Refusal;
use diag::{Blame, Finding};
use hardware::{Cluster, ClusterText, Device, is_path};
use launch::Policy;
use recipe::import::hf;
use recipe::{Recipe, builtin, limits};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// The recipe a name or path stands for.
pub fn load_recipe(name: &str) -> Result<Recipe, Refusal> {
    let path = Path::new(name);
    if builtin::RECIPES.iter().any(|(known, _)| *known == name) {
        return builtin::find(name).map_err(Refusal::from);
    }
    if path.is_dir() {
        return recipe_at(&path.join("config.json"));
    }
    if path.exists() {
        return recipe_at(path);
    }
    if !hub::is_name(name) {
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
    let place = place(path);
    let asked = hf::Asked { place: place.as_deref(), ..hf::Asked::default() };
    let parsed = match text.trim_start().starts_with('{') {
        true => hf::import(&text, &asked).map(|imported| imported.recipe),
        false => Recipe::parse(&text),
    };
    parsed.map_err(|findings| Refusal { findings, source: Some((path.display().to_string(), text)) })
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

/// Reads a text file of bounded size.
pub fn read_text(path: &Path) -> Result<String, Refusal> {
    let refuse = |message: String| {
        Refusal::from(Finding::error("file/read", Blame::Environment, path.display().to_string(), message))
    };
    let file = fs::File::open(path).map_err(|e| refuse(format!("cannot read `{}`: {e}", path.display())))?;
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

/// Writes a new directory whole or not at all: a temporary beside it, synced, then renamed.
pub fn write_folder(path: &Path, files: &[launch::File]) -> Result<(), Refusal> {
    let refuse = |message: String| {
        let finding = Finding::error("launch/out", Blame::Environment, path.display().to_string(), message);
        Refusal::from(finding.hint("--out names a directory that is not there yet"))
    };
    if path.symlink_metadata().is_ok() {
        return Err(refuse(format!("`{}` is there already, and a record is never overwritten", path.display())));
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let result = (|| {
        fs::create_dir(&temporary)?;
        for file in files {
            write_synced(&temporary.join(&file.path), file)?;
        }
        fs::File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    })();
    result.map_err(|error: std::io::Error| {
        let _ = fs::remove_dir_all(&temporary);
        refuse(format!("cannot write `{}`: {error}", path.display()))
    })
}

fn write_synced(path: &Path, file: &launch::File) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut handle = fs::File::create_new(path)?;
    handle.write_all(file.contents.as_bytes())?;
    #[cfg(unix)]
    if file.executable {
        use std::os::unix::fs::PermissionsExt;
        handle.set_permissions(fs::Permissions::from_mode(0o755))?;
    }
    handle.sync_all()
}

/// Writes a file whole or not at all: a temporary beside it, synced, then renamed over it.
pub fn write_atomically(path: &Path, text: &str) -> Result<(), Refusal> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let result = (|| {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The rename itself must survive a crash too.
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(folder)?.sync_all()
    })();
    result.map_err(|error: std::io::Error| {
        let _ = fs::remove_file(&temporary);
        let message = format!("cannot write `{}`: {error}", path.display());
        Refusal::from(Finding::error("file/write", Blame::Environment, path.display().to_string(), message))
    })
}
