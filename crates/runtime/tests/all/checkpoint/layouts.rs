//! Checkpoints saved under one layout and loaded under others: the same run goes on, every element
//! is stored once, and what is damaged is named.

use super::common::{self, Temp, load_and_train, on_ranks, recipe, save_after_two, unwrap};
use layout::{LayoutRequest, Schedule, ZeroStage};
use recipe::Recipe;
use runtime::checkpoint::{self, Index, Kind, Region};
use runtime::real::Real;
use std::collections::BTreeMap;
use std::fs;

/// Degrees of tp, cp, pp, vpp, dp, ep, etp, then ZeRO stage and schedule.
type Case = ([u64; 7], ZeroStage, Option<Schedule>);

fn request((degrees, zero, schedule): Case) -> LayoutRequest {
    let [tp, cp, pp, vpp, dp, ep, etp] = degrees.map(Some);
    let microbatches = schedule.map(|_| 4);
    LayoutRequest { tp, cp, pp, vpp, dp, ep, etp, zero: Some(zero), schedule, microbatches, ..LayoutRequest::default() }
}

/// Every axis alone and with others, every ZeRO stage and schedule, one to sixteen ranks.
fn cases() -> Vec<Case> {
    use Schedule::{DualPipe, DualPipeV, Interleaved, OneF1b, ZbH1};
    use ZeroStage::{One, Three, Two, Zero};
    vec![
        ([1, 1, 1, 1, 1, 1, 1], One, None),
        ([2, 1, 1, 1, 1, 1, 1], Zero, None),
        ([4, 1, 1, 1, 1, 2, 2], One, None),
        ([1, 2, 1, 1, 1, 2, 1], Two, None),
        ([1, 1, 4, 1, 1, 1, 1], One, Some(OneF1b)),
        ([1, 1, 2, 2, 1, 1, 1], Three, Some(Interleaved)),
        ([1, 1, 2, 1, 1, 1, 1], One, Some(ZbH1)),
        ([1, 1, 2, 1, 1, 1, 1], Three, Some(DualPipe)),
        ([1, 1, 2, 2, 1, 1, 1], One, Some(DualPipeV)),
        ([1, 1, 1, 1, 4, 4, 1], Three, None),
        ([1, 1, 1, 1, 4, 1, 2], Two, None),
        ([1, 1, 1, 1, 2, 1, 1], Zero, None),
        ([2, 2, 2, 1, 1, 2, 1], One, None),
        ([2, 1, 2, 1, 4, 4, 2], Three, None),
        ([4, 2, 1, 1, 2, 8, 1], Two, None),
    ]
}

/// Losses, balancing losses and norms of the gradient, step by step.
fn check_same(expected: &[[f64; 3]], found: &[[f64; 3]], case: &str) {
    assert_eq!(expected.len(), found.len());
    for (a, b) in expected.iter().flatten().zip(found.iter().flatten()) {
        let error = (a - b).abs() / a.abs();
        assert!(error <= 1e-12, "{case}: {b} is {error:e} from {a}");
    }
}

#[test]
fn a_run_goes_on_under_any_other_layout() {
    for keys in ["pattern = \"AEMR\"\ntied = true", "pattern = \"AEMR\""] {
        let recipe = recipe(keys);
        for source in [0, 13, 7, 2] {
            let temp = Temp::new("onto");
            let store = temp.store().pieces(4..=32);
            let (_, expected) = save_after_two::<f64>(&recipe, &request(cases()[source]), &store);
            for case in cases() {
                for (loaded, reports) in unwrap(load_and_train::<f64>(&recipe, &request(case), &store)) {
                    assert_eq!((loaded.step, loaded.position), (2, common::position(2)));
                    check_same(&expected, &reports, &format!("from {source} onto {case:?}"));
                }
            }
        }
    }
}

/// Under the layout it was saved from a run goes on bit for bit, in both formats.
#[test]
fn the_same_layout_goes_on_bit_for_bit() {
    fn check<R: Real>(recipe: &Recipe, case: Case) {
        let temp = Temp::new("bits");
        let (_, expected) = save_after_two::<R>(recipe, &request(case), &temp.store());
        let found = unwrap(load_and_train::<R>(recipe, &request(case), &temp.store()));
        assert!(found.iter().all(|(_, reports)| *reports == expected), "{case:?}");
    }
    let recipe = recipe("pattern = \"AEMR\"");
    for case in [cases()[3], cases()[5], cases()[13]] {
        check::<f32>(&recipe, case);
        check::<f64>(&recipe, case);
    }
}

