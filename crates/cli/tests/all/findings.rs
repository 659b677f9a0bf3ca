//! Every finding's id stands in some test, and most are met by typing what they refuse.

use layout::{Engine, Layout, LayoutRequest};
use recipe::Recipe;
use runtime::train::{Batch, Trainer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Ids that no test meets, and why.
const EXCEPT: &[(&str, &str)] = &[
    ("comm/frame", "a process of another build: needs two MPI processes that differ"),
    ("comm/mpi", "an MPI that does not start, or a kernel that refuses a signal handler"),
    ("comm/size", "a frame of more than 32 MiB between MPI processes"),
    ("picture/png", "a build without its feature `png`"),
    ("report/asked", "a question of our own that cannot be read: none is"),
    ("hardware/file", "a built-in file that does not read: tests of the crate read every one"),
];

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

pub fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// `tp/heads`: two words of small letters, digits and dashes.
fn is_id(text: &str) -> bool {
    let is_word =
        |word: &str| word.starts_with(|c: char| c.is_ascii_alphanumeric()) && !word.ends_with('-') && !word.is_empty();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.split_once('/').is_some_and(|(a, b)| [a, b].iter().all(|w| is_word(w) && w.chars().all(is_plain)))
}

/// A source file without its inline tests, and these.
pub fn halves(text: &str) -> (String, String) {
    let (mut code, mut tests) = (String::new(), String::new());
    let (mut guarded, mut inside) = (false, false);
    for line in text.split_inclusive('\n') {
        let begins = guarded && (line.starts_with("mod ") || line.starts_with("pub mod ")) && line.contains('{');
        inside |= begins;
        if inside {
            tests.push_str(line)
        } else {
            code.push_str(line)
        }
        // Lines of code keep their numbers.
        code.push_str(if inside { "\n" } else { "" });
        inside &= !line.starts_with('}');
        guarded = line.starts_with("#[cfg(") && line.contains("test") || guarded && line.starts_with("#[");
    }
    (code, tests)
}

/// Ids that code states; literals of paths and of named values are none.
fn stated(code: &str) -> Vec<(usize, &str)> {
    let is_named =
        |line: &str| line.split_once(" = \"").is_some_and(|(name, _)| name.chars().all(char::is_alphanumeric));
    let lines = code.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, l)| !l.starts_with("//") && !l.contains(".join(") && !l.contains("include_str!") && !is_named(l))
        .flat_map(|(at, line)| line.split('"').filter(|text| is_id(text)).map(move |text| (at + 1, text)))
        .collect()
}

fn mentioned(text: &str, into: &mut BTreeSet<String>) {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '/';
    into.extend(text.split(|c| !is_part(c)).filter(|word| is_id(word)).map(str::to_string));
}

/// Ids by place in code, and ids in tests and goldens.
fn scan() -> (BTreeMap<String, String>, BTreeSet<String>) {
    let (mut ids, mut tested) = (BTreeMap::new(), BTreeSet::new());
    let mut all = Vec::new();
    let root = workspace();
    files(&root.join("crates"), &mut all);
    for path in all {
        let place = path.strip_prefix(&root).expect("inside").to_string_lossy().replace('\\', "/");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let parts: Vec<&str> = place.split('/').collect();
        // Fuzzing reads what others state.
        if parts[1] == "fuzz" {
            continue;
        }
        let is_test = parts[2..].contains(&"tests") || place.ends_with("/tests.rs");
        if place.ends_with("cli/tests/all/findings.rs") {
            let (before, rest) = text.split_once("const EXCEPT").expect("the table");
            let (_, after) = rest.split_once("];").expect("its end");
            mentioned(before, &mut tested);
            mentioned(after, &mut tested);
        } else if is_test {
            mentioned(&text, &mut tested);
        } else if parts[2] == "src" && place.ends_with(".rs") {
            let (code, tests) = halves(&text);
            mentioned(&tests, &mut tested);
            for (line, id) in stated(&code) {
                // A rule of the layout crate does not compile without examples.
                if parts[1] == "layout" && code.contains(&format!("    id: \"{id}\",")) {
                    tested.insert(id.to_string());
                }
                ids.entry(id.to_string()).or_insert_with(|| format!("{place}:{line}"));
            }
        }
    }
    (ids, tested)
}

#[test]
fn every_id_is_in_a_test() {
    let (ids, tested) = scan();
    println!("{} ids", ids.len());
    assert!(ids.len() > 250, "the scan finds ids");
    let excepted = |id: &str| EXCEPT.iter().any(|(known, _)| *known == id);
    let untested: Vec<_> = ids.iter().filter(|(id, _)| !tested.contains(*id) && !excepted(id)).collect();
    assert!(untested.is_empty(), "no test or golden names {untested:#?}");
    for (id, _) in EXCEPT {
        assert!(ids.contains_key(*id) && !tested.contains(*id), "`{id}` needs no exception");
    }
}

/// A recipe that everything takes.
const SMALL: &str = r#"name = "small"
pattern = "(AF)"
depth = 4
hidden = 256
vocab = 1024
sequence = 512

[attention]
heads = 4
kv_heads = 2

