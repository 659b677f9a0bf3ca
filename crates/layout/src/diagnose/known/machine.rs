//! The machine under a run: ports, disks, processes left over, and the order of debugging a live run.

use super::super::{At, Diagnosis, Family};

pub const MACHINE: &[Diagnosis] = &[
    Diagnosis {
        id: "port-in-use",
        at: At::Family(Family::Infrastructure),
        place: "the rendezvous port, and who holds it",
        because: "a launcher that cannot bind its port has met another run, usually an earlier one of your own that did not end",
        inspect: &[
            "who listens: `ss -ltnp` on the first node, by the port of the error",
            "ports and stale processes against a policy: `shardwright preflight --example > policy.toml`, then `shardwright preflight --policy policy.toml`",
            "end that process by its id if it is stale, or give this job another port",
            "then relaunch clean: ranks that joined the other run's rendezvous are of no use",
        ],
        known_by: &[
            &["port", "ports", "eaddrinuse", "rendezvous", "master_port", "socket", "address", "bind", "29500"],
            &[
                "use",
                "used",
                "in-use",
                "taken",
                "occupied",
                "already",
                "busy",
                "conflict",
                "bind",
                "eaddrinuse",
                "refused",
            ],
        ],
    },
    Diagnosis {
        id: "disk-full",
        at: At::Family(Family::Infrastructure),
        place: "what is written to the root volume",
        because: "checkpoints, data, logs, compiler and Triton caches and temporary files fill a root volume, and a run that spills there is slow before it fails",
        inspect: &[
            "what is full, space or inodes: `df -h` and `df -i`",
            "where TMPDIR, TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR and HF_HOME point in the rank's environment (/proc/PID/environ)",
            "every folder against a policy: `shardwright preflight --example > policy.toml`, then `shardwright preflight --policy policy.toml`",
            "move them to a mounted volume in the policy's [storage], write the launch again, and only then trust a figure",
        ],
        known_by: &[
            &[
                "disk",
                "disks",
                "space",
                "root",
                "volume",
                "filesystem",
                "quota",
                "enospc",
                "errno",
                "inode",
                "inodes",
                "tmp",
                "storage",
            ],
            &[
                "full", "left", "no-space", "filled", "fills", "exceeded", "cache", "caches", "triton", "enospc",
                "writes", "spills",
            ],
        ],
    },
    Diagnosis {
        id: "stale-process",
        at: At::Family(Family::Infrastructure),
        place: "processes of an earlier run",
        because: "a rank that outlived its job keeps device memory, ports and shared memory, and the next run is blamed for what is missing",
        inspect: &[
            "who holds the devices: `nvidia-smi --query-compute-apps=pid,used_memory --format=csv`",
            "whether that process belongs to a job that runs (start time, parent, working folder)",
            "stale processes and ports by name: `shardwright preflight --example > policy.toml`, then `shardwright preflight --policy policy.toml`",
            "end them by process id, one by one, then look again before you launch",
        ],
        known_by: &[
            &[
                "stale",
                "zombie",
                "zombies",
                "leftover",
                "left-over",
                "orphan",
                "orphaned",
                "defunct",
                "old",
                "previous",
                "killed",
                "dead",
                "no-job",
                "nothing-runs",
                "still",
            ],
            &["process", "processes", "pid", "pids", "python", "job", "worker", "workers", "ranks", "training"],
            &["gpu", "gpus", "memory", "held", "holds", "holding", "port", "running", "nvidia-smi", "use", "shm"],
        ],
    },
    Diagnosis {
        id: "live-debug",
        at: At::Family(Family::Infrastructure),
        place: "the running job, in this order",
        because: "a live run is read once and with bounds; whatever is stale goes before the next sample is believed",
        inspect: &[
            "find the training process: the one that holds the device (`nvidia-smi --query-compute-apps=pid,used_memory --format=csv`), not its launcher",
            "take one bounded readback of it: `py-spy dump --pid PID` once, or the last entries of NCCL's flight recorder",
            "clear what is stale: end leftover training processes by id where ports or devices are ambiguous",
            "relaunch a clean run from the same launch directory, and trust samples from there on only",
        ],
        known_by: &[
            &["debug", "debugging", "live", "attach", "py-spy", "readback", "what-now", "what-do", "look-at-first"],
            &[
                "run", "running", "training", "job", "process", "hang", "hangs", "hung", "hanging", "stuck", "frozen",
                "stopped",
            ],
        ],
    },
    Diagnosis {
        id: "logs-lost",
        at: At::Family(Family::Infrastructure),
        place: "what a finished job leaves behind",
        because: "a log on a node's own disk goes with the node, and with it the only evidence of the run",
        inspect: &[
            "where the policy puts logs: `shardwright preflight --example` shows [storage]",
            "the launch directory: plan.json, arguments.json and environment.env say what was asked for",
            "a summary exported to durable storage when the job ends: rate, memory peak, exit of every rank",
        ],
        known_by: &[
            &["log", "logs", "evidence", "summary", "receipt", "metrics"],
            &["lost", "gone", "deleted", "disappeared", "vanished", "missing"],
        ],
    },
];