/// Number of times each element of a tensor is stored.
fn times_stored(shape: &[u64], pieces: &[checkpoint::Piece]) -> Vec<u8> {
    let mut times = vec![0; shape.iter().product::<u64>() as usize];
    for piece in pieces {
        for start in Region::whole(shape).rows(&piece.at) {
            (start..start + piece.at.row_len()).for_each(|i| times[i as usize] += 1);
        }
    }
    times
}

#[test]
fn every_element_is_stored_once_and_ranks_write_evenly() {
    let recipe = recipe("pattern = \"AEMR\"\ntied = true");
    let tensors = recipe.tensors();
    for case in cases() {
        for piece in [1..=7, 1 << 12..=1 << 18] {
            let temp = Temp::new("once");
            let store = temp.store().pieces(piece.clone());
            let request = request(case);
            let bytes = unwrap(on_ranks::<f32, _>(&recipe, &request, |trainer| {
                Ok(store.save(trainer, &recipe, common::position(0))?.bytes)
            }));
            let index = Index::read(&store.at(0)).unwrap();
            assert_eq!(index.tensors.len(), tensors.len());
            let mut total = 0;
            for tensor in &tensors {
                let entry = &index.tensors[&tensor.path];
                assert_eq!(entry.shape, tensor.shape(), "{} keeps its padding", tensor.path);
                for (_, kind) in Kind::ALL {
                    let is_stored = *kind != Kind::Second || tensor.optimizer != recipe::Optimizer::Muon;
                    let times = times_stored(&entry.shape, entry.pieces(*kind));
                    let expected = u8::from(is_stored);
                    assert!(times.iter().all(|t| *t == expected), "{} {kind} under {case:?}", tensor.path);
                    total += if is_stored { 4 * tensor.elements() } else { 0 };
                }
            }
            assert_eq!(bytes.iter().sum::<u64>(), total);
            // Stages differ in size. Within one, runs are equal, and what AdamW steps has a moment more.
            let stage = bytes.len() / case.0[2] as usize;
            for ranks in bytes.chunks(stage).filter(|_| *piece.start() == 1) {
                let (most, sum) = (ranks.iter().max().unwrap(), ranks.iter().sum::<u64>());
                assert!(most * stage as u64 <= sum + sum / 4, "{case:?}: {ranks:?}");
            }
            check_headers(&store.at(0), &index);
        }
    }
}

/// The files are safetensors whose headers say what the index says.
fn check_headers(folder: &std::path::Path, index: &Index) {
    let mut stored = BTreeMap::new();
    for (path, entry) in &index.tensors {
        for (_, kind) in Kind::ALL {
            for piece in entry.pieces(*kind) {
                let name = (piece.file.clone(), format!("{kind}/{path}{}", piece.at));
                stored.insert(name, (piece.at.shape(), [piece.start, piece.start + piece.bytes]));
            }
        }
    }
    let mut found = BTreeMap::new();
    for file in fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()) {
        if file == checkpoint::NAME {
            continue;
        }
        let bytes = fs::read(folder.join(&file)).unwrap();
        let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(data.is_multiple_of(8));
        let header: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..data as usize]).unwrap();
        for (name, about) in header {
            assert_eq!(about["dtype"], "F32");
            let shape: Vec<u64> = serde_json::from_value(about["shape"].clone()).unwrap();
            let offsets: [u64; 2] = serde_json::from_value(about["data_offsets"].clone()).unwrap();
            assert!(offsets[1] + data <= bytes.len() as u64);
            found.insert((file.clone(), name), (shape, offsets.map(|o| o + data)));
        }
    }
    assert_eq!(found, stored);
}

#[test]
fn a_rank_reads_no_more_than_it_holds() {
    use ZeroStage::{One, Three};
    let recipe = recipe("pattern = \"AEMR\"");
    let pipeline = Some(Schedule::OneF1b);
    // The same parts, another cut of depth: nothing is read twice, by anyone.
    let temp = Temp::new("reads");
    let (written, _) = save_after_two::<f64>(&recipe, &request(([1, 1, 2, 1, 1, 1, 1], One, pipeline)), &temp.store());
    let read = |case: Case| -> Vec<u64> {
        unwrap(load_and_train::<f64>(&recipe, &request(case), &temp.store())).iter().map(|(l, _)| l.bytes).collect()
    };
    assert_eq!(read(([1, 1, 4, 1, 1, 1, 1], One, pipeline)).iter().sum::<u64>(), written.iter().sum::<u64>());
    assert_eq!(read(([1, 1, 2, 1, 1, 1, 1], Three, pipeline)), written);
}

