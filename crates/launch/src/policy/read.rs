//! Policy files, read by hand so that every mistake is answered where it stands.

mod cluster;
mod names;

use super::{
    BatchRamp, Clock, Data, Decay, Environment, Gpu, JobPolicy, Limit, Limits, Policy, Ports, Processes, Run, Storage,
    Tuned, Untuned,
};
use diag::{Blame, Finding};
use layout::Engine;
use names::{argument, arguments, filled, host, optional_path, optional_word, path_or};
use reading::{Dialect, Section, read_text};
use std::collections::BTreeMap;

/// How a policy's mistakes are worded.
pub(crate) const DIALECT: Dialect = Dialect {
    whole: "the policy",
    blame: Blame::Environment,
    most_bytes: 1 << 18,
    syntax: "policy/syntax",
    text: "policy/text",
    wrong_type: "policy/type",
    missing_key: "policy/missing-key",
    limit: "policy/limit",
    choice: "policy/choice",
    unknown_key: "policy/unknown-key",
};

/// Counts beyond this are slips of the hand.
const MOST: u64 = 1 << 50;

impl Policy {
    /// Reads a policy. Every mistake is reported, each where it stands.
    pub fn parse(text: &str) -> Result<Policy, Vec<Finding>> {
        read_text(text, &DIALECT, policy).map(|(policy, _)| policy)
    }
}

fn policy(mut root: Section) -> Option<Policy> {
    let policy = Policy {
        kubernetes: with(root.section("kubernetes"), cluster::kubernetes),
        slurm: with(root.section("slurm"), cluster::slurm),
        storage: with(root.section("storage"), storage),
        data: with(root.section("data"), data),
        run: with(root.section("run"), run),
        tuned: tuned(&mut root),
        job: with(root.section("job"), job),
        seams: owned(root.texts("seams")),
        pins: owned(root.texts("pins")),
        environment: with(root.section("environment"), environment),
        ports: with(root.section("ports"), ports),
        processes: with(root.section("processes"), processes),
        gpu: with(root.section("gpu"), gpu),
        limits: with(root.section("limits"), limits),
        clock: with(root.section("clock"), |s| Clock { synchronized: s.flag_or("synchronized", true) }),
    };
    cluster::together(&root, &policy.job, &policy.slurm);
    root.finish();
    Some(policy)
}

/// Reads a table that may be left out, then reports the keys nobody asked for.
fn with<T: Default>(section: Option<Section>, read: impl FnOnce(&mut Section) -> T) -> T {
    let Some(mut section) = section else { return T::default() };
    let value = read(&mut section);
    section.finish();
    value
}

fn owned(pairs: Vec<(&str, &str)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn words(section: &mut Section, key: &'static str) -> Option<Vec<String>> {
    section.words(key).map(|words| words.into_iter().map(str::to_string).collect())
}

fn text_or(section: &mut Section, key: &'static str, default: String) -> String {
    section.text(key).map_or(default, str::to_string)
}

fn optional_text(section: &mut Section, key: &'static str) -> Option<String> {
    section.text(key).map(str::to_string)
}

fn storage(section: &mut Section) -> Storage {
    let usual = Storage::default();
    // Who names folders means a volume for them.
    let is_named = ["checkpoints", "data", "logs", "caches", "temporary"].iter().any(|key| section.has(key));
    Storage {
        checkpoints: path_or(section, "checkpoints", usual.checkpoints),
        data: path_or(section, "data", usual.data),
        logs: path_or(section, "logs", usual.logs),
        caches: path_or(section, "caches", usual.caches),
        temporary: path_or(section, "temporary", usual.temporary),
        triton_cache: optional_path(section, "triton_cache"),
        inductor_cache: optional_path(section, "inductor_cache"),
        cuda_cache: optional_path(section, "cuda_cache"),
        hf_home: optional_path(section, "hf_home"),
        forbid_root_volume: section.flag_or("forbid_root_volume", is_named),
        keep_last: section.optional_count("keep_last", MOST),
        free: with(section.section("free"), free),
    }
}

fn free(section: &mut Section) -> BTreeMap<&'static str, u64> {
    let keys = Storage::default().places().into_iter().map(|place| place.key);
    keys.filter_map(|key| size(section, key).map(|bytes| (key, bytes))).collect()
}