[mlp]
ffn = 512
"#;

/// Recipes: the small one with one thing put in another's place, and more below it.
const RECIPES: &[(&str, &str, &str, &str)] = &[
    ("small", "", "", ""),
    ("kv", "kv_heads = 2", "kv_heads = 3", ""),
    ("hidden", "\"small\"", "\"sm\\u202eall\"", ""),
    ("head-dim", "heads = 4\nkv_heads = 2", "heads = 3", ""),
    (
        "qk-norm",
        "heads = 4\nkv_heads = 2",
        "kind = \"mla\"\nheads = 4\nkv_rank = 64\nqk_dim = 64\nrope_dim = 32\nv_dim = 64\nqk_norm = \"head\"",
        "",
    ),
    ("placement", "sequence = 512", "sequence = 512\npositions = \"learned\"\nlearned_positions = 16", ""),
    ("gated", "(AF)\"", "(AF)G\"", "\n[gated_delta]\nkey_heads = 3\nvalue_heads = 4\nkey_dim = 16\nvalue_dim = 16\n"),
    ("linear", "(AF)\"", "(AF)L\"", "\n[linear]\nkind = \"rg_lru\"\nwidth = 10\nheads = 4\n"),
    ("top-k", "\"(AF)\"\ndepth = 4", "\"AE\"", "\n[moe]\nexperts = 2\ntop_k = 4\nffn = 256\n"),
    ("adapters", "ffn = 512", "ffn = 512\n\n[adapters]\nrank = 8\ntargets = [\"attention.qvk\"]", ""),
    ("lora-all", "ffn = 512", "ffn = 512\n\n[adapters]\nrank = 8\ntargets = [\"mlp.fc1\"]", ""),
    ("mtp", "ffn = 512", "ffn = 512\n\n[features.mtp]\ndepth = 1\npattern = \"AF\"", ""),
    ("streams", "ffn = 512", "ffn = 512\n\n[features.mhc]\nstreams = 4", ""),
    ("shared", "\"(AF)\"", "\"(SF)\"", "\n[shared]\nblocks = 1\nheads = 4\nhead_dim = 128\nffn = 512\n"),
    (
        "shared-heads",
        "\"(AF)\"",
        "\"(SF)\"",
        "\n[shared]\nblocks = 1\nheads = 4\nkv_heads = 3\nhead_dim = 128\nffn = 512\n",
    ),
    (
        "scan-heads",
        "\"(AF)\"",
        "\"(MF)\"",
        "\n[mamba]\nkind = \"mamba1\"\ninner = 512\nstate = 16\ndt_rank = 16\nheads = 3\n",
    ),
    ("some", "ffn = 512", "ffn = 512\n\n[features.mod]\nlayers = [1]\ncapacity = 0.5", ""),
    ("engram", "ffn = 512", "ffn = 512\n\n[features.engram]\nlayers = [1]\nrows = 800\ndim = 9", ""),
    ("capacity", "ffn = 512", "ffn = 512\n\n[features.mod]\nlayers = [1]\ncapacity = 2.0", ""),
    ("stream", "ffn = 512", "ffn = 512\n\n[features.mhc]\nstreams = 1", ""),
    ("muon", "ffn = 512", "ffn = 512\n\n[optimizer]\nnorm = \"muon\"", ""),
    ("dialect", "\"(AF)\"", "\"*-/*-/*\"", ""),
    (
        "no-built-in",
        "\"(AF)\"",
        "\"AFR\"\nmodes = [\"nemo_native\", \"author_dp\"]",
        "\n[recurrent]\nheads = 4\nkey_dim = 16\nvalue_dim = 16\n",
    ),
    ("mode", "\"(AF)\"", "\"(AF)\"\nmodes = [\"fast\"]", ""),
    ("short", "\"(AF)\"", "\"AFAFAF\"", ""),
    ("table", "\"(AF)\"", "\"AFM\"", ""),
    ("unused-table", "\"(AF)\"", "\"A\"", ""),
    ("unused", "sequence = 512", "sequence = 512\npositions = \"none\"\nrope_theta = 10000.0", ""),
    ("missing", "sequence = 512", "sequence = 512\npositions = \"learned\"", ""),
    ("qk-heads", "\"(AF)\"", "\"AFR\"", "\n[recurrent]\nheads = 4\nqk_heads = 3\nkey_dim = 16\nvalue_dim = 16\n"),
    ("sgd", "ffn = 512", "ffn = 512\n\n[optimizer]\nmatrix = \"sgd\"", ""),
    ("fp8", "ffn = 512", "ffn = 512\n\n[precision]\nweights = \"fp8\"", ""),
    ("experts", "\"(AF)\"", "\"AE\"", "\n[moe]\nexperts = 8\ntop_k = 2\nffn = 256\n\n[moe.shared]\nffn = 256\n"),
    ("recurrent", "\"(AF)\"", "\"AFR\"", "\n[recurrent]\nheads = 4\nkey_dim = 16\nvalue_dim = 16\n"),
    (
        "groups",
        "\"(AF)\"",
        "\"AFM\"",
        "\n[mamba]\nkind = \"mamba2\"\nheads = 4\nhead_dim = 16\nstate = 16\ngroups = 3\n",
    ),
    (
        "angles",
        "\"(AF)\"",
        "\"AFM\"",
        "\n[mamba]\nkind = \"mamba3\"\nheads = 4\nhead_dim = 16\nstate = 16\nangles = 9\n",
    ),
    ("r-type", "depth = 4", "depth = \"four\"", ""),
    ("r-choice", "kv_heads = 2", "kind = \"fast\"", ""),
];

