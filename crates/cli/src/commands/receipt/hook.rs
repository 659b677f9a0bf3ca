//! `receipt hook`: the Python file that a training script imports.

use crate::files::write_file;
use crate::outcome::{Outcome, Report};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `receipt hook`.
#[derive(Args)]
pub struct HookArgs {
    /// Write it to this file instead of printing it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &HookArgs) -> Outcome {
    let json = json!({ "schema_of_lines": evidence::HOOK_SCHEMA, "file": evidence::HOOK });
    let Some(path) = &args.output else {
        return Ok(Report { verbatim: evidence::HOOK.to_string(), json: Some(json), ..Report::default() });
    };
    write_file(path, evidence::HOOK)?;
    let text = format!(
        "wrote {}: import it in a training script; its first lines say how\nthen: shardwright receipt record --log \
         logs/hook.jsonl --recipe RECIPE\n",
        diag::quote::shown(path)
    );
    Ok(Report { text, json: Some(json), ..Report::default() })
}
