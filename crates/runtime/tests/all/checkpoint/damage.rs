//! Checkpoints that are damaged or made to do harm: refused by name, and nothing outside the folder
//! is read.

use super::common::{self, Temp, load_and_train, on_ranks, recipe, save_after_two, unwrap};
use diag::Finding;
use layout::LayoutRequest;
use proptest::prelude::*;
use recipe::Recipe;
use runtime::checkpoint::{self, Index, Piece, Store};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

fn two() -> LayoutRequest {
    LayoutRequest { tp: Some(2), ..LayoutRequest::default() }
}

/// A saved checkpoint of two steps, and one before it.
fn saved(name: &str) -> (Temp, Store, Recipe) {
    let (temp, recipe) = (Temp::new(name), recipe("pattern = \"AE\""));
    let store = temp.store();
    unwrap(on_ranks::<f64, _>(&recipe, &two(), |trainer| {
        common::train(&recipe, trainer, 1)?;
        store.save(trainer, &recipe, common::position(1))
    }));
    save_after_two::<f64>(&recipe, &two(), &store);
    (temp, store, recipe)
}

/// What one rank says of the newest checkpoint.
fn refusal(recipe: &Recipe, store: &Store) -> Finding {
    let one = LayoutRequest { world: Some(1), ..LayoutRequest::default() };
    load_and_train::<f64>(recipe, &one, store).remove(0).map(|_| ()).expect_err("it loads")
}

fn file(store: &Store) -> PathBuf {
    store.at(2).join("rank-00001.safetensors")
}

/// The finding's rule, and that it names all of these.
fn check(finding: &Finding, rule: &str, words: &[&str]) {
    assert_eq!(finding.rule, rule, "{finding:#?}");
    let text = format!("{} {}", finding.message, finding.hint.as_deref().unwrap_or(""));
    assert!(words.iter().all(|w| text.contains(w)), "{words:?} in {text}");
}

#[test]
fn a_damaged_shard_is_named_with_its_tensor_and_what_would_do() {
    let (_temp, store, recipe) = saved("damaged");
    let index = Index::read(&store.at(2)).unwrap();
    let pieces = index.tensors["layers.0.attention.qkv.weight"].first_moment.clone();
    let piece = pieces.iter().find(|p| p.file == "rank-00001.safetensors").unwrap();
    let good = fs::read(file(&store)).unwrap();
    let mut bytes = good.clone();
    bytes[piece.start as usize + 3] ^= 0x10;
    fs::write(file(&store), &bytes).unwrap();
    let words =
        ["`rank-00001.safetensors` is damaged", "`layers.0.attention.qkv.weight`", &piece.at.to_string(), "`step-1`"];
    check(&refusal(&recipe, &store), "checkpoint/damaged", &words);
    fs::write(file(&store), &good[..good.len() - 9]).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/truncated", &["`rank-00001.safetensors` has", "`step-1`"]);
    fs::remove_file(file(&store)).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/missing", &["`rank-00001.safetensors`", "needs it", "`step-1`"]);
    fs::write(file(&store), &good).unwrap();
    let one = LayoutRequest { world: Some(1), ..LayoutRequest::default() };
    unwrap(load_and_train::<f64>(&recipe, &one, &store));
}

/// A rank that reads only what is whole is stopped as well, and says who was not.
#[test]
fn ranks_fail_together() {
    let (_temp, store, recipe) = saved("together");
    fs::remove_file(file(&store)).unwrap();
    let rules: Vec<&str> =
        load_and_train::<f64>(&recipe, &two(), &store).iter().map(|r| r.as_ref().unwrap_err().rule).collect();
    assert!(rules.contains(&"checkpoint/missing"), "{rules:?}");
    assert!(rules.iter().all(|r| ["checkpoint/missing", "checkpoint/peer"].contains(r)), "{rules:?}");
}

#[test]
fn another_recipe_dtype_or_schema_is_refused() {
    let (_temp, store, recipe) = saved("other");
    let other = common::recipe("pattern = \"AE\"\ntied = true");
    check(&refusal(&other, &store), "checkpoint/recipe", &["another recipe", "tied = true"]);
    let longer = Recipe::parse(&recipe.to_toml().replace("sequence = 16", "sequence = 8")).unwrap();
    unwrap(load_and_train::<f64>(&longer, &two(), &store));
    let half = on_ranks::<f32, _>(&recipe, &two(), |t| checkpoint::load(&store.at(2), t, &recipe)).remove(0);
    check(&half.unwrap_err(), "checkpoint/dtype", &["F64", "F32", "--dtype f64"]);
    let path = store.at(2).join(checkpoint::NAME);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"schema\": 1", "\"schema\": 2")).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/schema", &["schema 2", "schema 1"]);
    fs::write(&path, text.replace("\"seed\": 5", "\"seed\": 6")).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/index", &["checksum"]);
    fs::remove_file(&path).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/missing", &["`index.json`"]);
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let (temp, store, recipe) = saved("links");
    let outside = temp.0.join("outside");
    fs::rename(file(&store), &outside).unwrap();
    std::os::unix::fs::symlink(&outside, file(&store)).unwrap();
    check(&refusal(&recipe, &store), "checkpoint/name", &["not a plain file"]);
}

