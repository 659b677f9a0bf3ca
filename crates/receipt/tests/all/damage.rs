//! Files and indexes that are not what they should be.

use crate::common::{folder, names, receipt};
use receipt::store::{RETRACTION, Retraction};
use receipt::{Receipt, Store, Superseded, sha256};
use std::fs;

fn store(name: &str) -> Store {
    Store::at(&folder(name).join("deep/store"))
}

#[test]
fn a_receipt_is_its_text_under_its_hash() {
    let store = store("kept");
    assert!(store.list().unwrap().rows.is_empty(), "a store that is not there yet is empty");
    let one = receipt(1);
    let kept = store.put(&one).unwrap();
    let text = fs::read_to_string(store.root().join(format!("receipts/{}.json", kept.id))).unwrap();
    assert_eq!((sha256(&text), text.as_str(), kept.is_new), (kept.id.clone(), one.text().as_str(), true));
    assert_eq!(Receipt::read(&text).unwrap(), one);
    // The same again, and the same at another time, are the one that is there.
    for recorded in ["2026-11-16T00:00:00Z", "2027-01-01T00:00:00Z"] {
        let again = store.put(&Receipt { recorded: recorded.to_string(), ..one.clone() }).unwrap();
        assert_eq!((again.id.as_str(), again.is_new), (kept.id.as_str(), false));
    }
    assert_eq!(store.find(&kept.id[..6]).unwrap(), (kept.id.clone(), one));
    let other = store.put(&receipt(2)).unwrap();
    assert_ne!(other.id, kept.id);
    for wrong in ["", "xyz", "../receipts", &"0".repeat(64)] {
        assert_eq!(store.find(wrong).unwrap_err().rule, "receipt/id", "{wrong}");
    }
    let rows = store.list().unwrap().rows;
    assert_eq!((rows.len(), rows[0].steps, rows[0].recipe.as_str()), (2, 6, "nam56r-mini"));
    // Both begin with nothing.
    let both = Store::at(store.root());
    for digit in "0123456789abcdef".chars() {
        let held = [&kept.id, &other.id].iter().filter(|id| id.starts_with(digit)).count();
        assert_eq!(both.find(&digit.to_string()).is_ok(), held == 1, "{digit}");
    }
}

#[test]
fn damaged_files_are_set_aside_by_name() {
    let store = store("damaged");
    let ids: Vec<String> = (0..5).map(|n| store.put(&receipt(n)).unwrap().id).collect();
    let file = |id: &str| store.root().join(format!("receipts/{id}.json"));
    fs::write(file(&ids[0]), "half a rec").unwrap();
    // Names that hold what they say, and what they say is no receipt, or one of later days.
    let forged = "{\"schema\":\"shardwright/receipt/1\",\"kind\":\"walk\"}\n";
    fs::write(file(&sha256(forged)), forged).unwrap();
    let foreign = "{\"schema\":\"mine\"}\n";
    fs::write(file(&sha256(foreign)), foreign).unwrap();
    let later = "{\"schema\":\"shardwright/receipt/2\"}\n";
    fs::write(file(&sha256(later)), later).unwrap();
    fs::write(store.root().join("receipts/notes.txt"), "a stranger's").unwrap();
    let looked = store.verify().unwrap();
    assert_eq!(looked.receipts, 4);
    let rules: Vec<&str> = looked.notes.iter().map(|note| note.rule).collect();
    let count = |rule: &str| rules.iter().filter(|r| **r == rule).count();
    assert_eq!((count("receipt/damaged"), count("receipt/later")), (3, 1), "{:?}", looked.notes);
    let aside = names(&store, "quarantine");
    let mut expected = [ids[0].clone(), sha256(forged), sha256(foreign)];
    expected.sort();
    let expected: Vec<String> =
        expected.iter().flat_map(|id| [format!("{id}.json"), format!("{id}.json.why")]).collect();
    assert_eq!(aside, expected);
    let why = fs::read_to_string(store.root().join(format!("quarantine/{}.json.why", ids[0]))).unwrap();
    assert!(why.starts_with("its hash is "), "{why}");
    assert!(file(&sha256(later)).exists() && store.root().join("receipts/notes.txt").exists());
    assert_eq!(store.find(&ids[0]).unwrap_err().rule, "receipt/id");
    assert_eq!(store.find(&sha256(later)).unwrap_err().rule, "receipt/later");
    // What was lost can be kept again; what a second damage makes of it has a name of its own.
    assert!(store.put(&receipt(0)).unwrap().is_new);
    fs::write(file(&ids[0]), "worse").unwrap();
    let kept = store.put(&receipt(0)).unwrap();
    assert_eq!((kept.is_new, kept.notes[0].rule), (true, "receipt/damaged"));
    assert!(names(&store, "quarantine").contains(&format!("{}.json.1", ids[0])));
    assert_eq!(store.list().unwrap().rows.len(), 5);
    // A file that is gone is gone from the list.
    fs::remove_file(file(&ids[4])).unwrap();
    assert_eq!(store.list().unwrap().rows.len(), 4);
}

/// A process that was killed between moving a whole file away and putting it back.
#[test]
fn what_is_whole_comes_back_from_quarantine() {
    let store = store("restored");
    let id = store.put(&receipt(1)).unwrap().id;
    fs::create_dir(store.root().join("quarantine")).unwrap();
    let [at, aside] = ["receipts", "quarantine"].map(|folder| store.root().join(folder).join(format!("{id}.json")));
    fs::rename(&at, &aside).unwrap();
    assert_eq!(store.rebuild().unwrap().restored, std::slice::from_ref(&id));
    assert!(at.exists() && store.find(&id).is_ok());
}

