//! Where answers go: targets that must not be replaced, inputs that must not be overwritten, streams that
//! take nothing.

#![cfg(unix)]

use crate::common::{Ran, WIDE, ran};
use crate::findings::{files, halves, workspace};
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 2048,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;

/// A folder with a model's config, and the recipe that comes of it.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("writing-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("x.json"), CONFIG).unwrap();
    let made = at(&path, "import x.json -o x.toml");
    assert_eq!((made.code, made.stdout.as_str()), (0, "wrote x.toml\n"), "{}", made.stderr);
    path
}

fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
    command.current_dir(folder).env("COLUMNS", WIDE);
    command
}

fn at(folder: &Path, line: &str) -> Ran {
    ran(program(folder).args(line.split_whitespace()))
}

/// Runs a script in which `shardwright` is the built one.
fn shell(folder: &Path, script: &str) -> Ran {
    let mut command = Command::new("bash");
    let begin = "shardwright() { \"$BINARY\" \"$@\"; }\n";
    command.current_dir(folder).env("COLUMNS", WIDE).env("BINARY", env!("CARGO_BIN_EXE_shardwright"));
    ran(command.args(["-c", &format!("{begin}{script}")]))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_input_is_never_its_own_output() {
    let folder = folder("input");
    fs::hard_link(folder.join("x.json"), folder.join("hard.json")).unwrap();
    symlink("x.json", folder.join("soft.json")).unwrap();
    fs::create_dir(folder.join("sub")).unwrap();
    for line in [
        "import x.json -o x.json",
        "import x.json -o ./sub/../x.json",
        "import x.json -o hard.json",
        "import x.json -o soft.json",
        "import soft.json -o x.json",
        "fit x.toml --on 1xH200 --svg x.toml",
        "fit x.json --on 1xH200 --svg hard.json",
        "plan x.toml --on 1,2xH200 --csv x.toml",
        "plan x.toml --on 1,2xH200 --svg x.toml",
        "plan x.toml --on 1,2xH200 --csv both --svg both",
    ] {
        let refused = at(&folder, line);
        assert_eq!(refused.code, 1, "{line}: {}", refused.stdout);
        assert!(refused.stderr.contains("[file/input]") && refused.stderr.contains("hint: "), "{}", refused.stderr);
        let _ = fs::remove_file(folder.join("both"));
    }
    let piped = shell(&folder, "shardwright import - -o x.json < x.json");
    assert!(piped.code == 1 && piped.stderr.contains("[file/input]"), "{}", piped.stderr);
    assert_eq!(fs::read_to_string(folder.join("x.json")).unwrap(), CONFIG);
    assert_eq!(names(&folder), ["hard.json", "soft.json", "sub", "x.json", "x.toml"]);
    assert_eq!(at(&folder, "import x.json -o x.toml").code, 0, "an output of before is no input");
}

#[test]
fn special_files_are_refused_and_links_are_followed() {
    let folder = folder("special");
    assert_eq!(shell(&folder, "mkfifo pipe").code, 0);
    symlink("gone", folder.join("dangling")).unwrap();
    symlink("x.toml", folder.join("link")).unwrap();
    for (target, what) in [
        ("pipe", "a named pipe"),
        ("/dev/zero", "a device"),
        (".", "a directory"),
        ("new/", "a directory's name"),
        ("dangling", "a link that leads nowhere"),
    ] {
        let refused = at(&folder, &format!("import x.json -o {target}"));
        assert_eq!(refused.code, 1, "{target}");
        let expected = format!("error: `{target}` is {what}, and only plain files are replaced [file/special]");
        assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    }
    assert!(fs::symlink_metadata(folder.join("pipe")).unwrap().file_type().is_fifo());
    fs::write(folder.join("x.toml"), "old").unwrap();
    assert_eq!(at(&folder, "import x.json -o link").code, 0);
    assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink());
    assert!(fs::read_to_string(folder.join("x.toml")).unwrap().contains("name = "));
    let missing = at(&folder, "import x.json -o no/such/x.toml");
    assert!(missing.code == 1 && missing.stderr.contains("[file/write]") && missing.stderr.contains("mkdir -p"));
    assert_eq!(names(&folder), ["dangling", "link", "pipe", "x.json", "x.toml"]);
}

