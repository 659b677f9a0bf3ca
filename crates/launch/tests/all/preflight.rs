//! Made-up machines judged: each test takes one that is as it should be and spoils one thing.

use crate::common::{Case, recipe};
use case::Seams;
use launch::policy::{Limit, Policy};
use launch::preflight::machine::*;
use launch::preflight::{Check, Launcher, Machine, MemoryOverride, Plan, Verdict, judge, parse};
use layout::{Engine, LayoutRequest, ZeroStage};
use memory::fit::{Fit, HEADROOM};

const MOUNTS: &[u8] = b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
    21 20 259:1 / /mnt/shardwright rw - xfs /dev/nvme1n1 rw\n\
    22 20 0:30 / /dev/shm rw - tmpfs tmpfs rw\n";

/// A machine that any policy of these tests likes.
fn good(policy: &Policy) -> Machine {
    let folder = |path: String| Folder {
        existing: path.into_bytes(),
        missing: Vec::new(),
        kind: FolderKind::Folder,
        writable: Ok(Writable::Allowed),
        space: Ok(Space { total: 8 << 40, free: 4 << 40 }),
    };
    let places = policy.storage.places().into_iter();
    let gpu = |index| Gpu {
        index,
        uuid: format!("GPU-{index}"),
        name: "NVIDIA H200".to_string(),
        driver: "570.86.15".to_string(),
        total: Some(143_771 << 20),
        free: Some(143_000 << 20),
        users: Vec::new(),
    };
    let process = |pid, parent, words: &str| Process { pid, parent, words: vec![words.as_bytes().to_vec()] };
    Machine {
        places: places.map(|place| Located { key: place.key, at: Ok(folder(place.path)) }).collect(),
        mounts: Ok(parse::mountinfo(MOUNTS)),
        environment: Default::default(),
        processes: Ok(vec![process(1, 0, "init"), process(7, 1, "bash"), process(9, 7, "shardwright")]),
        own_pid: 9,
        listeners: Ok(vec![Listener { port: 22, inode: 1, owner: Some(1) }]),
        limits: Ok(vec![(Resource::OpenFiles, Limit::Of(1 << 20)), (Resource::LockedMemory, Limit::Unlimited)]),
        memory: Ok(2 << 40),
        shared_memory: Ok(Space { total: 64 << 30, free: 64 << 30 }),
        clock: Ok(ClockState { synchronized: true, source: "timedatectl" }),
        gpus: Ok((0..8).map(gpu).collect()),
        packages: Ok(Vec::new()),
    }
}

/// A policy of these words, whose locations are on a volume of their own.
fn policy(text: &str) -> Policy {
    let places = ["checkpoints", "data", "logs", "caches", "temporary"];
    let named: String = places.map(|key| format!("storage.{key} = \"/mnt/shardwright/{key}\"\n")).concat();
    Policy::parse(&format!("{named}{text}")).unwrap()
}

/// What is not a pass.
fn faults(checks: Vec<Check>) -> Vec<Check> {
    checks.into_iter().filter(|check| check.verdict != Verdict::Pass).collect()
}

/// The machine of a policy, spoiled, and its faults.
fn spoiled(text: &str, spoil: impl FnOnce(&mut Machine)) -> Vec<Check> {
    let policy = policy(text);
    let mut machine = good(&policy);
    spoil(&mut machine);
    faults(judge(&machine, &policy, Launcher::Ours, None))
}

/// Rules and objects of faults.
fn named(faults: &[Check]) -> Vec<(&str, &str)> {
    faults.iter().map(|fault| (fault.rule, fault.object.as_str())).collect()
}

fn place<'a>(machine: &'a mut Machine, key: &str) -> &'a mut Folder {
    machine.places.iter_mut().find(|place| place.key == key).unwrap().at.as_mut().unwrap()
}

#[test]
fn a_good_machine_has_no_faults_and_every_violation_has_a_fix() {
    assert_eq!(spoiled("[gpu]\ndriver = \"570\"\n[limits]\nnofile = 4096\nmemlock = \"unlimited\"", |_| {}), []);
    let everything = spoiled("[gpu]\ndriver = \"999\"\nfree_memory = \"1 TiB\"\n[limits]\nnproc = 1", |machine| {
        machine.mounts = Ok(parse::mountinfo(b"20 1 8:1 / / ro - ext4 /dev/sda1 rw\n"));
        machine.clock = Err("no".to_string());
    });
    assert!(everything.len() > 20, "{everything:#?}");
    assert!(everything.iter().all(|fault| fault.fix.as_ref().is_some_and(|fix| !fix.is_empty())));
}

