//! What a cluster's operator asks for: pods and Slurm jobs with the policy's volumes, devices and places.

use crate::common::{Case, recipe};
use case::Seams;
use launch::Policy;
use launch::schedulers::{Scheduler, meant, unused};
use layout::{Engine, LayoutRequest};

const POLICY: &str = r#"
[storage]
caches = "/mnt/scratch/caches"
[job]
image = "registry.example/train:1"
[kubernetes]
rdma_resource = "rdma/hca"
rdma_count = 8
ipc_lock = true
pull_secrets = ["pull"]
service_account = "trainer"
queue = "large"
[kubernetes.node_selector]
pool = "h200"
[[kubernetes.tolerations]]
key = "gpu"
effect = "NoSchedule"
[[kubernetes.volumes]]
claim = "scratch"
mount = "/mnt/scratch"
"#;

fn case(policy: &str) -> Case {
    let request = LayoutRequest { world: Some(16), engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let mut case = Case::new(&recipe("llama3-8b"), &request, Seams::Refuse).unwrap();
    case.policy = Policy::parse(policy).unwrap_or_else(|findings| panic!("{findings:#?}"));
    case
}

/// The scheduler's own file.
fn written(case: &Case, scheduler: Scheduler) -> Result<String, Vec<&'static str>> {
    case.files(scheduler)
        .map(|all| all.last().unwrap().contents.clone())
        .map_err(|f| f.into_iter().map(|f| f.rule).collect())
}

#[test]
fn pods_get_what_the_policy_names_whatever_starts_them() {
    for scheduler in [Scheduler::JobSet, Scheduler::TrainJob, Scheduler::RayJob] {
        let text = written(&case(POLICY), scheduler).unwrap();
        for line in [
            "mountPath: \"/mnt/shardwright\"",
            "mountPath: \"/mnt/scratch\"",
            "mountPath: \"/dev/shm\"",
            "claimName: \"shardwright\"",
            "claimName: \"scratch\"",
            "medium: \"Memory\"",
            "rdma/hca: \"8\"",
            "- \"IPC_LOCK\"",
            "- name: \"pull\"",
            "serviceAccountName: \"trainer\"",
            "kueue.x-k8s.io/queue-name: \"large\"",
            "pool: \"h200\"",
            "- key: \"gpu\"",
            "effect: \"NoSchedule\"",
            "image: \"registry.example/train:1\"",
        ] {
            assert!(text.lines().any(|l| l.trim() == line || l.trim() == format!("- {line}")), "{scheduler}: {line}");
        }
    }
    let plain = written(&case(""), Scheduler::JobSet).unwrap();
    for word in ["rdma", "IPC_LOCK", "hostNetwork", "tolerations", "nodeSelector", "labels", "priorityClassName"] {
        assert!(!plain.contains(word), "{word} was not asked for");
    }
}

#[test]
fn what_a_trainjob_cannot_say_is_refused_and_a_jobset_says_it() {
    let policy =
        format!("{POLICY}\n[slurm]\n").replace("ipc_lock", "host_network = true\npriority_class = \"high\"\nipc_lock");
    let case = case(&policy);
    let text = written(&case, Scheduler::JobSet).unwrap();
    assert!(text.contains("hostNetwork: true") && text.contains("priorityClassName: \"high\""), "{text}");
    assert!(text.contains("dnsPolicy: \"ClusterFirstWithHostNet\""));
    assert_eq!(written(&case, Scheduler::TrainJob), Err(vec!["launch/trainjob", "launch/trainjob"]));
}

#[test]
fn storage_that_nothing_mounts_is_refused() {
    let lost = case("[storage]\nlogs = \"/mnt/other/logs\"\n");
    for scheduler in [Scheduler::JobSet, Scheduler::TrainJob, Scheduler::RayJob] {
        assert_eq!(written(&lost, scheduler), Err(vec!["launch/unmounted"]), "{scheduler}");
    }
    assert!(written(&lost, Scheduler::Slurm).is_ok(), "no container, so the node's own mounts");
    let beside = case("[storage]\nlogs = \"/mnt/shardwright-2/logs\"\n");
    assert_eq!(written(&beside, Scheduler::JobSet), Err(vec!["launch/unmounted"]), "a folder beside is not below");
    let allowed = case("[storage]\nlogs = \"/mnt/other/logs\"\nforbid_root_volume = false\n");
    assert!(written(&allowed, Scheduler::JobSet).is_ok());
}

