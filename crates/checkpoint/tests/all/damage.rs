//! What is wrong with files is found, and named.

use crate::fixtures::{Temp, fixture};
use checkpoint::{open, verify};
use std::fs;
use std::path::Path;

/// Rules that opening and verifying end with.
fn rules(path: &Path) -> Vec<&'static str> {
    match open(path) {
        Ok(checkpoint) => verify(&checkpoint, None).iter().map(|f| f.rule).collect(),
        Err(finding) => vec![finding.rule],
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).unwrap()
}

#[test]
fn a_flipped_bit_is_found_by_its_checksum() {
    let temp = Temp::copy("bit", "dcp");
    // 1.0f32 is the first element of `both`, in the file of the first rank.
    edit(&temp.0.join("__0_0.distcp"), |bytes| {
        let at = find(bytes, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
        bytes[at] ^= 1;
    });
    assert_eq!(rules(&temp.0), ["checkpoint/damaged"]);
}

#[test]
fn missing_and_short_files_are_named() {
    let temp = Temp::copy("missing", "dcp");
    fs::remove_file(temp.0.join("__2_0.distcp")).unwrap();
    let found = rules(&temp.0);
    assert!(found.contains(&"checkpoint/missing") && found.contains(&"checkpoint/coverage"), "{found:?}");
    let temp = Temp::copy("short", "dcp");
    edit(&temp.0.join("__3_0.distcp"), |bytes| bytes.truncate(bytes.len() - 1));
    assert!(rules(&temp.0).contains(&"checkpoint/truncated"));
    let temp = Temp::copy("short-st", "index");
    edit(&temp.0.join("model-00001-of-00002.safetensors"), |bytes| bytes.truncate(bytes.len() - 1));
    let found = rules(&temp.0);
    assert!(found.contains(&"checkpoint/truncated") && found.contains(&"checkpoint/weight-map"), "{found:?}");
}

#[test]
fn a_shard_that_is_gone_leaves_a_gap() {
    let temp = Temp::copy("gap", "shards");
    fs::remove_file(temp.0.join("shard-00002-model-00001-of-00001.safetensors")).unwrap();
    assert!(rules(&temp.0).contains(&"checkpoint/coverage"));
    // The same box twice.
    let temp = Temp::copy("twice", "shards");
    fs::copy(temp.0.join("shard-00001-model-00001-of-00001.safetensors"), temp.0.join("again.safetensors")).unwrap();
    assert!(rules(&temp.0).contains(&"checkpoint/coverage"));
}

#[test]
fn other_names_other_sizes_other_orders_are_refused() {
    let temp = Temp::copy("pickle", "dcp");
    edit(&temp.0.join(".metadata"), |bytes| {
        let at = find(bytes, b"_StorageInfo");
        bytes[at..at + 12].copy_from_slice(b"_StorageEval");
    });
    assert_eq!(rules(&temp.0), ["checkpoint/pickle"]);
    let temp = Temp::copy("zip", "dcp");
    edit(&temp.0.join("__0_0.distcp"), |bytes| {
        let at = find(bytes, b"PK\x05\x06");
        bytes[at] = b'Q';
    });
    assert!(rules(&temp.0).contains(&"checkpoint/zip"));
    let temp = Temp::copy("order", "dcp");
    edit(&temp.0.join("__0_0.distcp"), |bytes| {
        let at = find(bytes, b"little");
        bytes[at..at + 6].copy_from_slice(b"bigger");
    });
    assert!(rules(&temp.0).contains(&"checkpoint/payload"));
    let temp = Temp::copy("header", "index");
    edit(&temp.0.join("model-00001-of-00002.safetensors"), |bytes| {
        let at = find(bytes, b"[3,2]");
        bytes[at + 1] = b'4';
    });
    assert!(rules(&temp.0).contains(&"checkpoint/header"));
    let huge = Temp::new("huge");
    let header = br#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"__metadata__":{"DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[9223372036854775807]}}"}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    fs::write(huge.0.join("a.safetensors"), bytes).unwrap();
    assert_eq!(rules(&huge.0), ["checkpoint/limit"]);
}

#[test]
fn a_folder_that_is_none_says_what_it_could_be() {
    let temp = Temp::new("none");
    fs::create_dir(temp.0.join("step-3")).unwrap();
    fs::create_dir(temp.0.join("step-00000020")).unwrap();
    let finding = open(&temp.0).unwrap_err();
    assert_eq!(finding.rule, "checkpoint/format");
    assert!(finding.hint.unwrap().contains("step-00000020"));
    fs::write(temp.0.join("__0.metadata"), b"").unwrap();
    assert!(open(&temp.0).unwrap_err().hint.unwrap().contains("use_collectives"));
    assert_eq!(open(&fixture("nonesuch")).unwrap_err().rule, "checkpoint/format");
}

#[test]
fn what_stands_beside_must_agree() {
    let temp = Temp::copy("about", "dcp");
    let put = |text: &str| fs::write(temp.0.join("shardwright.json"), text).unwrap();
    put(r#"{"schema":"shardwright/checkpoint/1","step":10,"data_position":4000,"more":1}"#);
    assert!(rules(&temp.0).is_empty());
    put(r#"{"schema":"shardwright/checkpoint/1","step":11}"#);
    assert_eq!(rules(&temp.0), ["checkpoint/about"]);
    put(r#"{"schema":"shardwright/checkpoint/2"}"#);
    assert_eq!(rules(&temp.0), ["checkpoint/about"]);
    put(r#"{"schema":"shardwright/checkpoint/1","recipe":{"name":"x","sha256":"00","lines":["name = \"x\""]}}"#);
    assert_eq!(rules(&temp.0), ["checkpoint/about"]);
}
