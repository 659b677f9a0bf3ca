//! Fuzzing by hand:
//! `list` names the targets; `seeds DIR` writes each one's corpus below DIR, for a fuzzer to start from;
//! `run TARGET FILE…` reads files as a target does; `hunt RUNS SEED [TARGET…]` runs seeded changes of the
//! corpus, prints every place that panics once, and keeps an input of each in fuzz/found.

use shardwright_fuzz::{Mutator, READERS, Reader};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

static LAST: Mutex<String> = Mutex::new(String::new());

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["list"] => {
            READERS.iter().for_each(|reader| println!("{}", reader.name));
            Ok(())
        }
        ["seeds", folder] => seeds(Path::new(folder)),
        ["run", target, ref files @ ..] => files.iter().try_for_each(|file| {
            shardwright_fuzz::run(target, &std::fs::read(file)?);
            Ok(())
        }),
        ["hunt", runs, seed, ref targets @ ..] => hunt(runs, seed, targets),
        _ => Err(std::io::Error::other(
            "usage: shardwright-fuzz list | seeds DIR | run TARGET FILE… | hunt RUNS SEED [TARGET…]",
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn seeds(folder: &Path) -> std::io::Result<()> {
    for reader in READERS {
        let to = folder.join(reader.name);
        std::fs::create_dir_all(&to)?;
        for (at, seed) in reader.corpus().into_iter().enumerate() {
            std::fs::write(to.join(format!("seed-{at}")), seed)?;
        }
    }
    Ok(())
}

fn hunt(runs: &str, seed: &str, targets: &[&str]) -> std::io::Result<()> {
    let (Ok(runs), Ok(seed)) = (runs.parse::<u64>(), seed.parse()) else {
        return Err(std::io::Error::other("RUNS and SEED are numbers"));
    };
    set_hook(Box::new(|panic| {
        let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        *LAST.lock().unwrap() = place;
    }));
    let mut places = BTreeSet::new();
    for reader in READERS.iter().filter(|reader: &&Reader| targets.is_empty() || targets.contains(&reader.name)) {
        let (corpus, mut mutator, began) = (reader.corpus(), Mutator::new(seed), std::time::Instant::now());
        for _ in 0..runs {
            let input = mutator.changed(&corpus);
            if catch_unwind(AssertUnwindSafe(|| (reader.run)(&input))).is_ok() {
                continue;
            }
            let place = LAST.lock().unwrap().clone();
            if places.insert((reader.name, place.clone())) {
                let file = format!("fuzz/found/{}-{}", reader.name, places.len());
                std::fs::create_dir_all("fuzz/found")?;
                std::fs::write(&file, &input)?;
                println!("{} panics at {place}: {file}", reader.name);
            }
        }
        println!("{}: {runs} runs in {:.1} s", reader.name, began.elapsed().as_secs_f64());
    }
    match places.len() {
        0 => Ok(()),
        found => Err(std::io::Error::other(format!("{found} places panic"))),
    }
}
