//! A run killed at any moment of a save, again and again, loses nothing: the last complete checkpoint
//! loads, and holds exactly what an uninterrupted run has at that step.
//!
//! A killed process leaves what it wrote to the page cache; what a power cut leaves is for `fsync`,
//! which no test without a machine to switch off can hold to account.

use super::common::{self, Temp, on_ranks, position, recipe, train, unwrap};
use comm::{Call, Group};
use layout::{LayoutRequest, ZeroStage};
use recipe::Recipe;
use runtime::checkpoint::{self, Store};
use runtime::optimizer::Settings;
use runtime::train::Trainer;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `SHARDWRIGHT_KILLS` kills more.
fn kills() -> u64 {
    std::env::var("SHARDWRIGHT_KILLS").map_or(63, |text| text.parse().expect("SHARDWRIGHT_KILLS is a number"))
}

/// How the directory of a save under way ends.
const PARTIAL: &str = ".shardwright.d";

/// What tells the child below that it was started by the test.
const MARK: &str = "until-killed";

fn model() -> Recipe {
    recipe("pattern = \"E\"")
}

/// Two ranks that share out their state, so that every checkpoint has two files.
fn ranks() -> LayoutRequest {
    LayoutRequest { dp: Some(2), zero: Some(ZeroStage::One), ..LayoutRequest::default() }
}

fn store(folder: &Path) -> Store {
    Store::new(folder, NonZeroUsize::new(2).unwrap())
}

/// Goes on from the last checkpoint in the current folder, saving after every step, for ever.
#[test]
#[ignore = "the process that the test below kills"]
fn saves_until_killed() {
    if !Path::new(MARK).exists() {
        return;
    }
    let (recipe, store) = (model(), store(Path::new("checkpoints")));
    unwrap(on_ranks::<f64, ()>(&recipe, &ranks(), |trainer| {
        if let Some(folder) = store.latest()? {
            checkpoint::load(&folder, trainer, &recipe)?;
        }
        loop {
            let step = trainer.steps() + 1;
            train(&recipe, trainer, step)?;
            store.save(trainer, &recipe, position(step))?;
        }
    }));
}

/// What the child has done when the clock of a kill starts.
#[derive(Clone, Copy)]
enum Sign {
    /// It began to save, or to clear what the kill before left.
    Began,
    /// It began to write the index.
    Indexed,
    /// It gave a checkpoint its name: the run gets on however slow the disk is.
    Named,
}

fn wait_for(sign: Sign, folder: &Path, before: &[String]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_partial = |name: &&String| name.ends_with(PARTIAL);
    let is_there = |now: Vec<String>| match sign {
        Sign::Began => now != before,
        Sign::Indexed => now.iter().filter(is_partial).any(|n| folder.join(n).join(checkpoint::NAME).exists()),
        Sign::Named => now.iter().any(|name| !before.contains(name) && name.starts_with("step-")),
    };
    while !is_there(names(folder)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(10));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Starts the child, lets it save for a moment, kills it; whether it was killed inside a save.
fn kill_once(kill: u64, temp: &Temp, folder: &Path) -> bool {
    let before = names(folder);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "checkpoint::kill::saves_until_killed", "--ignored"])
        .current_dir(&temp.0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for([Sign::Began, Sign::Indexed, Sign::Named][kill as usize % 3], folder, &before);
    // Up to a whole save later, most often soon: what is short is likeliest to be struck so.
    let part = (kill * 7919 % 1009) as f64 / 1009.0;
    std::thread::sleep(Duration::from_secs_f64(0.03 * part.powi(4)));
    child.kill().unwrap();
    child.wait().unwrap();
    names(folder).iter().any(|n| n.ends_with(PARTIAL))
}

/// Every file of two checkpoints, byte by byte: what is saved follows from the state alone.
fn check_same(a: &Path, b: &Path) {
    assert_eq!(names(a), names(b));
    for name in names(a) {
        assert!(std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(), "{name} differs");
    }
}

#[test]
fn kills_at_any_moment_lose_nothing() {
    let (temp, recipe, kills) = (Temp::new("kill"), model(), kills());
    std::fs::write(temp.0.join(MARK), b"").unwrap();
    let (folder, unbroken) = (temp.0.join("checkpoints"), store(&temp.0.join("unbroken")));
    let checked = common::legal(&recipe, &ranks());
    let layout = checked.layout.as_ref().unwrap();
    let outcomes = comm::threads::run(2, Duration::from_secs(60), |comm| {
        let new = || Trainer::<f64>::new(&recipe, layout, comm, 5, Settings::default());
        let (mut reference, mut resumed) = (new()?, new()?);
        let (mut last, mut interrupted) = (0, 0);
        for kill in 0..kills {
            interrupted += u64::from(comm.rank() == 0 && kill_once(kill, &temp, &folder));
            comm.barrier(&Group::new(0..2), Call::new("world", "killed"))?;
            let store = store(&folder);
            let Some(newest) = store.latest()? else { continue };
            // Whatever is named as a checkpoint loads, those that were about to be removed among them.
            for step in store.steps()? {
                checkpoint::load(&store.at(step), &mut resumed, &recipe)?;
            }
            let loaded = checkpoint::load(&newest, &mut resumed, &recipe)?;
            assert!(loaded.step >= last, "kill {kill}: step {last} was complete, and is lost");
            assert_eq!(loaded.position, position(loaded.step));
            if loaded.step > last {
                last = loaded.step;
                train(&recipe, &mut reference, last)?;
                let expected = unbroken.save(&reference, &recipe, position(last))?;
                check_same(&newest, &expected.folder);
            }
        }
        Ok((last, interrupted))
    });
    let (last, interrupted) = unwrap(outcomes)[0];
    println!("{kills} kills, {interrupted} of them inside a save, {last} steps saved");
    assert!(last > kills / 4 && interrupted > kills / 20, "{last} steps, {interrupted} inside a save");
}
