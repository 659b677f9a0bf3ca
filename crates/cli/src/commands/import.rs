//! `import`: a recipe from what other tools write.

use crate::args::ImportArgs;
use crate::files::{read_text, stem, write_atomically};
use crate::outcome::{Outcome, Refusal, Report};
use diag::{Blame, Finding};
use recipe::Recipe;
use recipe::import::{hf, megatron_args};
use serde_json::json;
use std::io::Read;
use units::{count, exact};

pub fn run(args: &ImportArgs) -> Outcome {
    let text = read(args)?;
    let is_stdin = args.file.as_os_str() == "-";
    let default = || if is_stdin { "imported".to_string() } else { stem(&args.file) };
    let name = args.name.clone().unwrap_or_else(default);
    let refuse =
        |findings: Vec<Finding>| Refusal { findings, source: Some((args.file.display().to_string(), text.clone())) };
    let mut messages = Vec::new();
    let (recipe, layout) = if text.trim_start().starts_with('{') {
        (hf::import(&text, &name).map_err(refuse)?, Vec::new())
    } else if megatron_args::is_argument_list(&text) {
        let imported = megatron_args::import(&text, &name).map_err(refuse)?;
        if !imported.beside.is_empty() {
            messages.push(format!("not part of a recipe or layout: {}\n", imported.beside.join(" ")));
        }
        (imported.recipe, imported.layout)
    } else {
        let message = format!("`{}` is neither a config.json nor a Megatron argument list", args.file.display());
        let hint = "a config is a JSON object with `model_type`; an argument list has `--hidden-size`";
        return Err(Finding::error("import/shape", Blame::Recipe, "file", message).hint(hint).into());
    };
    let flags: Vec<String> = layout.iter().map(|(k, v)| format!("--{k} {v}").trim_end().to_string()).collect();
    let counts = recipe.counts();
    messages.push(format!(
        "{}: {} parameters, {} active\n",
        recipe.name,
        exact(counts.all.total),
        count(counts.all.active)
    ));
    if !flags.is_empty() {
        messages.push(format!("layout flags that say the same: {}\n", flags.join(" ")));
    }
    let toml = header(&recipe) + &recipe.to_toml();
    let json = json!({
        "recipe": recipe.name, "total": counts.all.total, "active": counts.all.active,
        "pattern": recipe.pattern.to_string(), "depth": recipe.depth(), "layout_flags": flags,
        "output": args.output.as_ref().map(|p| p.display().to_string()), "toml": toml,
    });
    let verbatim = match &args.output {
        Some(path) => {
            write_atomically(path, &toml)?;
            format!("wrote {}\n", path.display())
        }
        None => toml,
    };
    Ok(Report { messages, ..Report::file(verbatim, json) })
}

fn read(args: &ImportArgs) -> Result<String, Refusal> {
    if args.file.as_os_str() != "-" {
        return read_text(&args.file);
    }
    let mut text = String::new();
    let most = recipe::limits::FILE_BYTES as u64;
    std::io::stdin().take(most).read_to_string(&mut text).map_err(|e| {
        Refusal::from(Finding::error("file/read", Blame::Environment, "-", format!("cannot read standard input: {e}")))
    })?;
    Ok(text)
}

fn header(recipe: &Recipe) -> String {
    let total = exact(recipe.counts().all.total);
    format!("# {total} parameters; `shardwright params` on this file counts them again.\n")
}
