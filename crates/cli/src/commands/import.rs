//! `import`: a recipe from what other tools write, and what became of everything they said.

use crate::args::ImportArgs;
use crate::call::{self, touched};
use crate::files::{config_in, place, read_text, write_file};
use crate::outcome::{Outcome, Refusal, Report};
use diag::{Blame, Finding, quote};
use layout::Engine;
use recipe::Recipe;
use recipe::import::hf::{self, Fate, Key};
use recipe::import::megatron_args;
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use units::{count, exact};

/// A recipe with what there is to say about where it came from.
struct Imported {
    recipe: Recipe,
    messages: Vec<String>,
    /// Keys of the answer that only this kind of source has.
    json: Vec<(&'static str, Value)>,
}

pub fn run(args: &ImportArgs) -> Outcome {
    let (file, text) = read(&args.file)?;
    let refuse =
        |findings: Vec<Finding>| Refusal { findings, source: Some((file.display().to_string(), text.clone())) };
    let found = launched(&file).or_else(|| place(&file)).filter(|_| !is_stdin(&file));
    let imported = if text.trim_start().starts_with('{') {
        let asked = hf::Asked { name: args.name.as_deref(), place: found.as_deref(), sequence: args.seq };
        config(hf::import(&text, &asked).map_err(refuse)?)
    } else if megatron_args::is_argument_list(&text) {
        if args.seq.is_some() {
            return Err(seq_of_arguments().into());
        }
        let name = args.name.clone().or(found).unwrap_or_else(|| "imported".to_string());
        arguments(megatron_args::import(&text, &name).map_err(refuse)?)
    } else {
        let message = format!("`{}` is neither a config.json nor a Megatron argument list", file.display());
        let hint = "a config is a JSON object with `model_type`; an argument list has `--hidden-size`";
        return Err(Finding::error("import/shape", Blame::Recipe, "file", message).hint(hint).into());
    };
    answer(args, imported)
}

fn seq_of_arguments() -> Finding {
    let message = "an argument list says its sequence: `--seq-length`";
    Finding::error("import/seq", Blame::Usage, "--seq", message)
        .hint("leave --seq out; layouts take another with --seq")
}

fn answer(args: &ImportArgs, imported: Imported) -> Outcome {
    let Imported { recipe, mut messages, json: own } = imported;
    let counts = recipe.counts();
    let (total, active) = (exact(counts.all.total), count(counts.all.active));
    messages.insert(0, format!("{}: {total} parameters, {active} active\n", recipe.name.terminal()));
    let toml = header(&recipe) + &recipe.to_toml();
    let mut json = json!({
        "recipe": recipe.name, "total": counts.all.total, "active": counts.all.active,
        "pattern": recipe.pattern.to_string(), "depth": recipe.depth(), "sequence": recipe.sequence,
        "layout_flags": [],
        "output": args.output.as_ref().map(|p| p.display().to_string()), "toml": toml,
    });
    own.into_iter().for_each(|(key, value)| json[key] = value);
    let verbatim = match &args.output {
        Some(path) if !store::is_stdout(path) => {
            write_file(path, &toml)?;
            format!("wrote {}\n", quote::shown(path))
        }
        _ => toml,
    };
    Ok(Report { messages, ..Report::file(verbatim, json) })
}

/// What became of a config's keys.
fn config(imported: hf::Imported) -> Imported {
    let hf::Imported { recipe, keys } = imported;
    let number = |is: fn(&Fate) -> bool| keys.iter().filter(|key| is(&key.fate)).count();
    let mut messages = vec![format!(
        "keys: {} carried, {} irrelevant to training, {} not carried\n",
        number(|fate| matches!(fate, Fate::Carried(_))),
        number(|fate| matches!(fate, Fate::Irrelevant(_))),
        recipe.not_carried.len()
    )];
    if !recipe.not_carried.is_empty() {
        messages.push("not carried, and refused by `launch` unless --allow-seams:\n".to_string());
        messages.extend(
            recipe.not_carried.iter().map(|(key, value)| format!("  {} = {}\n", quote::terminal(key), shown(value))),
        );
    }
    let rule = recipe.source.raw().split_once("sequence: ").map_or("", |(_, rule)| rule);
    messages.push(format!("sequence {}: {rule}; --seq says another\n", recipe.sequence));
    let fates: Map<String, Value> = keys.iter().map(|key| (key.name.clone(), fate(key))).collect();
    Imported { recipe, messages, json: vec![("keys", Value::Object(fates))] }
}

fn fate(key: &Key) -> Value {
    match &key.fate {
        Fate::Carried(place) => json!({ "carried": place }),
        Fate::Irrelevant(why) => json!({ "irrelevant": why }),
        Fate::NotCarried => json!({ "not_carried": key.value }),
    }
}

/// A value short enough for a line.
fn shown(value: &str) -> String {
    let short: String = value.chars().take(60).collect();
    if short.len() < value.len() { format!("{short}…") } else { short }
}

/// What became of an argument list's words.
fn arguments(imported: megatron_args::Imported) -> Imported {
    let megatron_args::Imported { recipe, layout, model, split, beside } = imported;
    let flags: Vec<String> = layout.iter().map(|(k, v)| format!("--{k} {v}").trim_end().to_string()).collect();
    let vocabulary = case::words::of(Some(Engine::Megatron));
    let line = |(flag, values): &(String, Vec<String>)| {
        quote::typed_line(std::iter::once(flag.as_str()).chain(values.iter().map(String::as_str)))
    };
    let (options, policy): (Vec<_>, Vec<_>) = beside.iter().partition(|(flag, _)| vocabulary.has(flag));
    let options: Vec<String> = options.into_iter().map(line).collect();
    let policy: Vec<String> = policy.into_iter().map(line).collect();
    let mut messages = vec![format!(
        "arguments: {} of the model, {} of the layout, {} engine options, {} of the run\n",
        model.len(),
        split.len(),
        options.len(),
        policy.len()
    )];
    if !flags.is_empty() {
        messages.push(format!("layout flags that say the same: {}\n", flags.join(" ")));
    }
    if !options.is_empty() {
        let said = quote::typed(options.join(" "));
        messages.push(format!("engine options that say the same: --engine-args {said}\n"));
    }
    if !policy.is_empty() {
        messages.push(format!("of the run, for a policy to say: {}\n", policy.join(" ")));
    }
    let json = vec![
        ("layout_flags", json!(flags)),
        ("arguments", json!({ "model": model, "layout": split, "options": options, "run": policy })),
    ];
    Imported { recipe, messages, json }
}

/// The recipe that the record beside a `launch.sh` of ours names.
fn launched(file: &Path) -> Option<String> {
    let record = read_text(&file.parent()?.join("launch.json")).ok().filter(|_| file.ends_with("launch.sh"))?;
    let record: Value = serde_json::from_str(&record).ok()?;
    record["recipe"].as_str().map(str::to_string)
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The file a path stands for, and its text: a model's folder has a `config.json`, a launch directory a
/// `launch.sh`.
fn read(path: &Path) -> Result<(PathBuf, String), Refusal> {
    let name = path.to_str().unwrap_or_default();
    if let Some(text) = call::text(name) {
        return Ok((PathBuf::from(name), text));
    }
    if !(call::may_read(path) || is_stdin(path) && call::may_write()) {
        return read_text(path).map(|text| (path.to_path_buf(), text));
    }
    if !is_stdin(path) {
        let script = path.join("launch.sh");
        let file = if path.is_dir() && script.is_file() { script } else { config_in(path) };
        let text = read_text(&file)?;
        return Ok((file, text));
    }
    touched(store::Identity::of_stdin());
    let mut text = String::new();
    let most = recipe::limits::FILE_BYTES as u64;
    std::io::stdin().take(most).read_to_string(&mut text).map_err(|e| {
        Refusal::from(Finding::error("file/read", Blame::Environment, "-", format!("cannot read standard input: {e}")))
    })?;
    Ok((path.to_path_buf(), text))
}

fn header(recipe: &Recipe) -> String {
    let total = exact(recipe.counts().all.total);
    format!("# {total} parameters; `shardwright params` on this file counts them again.\n")
}
