//! A folder with what every writing command needs, strangers' things among it, and what is there before and
//! after.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A command that writes, and what.
pub struct Writer {
    pub line: &'static str,
    pub targets: &'static [&'static str],
}

/// Every command that writes a file or a directory.
pub const WRITERS: &[Writer] = &[
    Writer { line: "import tiny.json --seq 512 -o out.toml", targets: &["out.toml"] },
    Writer { line: "launch tiny.toml --on 8xH200 --out out", targets: &["out"] },
    Writer { line: "probe tiny.toml --on 8xH200 --rank 0 --out out", targets: &["out"] },
    Writer { line: "checkpoint reshard source --out out --world 2", targets: &["out"] },
    Writer { line: "rehearse tiny.toml --steps 1 --dp 2 --seq 32 --save saves", targets: &["saves/step-1"] },
    Writer { line: "fit tiny.toml --on 1xH200 --svg out.svg", targets: &["out.svg"] },
    Writer { line: "checkpoint reshard source --out out --format dcp", targets: &["out"] },
    Writer {
        line: "fit tiny.toml --on 1xH200 --trace out.json --memory-snapshot b.pickle",
        targets: &["out.json", "b.pickle"],
    },
    Writer { line: "plan tiny.toml --on 1,2xH200 --csv out.csv --svg b.svg", targets: &["out.csv", "b.svg"] },
    Writer { line: "checkpoint reshard source --out out --format safetensors", targets: &["out"] },
    Writer { line: "receipt hook -o out.py", targets: &["out.py"] },
    Writer { line: "preflight --policy policy.toml --write-probe", targets: &[] },
];

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;

/// What there is at a path: rights and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Folder(u32),
    File(u32, Vec<u8>),
}

pub type Tree = BTreeMap<PathBuf, Entry>;

/// What a command writes when nothing goes wrong.
pub struct Reference {
    pub code: i32,
    pub trees: Vec<Tree>,
    /// Calls on files of the field.
    pub calls: u64,
    pub time: Duration,
}

pub struct Field {
    pub root: PathBuf,
    pub references: Vec<Reference>,
}

/// The library that makes calls fail, compiled once.
pub fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/stores/shim.c");
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shim-{}.so", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
        let words = ["-shared", "-fPIC", "-O1", "-o"];
        let status = Command::new(compiler).args(words).args([out.as_os_str(), source.as_ref()]).status();
        assert!(status.expect("a C compiler links Rust programs too").success());
        out
    })
}

/// Everything below a folder by relative path; what is being written, or was left, is apart.
pub fn tree(folder: &Path) -> (Tree, Vec<PathBuf>) {
    let (mut tree, mut left) = (Tree::new(), Vec::new());
    walk(folder, Path::new(""), &mut tree, &mut left);
    left.sort();
    (tree, left)
}

fn walk(root: &Path, at: &Path, tree: &mut Tree, left: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(root.join(at)).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let (path, about) = (at.join(&name), entry.metadata().unwrap());
        let mode = about.permissions().mode() & 0o7777;
        if name.starts_with('.') && (name.ends_with(".shardwright") || name.ends_with(".shardwright.d")) {
            left.push(path);
        } else if about.is_dir() {
            tree.insert(path.clone(), Entry::Folder(mode));
            walk(root, &path, tree, left);
        } else {
            tree.insert(path, Entry::File(mode, fs::read(entry.path()).unwrap()));
        }
    }
}

/// Contents without rights: a file that is replaced keeps those it had.
fn contents(tree: &Tree) -> BTreeMap<&Path, Option<&[u8]>> {
    fn content(entry: &Entry) -> Option<&[u8]> {
        if let Entry::File(_, bytes) = entry { Some(bytes) } else { None }
    }
    tree.iter().map(|(path, entry)| (path.as_path(), content(entry))).collect()
}

