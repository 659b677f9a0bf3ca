//! What the tests of checkpoints share: a small model of every kind of block, and runs of it.

use layout::{Checked, Engine, LayoutRequest, check};
use recipe::Recipe;
use runtime::checkpoint::{self, Loaded, Position, Store};
use runtime::optimizer::Settings;
use runtime::real::Real;
use runtime::train::{Batch, Trainer};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Packed and shared heads, experts, both recurrences, prediction depth, and a vocabulary that most
/// degrees pad.
pub const TABLES: &str = r#"
source = "test"
hidden = 16
vocab = 22
sequence = 16
rope_theta = 100.0
[attention]
heads = 4
kv_heads = 2
head_dim = 4
qk_norm = "head"
[moe]
experts = 8
top_k = 2
ffn = 8
activation = "swiglu"
[moe.shared]
ffn = 8
activation = "swiglu"
[moe.router]
score = "sigmoid"
bias = true
aux_loss = 0.1
[mamba]
kind = "mamba2"
heads = 8
head_dim = 2
state = 4
groups = 8
chunk = 3
[recurrent]
heads = 4
qk_heads = 1
key_dim = 3
value_dim = 2
state_carry = true
[optimizer]
matrix = "muon"
expert = "muon"
"#;

/// A recipe of some pattern and, before the tables, some keys.
pub fn recipe(keys: &str) -> Recipe {
    Recipe::parse(&format!("name = \"t\"\n{keys}\n{TABLES}")).unwrap_or_else(|f| panic!("{f:#?}"))
}

/// A folder that is gone when the test ends.
pub struct Temp(pub PathBuf);

impl Temp {
    pub fn new(name: &str) -> Temp {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Temp(folder)
    }

    pub fn store(&self) -> Store {
        Store::new(&self.0, NonZeroUsize::new(2).unwrap())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn legal(recipe: &Recipe, request: &LayoutRequest) -> Checked {
    let request = LayoutRequest { engine: Some(Engine::Shardwright), global_batch: Some(4), ..request.clone() };
    let checked = check(recipe, &request);
    assert!(checked.is_legal(), "{request:?} {:#?}", checked.findings);
    checked
}

/// Runs `body` on every rank of a layout; a rank's answer or what it was refused with.
pub fn on_ranks<R: Real, T: Send>(
    recipe: &Recipe,
    request: &LayoutRequest,
    body: impl Fn(&mut Trainer<R>) -> comm::Result<T> + Sync,
) -> Vec<comm::Result<T>> {
    let checked = legal(recipe, request);
    let layout = checked.layout.as_ref().unwrap();
    comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        body(&mut Trainer::<R>::new(recipe, layout, comm, 5, Settings::default())?)
    })
}

pub fn unwrap<T>(results: Vec<comm::Result<T>>) -> Vec<T> {
    results.into_iter().map(|r| r.unwrap_or_else(|f| panic!("{f:#?}"))).collect()
}

/// Takes steps up to `until`; their losses with balancing losses and norms.
pub fn train<R: Real>(recipe: &Recipe, trainer: &mut Trainer<R>, until: u64) -> comm::Result<Vec<[f64; 3]>> {
    let layout = legal(recipe, &LayoutRequest { world: Some(1), ..LayoutRequest::default() }).layout.unwrap();
    let mut reports = Vec::new();
    while trainer.steps() < until {
        let report = trainer.step(&Batch::synthetic(recipe, &layout, 1, trainer.steps()))?;
        reports.push([report.loss, report.auxiliary, report.norm]);
    }
    Ok(reports)
}

pub fn position(step: u64) -> Position {
    Position { seed: 5, sequences: 4 * step }
}

/// Trains two steps on a layout and saves; bytes written by rank, and reports of two more steps.
pub fn save_after_two<R: Real>(recipe: &Recipe, request: &LayoutRequest, store: &Store) -> (Vec<u64>, Vec<[f64; 3]>) {
    let results = unwrap(on_ranks::<R, _>(recipe, request, |trainer| {
        train(recipe, trainer, 2)?;
        let saved = store.save(trainer, recipe, position(2))?;
        Ok((saved.bytes, train(recipe, trainer, 4)?))
    }));
    let reports = results[0].1.clone();
    (results.into_iter().map(|r| r.0).collect(), reports)
}

/// Loads the newest checkpoint on every rank of a layout and trains up to step four.
pub fn load_and_train<R: Real>(
    recipe: &Recipe,
    request: &LayoutRequest,
    store: &Store,
) -> Vec<comm::Result<(Loaded, Vec<[f64; 3]>)>> {
    on_ranks::<R, _>(recipe, request, |trainer| {
        let folder = store.latest()?.expect("a checkpoint");
        let loaded = checkpoint::load(&folder, trainer, recipe)?;
        Ok((loaded, train(recipe, trainer, 4)?))
    })
}
