//! Writes job files of every scheduler for many layouts into a directory, for the schedulers' own
//! readers: `emit_jobs DIRECTORY COUNT`. Each case is a folder.

#[path = "../tests/all/common.rs"]
mod common;

use case::Seams;
use launch::schedulers::{Scheduler, files};
use layout::Engine;
use std::path::Path;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, count] = words.as_slice() else {
        eprintln!("emit_jobs DIRECTORY COUNT");
        std::process::exit(2);
    };
    let count: usize = count.parse().expect("a count");
    let cases = [Engine::Megatron, Engine::Deepspeed].into_iter().flat_map(|e| common::cases(e, Seams::Refuse));
    let legal: Vec<_> = cases.filter_map(|(name, case)| Some((name, case.ok()?))).collect();
    let step = (legal.len() / count).max(1);
    for (name, case) in legal.into_iter().step_by(step) {
        let Ok(emission) = case.emit() else { continue };
        let at = Path::new(folder).join(format!("{}.{name}", emission.engine));
        std::fs::create_dir_all(&at).expect("the folder can be written");
        for &(_, scheduler) in Scheduler::ALL {
            for file in files(scheduler, &case.job(), &emission).expect("job files are written") {
                std::fs::write(at.join(&file.path), &file.contents).expect("the folder can be written");
            }
        }
    }
}
