//! Commands that write, under kills and on a file system that fails: a target is as it was or whole, nothing
//! else is touched, and what a killed command left goes with the next one.
//!
//! A few of each are part of every test run. The long form:
//! `SHARDWRIGHT_KILLS=1000 SHARDWRIGHT_FAULTS=200 cargo test -p shardwright --test all stores -- --nocapture`,
//! and `SHARDWRIGHT_SEED=N` for other ones.

mod faults;
mod field;
mod kills;
mod receipts;

/// A number from the environment.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn new(salt: u64) -> Random {
        Random(number("SHARDWRIGHT_SEED", 1).wrapping_mul(1 << 32) ^ salt)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}