/// The example device, spoiled likewise.
const DEVICES: &[(&str, &str, &str)] = &[
    ("dev", "", ""),
    ("dev-consistency", "island_devices = 4", "island_devices = 3"),
    ("dev-name", "\"my-H100\"", "\"\""),
    ("dev-hidden", "\"my-H100\"", "\"my\\u202eH100\""),
    ("dev-source", "\"nvidia-smi memory.total\"", "\" \""),
    ("dev-type", "devices_per_node = 4", "devices_per_node = \"four\""),
    ("dev-vendor", "vendor = \"nvidia\"", "vendor = \"google\""),
    ("dev-kind", "kind = \"gpu\"", "kind = \"npu\""),
    ("dev-limit", "devices_per_node = 4", "devices_per_node = 99999999999"),
];

/// Other files.
const FILES: &[(&str, &str)] = &[
    ("broken.json", "{"),
    ("none.json", "{\"model_type\": \"nonesuch\"}"),
    (
        "config.json",
        "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"vocab_size\": 256, \"max_position_embeddings\": 128}",
    ),
    ("args.txt", "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --no-such-flag"),
    ("value.txt", "--num-layers two --hidden-size 64 --num-attention-heads 4"),
    ("prose.txt", "hello"),
    ("short.txt", "a"),
    ("rows.jsonl", "{\n"),
    ("row.jsonl", "{\"id\": \"one\", \"ready\": {\"throughput\": false}}\n"),
    ("types.jsonl", "{\"ready\": {\"memory\": true, \"throughput\": true}, \"model\": 5}\n"),
    ("buckets.toml", "[tuned.\"3xA100\"]\nengine_args = \"--ddp-bucket-size 1\"\nsource = \"a sweep\"\n"),
    ("size.toml", "[storage.free]\ndata = \"much\"\n"),
    ("version.toml", "[gpu]\ndriver = \"new\"\n"),
    ("paths.toml", "[data]\npaths = [\"/a\", \"/b\"]\n"),
    ("weights.toml", "[data]\npaths = [\"0.3\", \"/a\", \"0.7\", \"/b\"]\n"),
    ("lora.toml", "[run]\nadapters = true\n"),
    ("limit.toml", "[gpu]\ncount = 99999999\n"),
    ("nccl.toml", "[environment.set]\nNCCL_IB_TIMEOUT = \"22\"\n"),
    ("flags.toml", "[run]\ntpu_flags = [\"vmen\"]\n"),
    ("host.toml", "[kubernetes]\nhost_network = true\n"),
    ("lost.toml", "[storage]\nlogs = \"/mnt/other\"\n"),
    ("choice.toml", "[slurm]\ngpus = \"all\"\n"),
    ("volume.toml", "[[kubernetes.volumes]]\nclaim = \"c\"\n"),
    ("empty.toml", ""),
    ("syntax.toml", "[run\n"),
    ("falling.toml", "[run]\ndecay = \"linear\"\n"),
    ("ramp.toml", "[run.batch_ramp]\nstart = 8\nstep = 8\ntokens = 1000000\n"),
    ("hidden-policy.toml", "[job]\nname = \"a\\u0000b\"\n"),
    ("host-address.toml", "[job]\nhost = \"fe80::1\"\n"),
    ("variable.toml", "[environment.set]\nUID = \"0\"\n"),
];

/// Any exit code: it depends on the machine.
const ANY: i32 = -1;