/// A piece is read whole or not at all, so a rank reads what it holds and at most the rest of the
/// pieces at its edges.
#[test]
fn a_tensor_parallel_rank_reads_little_beyond_its_part() {
    let recipe = recipe("pattern = \"AEMR\"");
    let temp = Temp::new("edges");
    let store = temp.store().pieces(1..=16);
    let one = unwrap(on_ranks::<f64, _>(&recipe, &request(cases()[0]), |trainer| {
        Ok(store.save(trainer, &recipe, common::position(0))?.bytes)
    }))[0];
    for tp in [2, 4] {
        let case = ([tp, 1, 1, 1, 1, tp, 1], ZeroStage::Zero, None);
        let results = unwrap(on_ranks::<f64, _>(&recipe, &request(case), |trainer| {
            let parts = trainer.shelf().params.iter().map(|p| p.part.elements() * 8).sum::<u64>();
            Ok((checkpoint::load(&store.at(0), trainer, &recipe)?.bytes, parts + trainer.held().optimizer))
        }));
        for (read, held) in results {
            assert!(read <= held + held / 4, "tp {tp}: {read} read, {held} held, of {one}");
        }
    }
}

#[test]
fn old_checkpoints_go_and_stale_ones_are_cleared() {
    let recipe = recipe("pattern = \"A\"");
    let (temp, one) = (Temp::new("keep"), LayoutRequest { world: Some(2), ..LayoutRequest::default() });
    let store = temp.store();
    let left = format!(".step-7.{}.shardwright", "0".repeat(32));
    fs::write(temp.0.join(&left), "").unwrap();
    fs::create_dir(temp.0.join(format!("{left}.d"))).unwrap();
    fs::write(temp.0.join(format!("{left}.d/rank-00000.safetensors")), b"half").unwrap();
    // What others keep under such names is theirs: torchtitan's checkpoints are called so.
    fs::create_dir(temp.0.join("step-0")).unwrap();
    fs::write(temp.0.join("step-0/.metadata"), b"theirs").unwrap();
    fs::create_dir(temp.0.join("step-7.partial")).unwrap();
    assert_eq!(store.steps().unwrap(), [0]);
    unwrap(on_ranks::<f32, _>(&recipe, &one, |trainer| {
        for step in 1..=4 {
            common::train(&recipe, trainer, step)?;
            store.save(trainer, &recipe, common::position(step))?;
        }
        let again = store.save(trainer, &recipe, common::position(4)).unwrap_err();
        assert!(["checkpoint/exists", "checkpoint/peer"].contains(&again.rule));
        Ok(())
    }));
    let mut names: Vec<_> = fs::read_dir(&temp.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["step-0", "step-3", "step-4", "step-7.partial"]);
    assert!(temp.0.join("step-0/.metadata").exists());
}

/// A model with prediction depths, whose suffix copies the embedding.
#[test]
fn prediction_heads_load_elsewhere() {
    let text = format!("name = \"t\"\npattern = \"AE\"\n{}[mlp]\nffn = 16\n{MTP}", common::TABLES);
    let recipe = Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"));
    let temp = Temp::new("mtp");
    let store = temp.store().pieces(4..=32);
    let pipeline = ([2, 1, 2, 1, 1, 1, 1], ZeroStage::One, Some(Schedule::OneF1b));
    let (_, expected) = save_after_two::<f64>(&recipe, &request(pipeline), &store);
    for case in [cases()[0], cases()[3], cases()[9], cases()[6]] {
        for (_, reports) in unwrap(load_and_train::<f64>(&recipe, &request(case), &store)) {
            check_same(&expected, &reports, &format!("{case:?}"));
        }
    }
}

/// Side embeddings belong to the edge stages, wherever cuts of depth fall: what one split saved
/// another loads, moments included.
#[test]
fn side_embeddings_load_elsewhere() {
    let text = format!("name = \"t\"\npattern = \"AEMR\"\n{}{SIDES}", common::TABLES);
    let recipe = Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"));
    let pipeline = ([2, 1, 2, 1, 1, 1, 1], ZeroStage::One, Some(Schedule::OneF1b));
    for source in [pipeline, cases()[9]] {
        let temp = Temp::new("sides");
        let store = temp.store().pieces(4..=32);
        let (_, expected) = save_after_two::<f64>(&recipe, &request(source), &store);
        for case in [cases()[0], cases()[4], cases()[5], cases()[7], cases()[8], cases()[13]] {
            for (_, reports) in unwrap(load_and_train::<f64>(&recipe, &request(case), &store)) {
                check_same(&expected, &reports, &format!("from {source:?} onto {case:?}"));
            }
        }
    }
}

const SIDES: &str = "[features.ngram_hash]\nrows = 41\ndim = 3\ntables = 4\n\
    [features.structure]\nrows = 9\ndim = 5\nscales = 2\nstage = \"last\"\n";
const MTP: &str = "[features.mtp]\ndepth = 1\npattern = \"(AF)\"\n";