#[test]
fn what_lies_on_the_root_volume_is_named() {
    let faults = spoiled("", |machine| {
        place(machine, "triton_cache").existing = b"/home/me/.triton".to_vec();
        let logs = place(machine, "logs");
        (logs.existing, logs.missing) = (b"/mnt".to_vec(), b"shardwrong/logs".to_vec());
    });
    assert_eq!(named(&faults), [("preflight/root-volume", "logs"), ("preflight/root-volume", "triton_cache")]);
    assert!(faults[0].found.contains("does not exist; `/mnt`"), "{}", faults[0].found);
    assert!(faults[1].found.contains("which is `/home/me/.triton`"), "{}", faults[1].found);
    let allowed = spoiled("storage.forbid_root_volume = false", |machine| {
        place(machine, "logs").existing = b"/var/log".to_vec();
    });
    assert_eq!(allowed, []);
}

#[test]
fn memory_is_no_place_for_checkpoints_but_one_for_temporary_files() {
    let faults = spoiled("", |machine| {
        place(machine, "checkpoints").existing = b"/dev/shm/c".to_vec();
        place(machine, "temporary").existing = b"/dev/shm/t".to_vec();
    });
    assert_eq!(named(&faults), [("preflight/volatile", "checkpoints")]);
}

#[test]
fn folders_that_take_no_files_are_named() {
    let faults = spoiled("", |machine| {
        place(machine, "data").writable = Ok(Writable::Refused("permission denied".to_string()));
        place(machine, "logs").kind = FolderKind::Other;
        place(machine, "hf_home").writable = Err("nobody asked".to_string());
    });
    let verdicts: Vec<_> = faults.iter().map(|f| (f.object.as_str(), f.verdict)).collect();
    use Verdict::{Unknown, Violation};
    assert_eq!(verdicts, [("data", Violation), ("logs", Violation), ("hf_home", Unknown)]);
}

#[test]
fn locations_on_one_volume_share_its_room() {
    let text = "[storage.free]\ndata = \"3 TiB\"\nlogs = \"2 TiB\"";
    let faults = spoiled(text, |_| {});
    assert_eq!(named(&faults), [("preflight/free-space", "/mnt/shardwright")]);
    assert!(faults[0].required.starts_with("5.00 TiB in all"), "{}", faults[0].required);
    assert!(faults[0].fix.as_ref().unwrap().contains("free 1.00 TiB"));
    assert_eq!(spoiled("[storage.free]\ndata = \"3 TiB\"", |_| {}), []);
}

#[test]
fn variables_are_judged_as_the_processes_get_them() {
    let text = "[environment]\nrequired = [\"A\", \"B\"]\nforbidden = [\"C\"]\n[environment.set]\nB = \"1\"\n\
                [environment.expected]\nD = \"8\"";
    let faults = spoiled(text, |machine| {
        machine.environment.insert(b"C".to_vec(), b"\x1b[2J\xff".to_vec());
        machine.environment.insert(b"D".to_vec(), b"8 ".to_vec());
    });
    let expected = [("preflight/env-value", "D"), ("preflight/env-required", "A"), ("preflight/env-forbidden", "C")];
    assert_eq!(named(&faults), expected);
    assert_eq!(faults[2].found, "`\\u{1b}[2J\\xff` here");
    assert_eq!(faults[0].fix.as_deref(), Some("export D=8"));
    let policy = policy(text);
    let own = faults_of_own(&policy);
    assert!(own.contains(&("preflight/env-value", "TMPDIR".to_string())), "{own:?}");
    assert!(own.contains(&("preflight/env-required", "B".to_string())), "{own:?}");
}

fn faults_of_own(policy: &Policy) -> Vec<(&'static str, String)> {
    let all = faults(judge(&good(policy), policy, Launcher::Own, None));
    all.into_iter().map(|fault| (fault.rule, fault.object)).collect()
}

