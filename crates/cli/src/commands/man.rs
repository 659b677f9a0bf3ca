//! `man`: the manual pages, from the definitions that `--help` shows.

use crate::args::{ManArgs, command};
use crate::files::write_folder;
use crate::outcome::{Outcome, Report};
use clap::Command;
use serde_json::json;

pub fn run(args: &ManArgs) -> Outcome {
    let mut whole = command();
    whole.build();
    let Some(out) = &args.out else { return Ok(Report::text(page(&whole, "shardwright"))) };
    let files: Vec<launch::File> = pages(&whole, "shardwright")
        .into_iter()
        .map(|(name, contents)| launch::File { path: format!("{name}.1"), contents, executable: false })
        .collect();
    write_folder(out, &files)?;
    let names: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let text = format!("wrote {} pages into {}\n", names.len(), diag::quote::shown(out));
    Ok(Report::new(text, json!({ "out": out, "files": names })))
}

/// The page of a command, and those of its own.
fn pages(command: &Command, name: &str) -> Vec<(String, String)> {
    let mut all = vec![(name.to_string(), page(command, name))];
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        all.extend(pages(sub, &format!("{name}-{}", sub.get_name())));
    }
    all
}

fn page(command: &Command, name: &str) -> String {
    let mut roff = Vec::new();
    let named = command.clone().display_name(name.to_string());
    // Writing into memory does not fail.
    let _ = clap_mangen::Man::new(named).render(&mut roff);
    String::from_utf8_lossy(&roff).into_owned()
}