#[test]
fn an_index_is_made_again_whatever_it_is() {
    let store = store("index");
    (0..20).for_each(|n| drop(store.put(&receipt(n)).unwrap()));
    let dump = store.dump().unwrap();
    let path = store.root().join("index.sqlite");
    let whole = fs::read(&path).unwrap();
    let mut torn = whole.clone();
    let middle = torn.len() / 2;
    torn[4096..middle].fill(0xa5);
    for (what, bytes) in [("text", b"not an index".to_vec()), ("torn", torn), ("short", whole[..5000].to_vec())] {
        fs::write(&path, bytes).unwrap();
        let listed = store.list().unwrap();
        assert_eq!(listed.rows.len(), 20, "{what}");
        assert!(listed.notes.iter().all(|note| note.rule == "receipt/index"), "{what}: {:?}", listed.notes);
        assert!(listed.notes.len() == 1, "{what}: {:?}", listed.notes);
        assert_eq!(store.dump().unwrap(), dump, "{what}");
    }
    // Of another version.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    drop(other);
    assert_eq!(store.dump().unwrap(), dump);
    // Behind: rows that are missing, and rows without a file.
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("DELETE FROM receipts WHERE id < '8'", []).unwrap();
    other
        .execute(
            "INSERT INTO receipts SELECT 'ffff', kind, recorded, recipe, 'x', launch_id, row FROM receipts LIMIT 1",
            [],
        )
        .unwrap();
    drop(other);
    let said = store.verify().unwrap().notes;
    assert!(said.len() == 1 && said[0].rule == "receipt/index", "{said:?}");
    assert_eq!(store.dump().unwrap(), dump);
    assert!(store.verify().unwrap().notes.is_empty());
}

#[test]
fn what_is_no_longer_believed_says_why() {
    let store = store("superseded");
    let [one, two, three] = [1, 2, 3].map(|n| store.put(&receipt(n)).unwrap().id);
    let fourth = Receipt {
        supersedes: Some(Superseded { id: one.clone(), reason: "the clock was wrong".to_string() }),
        ..receipt(4)
    };
    let fourth = store.put(&fourth).unwrap().id;
    let say = |id: &str, with: Option<&str>| Retraction {
        schema: RETRACTION.to_string(),
        id: id.to_string(),
        with: with.map(str::to_string),
        because: "another driver".to_string(),
        recorded: "2026-11-16T00:00:00Z".to_string(),
    };
    store.retract(&say(&two, Some(&three))).unwrap();
    let of = |id: &str| store.list().unwrap().superseded.get(id).cloned();
    assert_eq!(of(&one), Some((Some(fourth), "the clock was wrong".to_string())));
    assert_eq!(of(&two), Some((Some(three.clone()), "another driver".to_string())));
    assert_eq!(of(&three), None);
    store.retract(&say(&three, None)).unwrap();
    assert_eq!(of(&three), Some((None, "another driver".to_string())));
    let dump = store.dump().unwrap();
    assert_eq!((dump.lines().count(), store.rebuild().unwrap().retractions), (6, 2));
    assert_eq!(store.dump().unwrap(), dump);
    // A damaged retraction is set aside like a receipt.
    let name = names(&store, "retractions").remove(0);
    fs::write(store.root().join("retractions").join(&name), "{}").unwrap();
    assert_eq!(store.rebuild().unwrap().notes[0].rule, "receipt/damaged");
    assert!(names(&store, "quarantine").contains(&name));
}

/// A launch that was started again: the later receipt has the steps of the earlier one and more.
#[test]
fn a_launch_that_went_on_supersedes_itself() {
    let store = store("earlier");
    let first = receipt(1);
    let id = store.put(&first).unwrap().id;
    let mut second = first.clone();
    second.evidence.steps.push(evidence::Step { number: 7, attempt: 1, line: 9, ..evidence::Step::default() });
    assert_eq!(store.earlier(&second).unwrap().id, id);
    assert!(store.earlier(&first).is_none(), "the same says nothing more");
    let mut other = second.clone();
    other.evidence.steps[0].loss = Some(3.0);
    assert!(store.earlier(&other).is_none(), "it does not say the same of a step");
    other = second.clone();
    other.identity.launch_id = Some("another".to_string());
    assert!(store.earlier(&other).is_none());
}

/// A figure that JSON cannot hold is our bug, and nothing is written.
#[test]
fn what_would_not_read_back_is_not_kept() {
    let store = store("unreadable");
    let mut bad = receipt(1);
    bad.evidence.kernels.push(evidence::Kernel {
        rank: 0,
        name: "k".to_string(),
        calls: 1,
        seconds: f64::NAN,
        source: 0,
    });
    assert_eq!(store.put(&bad).unwrap_err().rule, "receipt/format");
    assert!(names(&store, "receipts").is_empty());
    bad.evidence.kernels.clear();
    bad.evidence.steps[5].loss = Some(f64::NAN);
    let id = store.put(&bad).unwrap().id;
    assert!(store.find(&id).unwrap().1.evidence.steps[5].loss.unwrap().is_nan());
    assert_eq!(store.list().unwrap().rows[0].last_loss, None);
}