#[test]
fn ports_and_processes_are_named_with_their_command_line() {
    let words = [b"python3".as_slice(), b"/x/pretrain_gpt.py", b"--name", b"$(reboot)\n"];
    let stale = Process { pid: 66, parent: 1, words: words.map(<[u8]>::to_vec).to_vec() };
    let faults = spoiled("[ports]\nfree = [6006]", |machine| {
        let idle = Process { pid: 50, parent: 1, words: vec![b"python3".to_vec()] };
        machine.processes.as_mut().unwrap().extend([idle, stale]);
        let listener = |port, owner| Listener { port, inode: 5, owner };
        machine.listeners.as_mut().unwrap().extend([listener(29500, Some(66)), listener(6006, None)]);
        machine.gpus.as_mut().unwrap()[3].users.push((7, Some(1 << 30)));
        machine.gpus.as_mut().unwrap()[3].users.push((50, Some(2 << 30)));
        machine.gpus.as_mut().unwrap()[4].users.push((4242, None));
    });
    let expected = [
        ("preflight/port-in-use", "29500"),
        ("preflight/port-in-use", "6006"),
        ("preflight/stale-process", "pid 50"),
        ("preflight/stale-process", "pid 66"),
        ("preflight/stale-process", "pid 4242"),
    ];
    // Process 7 computes too, and is the shell this check was started from.
    assert_eq!(named(&faults), expected);
    assert_eq!(faults[0].found, "pid 66 listens: python3 /x/pretrain_gpt.py --name $(reboot)\\n");
    assert!(faults[1].found.contains("may not see"));
    assert_eq!(faults[2].found, "python3, holding 2.00 GiB on GPU 3");
    assert!(faults[4].found.contains("cannot be seen from here, holding some of GPU 4"), "{}", faults[4].found);
}

#[test]
fn devices_limits_and_clock() {
    let text = "[gpu]\ndriver = \"570.86.16\"\nfree_memory = \"138 GiB\"\ncount = 9\n[limits]\nnofile = 2097152\n\
                memlock = \"unlimited\"\nnproc = 10\nshared_memory = \"65 GiB\"";
    let faults = spoiled(text, |machine| {
        machine.gpus.as_mut().unwrap().truncate(1);
        machine.gpus.as_mut().unwrap()[0].free = Some(1 << 30);
        machine.clock = Ok(ClockState { synchronized: false, source: "chronyc" });
    });
    let expected = [
        ("preflight/driver", "GPU 0"),
        ("preflight/gpu-count", "devices"),
        ("preflight/gpu-memory", "GPU 0"),
        ("preflight/ulimit", "nofile"),
        ("preflight/ulimit", "nproc"),
        ("preflight/shared-memory", "/dev/shm"),
        ("preflight/clock", "clock"),
    ];
    assert_eq!(named(&faults), expected);
    assert_eq!(faults[4].verdict, Verdict::Unknown, "the system did not list nproc");
}

#[test]
fn what_is_not_known_is_said_and_passes_nowhere() {
    let text = "[storage.free]\nlogs = \"1 GiB\"\n[gpu]\ncount = 1\n[limits]\nnofile = 1\nshared_memory = \"1 GiB\"";
    let policy = policy(text);
    let why = || "no".to_string();
    let machine = Machine {
        places: Vec::new(),
        mounts: Err(why()),
        processes: Err(why()),
        listeners: Err(why()),
        limits: Err(why()),
        shared_memory: Err(why()),
        clock: Err(why()),
        gpus: Err(why()),
        ..good(&policy)
    };
    let checks = judge(&machine, &policy, Launcher::Ours, None);
    assert!(checks.len() >= 7, "one for each thing that is not known: {checks:#?}");
    assert!(checks.iter().all(|check| check.verdict != Verdict::Pass), "{checks:#?}");
}

/// A plan of a layout, priced.
fn plan(case: &Case, memory_override: MemoryOverride) -> Plan {
    Plan::of(&case.job(), Fit::price(case, HEADROOM).as_ref(), memory_override)
}

fn megatron(request: LayoutRequest) -> Case {
    let request = LayoutRequest { world: Some(8), engine: Some(Engine::Megatron), ..request };
    Case { policy: policy(""), ..Case::new(&recipe("llama3-8b"), &request, Seams::Refuse).unwrap() }
}

