#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardwright_fuzz::run("request", bytes));
