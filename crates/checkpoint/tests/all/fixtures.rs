//! What the committed checkpoints hold, by the rule their script states: element i is the start plus i.

use checkpoint::reader::Reader;
use checkpoint::{Checkpoint, Dtype, FileLayout, Region, Tensor, open, verify};
use std::path::{Path, PathBuf};

/// A committed checkpoint.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/checkpoints").join(name)
}

/// A folder of a test's own, removed at the end.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new(name: &str) -> Temp {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Temp(path)
    }

    /// A copy of a committed checkpoint.
    pub fn copy(name: &str, of: &str) -> Temp {
        let temp = Temp::new(name);
        for entry in std::fs::read_dir(fixture(of)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), temp.0.join(entry.file_name())).unwrap();
        }
        temp
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// All bytes of a tensor.
pub fn bytes(checkpoint: &Checkpoint, tensor: &Tensor) -> Vec<u8> {
    let mut all = Vec::new();
    let mut reader = Reader::new(checkpoint, 24);
    let sink = |bytes: &[u8]| {
        all.extend_from_slice(bytes);
        Ok::<(), diag::Finding>(())
    };
    reader.region(tensor, &Region::whole(&tensor.shape), &mut Vec::new(), sink).unwrap();
    all
}

/// The bytes of `start, start + 1, …` in a dtype.
fn numbers(start: f64, count: u64, dtype: Dtype) -> Vec<u8> {
    let one = |x: f64| match dtype {
        Dtype::F64 => x.to_le_bytes().to_vec(),
        Dtype::F32 => (x as f32).to_le_bytes().to_vec(),
        Dtype::Bf16 => ((x as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec(),
        // Small whole numbers: five bits of exponent, ten of mantissa.
        Dtype::F16 => {
            let bits = (x as f32).to_bits();
            let half = (((bits >> 23) as i32 - 127 + 15) as u32) << 10 | (bits >> 13) & 0x3ff;
            half.to_le_bytes()[..2].to_vec()
        }
        Dtype::I64 => (x as i64).to_le_bytes().to_vec(),
        Dtype::U8 => vec![x as u8],
        other => unreachable!("{other}"),
    };
    (0..count).flat_map(|i| one(start + i as f64)).collect()
}

/// Holds a tensor to what the script wrote.
pub fn check(checkpoint: &Checkpoint, key: &str, dtype: Dtype, shape: &[u64], start: f64) {
    let tensor = &checkpoint.tensors[key];
    assert_eq!((tensor.dtype, tensor.shape.as_slice()), (dtype, shape), "{key}");
    assert_eq!(bytes(checkpoint, tensor), numbers(start, shape.iter().product(), dtype), "{key}");
}

/// The whole of `dcp`, wherever it was written to.
pub fn check_dcp(checkpoint: &Checkpoint) {
    assert_eq!(verify(checkpoint, None), []);
    check(checkpoint, "model.both", Dtype::F32, &[6, 5], 1.0);
    check(checkpoint, "model.uneven", Dtype::Bf16, &[7], 2.0);
    check(checkpoint, "model.deep", Dtype::F16, &[3, 4, 2], 3.0);
    check(checkpoint, "model.whole", Dtype::I64, &[4], 4.0);
    check(checkpoint, "model.scalar", Dtype::F64, &[], 5.5);
    check(checkpoint, "model.empty", Dtype::F32, &[0, 3], 0.0);
    check(checkpoint, "model.byte", Dtype::U8, &[5], 0.0);
    let truth = &checkpoint.tensors["model.truth"];
    assert_eq!((truth.dtype, bytes(checkpoint, truth)), (Dtype::Bool, vec![1, 0, 1]));
    let eight = &checkpoint.tensors["model.eight"];
    // 0, 1, 2, 3 as e4m3: exponent bias 7, three bits of mantissa.
    assert_eq!((eight.dtype, bytes(checkpoint, eight)), (Dtype::F8E4m3, vec![0, 0x38, 0x40, 0x44]));
}

#[test]
fn torch_wrote_what_is_read() {
    let checkpoint = open(&fixture("dcp")).unwrap();
    assert_eq!(checkpoint.layout, FileLayout::Dcp);
    assert_eq!(checkpoint.tensors["model.both"].chunks.len(), 4);
    assert!(checkpoint.tensors["model.both"].chunks.iter().all(|chunk| chunk.crc32.is_some()));
    check_dcp(&checkpoint);
    let shown = |key: &str| checkpoint.values[key].shown.as_deref();
    assert_eq!(shown("run.note"), Some("'as it is'"));
    assert_eq!(shown("run.list"), Some("[1, 2.5, None]"));
    assert_eq!((checkpoint.about.step, checkpoint.about.data_position), (Some(10), Some(4000)));
    assert_eq!(checkpoint.nested["model.both"], ["model", "both"]);
}

#[test]
fn shards_know_where_they_begin() {
    let checkpoint = open(&fixture("shards")).unwrap();
    assert_eq!(checkpoint.layout, FileLayout::Safetensors);
    assert_eq!(verify(&checkpoint, None), []);
    check(&checkpoint, "both", Dtype::F32, &[6, 5], 1.0);
    check(&checkpoint, "uneven", Dtype::Bf16, &[7], 2.0);
    assert_eq!(checkpoint.tensors["both"].chunks.len(), 4);
}

#[test]
fn an_index_and_a_single_file_are_read() {
    let checkpoint = open(&fixture("index")).unwrap();
    assert_eq!(verify(&checkpoint, None), []);
    check(&checkpoint, "a", Dtype::F32, &[3, 2], 1.0);
    check(&checkpoint, "b", Dtype::Bf16, &[4], 2.0);
    let one = open(&fixture("index/model-00002-of-00002.safetensors")).unwrap();
    assert_eq!(verify(&one, None), []);
    check(&one, "b", Dtype::Bf16, &[4], 2.0);
}
