//! Writes emissions of many layouts into a directory, for the engines' own parsers to read:
//! `emit_matrix ENGINE DIRECTORY [refuse|allow]`. Each case is a folder with the emission's files,
//! `argv.json` (the words behind the starter), `env.json` and `world`.

#[path = "../tests/all/common.rs"]
mod common;

use case::Seams;
use launch::job::Frontend;
use layout::Engine;
use std::path::Path;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [engine, folder, rest @ ..] = words.as_slice() else {
        eprintln!("emit_matrix ENGINE DIRECTORY [refuse|allow]");
        std::process::exit(2);
    };
    let allowed = if rest.iter().any(|w| w == "allow") { Seams::Allow } else { Seams::Refuse };
    let frontend = if engine == "bridge" { Frontend::Bridge } else { Frontend::MegatronLm };
    let engine = if engine == "bridge" { "megatron" } else { engine };
    let Some(engine) = Engine::from_name(engine) else {
        eprintln!("no engine `{engine}`");
        std::process::exit(2);
    };
    let (mut emitted, mut refused) = (0, 0);
    for (name, case) in common::cases(engine, allowed) {
        let case = case.map(|case| ready(case, frontend));
        match case.and_then(|case| Ok((case.emit()?, case.layout.clone()))) {
            Ok((emission, layout)) => {
                emitted += 1;
                write(&Path::new(folder).join(&name), &emission, &layout).expect("the folder can be written");
            }
            Err(findings) => {
                refused += 1;
                let rules: Vec<&str> =
                    findings.iter().filter(|f| f.severity == diag::Severity::Error).map(|f| f.rule).collect();
                println!("refused {name}: {}", rules.join(" "));
            }
        }
    }
    println!("{emitted} emitted, {refused} refused");
}

/// A case whose seams that no module of ours fills are filled by a patch that leaves things as they are
/// (`tools/engines/no_patch.py`), so that modules with patch points can be imported.
fn ready(mut case: common::Case, frontend: Frontend) -> common::Case {
    case.frontend = frontend;
    let open = case.seams.iter().filter(|seam| seam.filled_by.is_none());
    let seams = open.map(|seam| (seam.name.to_string(), "no_patch:patch".to_string())).collect();
    case.policy.seams = seams;
    case
}

fn write(folder: &Path, emission: &launch::Emission, layout: &layout::Layout) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for file in &emission.files {
        let path = folder.join(&file.path);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(path, &file.contents)?;
    }
    let environment: serde_json::Map<String, serde_json::Value> =
        emission.environment.iter().map(|v| (v.name.clone(), v.value.clone().into())).collect();
    std::fs::write(folder.join("argv.json"), serde_json::to_string(&emission.words())?)?;
    std::fs::write(folder.join("env.json"), serde_json::to_string(&environment)?)?;
    std::fs::write(folder.join("emission.json"), serde_json::to_string_pretty(emission)?)?;
    std::fs::write(folder.join("world"), format!("{} {} {}\n", layout.world, layout.dp, layout.pp))
}