#[test]
fn slurm_runs_the_image_and_is_told_what_the_site_wants() {
    let policy = r#"
[job]
image = "registry.example/train:1"
account = "research"
[slurm]
container_mounts = ["/data:/data:ro"]
qos = "high"
reservation = "week"
constraint = "h200&ib"
exclude = "node[1-3],node7"
venv = "/opt/my env"
gpus = "gres"
"#;
    let text = written(&case(policy), Scheduler::Slurm).unwrap();
    for line in [
        "account=research",
        "qos=high",
        "reservation=week",
        "constraint=h200&ib",
        "exclude=node[1-3],node7",
        "gres=gpu:8",
    ] {
        assert!(text.contains(&format!("#SBATCH --{line}\n")), "{line}\n{text}");
    }
    assert!(!text.contains("gpus-per-node"));
    assert!(text.contains("--container-image=registry.example/train:1"), "{text}");
    assert!(
        text.contains("--container-mounts=\"$PWD:$PWD\",/mnt/shardwright:/mnt/shardwright,/data:/data:ro"),
        "{text}"
    );
    assert!(text.contains("/opt/my env/bin/activate"), "{text}");
    let lost = format!("{policy}[storage]\nlogs = \"/mnt/other\"\n");
    assert_eq!(written(&case(&lost), Scheduler::Slurm), Err(vec!["launch/unmounted"]));
    let host = written(
        &case(&format!("{policy}container = \"none\"\nmodules = [\"cuda/12.4\", \"nccl\"]\n")),
        Scheduler::Slurm,
    )
    .unwrap();
    assert!(!host.contains("--container-image") && host.contains("module load cuda/12.4 nccl || exit 1\n"), "{host}");
    assert!(host.find("module load").unwrap() < host.find("set -euo").unwrap());
    let plain = written(&case(""), Scheduler::Slurm).unwrap();
    assert!(!plain.contains("container") && plain.contains("#SBATCH --gpus-per-node=8\n"), "{plain}");
}

#[test]
fn tables_of_sites_are_held_to_plain_words() {
    let rule = |text: &str| Policy::parse(text).unwrap_err()[0].rule;
    assert_eq!(rule("[slurm]\nconstraint = \"a b\""), "policy/name");
    assert_eq!(rule("[slurm]\nexclude = \"n1\\n#SBATCH --uid=0\""), "policy/text");
    assert_eq!(rule("[slurm]\nmodules = [\"$(id)\"]"), "policy/name");
    assert_eq!(rule("[slurm]\ncontainer_mounts = [\"/a\"]"), "policy/path");
    assert_eq!(rule("[slurm]\ncontainer_mounts = [\"/a:/b,/c\"]"), "policy/path");
    assert_eq!(rule("[slurm]\nvenv = \"env\""), "policy/path");
    assert_eq!(rule("[slurm]\ngpus = \"all\""), "policy/choice");
    assert_eq!(rule("[slurm]\nmodules = [\"cuda\"]\n[job]\nimage = \"x\""), "policy/consistency");
    assert_eq!(rule("[kubernetes]\nrdma_count = 2"), "policy/consistency");
    assert_eq!(rule("[kubernetes]\nqueue = \"a b\""), "policy/name");
    assert_eq!(rule("[kubernetes.node_selector]\n\"a b\" = \"c\""), "policy/name");
    assert_eq!(rule("[[kubernetes.tolerations]]\nvalue = \"x\""), "policy/missing-key");
    assert_eq!(rule("[[kubernetes.volumes]]\nclaim = \"c\""), "policy/missing-key");
    assert_eq!(rule("[[kubernetes.volumes]]\nclaim = \"c\"\nmount = \"x\""), "policy/path");
    assert_eq!(rule("[job]\nimage = \"a\\nb\""), "policy/text");
}

#[test]
fn what_a_scheduler_does_not_use_is_said() {
    let policy = Policy::parse(&format!("{POLICY}[slurm]\nqos = \"high\"\n")).unwrap();
    let said = |scheduler| unused(scheduler, &policy).map(|f| (f.rule, f.message));
    let (rule, words) = said(Scheduler::Slurm).unwrap();
    assert!(rule == "launch/unused-policy" && words.contains("kubernetes.volumes") && !words.contains("slurm.qos"));
    let (_, words) = said(Scheduler::JobSet).unwrap();
    assert_eq!(words, "`jobset` does not use slurm.qos of the policy");
    assert!(said(Scheduler::Torchrun).unwrap().1.contains("job.image"));
    assert_eq!(unused(Scheduler::JobSet, &Policy::default()), None);
}

#[test]
fn words_people_type_lead_to_schedulers_there_are() {
    assert_eq!(meant("k8s"), Some(&["jobset", "trainjob"][..]));
    assert_eq!(meant("Kubernetes"), meant("k8s"));
    assert_eq!(meant("ray"), Some(&["rayjob"][..]));
    for word in ["k8s", "ray", "sbatch", "kubeflow", "local"] {
        for name in meant(word).unwrap() {
            assert!(Scheduler::from_name(name).is_some(), "{word}");
        }
    }
    assert_eq!(meant("jobset"), None);
}