/// One checkpoint for all cases of a property: its text, its store and its recipe.
fn shared() -> &'static (Temp, Store, Recipe) {
    static SHARED: OnceLock<(Temp, Store, Recipe)> = OnceLock::new();
    SHARED.get_or_init(|| saved("hostile"))
}

/// Loads an index as the newest checkpoint of a folder that has the good files, beside a bait.
fn load_text(name: &str, text: &[u8]) -> Option<Finding> {
    let (_, store, recipe) = shared();
    let temp = Temp::new(name);
    let here = temp.store();
    fs::create_dir(here.at(2)).unwrap();
    for rank in ["rank-00000.safetensors", "rank-00001.safetensors"] {
        fs::hard_link(store.at(2).join(rank), here.at(2).join(rank)).unwrap();
    }
    fs::write(here.at(2).join(checkpoint::NAME), text).unwrap();
    let one = LayoutRequest { world: Some(1), ..LayoutRequest::default() };
    let loaded = on_ranks::<f64, _>(recipe, &one, |t| checkpoint::load(&here.at(2), t, recipe)).remove(0);
    loaded.err()
}

/// One change of one piece, sealed with a true checksum of the index.
fn change(piece: &mut Piece, what: usize, value: u64) {
    let dim = value as usize % piece.at.0.len();
    match what {
        0 => piece.start = value,
        1 => piece.bytes = value,
        2 => piece.at.0[dim].start = value,
        3 => piece.at.0[dim].end = value,
        4 => piece.at.0.push(0..value),
        5 => drop(piece.at.0.pop()),
        6 => piece.crc32 ^= 1 << (value % 32),
        7 => {
            piece.file =
                ["../outside", "/etc/passwd", "..", "", "a/b", "rank-00009.safetensors"][value as usize % 6].into()
        }
        8 => (piece.start, piece.bytes) = (u64::MAX - piece.bytes, piece.bytes),
        _ => piece.at.0.iter_mut().for_each(|r| r.end = r.end.wrapping_add(value)),
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..64, any::<u64>(), Just(u64::MAX), Just(1 << 40)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_sealed_lie_is_refused(tensor in 0usize..64, piece in 0usize..64, what in 0usize..10, value in number()) {
        let (_, store, _) = shared();
        let mut index = Index::read(&store.at(2)).unwrap();
        let at = tensor % index.tensors.len();
        let entry = index.tensors.values_mut().nth(at).unwrap();
        let pieces = if value % 2 == 0 { &mut entry.weight } else { &mut entry.first_moment };
        let before = pieces.clone();
        let at = piece % pieces.len();
        change(&mut pieces[at], what, value);
        let is_same = *pieces == before;
        let finding = load_text("lie", &index.to_json());
        prop_assert_eq!(finding.is_none(), is_same, "{:?}", finding);
    }

    #[test]
    fn a_shape_that_lies_is_refused(tensor in 0usize..64, dim in 0usize..3, value in number()) {
        let (_, store, _) = shared();
        let mut index = Index::read(&store.at(2)).unwrap();
        let at = tensor % index.tensors.len();
        let entry = index.tensors.values_mut().nth(at).unwrap();
        let dim = dim % entry.shape.len();
        let is_same = entry.shape[dim] == value;
        entry.shape[dim] = value;
        prop_assert_eq!(load_text("shape", &index.to_json()).is_none(), is_same);
    }

    #[test]
    fn bytes_changed_at_random_are_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let (_, store, _) = shared();
        let good = fs::read(store.at(2).join(checkpoint::NAME)).unwrap();
        let mut text = good.clone();
        let at = at.index(text.len());
        if cut { text.truncate(at) } else { text[at] = byte };
        let finding = load_text("bytes", &text);
        // White space may change into white space.
        let is_white = !cut && good[at].is_ascii_whitespace() && byte.is_ascii_whitespace();
        prop_assert!(finding.is_some() || text == good || is_white);
    }

    #[test]
    fn any_text_at_all_is_refused(text in prop_oneof![any::<Vec<u8>>(), "[\\[{\"schema:1,}\\]]{0,64}".prop_map(String::into_bytes)]) {
        prop_assert!(Index::parse(&text).is_err());
    }
}

#[test]
fn deep_and_doubled_text_is_refused() {
    assert!(Index::parse("[".repeat(1 << 20).as_bytes()).is_err());
    let deep = format!("{{\"schema\":1,\"crc32\":0,\"index\":{}", "{\"tensors\":".repeat(1 << 18));
    assert!(Index::parse(deep.as_bytes()).is_err());
    let (_, store, _) = shared();
    // A piece twice, and another left out, with sums that agree.
    let mut index = Index::read(&store.at(2)).unwrap();
    let weight = &mut index.tensors.get_mut("layers.0.attention.qkv.weight").unwrap().weight;
    let twin = weight.iter().skip(1).position(|p| p.bytes == weight[0].bytes).unwrap() + 1;
    weight[twin] = weight[0].clone();
    check(&load_text("twice", &index.to_json()).unwrap(), "checkpoint/index", &["overlap"]);
}