/// Faults of a plan on a good machine with these variables, under a launcher of one's own.
fn with_variables(case: &Case, variables: &[(&str, &str)]) -> Vec<Check> {
    let mut machine = good(&case.policy);
    for (name, value) in variables {
        machine.environment.insert(name.as_bytes().to_vec(), value.as_bytes().to_vec());
    }
    let checks = judge(&machine, &case.policy, Launcher::Own, Some(&plan(case, MemoryOverride::No)));
    faults(checks).into_iter().filter(|f| !f.required.contains("the policy says so")).collect()
}

#[test]
fn megatrons_own_assertions_are_checked() {
    let name = "CUDA_DEVICE_MAX_CONNECTIONS";
    let tensor = megatron(LayoutRequest { tp: Some(2), ..Default::default() });
    assert_eq!(named(&with_variables(&tensor, &[])), [("preflight/env-value", name)]);
    assert_eq!(with_variables(&tensor, &[(name, "1")]), []);
    let kernels =
        with_variables(&tensor, &[(name, "1"), ("NVTE_FUSED_ATTN", "0"), ("CUDA_VISIBLE_DEVICES", "0,1,-1,3")]);
    let expected = [("preflight/env-value", "NVTE_FUSED_ATTN"), ("preflight/env-value", "CUDA_VISIBLE_DEVICES")];
    assert_eq!(named(&kernels), expected);
    let replicas = megatron(LayoutRequest::default());
    assert_eq!(with_variables(&replicas, &[]), []);
    let sharded = megatron(LayoutRequest { zero: Some(ZeroStage::Two), ..Default::default() });
    assert_eq!(with_variables(&sharded, &[]), []);
    assert_eq!(named(&with_variables(&sharded, &[(name, "1")])), [("preflight/env-value", name)]);
}

#[test]
fn launch_sets_what_the_engine_wants_and_the_policy_may_not_undo_it() {
    let mut case = megatron(LayoutRequest { tp: Some(2), ..Default::default() });
    let judged = |case: &Case| {
        let plan = plan(case, MemoryOverride::No);
        faults(judge(&good(&case.policy), &case.policy, Launcher::Ours, Some(&plan)))
    };
    assert_eq!(judged(&case), []);
    case.policy = policy("[environment.set]\nCUDA_DEVICE_MAX_CONNECTIONS = \"8\"");
    let faults = judged(&case);
    assert_eq!(named(&faults), [("preflight/env-value", "CUDA_DEVICE_MAX_CONNECTIONS")]);
    assert!(faults[0].fix.as_ref().unwrap().contains("[environment.set]"));
}

#[test]
fn what_does_not_fit_is_refused_unless_overridden_by_name() {
    let case = megatron(LayoutRequest { micro_batch: Some(64), ..Default::default() });
    let verdict = |memory_override| {
        let plan = plan(&case, memory_override);
        let checks = judge(&good(&case.policy), &case.policy, Launcher::Ours, Some(&plan));
        checks.into_iter().find(|check| check.rule == "preflight/memory-verdict").unwrap()
    };
    assert_eq!(verdict(MemoryOverride::No).verdict, Verdict::Violation);
    let overridden = verdict(MemoryOverride::Yes);
    assert_eq!(overridden.verdict, Verdict::Overridden);
    assert!(overridden.found.starts_with("does not fit"), "{}", overridden.found);
}

#[test]
fn a_plan_asks_for_room_for_its_checkpoints_and_for_its_devices() {
    let case = megatron(LayoutRequest::default());
    let plan = plan(&case, MemoryOverride::No);
    let mut machine = good(&case.policy);
    place(&mut machine, "checkpoints").space = Ok(Space { total: 1 << 40, free: 1 << 37 });
    machine.gpus.as_mut().unwrap().truncate(7);
    machine.gpus.as_mut().unwrap()[0].total = Some(80 << 30);
    machine.gpus.as_mut().unwrap()[1].total = None;
    let faults = faults(judge(&machine, &case.policy, Launcher::Ours, Some(&plan)));
    let expected = [
        ("preflight/free-space", "/mnt/shardwright"),
        ("preflight/gpu-count", "devices"),
        ("preflight/gpu-memory", "GPU 0"),
        ("preflight/gpu-memory", "GPU 1"),
    ];
    assert_eq!(named(&faults), expected);
    assert!(faults[0].required.contains("2 checkpoints of 105 GiB"), "{}", faults[0].required);
}
