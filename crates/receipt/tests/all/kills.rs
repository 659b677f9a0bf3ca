//! Many processes that keep receipts at once, killed at random: what was acknowledged is there, and the index is made
//! again to the byte.
//!
//! A few are part of every test run. The long form:
//! `SHARDWRIGHT_RECEIPTS=2000 cargo test -p shardwright-receipt --test all kills -- --nocapture`, and
//! `SHARDWRIGHT_SEED=N` for other moments.

use crate::common::{folder, names, receipt};
use receipt::Store;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Processes at once.
const WRITERS: u64 = 8;

/// Every so many receipts all processes keep the same one.
const SHARED: u64 = 10;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Which receipt a writer keeps at a place of its list.
fn kept_at(writer: u64, place: u64) -> u64 {
    if place.is_multiple_of(SHARED) { place } else { (writer + 1) * 1_000_000 + place }
}

/// What a writer's process does; run by the test below, with what it is to write.
#[test]
#[ignore = "a process of `every_acknowledged_receipt_is_there`"]
fn writer() {
    let Ok(told) = std::env::var("RECEIPTS_WRITER") else { return };
    let mut words = told.splitn(4, ' ');
    let mut next = || words.next().unwrap().to_string();
    let [writer, from, to] = [next(), next(), next()].map(|word| word.parse::<u64>().unwrap());
    let store = Store::at(Path::new(&next()));
    for place in from..to {
        let kept = store.put(&receipt(kept_at(writer, place))).unwrap();
        // One write, so that a line is whole or not there.
        std::io::stdout().write_all(format!("\nkept {}\n", kept.id).as_bytes()).unwrap();
    }
}

/// Keeps a writer's receipts, starting it again whenever it was killed. Gives the names it acknowledged, and kills.
fn written(root: &Path, writer: u64, count: u64) -> (Vec<String>, u64) {
    let (mut acknowledged, mut kills) = (Vec::new(), 0);
    let mut random = Random(number("SHARDWRIGHT_SEED", 1) << 32 ^ writer);
    let most = count / 10 + 2;
    while (acknowledged.len() as u64) < count {
        let told = format!("{writer} {} {count} {}", acknowledged.len(), root.display());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::writer", "--ignored", "--nocapture"])
            .env("RECEIPTS_WRITER", told)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        // Killed after so many more, at any moment between two.
        let strikes = kills < most;
        let after = acknowledged.len() as u64 + random.below(20);
        let mut read = lines.lines();
        while let Some(Ok(line)) = read.next() {
            let Some(id) = line.strip_prefix("kept ") else { continue };
            acknowledged.push(id.to_string());
            if strikes && acknowledged.len() as u64 > after {
                std::thread::sleep(Duration::from_micros(random.below(8000)));
                let _ = child.kill();
                break;
            }
        }
        // What it had acknowledged before it was struck counts.
        acknowledged
            .extend(read.map_while(Result::ok).filter_map(|line| Some(line.strip_prefix("kept ")?.to_string())));
        use std::os::unix::process::ExitStatusExt;
        let status = child.wait().unwrap();
        kills += u64::from(status.signal() == Some(9));
        assert!(status.success() || status.signal() == Some(9), "writer {writer}: {status}");
    }
    (acknowledged, kills)
}

#[test]
fn every_acknowledged_receipt_is_there() {
    let (root, count, began) = (folder("kills").join("store"), number("SHARDWRIGHT_RECEIPTS", 24), Instant::now());
    let all: Vec<(Vec<String>, u64)> = std::thread::scope(|scope| {
        let start = |writer| {
            scope.spawn({
                let root = &root;
                move || written(root, writer, count)
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(start).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let wrote = began.elapsed();
    let kills: u64 = all.iter().map(|(_, kills)| kills).sum();
    let acknowledged: BTreeSet<&String> = all.iter().flat_map(|(ids, _)| ids).collect();
    let store = Store::at(&root);
    // What one of them was writing when it was struck may be there as well.
    let files: BTreeSet<String> = names(&store, "receipts")
        .into_iter()
        .filter_map(|name| Some(name.strip_suffix(".json")?.to_string()))
        .collect();
    let missing: Vec<&&String> = acknowledged.iter().filter(|id| !files.contains(**id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let wanted: BTreeSet<u64> = (0..WRITERS).flat_map(|w| (0..count).map(move |place| kept_at(w, place))).collect();
    assert_eq!(acknowledged.len(), wanted.len());
    let looked = store.verify().unwrap();
    assert!(looked.notes.iter().all(|note| note.rule == "receipt/index"), "{:?}", looked.notes);
    let listed = store.list().unwrap();
    assert_eq!(listed.rows.len(), files.len());
    let first = store.dump().unwrap();
    assert_eq!(first.lines().count(), files.len());
    store.rebuild().unwrap();
    assert_eq!(store.dump().unwrap(), first, "made again from nothing");
    for name in ["index.sqlite", "index.sqlite-wal", "index.sqlite-shm"] {
        let _ = std::fs::remove_file(root.join(name));
    }
    assert_eq!(store.dump().unwrap(), first, "made again where it was missing");
    let left = names(&store, "receipts").into_iter().filter(|name| !name.ends_with(".json")).count();
    assert_eq!((left, names(&store, "quarantine").len()), (0, 0), "what the killed left is gone");
    println!(
        "{WRITERS} processes x {count} receipts: {} acknowledged, {kills} killed, {} files, all there; written in {:.1} s, \
         index made again to the byte",
        acknowledged.len(),
        files.len(),
        wrote.as_secs_f64()
    );
    assert!(kills > WRITERS, "{kills} kills");
}