/// Bytes as people write them: `200 GiB`. Decimal units are refused, since a reader cannot know
/// which was meant.
fn size(section: &mut Section, key: &'static str) -> Option<u64> {
    let text = section.text(key)?;
    let bytes = bytes(text);
    if bytes.is_none() {
        let message = format!("`{key}` is `{}`, no size", crate::preflight::show::text(text));
        let finding = Finding::error("policy/size", Blame::Environment, key, message);
        section.report(key, finding.hint("write a number and B, KiB, MiB, GiB or TiB: `200 GiB`"));
    }
    bytes
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    (bytes < MOST as f64).then_some(bytes as u64)
}

fn data(section: &mut Section) -> Data {
    let paths = words(section, "paths").unwrap_or_default();
    arguments(section, "paths", &paths);
    let structure = words(section, "structure").unwrap_or_default();
    arguments(section, "structure", &structure);
    let is_said = section.has("end_of_document");
    let end_of_document = section.natural_or("end_of_document", MOST, 0).filter(|_| is_said);
    let (tokenizer, teacher) = (argument(section, "tokenizer"), argument(section, "teacher"));
    Data { paths, structure, tokenizer, end_of_document, teacher }
}

fn run(section: &mut Section) -> Run {
    let usual = Run::default();
    Run {
        steps: section.optional_count("steps", MOST).unwrap_or(usual.steps),
        learning_rate: section.positive("learning_rate").unwrap_or(usual.learning_rate),
        least_learning_rate: section.not_negative("least_learning_rate").unwrap_or(usual.least_learning_rate),
        warmup_steps: section.natural_or("warmup_steps", MOST, usual.warmup_steps).unwrap_or(usual.warmup_steps),
        decay: section.choice("decay", Decay::ALL, usual.decay),
        decay_steps: section.optional_count("decay_steps", MOST),
        batch_ramp: with_ramp(section.section("batch_ramp")),
        weight_decay: section.not_negative("weight_decay").unwrap_or(usual.weight_decay),
        clip: section.not_negative("clip").unwrap_or(usual.clip),
        seed: section.natural_or("seed", i64::MAX as u64, usual.seed).unwrap_or(usual.seed),
        save_every: section.optional_count("save_every", MOST).unwrap_or(usual.save_every),
        log_every: section.optional_count("log_every", MOST).unwrap_or(usual.log_every),
        engine_args: section.lines("engine_args").map(str::to_string),
        tpu_flags: words(section, "tpu_flags").unwrap_or_default(),
        untuned: section.choice("untuned", Untuned::ALL, usual.untuned),
        adapters: section.flag_or("adapters", usual.adapters),
    }
}

/// A batch that grows: all three numbers, or none.
fn with_ramp(section: Option<Section>) -> Option<BatchRamp> {
    let mut section = section?;
    let [start, step, tokens] = ["start", "step", "tokens"].map(|key| section.count(key, MOST));
    section.finish();
    Some(BatchRamp { start: start?, step: step?, tokens: tokens? })
}

fn tuned(root: &mut Section) -> BTreeMap<String, Tuned> {
    let read = |(topology, mut section): (&str, Section)| {
        let tuned = Tuned {
            engine: section.choice("engine", Engine::ALL, Engine::Megatron),
            engine_args: section.lines("engine_args").map(str::to_string),
            vocab_multiple: section.optional_count("vocab_multiple", 1 << 20),
            source: section.required_text("source").unwrap_or_default().to_string(),
        };
        section.finish();
        (topology.to_string(), tuned)
    };
    root.named_sections("tuned").into_iter().map(read).collect()
}

