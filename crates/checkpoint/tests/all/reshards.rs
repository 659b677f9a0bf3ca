//! Every format into every other and back, for several numbers of ranks: the same bits come out.

use crate::fixtures::{Temp, bytes, check_dcp, fixture};
use checkpoint::{Checkpoint, Copied, FileLayout, Job, Target, open, reshard, verify};
use diag::Finding;
use std::collections::BTreeMap;
use std::path::Path;

fn even(from: &Path, world: u64, layout: FileLayout, out: &Path) -> Result<Copied, Vec<Finding>> {
    let (from, target) = (open(from).map_err(|f| vec![f])?, Target::Even(world));
    // Buffers far smaller than the tensors: every copy goes through them several times.
    reshard(&Job { buffer: 24, ..Job::new(&from, &target, layout, out) })
}

fn contents(checkpoint: &Checkpoint) -> BTreeMap<String, (String, Vec<u8>)> {
    let of = |t: &checkpoint::Tensor| (format!("{} {:?}", t.dtype, t.shape), bytes(checkpoint, t));
    checkpoint.tensors.iter().map(|(key, tensor)| (key.clone(), of(tensor))).collect()
}

#[test]
fn dcp_onto_other_ranks_and_back() {
    for world in [1, 2, 3, 8] {
        let temp = Temp::new(&format!("dcp-{world}"));
        let (there, back) = (temp.0.join("there"), temp.0.join("back"));
        let copied = even(&fixture("dcp"), world, FileLayout::Dcp, &there).unwrap();
        assert_eq!((copied.tensors, copied.files), (9, world));
        assert!(copied.largest_buffer <= 64, "{copied:?}");
        let checkpoint = open(&there).unwrap();
        check_dcp(&checkpoint);
        assert_eq!(checkpoint.values["run.list"].shown.as_deref(), Some("[1, 2.5, None]"));
        assert_eq!(checkpoint.nested["run.step"], ["run", "step"]);
        even(&there, 4, FileLayout::Dcp, &back).unwrap();
        check_dcp(&open(&back).unwrap());
    }
}

#[test]
fn safetensors_into_dcp_and_back() {
    for (name, world) in [("shards", 1), ("shards", 3), ("index", 1), ("index", 2)] {
        let temp = Temp::new(&format!("st-{name}-{world}"));
        let (dcp, back) = (temp.0.join("dcp"), temp.0.join("back"));
        even(&fixture(name), world, FileLayout::Dcp, &dcp).unwrap();
        even(&dcp, world, FileLayout::Safetensors, &back).unwrap();
        let (old, new) = (open(&fixture(name)).unwrap(), open(&back).unwrap());
        assert_eq!(verify(&new, None), []);
        assert_eq!(contents(&old), contents(&new));
        assert_eq!(back.join("model.safetensors").exists(), world == 1);
    }
}

#[test]
fn what_a_format_has_no_place_for_is_refused() {
    let temp = Temp::new("carry");
    let refused = even(&fixture("dcp"), 2, FileLayout::Safetensors, &temp.0.join("out")).unwrap_err();
    assert!(refused.iter().all(|f| f.rule == "checkpoint/carry"));
    assert!(refused.iter().any(|f| f.object == "run.note") && !refused.iter().any(|f| f.object == "run.step"));
    let refused = even(&fixture("dcp"), 2, FileLayout::Shardwright, &temp.0.join("out")).unwrap_err();
    for object in ["seed", "recipe", "model.uneven"] {
        assert!(refused.iter().any(|f| f.rule == "checkpoint/carry" && f.object == object), "{object} {refused:#?}");
    }
    assert_eq!(std::fs::read_dir(&temp.0).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_half_done() {
    let temp = Temp::new("atomic");
    let out = temp.0.join("out");
    std::fs::create_dir(&out).unwrap();
    let refused = even(&fixture("dcp"), 2, FileLayout::Dcp, &out).unwrap_err();
    assert_eq!(refused[0].rule, "checkpoint/exists");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    // A stranger's folder under the name a temporary one would have is left alone.
    let stranger = temp.0.join(format!(".new.{}-0.partial", std::process::id()));
    std::fs::create_dir(&stranger).unwrap();
    std::fs::write(stranger.join("theirs"), "x").unwrap();
    even(&fixture("dcp"), 2, FileLayout::Dcp, &temp.0.join("new")).unwrap();
    assert_eq!(std::fs::read_to_string(stranger.join("theirs")).unwrap(), "x");
    assert_eq!(std::fs::read_dir(&temp.0).unwrap().count(), 3);
}