impl Field {
    /// A folder of a test's own, and what every command makes of it undisturbed.
    pub fn new(name: &str) -> Field {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stores-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("saves/theirs")).unwrap();
        let root = root.canonicalize().unwrap();
        let write = |name: &str, text: &str| {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), text).unwrap();
        };
        write("tiny.json", CONFIG);
        // What commands used to take for their own.
        write("out.1234.tmp/precious", "x");
        write("out.toml.1234.tmp", "x");
        write(".out.1234-0.partial/precious", "x");
        write("saves/step-1.partial/precious", "x");
        write("policy.toml", &format!("[storage]\nlogs = \"{}/saves\"\n", root.display()));
        let mut field = Field { root, references: Vec::new() };
        for line in
            ["import tiny.json --seq 512 -o tiny.toml", "rehearse tiny.toml --steps 1 --dp 2 --seq 32 --save made"]
        {
            let output = field.command(line).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
        fs::rename(field.root.join("made/step-1"), field.root.join("source")).unwrap();
        fs::remove_dir(field.root.join("made")).unwrap();
        field.references = WRITERS.iter().map(|writer| field.reference(writer)).collect();
        field
    }

    fn reference(&self, writer: &Writer) -> Reference {
        let (before, count) = (tree(&self.root).0, self.root.with_extension("count"));
        let _ = fs::remove_file(&count);
        let start = Instant::now();
        let output = self.shimmed(writer.line).env("SHIM_COUNT", &count).output().unwrap();
        let time = start.elapsed();
        let is_probe = writer.targets.is_empty();
        assert!(output.status.success() || is_probe, "{}: {output:?}", writer.line);
        // Programs that the command asked have written theirs before it.
        let calls = fs::read_to_string(&count).unwrap().lines().last().unwrap().parse().unwrap();
        fs::remove_file(count).unwrap();
        let trees = self.clear(writer);
        assert!(trees.iter().all(|tree| !tree.is_empty()), "{}", writer.line);
        assert_eq!(tree(&self.root), (before, Vec::new()), "{}", writer.line);
        Reference { code: output.status.code().unwrap(), trees, calls, time }
    }

    /// A command as typed in the field.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        command.args(line.split_whitespace()).current_dir(&self.root).env("COLUMNS", crate::common::WIDE);
        command
    }

    /// The same, with calls that can be made to fail.
    pub fn shimmed(&self, line: &str) -> Command {
        let mut command = self.command(line);
        command.env("LD_PRELOAD", shim()).env("SHIM_ROOT", &self.root);
        command
    }

    /// Removes a command's targets; gives what they were.
    pub fn clear(&self, writer: &Writer) -> Vec<Tree> {
        let take = |target: &&str| {
            let (all, path) = (tree(&self.root).0, self.root.join(target));
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            all.into_iter().filter(|(at, _)| at.starts_with(target)).collect()
        };
        writer.targets.iter().map(take).collect()
    }

    /// Puts something where a command will write, where that is a file and it is so wanted.
    pub fn prepare(&self, writer: &Writer, has_old: bool) {
        for target in writer.targets.iter().filter(|target| has_old && target.contains('.')) {
            fs::write(self.root.join(target), "old").unwrap();
            fs::set_permissions(self.root.join(target), fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// Holds a disturbed command to the promise: strangers' things and inputs as they were, every target as it
    /// was or whole. Gives whether all targets are whole, and what was left.
    pub fn check(&self, at: usize, before: &Tree, what: &str) -> (bool, Vec<PathBuf>) {
        let (writer, (now, left)) = (&WRITERS[at], tree(&self.root));
        let is_target = |path: &Path| writer.targets.iter().any(|target| path.starts_with(target));
        let others = |tree: &Tree| -> Tree {
            tree.iter()
                .filter(|(path, _)| !is_target(path))
                .map(|(path, entry)| (path.clone(), entry.clone()))
                .collect()
        };
        assert_eq!(others(&now), others(before), "{what}");
        let part = |tree: &Tree, target: &str| -> Tree {
            tree.iter().filter(|(path, _)| path.starts_with(target)).map(|(p, e)| (p.clone(), e.clone())).collect()
        };
        let mut is_whole = true;
        for (target, whole) in writer.targets.iter().zip(&self.references[at].trees) {
            let (old, new) = (part(before, target), part(&now, target));
            if contents(&new) != contents(whole) {
                assert_eq!(new, old, "{what}: `{target}` is neither as it was nor whole");
                is_whole = false;
            }
        }
        for path in &left {
            let name = path.file_name().unwrap().to_str().unwrap();
            let targets = writer.targets.iter().map(|target| target.rsplit('/').next().unwrap()).chain(["probe"]);
            let is_ours = targets.into_iter().any(|target| name.starts_with(&format!(".{target}.")));
            assert!(is_ours, "{what}: {name}");
        }
        (is_whole, left)
    }

    /// The command again, undisturbed: it comes out as ever, and nothing is left.
    pub fn run_again(&self, at: usize, what: &str) {
        let writer = &WRITERS[at];
        self.clear(writer);
        let before = tree(&self.root).0;
        let output = self.command(writer.line).output().unwrap();
        assert_eq!(output.status.code(), Some(self.references[at].code), "{what}, again: {output:?}");
        let (is_whole, left) = self.check(at, &before, what);
        assert!(is_whole && left.is_empty(), "{what}, again: {left:?}");
        self.clear(writer);
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// What a command said, for a message.
pub fn said(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}