fn job(section: &mut Section) -> JobPolicy {
    let usual = JobPolicy::default();
    JobPolicy {
        name: optional_text(section, "name"),
        image: filled(section, "image"),
        engine_root: argument(section, "engine_root"),
        script: argument(section, "script"),
        restarts: section.natural_or("restarts", MOST, usual.restarts).unwrap_or(usual.restarts),
        port: section.optional_count("port", 65_535).and_then(|n| u16::try_from(n).ok()).unwrap_or(usual.port),
        host: host(section, "host").unwrap_or(usual.host),
        cpus: section.optional_count("cpus", MOST).unwrap_or(usual.cpus),
        hours: section.optional_count("hours", MOST).unwrap_or(usual.hours),
        partition: optional_word(section, "partition"),
        account: optional_word(section, "account"),
        namespace: text_or(section, "namespace", usual.namespace),
        runtime: text_or(section, "runtime", usual.runtime),
        claim: text_or(section, "claim", usual.claim),
        mount: path_or(section, "mount", usual.mount),
    }
}

fn environment(section: &mut Section) -> Environment {
    let read = Environment {
        set: owned(section.texts("set")),
        required: words(section, "required").unwrap_or_default(),
        forbidden: words(section, "forbidden").unwrap_or_default(),
        expected: owned(section.texts("expected")),
    };
    names::variables(section, &read);
    for name in read.forbidden.iter().filter(|name| read.required.contains(name) || read.set.contains_key(*name)) {
        let message = format!("`{}` is forbidden, and wanted as well", crate::preflight::show::text(name));
        section.report("forbidden", Finding::error("policy/consistency", Blame::Environment, "forbidden", message));
    }
    for (name, value) in &read.expected {
        if read.set.get(name).is_some_and(|set| set != value) {
            let name = crate::preflight::show::text(name);
            let message = format!("`{name}` is set to one value, and expected to have another");
            section.report("expected", Finding::error("policy/consistency", Blame::Environment, "expected", message));
        }
    }
    read
}

fn ports(section: &mut Section) -> Ports {
    let free = section.naturals("free", 65_535).unwrap_or_default();
    Ports { free: free.into_iter().filter_map(|port| u16::try_from(port).ok()).collect() }
}

fn processes(section: &mut Section) -> Processes {
    match words(section, "training") {
        Some(training) => Processes { training },
        None => Processes::default(),
    }
}

fn gpu(section: &mut Section) -> Gpu {
    let driver = optional_text(section, "driver");
    if let Some(text) = driver.as_ref().filter(|text| crate::preflight::version(text).is_none()) {
        let message = format!("`driver` is `{}`, no version", crate::preflight::show::text(text));
        section.report(
            "driver",
            Finding::error("policy/version", Blame::Environment, "driver", message)
                .hint("write numbers with points between them: `570.86`"),
        );
    }
    Gpu { driver, free_memory: size(section, "free_memory"), count: section.optional_count("count", 1 << 16) }
}

fn limits(section: &mut Section) -> Limits {
    Limits {
        nofile: limit(section, "nofile"),
        memlock: limit(section, "memlock"),
        nproc: limit(section, "nproc"),
        shared_memory: size(section, "shared_memory"),
    }
}

