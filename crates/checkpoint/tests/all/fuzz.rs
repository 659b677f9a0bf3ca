//! Files cut off and changed at random: readers end with a finding or an answer, never with a panic, and
//! take no memory that the files do not have.

use crate::fixtures::{Temp, fixture};
use checkpoint::{open, verify};
use std::fs;
use std::time::{Duration, Instant};

/// A small generator (xorshift64*): the same files every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
}

fn spoil(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(4) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        2 => {
            // A size made huge.
            let at = random.below(bytes.len());
            let end = bytes.len().min(at + 4);
            bytes[at..end].fill(0xff);
        }
        _ => {
            let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
            let len = random.below(16).min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + len, to);
        }
    }
}

#[test]
fn spoilt_files_are_refused_in_words() {
    for (name, files) in [
        ("dcp", &[".metadata", "__0_0.distcp", "__3_0.distcp"][..]),
        ("shards", &["shard-00002-model-00001-of-00001.safetensors"]),
        ("index", &["model-00001-of-00002.safetensors", "model.safetensors.index.json"]),
    ] {
        let temp = Temp::copy(&format!("fuzz-{name}"), name);
        let (mut random, since) = (Random(7), Instant::now());
        let mut refused = 0;
        for round in 0..400 {
            if since.elapsed() > Duration::from_secs(2) && round > 20 {
                break;
            }
            let file = files[round % files.len()];
            let whole = fs::read(fixture(name).join(file)).unwrap();
            let mut bytes = whole.clone();
            (0..=random.below(3)).for_each(|_| {
                if !bytes.is_empty() {
                    spoil(&mut bytes, &mut random);
                }
            });
            fs::write(temp.0.join(file), &bytes).unwrap();
            let findings = match open(&temp.0) {
                Ok(checkpoint) => verify(&checkpoint, None),
                Err(finding) => vec![finding],
            };
            assert!(findings.iter().all(|f| f.rule.starts_with("checkpoint/") && !f.message.is_empty()));
            refused += usize::from(!findings.is_empty());
            fs::write(temp.0.join(file), &whole).unwrap();
        }
        assert!(refused > 0, "{name}");
    }
}