/// What is found, the exit code, and what is typed.
const TYPED: &[(&str, i32, &str)] = &[
    ("adapters/engine", 1, "launch lora-all.toml --on 8xH200 --engine megatron"),
    ("adapters/target", 1, "params adapters.toml"),
    ("lane/lora-after-sharding", 1, "launch small.toml --on 8xH200 --engine fsdp2 --policy lora.toml"),
    ("lane/lora-after-sharding", 0, "launch lora-all.toml --on 8xH200 --engine fsdp2 --policy lora.toml"),
    ("attention/head-dim", 1, "params head-dim.toml"),
    ("attention/kv-heads", 1, "params kv.toml"),
    ("attention/qk-norm", 1, "params qk-norm.toml"),
    ("axes/unknown", 1, "axes nonesuch"),
    ("bug/panic", 70, "params small.toml --crash worker"),
    ("bridge/unsayable", 1, "launch llama3-8b --on 8xH200 --tp 2 --frontend bridge --precision fp8"),
    ("case/balance", 1, "fit llama3-8b --on 8xH200 --pp 2 --balance time"),
    ("case/format", 1, "fit llama3-8b --on 8xH200 --precision f64"),
    ("case/format", 1, "fit llama3-8b --on 8xA100 --precision fp8"),
    ("case/world", 1, "fit llama3-8b --on 8xH200 --world 4"),
    ("case/world", 1, "check llama3-8b --on 8xH200 --world 4"),
    ("case/device", 1, "check llama3-8b --on 8xTPU-v6e --engine megatron"),
    ("case/device", 1, "fit llama3-8b --on 8xTPU-v6e --engine megatron"),
    ("case/device", 1, "fit llama3-8b --on 8xTPU-v6e --engine any"),
    ("case/device", 1, "plan llama3-8b --on 8xTPU-v6e --engine torchtitan"),
    ("case/device", 1, "launch llama3-8b --on 8xTPUv6e --engine megatron"),
    ("case/device", 1, "launch llama3-8b --on 8xTPUv6e --lane nvidia-pretraining"),
    ("case/device", 1, "launch llama3-8b --on 8xH200 --engine xla-spmd"),
    ("deepspeed/autoep", 1, "launch experts.toml --on 8xH200 --engine deepspeed --ep 2"),
    ("deepspeed/unsayable", 1, "launch sgd.toml --on 8xH200 --engine deepspeed"),
    ("diagnose/unknown", 1, "diagnose blue cheese"),
    ("diff/side", 1, "diff 'llama3-8b --nonesuch' llama3-8b --on 8xH200"),
    ("features/placement", 1, "params placement.toml"),
    ("features/unknown", 1, "params llama3-8b --with mtp"),
    ("file/read", 1, "import nonesuch.json"),
    ("file/rows", 1, "fidelity rows.jsonl"),
    ("fidelity/type", 1, "fidelity types.jsonl"),
    ("fidelity/row", 1, "fidelity row.jsonl --row other"),
    ("file/write", 1, "import config.json --output nonesuch/x.toml"),
    ("fit/headroom", 1, "fit llama3-8b --on 8xH200 --headroom 1000"),
    ("fit/overload", 1, "fit llama3-8b --on 8xH200 --overload 0"),
    ("fit/does-not-fit", 3, "fit llama3-70b --on 8xH200"),
    ("fit/does-not-fit", 3, "fit llama3-405b --serve --on 8xH200"),
    ("plan/none", 3, "plan llama3-405b --pp 2 --cp 1 --mbs 1 --gbs 64 --on 8xH100"),
    ("glossary/unknown", 1, "glossary laen"),
    ("usage/arguments", 2, "check small.toml --tensor-parallel 2"),
    ("fit/unmodelled", 1, "fit llama3-8b --on 8xH200 --engine maxtext"),
    ("fsdp2/adafactor", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args optimizer=adafactor"),
    ("fsdp2/base", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args base=nf4"),
    ("fsdp2/base", 1, "fit lora-all.toml --on 8xH200 --tp 2 --engine fsdp2 --engine-args base=nf4"),
    ("fsdp2/documents", 1, "fit llama3-8b --on 8xH200 --pp 2 --engine fsdp2 --documents 512"),
    ("fsdp2/shampoo", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args optimizer=shampoo"),
    ("fsdp2/soap", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args optimizer=soap"),
    ("fsdp2/teacher", 1, "fit llama3-8b --on 8xH200 --tp 2 --engine fsdp2 --engine-args teacher=llama3-70b"),
    ("megatron/documents", 1, "fit llama3-8b --on 8xH200 --cp 2 --engine megatron --documents 512"),
    ("launch/decay", 1, "launch llama3-8b --on 8xH200 --engine maxtext --policy falling.toml"),
    (
        "deepspeed/reference-model",
        1,
        "launch gpt3-175b --on 64xH200 --engine deepspeed --optimizer adamw --override-memory",
    ),
    ("engine-args/model", 1, "fit llama3-8b --on 8xH200 --engine-args --moe-layer-recompute"),
    ("engine-args/not-priced", 0, "fit llama3-8b --tp 2 --on 8xH200 --engine-args '--lr-wsd-decay-samples 5'"),
    (
        "megatron/te-loss",
        1,
        "fit llama3-8b --on 8xH200 --engine-args '--cross-entropy-loss-fusion --cross-entropy-fusion-impl te'",
    ),
    ("preflight/packages", ANY, "preflight llama3-8b --tp 2 --on 8xH200 --policy empty.toml"),
    ("launch/batch-ramp", 1, "launch llama3-8b --on 8xH200 --engine fsdp2 --policy ramp.toml"),
    ("fsdp2/fused-loss", 1, "fit llama3-8b --on 8xH200 --tp 2 --engine fsdp2 --engine-args loss=liger"),
    ("fsdp2/int8-momentum", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args momentum=int8"),
    ("fsdp2/peft", 1, "fit llama3-8b --on 8xH200 --engine fsdp2 --engine-args adapters=peft"),
    ("fsdp2/compile", 1, "launch llama3-8b --on 8xH200 --engine fsdp2 --engine-args compile"),
    ("fsdp2/optimizer", 1, "launch sgd.toml --on 8xH200 --engine fsdp2"),
    ("fsdp2/precision", 1, "launch fp8.toml --on 8xH200 --engine fsdp2"),
    ("gated-delta/heads", 1, "params gated.toml"),
    ("linear/heads", 1, "params linear.toml"),
    ("hardware/cluster", 1, "fit llama3-8b --on eightxH200"),
    ("hardware/consistency", 1, "hardware ./dev-consistency.toml"),
    ("hardware/name", 1, "hardware ./dev-name.toml"),
    ("hardware/network", 1, "fit llama3-8b --on 8xH200@nonesuch"),
    ("hardware/slice", 1, "launch llama3-8b --on 24xTPU-v5e"),
    ("hardware/consistency", 1, "hardware ./dev-vendor.toml"),
    ("hardware/choice", 1, "hardware ./dev-kind.toml"),
    ("hardware/source", 1, "hardware ./dev-source.toml"),
    ("hardware/toml", 1, "hardware ./dev.toml --toml"),
    ("import/json", 1, "import broken.json"),
    ("import/megatron-flag", 1, "import args.txt"),
    ("import/model-type", 1, "import none.json"),
    ("import/shape", 1, "import prose.txt"),
    ("import/value", 1, "import value.txt"),
    ("lane/buckets", 1, "launch small.toml --on 8xH200 --policy buckets.toml"),
    ("lane/goal", 1, "lanes --for llama3-8b --on 8xTPU-v6e --goal offload"),
    ("lane/goal", 1, "lanes --for llama3-8b --on 8xH200 --goal tpu"),
    ("lane/device-variable", 1, "launch small.toml --on 8xTPU-v6e --policy nccl.toml"),
    ("lane/tpu-flags", 1, "launch small.toml --on 8xTPU-v6e --policy flags.toml"),
    ("launch/memory-unknown", 1, "launch small.toml --on 8xTPU-v6e"),
    ("launch/tpu-scheduler", 1, "launch small.toml --on 8xTPU-v6e --scheduler rayjob --override-memory"),
    ("launch/trainjob", 1, "launch small.toml --on 8xH200 --scheduler trainjob --policy host.toml"),
    ("launch/unmounted", 1, "launch small.toml --on 8xH200 --scheduler jobset --policy lost.toml"),
    ("launch/unused-policy", 0, "launch small.toml --on 8xH200 --scheduler slurm --policy host.toml"),
    ("policy/choice", 1, "launch small.toml --on 8xH200 --policy choice.toml"),
    ("fit/checklist", 1, "fit nam56r --mode nemo_native --ep 4 --etp 1 --on 8xH200 --checklist"),
    ("policy/missing-key", 1, "launch small.toml --on 8xH200 --policy volume.toml"),
    ("plan/ledger", 1, "plan llama3-8b --on 8xTPU-v6e"),
    ("plan/ledger", 1, "plan nam56r --on 8xTPU-v6e"),
    ("plan/other-engines", 1, "plan gpt3-175b --on 64xH100 --engine torchtitan"),
    ("fit/unmodelled", 1, "fit llama3-8b --on 8xTPU-v6e"),
    ("lane/mode", 1, "launch nam56r --on 8xH200 --engine fsdp2 --mode nemo_native --tp 2"),
    ("lane/tpu-pins", 0, "launch small.toml --on 8xTPU-v5p --engine xla-spmd --override-memory"),
    ("lane/unknown", 1, "launch small.toml --on 8xH200 --lane nonesuch"),
    ("launch/engine", 1, "launch small.toml --on 8xH200 --engine shardwright"),
    ("maxtext/etp", 1, "launch mixtral-8x7b --on 8xH200 --engine maxtext --tp 2 --ep 2 --etp 1 --override-memory"),
    (
        "maxtext/expert-mesh",
        1,
        "launch mixtral-8x7b --on 8xH200 --engine maxtext --tp 4 --ep 4 --etp 1 --override-memory",
    ),
    ("megatron/unsayable", 1, "launch sgd.toml --on 8xH200"),
    ("mesh/rank", 1, "mesh --world 8 --tp 2 --rank 8"),
    ("splits/tensor", 1, "splits llama3-8b --tp 2 --tensor layers.0.attn.wq"),
    ("mode/no-built-in", 1, "check no-built-in.toml --mode nemo_native"),
    ("mode/unknown", 1, "check llama3-8b --mode author_dp"),
    ("mode/unknown", 1, "check mode.toml"),
    ("moe/top-k", 1, "params top-k.toml"),
    ("mhc/streams", 1, "params stream.toml"),
    ("engram/sizes", 1, "params engram.toml"),
    ("mod/capacity", 1, "params capacity.toml"),
    ("serve/shared", 1, "fit shared.toml --on 8xH200 --serve --engine fsdp2"),
    ("shared/heads", 1, "params shared-heads.toml"),
    ("mamba/heads", 1, "params scan-heads.toml"),
    ("serve/mod", 1, "fit some.toml --on 8xH200 --serve --engine fsdp2"),
    ("mtp/pattern", 1, "params mtp.toml"),
    ("nanotron/unsayable", 1, "launch llama3-8b --on 8xH200 --engine nanotron --recompute selective:core_attn"),
    ("optimizer/muon-matrix", 1, "params muon.toml"),
    ("pattern/megatron", 1, "params dialect.toml"),
    ("pattern/no-symbol", 0, "stages recurrent.toml"),
    ("pattern/schedule", 0, "stages small.toml --pp 2 --schedule gpipe"),
    ("pattern/short-depth", 0, "check short.toml"),
    ("pattern/table", 1, "params table.toml"),
    ("pattern/unused-table", 0, "check unused-table.toml"),
    ("plan/explain", 1, "plan small.toml --on 8xH200 --gbs 8 --explain '--nonesuch 8'"),
    ("plan/offload", 1, "plan small.toml --on 8xH200 --offload-activations 0.5"),
    ("plan/fleet", 1, "plan small.toml --on ?xH200"),
    ("plan/fleet-none", 1, "plan small.toml --on ?xH200 --tokens 90000T --days 0.001"),
    ("plan/ramp", 1, "plan small.toml --on 8xH200 --gbs 64 --tokens 1B --ramp 7:5:1M"),
    ("plan/days", 1, "plan small.toml --on 8xH200 --gbs 64 --tokens 90000T --days 1"),
    ("plan/sweep", 1, "plan small.toml --on {65}xH200"),
    ("case/world", 1, "plan small.toml --on 8xH200 --world 4"),
    ("case/world", 1, "check small.toml --on 8xH200 --world 4"),
    ("policy/size", 1, "launch small.toml --on 8xH200 --policy size.toml"),
    ("policy/version", 1, "preflight --policy version.toml"),
    ("recipe/missing-key", 1, "params missing.toml"),
    ("recipe/unknown", 1, "params nonesuch"),
    ("mamba/angles", 1, "params angles.toml"),
    ("mamba/groups", 1, "params groups.toml"),
    ("recipe/unused-key", 1, "params unused.toml"),
    ("recurrent/qk-heads", 1, "params qk-heads.toml"),
    ("rehearse/deadline", 1, "rehearse small.toml --deadline 0"),
    ("rehearse/text", 1, "rehearse small.toml --text short.txt"),
    ("serve/size", 1, "fit llama3-8b --on 8xH200 --serve --batch 0"),
    ("serve/flags", 1, "fit llama3-8b --on 8xH200 --serve --precision bf16"),
    ("shrink/dims", 1, "rehearse small.toml --dims experts=4"),
    ("recipe/limit", 1, "rehearse small.toml --dims depth=16385"),
    ("work/bytes", 1, "rehearse small.toml --dims hidden=16777216"),
    ("work/operations", 1, "rehearse small.toml --steps 4000 --work-limit 1s"),
    ("stages/unpriced", 1, "stages small.toml --pp 2 --on 8xGB10 --balance time"),
    ("stages/weights", 1, "stages small.toml --pp 2 --weights 1,2"),
    ("plan/unpriced", 1, "plan small.toml --on 8xGB10"),
    ("work/operations", 1, "fit llama3-8b --on 8xH200 --work-limit 1ms"),
    ("work/operations", 1, "diff llama3-8b 'llama3-8b --tp 2' --on 8xH200 --work-limit 1ms"),
    ("work/operations", 1, "launch llama3-8b --on 8xH200 --work-limit 1ms"),
    ("work/operations", 1, "stages llama3-8b --pp 4 --vpp 2 --balance time --on 16xH200 --work-limit 1ms"),
    ("work/operations", 1, "preflight llama3-8b --on 8xH200 --policy empty.toml --work-limit 1ms"),
    ("torchtitan/unsayable", 1, "launch small.toml --on 8xH200 --engine torchtitan --policy paths.toml"),
    (
        "torchtitan/unsayable",
        1,
        "launch small.toml --on 8xH200 --engine torchtitan --engine-args compile.enable_async_tensor_parallel=true",
    ),
    ("lane/lora-after-sharding", 1, "launch small.toml --on 8xH200 --policy lora.toml"),
    ("lane/data-weights", 1, "launch small.toml --on 8xH200 --engine fsdp2 --policy weights.toml"),
    ("lane/own-data", 0, "launch small.toml --on 8xH200 --engine fsdp2"),
    ("nanotron/model", 1, "launch qwen3-30b-a3b --on 8xH200 --engine nanotron --override-memory"),
    ("hardware/syntax", 1, "hardware ./syntax.toml"),
    ("hardware/type", 1, "hardware ./dev-type.toml"),
    ("hardware/limit", 1, "hardware ./dev-limit.toml"),
    ("recipe/syntax", 1, "params syntax.toml"),
    ("recipe/text", 1, "params hidden.toml"),
    ("recipe/name", 1, "import config.json --name ' '"),
    ("hardware/text", 1, "hardware ./dev-hidden.toml"),
    ("policy/text", 1, "preflight --policy hidden-policy.toml"),
    ("policy/host", 1, "launch small.toml --on 8xH200 --policy host-address.toml"),
    ("policy/variable", 1, "launch small.toml --on 8xH200 --policy variable.toml"),
    ("recipe/type", 1, "params r-type.toml"),
    ("recipe/choice", 1, "params r-choice.toml"),
    ("policy/syntax", 1, "launch small.toml --on 8xH200 --policy syntax.toml"),
    ("policy/limit", 1, "preflight --policy limit.toml"),
    ("placement/tp", 0, "plan small.toml --on 2x2xH200 --tp 4"),
    ("placement/cp", 0, "plan llama3-8b --on 16xH200 --cp 16"),
    ("placement/ep", 0, "plan qwen3-30b-a3b --on 16xH200 --ep 16"),
    ("xla-spmd/features", 1, "launch streams.toml --on 8xTPU-v5p --engine xla-spmd --override-memory"),
    ("xla-spmd/shared", 1, "launch shared.toml --on 8xTPU-v5p --engine xla-spmd --override-memory"),
    ("xla-spmd/optimizer", 1, "launch sgd.toml --on 8xTPU-v5p --engine xla-spmd --override-memory"),
    (
        "xla-spmd/expert-axis",
        1,
        "launch mixtral-8x7b --on 8xTPU-v5p --engine xla-spmd --tp 4 --ep 4 --etp 1 --override-memory",
    ),
    (
        "preflight/host-memory",
        ANY,
        "preflight llama3-8b --on 8xH200 --tp 2 --offload-optimizer 0.5 --policy empty.toml",
    ),
];

/// The folder that lines are typed in, with every file they name.
fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("findings");
    fs::create_dir_all(&folder).expect("a folder");
    let device = fs::read_to_string(workspace().join("docs/example_device.toml")).expect("the example");
    let put = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
    for (name, old, new, more) in RECIPES {
        assert!(SMALL.contains(old), "{name}");
        put(&format!("{name}.toml"), &(edited(SMALL, old, new) + more));
    }
    for (name, old, new) in DEVICES {
        assert!(device.contains(old), "{name}");
        put(&format!("{name}.toml"), &edited(&device, old, new));
    }
    FILES.iter().for_each(|(name, text)| put(name, text));
    folder
}

fn edited(text: &str, old: &str, new: &str) -> String {
    if old.is_empty() { text.to_string() } else { text.replacen(old, new, 1) }
}

/// Words as a shell splits them; `'…'` is one.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    parts
        .flat_map(|(i, part)| match i % 2 {
            0 => part.split_whitespace().map(str::to_string).collect(),
            _ => vec![part.to_string()],
        })
        .collect()
}

/// Every `rule` in an answer.
fn rules(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("rule").and_then(Value::as_str).map(str::to_string));
            map.values().for_each(|v| rules(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| rules(v, found)),
        _ => {}
    }
}

/// Refusals whose message says what to write, so that a hint would only say it again.
const PLAIN: &[&str] = &[
    "attention/head-dim",
    "attention/qk-norm",
    "features/placement",
    "file/read",
    "file/rows",
    "file/write",
    "hardware/consistency",
    "hardware/limit",
    "hardware/name",
    "hardware/source",
    "hardware/syntax",
    "hardware/type",
    "import/json",
    "import/megatron-flag",
    "import/value",
    "pattern/megatron",
    "policy/missing-key",
    "policy/limit",
    "policy/syntax",
    "recipe/limit",
    "recipe/missing-key",
    "recipe/syntax",
    "recipe/type",
    "rehearse/deadline",
    "serve/size",
    "stages/unpriced",
];

/// Refusals in an answer that leave the reader alone: an error without a hint.
fn without_hint(answer: &Value) -> Vec<String> {
    let findings = answer["findings"].as_array().cloned().unwrap_or_default();
    let is_alone = |f: &&Value| f["severity"] == "error" && f.get("hint").is_none();
    let rules = findings.iter().filter(is_alone).filter_map(|f| f["rule"].as_str().map(str::to_string));
    rules.filter(|rule| !PLAIN.contains(&rule.as_str()) && !rule.starts_with("preflight/")).collect()
}

#[test]
fn what_is_typed_is_answered_by_its_rule() {
    let folder = folder();
    let mut wrong = Vec::new();
    for (id, code, line) in TYPED {
        let line = line.replace("{65}", &["8"; 65].join(","));
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardwright"));
        let output = command.args(words(&line)).arg("--json").current_dir(&folder).output().expect("the binary runs");
        let mut found = Vec::new();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        rules(&answer, &mut found);
        wrong.extend(without_hint(&answer).into_iter().map(|rule| format!("`{line}`: {rule} has no hint")));
        let ended = output.status.code().unwrap_or(-1);
        if !found.iter().any(|rule| rule == id) || (*code != ANY && ended != *code) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.push(format!("`{line}` exits {ended} with {found:?}, not {code} with {id}\n{said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn small(edits: &[(&str, &str)]) -> Recipe {
    let text = edits.iter().fold(SMALL.to_string(), |text, (old, new)| edited(&text, old, new));
    Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"))
}

fn settled(recipe: &Recipe, request: LayoutRequest) -> Layout {
    layout::check(recipe, &request).layout.expect("a layout")
}

/// The rules a training step of our own runtime ends with, by rank.
fn step(recipe: &Recipe, layout: &Layout) -> Vec<&'static str> {
    let ended = comm::threads::run(layout.world as usize, Duration::from_secs(60), |comm| {
        let mut trainer = Trainer::<f64>::new(recipe, layout, comm, 1, Default::default())?;
        trainer.step(&Batch::synthetic(recipe, layout, 1, 0)).map(|_| ())
    });
    ended.into_iter().map(|end| end.map_or_else(|f| f.rule, |()| "none")).collect()
}

const TINY: &[(&str, &str)] = &[("depth = 4", "depth = 1"), ("hidden = 256", "hidden = 32"), ("512", "64")];

#[test]
fn the_runtime_refuses_what_no_check_has_seen() {
    let recipe = small(TINY);
    let alone = LayoutRequest { engine: Some(Engine::Shardwright), ..LayoutRequest::default() };
    assert_eq!(step(&recipe, &settled(&recipe, alone.clone())), ["none"]);
    // Megatron cuts two key heads over four ranks by rows.
    let rows = LayoutRequest { engine: Some(Engine::Megatron), tp: Some(4), ..LayoutRequest::default() };
    assert_eq!(step(&recipe, &settled(&recipe, rows)), ["runtime/rows"; 4]);
    // Recipes that are read have a table for every block; these were not read.
    let layout = settled(&recipe, alone);
    assert_eq!(step(&Recipe { attention: None, ..recipe.clone() }, &layout), ["runtime/attention"]);
    assert_eq!(step(&Recipe { mlp: None, ..recipe }, &layout), ["runtime/unsupported"]);
}

#[test]
fn a_part_of_time_shorter_than_a_convolution_is_refused() {
    let recurrent = "ffn = 64\n[recurrent]\nheads = 4\nkey_dim = 4\nvalue_dim = 4";
    let recipe = small(&[TINY, &[("\"(AF)\"", "\"R\""), ("ffn = 512", recurrent)]].concat());
    let request = LayoutRequest { engine: Some(Engine::Shardwright), cp: Some(2), ..LayoutRequest::default() };
    let layout = Layout { sequence: 4, ..settled(&recipe, request) };
    assert_eq!(step(&recipe, &layout), ["runtime/short-part"; 2]);
}

#[test]
fn a_carried_state_is_noted() {
    let recipe =
        small(&[("\"(AF)\"", "\"R\""), ("ffn = 512", "ffn = 512\n[recurrent]\nheads = 4\nkey_dim = 4\nvalue_dim = 4")]);
    let request = LayoutRequest { cp: Some(2), ..LayoutRequest::default() };
    let ask = runtime::rehearse::Ask {
        recipe: &recipe,
        request: &request,
        dims: Default::default(),
        steps: 1,
        number: runtime::rehearse::Number::F64,
        seed: 1,
        source: runtime::rehearse::Source::Synthetic,
        inject: None,
        deadline: Duration::from_secs(60),
        ranks: runtime::rehearse::Ranks::Threads,
        load: None,
        save: None,
        stats: false,
        limit: work::Limit::none(),
    };
    let prepared = runtime::rehearse::prepare(&ask).unwrap_or_else(|f| panic!("{f:#?}"));
    assert!(prepared.notes.iter().any(|note| note.rule == "rehearse/state-carry"));
}

#[test]
fn calls_below_the_command_line_name_their_rule() {
    let deadline = Duration::from_secs(10);
    let outside = |comm: &comm::Comm| {
        let call = comm::Call::new("tp", "test");
        comm.all_reduce(&comm::Group::new(1..3), call, comm::Op::Sum, vec![1.0f64])
    };
    assert_eq!(comm::threads::run(1, deadline, outside)[0].as_ref().unwrap_err().rule, "comm/misuse");

    let file = super::common::scratch("no-folder", "");
    let store = runtime::checkpoint::Store::new(&file, std::num::NonZeroUsize::MIN);
    assert_eq!(store.steps().unwrap_err().rule, "checkpoint/folder");

    assert_eq!(hardware::Profile::parse("mine", "device = 1").unwrap_err().rule, "hardware/profile");
    let tpu = hardware::Device::find("TPU-v5e").unwrap();
    assert_eq!(tpu.profile().unwrap_err().rule, "hardware/no-curves");

    let long = " ".repeat(recipe::limits::FILE_BYTES + 1);
    assert_eq!(
        recipe::import::hf::import(&long, &recipe::import::hf::Asked::named("long")).unwrap_err()[0].rule,
        "import/limit"
    );
    assert_eq!(recipe::import::megatron_args::import(&long, "long").err().unwrap()[0].rule, "import/limit");

    let recipe = small(&[]);
    let layout = settled(&recipe, LayoutRequest::default());
    let table = layout::OwnershipTable::new(&recipe, &layout).unwrap();
    let refused = memory::serving::Serving::new(&recipe, &layout, &table, 1);
    assert_eq!(refused.err().unwrap().rule, "serve/stage");

    let refused = recipe::megatron::write(&recipe, None, &[1]).unwrap_err();
    assert_eq!(refused[0].rule, "pattern/segments");
}