/// A number, a size, or `unlimited`.
fn limit(section: &mut Section, key: &'static str) -> Option<Limit> {
    if !section.is_text(key) {
        return section.optional_count(key, MOST).map(Limit::Of);
    }
    if section.text(key) == Some("unlimited") {
        return Some(Limit::Unlimited);
    }
    size(section, key).map(Limit::Of)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> Vec<String> {
        Policy::parse(text).unwrap_err().into_iter().map(|f| format!("{} [{}]", f.message, f.rule)).collect()
    }

    #[test]
    fn an_empty_policy_is_the_usual_one() {
        assert_eq!(Policy::parse("").unwrap(), Policy::default());
        assert_eq!(Policy::parse("[storage]\n[run]\n[job]\n[gpu]\n").unwrap(), Policy::default());
    }

    #[test]
    fn the_example_says_every_key_and_is_valid() {
        let text = include_str!("../../../../docs/example_policy.toml");
        let policy = Policy::parse(text).unwrap_or_else(|findings| panic!("{findings:#?}"));
        assert_eq!(policy.limits.memlock, Some(Limit::Unlimited));
        assert_eq!(policy.storage.free["logs"], 10 << 30);
        let all = serde_json::to_value(&policy).unwrap();
        assert!(policy.tuned.values().any(|tuned| tuned.engine_args.is_some() && tuned.vocab_multiple.is_some()));
        for (table, keys) in all.as_object().unwrap().iter().filter(|(table, _)| *table != "tuned") {
            assert!(text.contains(&format!("[{table}]")), "{table}");
            for (key, value) in keys.as_object().unwrap() {
                let is_said = text.contains(&format!("\n{key} =")) || text.contains(&format!("[{table}.{key}]"));
                // No number of checkpoints suits every engine.
                let is_shown = key == "keep_last" && text.contains("\n# keep_last =");
                assert!(is_shown || is_said && !value.is_null(), "{table}.{key}");
            }
        }
    }

    #[test]
    fn every_mistake_is_named_where_it_stands() {
        let text = "[storage]\ncheckpoint = \"/x\"\nlogs = \"logs\"\n[storage.free]\ndata = \"3 GB\"\n\
                    [ports]\nfree = [70000]\n[gpu]\ndriver = \"new\"\n[limits]\nnofile = -1\n[clok]\n";
        let findings = Policy::parse(text).unwrap_err();
        assert!(findings.iter().all(|f| f.span.is_some()), "{findings:#?}");
        let hints: Vec<_> = findings.iter().filter_map(|f| f.hint.as_deref()).collect();
        assert!(
            hints.contains(&"did you mean `checkpoints`?") && hints.contains(&"did you mean `clock`?"),
            "{hints:?}"
        );
        assert_eq!(findings.len(), 7, "{findings:#?}");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert_eq!(
            wrong(
                "[environment]\nrequired = [\"A\"]\nforbidden = [\"A\"]\n[environment.set]\nB = \"1\"\n[environment.expected]\nB = \"2\"\n"
            ),
            [
                "`A` is forbidden, and wanted as well [policy/consistency]",
                "`B` is set to one value, and expected to have another [policy/consistency]"
            ]
        );
        assert_eq!(
            wrong("[environment.set]\nA = 1\n"),
            ["`environment.set.A` must be a text, found integer [policy/type]"]
        );
    }

    #[test]
    fn constants_have_a_topology_and_a_source() {
        let text = "[tuned.\"here\"]\nengine_args = \"--ddp-bucket-size 1\"\n";
        assert_eq!(wrong(text), ["`[tuned.here]` lacks `source`, a text [policy/missing-key]"]);
        let policy = Policy::parse(&format!("{text}source = \"a sweep\"\n[run]\nuntuned = \"engine\"\n")).unwrap();
        assert_eq!((policy.tuned["here"].engine, policy.run.untuned), (Engine::Megatron, Untuned::Engine));
        assert!(wrong("[run]\nuntuned = \"maybe\"")[0].ends_with("[policy/choice]"));
    }

    #[test]
    fn unsafe_values_are_refused() {
        let refusal = |text: &str| Policy::parse(text).unwrap_err()[0].rule;
        assert_eq!(refusal("[storage]\nlogs = \"/a\\nb\""), "policy/text");
        assert_eq!(refusal("[environment.set]\n\"A B\" = \"x\""), "policy/name");
        assert_eq!(refusal("[environment]\nforbidden = [\"A;B\"]"), "policy/name");
        assert_eq!(refusal("[job]\npartition = \"a; rm\""), "policy/name");
        assert_eq!(refusal("[run]\nlearning_rate = inf"), "policy/type");
        assert_eq!(refusal("[environment]\nPATH = \"x\""), "policy/unknown-key");
    }

    #[test]
    fn sizes_are_binary() {
        assert_eq!(bytes("1.5 GiB"), Some(3 << 29));
        assert_eq!(bytes("64KiB"), Some(1 << 16));
        for text in ["", "GiB", "1", "1 GB", "-1 GiB", "1e9 B", "99999999 TiB", ". B"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