#[test]
fn standard_streams_and_descriptors_are_written_to() {
    let folder = folder("streams");
    let plain = at(&folder, "import x.json").stdout;
    for target in ["-", "/dev/stdout", "/dev/fd/1"] {
        assert_eq!(at(&folder, &format!("import x.json -o {target}")).stdout, plain, "{target}");
    }
    assert_eq!(at(&folder, "import x.json -o /dev/null").stdout, "wrote /dev/null\n");
    let piped =
        shell(&folder, "shardwright import x.json -o >(cat > through) && while [ ! -s through ]; do sleep 0.01; done");
    assert_eq!((piped.code, fs::read_to_string(folder.join("through")).unwrap()), (0, plain));
}

/// Names that could be guessed belong to whoever has them: the shell's number becomes the command's.
#[test]
fn strangers_things_under_old_temporary_names_stay() {
    let folder = folder("strangers");
    let script = "mkdir out.$$.tmp && echo x > out.$$.tmp/precious && echo $$ > pid && exec \"$BINARY\" launch x.toml --on 8xH200 --out out";
    let launched = shell(&folder, script);
    assert_eq!(launched.code, 0, "{}", launched.stderr);
    let pid = fs::read_to_string(folder.join("pid")).unwrap().trim().to_string();
    assert!(folder.join(format!("out.{pid}.tmp/precious")).exists());
    let sums = shell(&folder, "cd out && sha256sum -c --quiet SHA256SUMS");
    assert_eq!(sums.code, 0, "{}{}", sums.stdout, sums.stderr);
    let script = "echo x > victim && ln -s victim y.toml.$$.tmp && exec \"$BINARY\" import x.json -o y.toml";
    assert_eq!(shell(&folder, script).code, 0);
    assert_eq!(fs::read_to_string(folder.join("victim")).unwrap(), "x\n");
}

#[test]
fn output_that_nobody_takes_is_no_success() {
    let folder = folder("full");
    for line in ["params x.toml", "params x.toml --json", "--help", "completions bash", "import x.json"] {
        let full = shell(&folder, &format!("shardwright {line} > /dev/full"));
        assert_eq!(full.code, 74, "{line}: {}", full.stderr);
        assert!(full.stderr.contains("No space left on device") && full.stderr.contains("[file/stdout]"), "{line}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = program(&folder).args(line.split_whitespace()).stdout(writer).stderr(Stdio::null()).status();
        assert_eq!(closed.unwrap().code(), Some(141), "{line}");
    }
    let quiet = shell(&folder, "set -o pipefail; (sleep 0.3; exec \"$BINARY\" params x.toml) | true");
    assert_eq!((quiet.code, quiet.stderr.as_str()), (141, ""));
    assert_eq!(shell(&folder, "shardwright import x.json 2> /dev/full").code, 74);
    assert_eq!(shell(&folder, "shardwright import x.json -o /dev/full").code, 1, "a device");
}

/// Whoever writes does it through `store`, and programs are started in one place.
#[test]
fn nobody_else_writes_or_starts_programs() {
    let words = [
        "fs::write(",
        "File::create",
        "OpenOptions",
        "fs::rename",
        "create_dir",
        "remove_dir",
        "remove_file",
        "hard_link",
        "fs::copy",
        "set_permissions",
        "Command::new(",
    ];
    let (mut sources, mut wrong) = (Vec::new(), Vec::new());
    let crates = workspace().join("crates");
    for entry in fs::read_dir(&crates).unwrap().flatten() {
        files(&entry.path().join("src"), &mut sources);
    }
    assert!(sources.len() > 500, "{} sources", sources.len());
    for path in sources {
        let name = path.strip_prefix(&crates).unwrap().display().to_string();
        let (code, _) = halves(&fs::read_to_string(&path).unwrap());
        let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
        let used = lines.filter(|(_, line)| words.iter().any(|word| line.contains(word)));
        let excused = ["store/src/", "fuzz/src/", "cli/src/machine/program.rs"];
        let is_excused = excused.iter().any(|place| name.starts_with(place));
        wrong.extend(used.filter(|_| !is_excused).map(|(at, line)| format!("{name}:{}: {}", at + 1, line.trim())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
