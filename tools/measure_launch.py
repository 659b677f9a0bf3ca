"""What the emitted FSDP2 program allocates and how long its steps take, one rank on one GPU.

    python3 tools/measure_launch.py OUT.jsonl DIRECTORY[:RANK] ...

Each DIRECTORY was written by `shardwright launch … --engine fsdp2 --out DIRECTORY`; its own train.py runs. A world of one
runs under NCCL. In a larger one the other ranks are stood in for by torch's fake process group, which answers every
collective with this rank's own data, so that losses mean nothing and bytes do. A row has the recipe, the layout, the
rank, memory after every phase as in fsdp_h200.jsonl (`fwdbwd`, `opt`), and seconds of every step. Weights repeat one
drawn block, because drawing billions of them on the host takes longer than the steps. With `--trace` the
allocations alive at the highest point are written beside OUT by the line of the program that made them. With
`--at-once N` so many ranks are measured beside one another, each of which has the card to itself from its second step
on: what comes before, libraries and weights, is the host's work. With `--profile` one step more is taken under torch's
profiler: how many operations the device ran, seconds in which at least one did, and the heaviest by name. A row of a program that trains another way (8-bit
state, nf4, Liger's loss) has its `ways`, and the versions of the `libraries` it loaded; its `teacher` and the lengths of its
`documents`, where it has some.
"""

import collections
import concurrent.futures
import fcntl
import importlib.metadata
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

STEPS = 5
LIBRARIES = {
    "bitsandbytes": "bitsandbytes", "peft": "peft", "liger_kernel": "liger-kernel",
    "cut_cross_entropy": "cut-cross-entropy", "pytorch_optimizer": "pytorch_optimizer",
    "torchao": "torchao",
}  # fmt: skip


def stand_in(world, rank):
    """The fake process group, with exchanges that answer."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    real = dist.all_to_all_single

    def answer(output, input, *args, **kwargs):
        work = real(output, input, *args, **kwargs)
        if output.shape == input.shape:
            output.copy_(input)
        return work

    dist.all_to_all_single = answer


def repeated(initial):
    """First values that are quick to make: small tensors as they are, large ones a block over and over."""
    import torch

    block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1))

    def first(row, deviation=None):
        count = math.prod(row.shape)
        if count <= block.numel():
            return initial(row, deviation)
        return (block * row.shape[-1] ** -0.5).repeat(-(-count // block.numel()))[:count].view(row.shape)

    return first


def profiled(step):
    """Device operations of a step, as the rows of Megatron's launches have them."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    busy, until = 0.0, 0.0
    for start, end in sorted((e.time_range.start, e.time_range.end) for e in events):
        busy, until = busy + max(0.0, end - max(start, until)), max(until, end)
    count, spent = collections.Counter(), collections.Counter()
    for event in events:
        count[event.name] += 1
        spent[event.name] += event.time_range.elapsed_us()
    top = [[name[:120], count[name], round(us)] for name, us in spent.most_common(60)]
    return {"operations": len(events), "busy_s": busy / 1e6, "top": top}


def one_rank(directory, rank, is_traced, is_profiled):
    os.chdir(directory)
    sys.path.insert(0, ".")
    import torch
    import torch.distributed as dist
    import parallelize
    import plan as plans
    import train

    parallelize.initial = repeated(parallelize.initial)
    plan = plans.load("sharding.json")
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    if plan.world == 1:
        store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=device)
    else:
        stand_in(plan.world, rank)
    row = {"kind": "launch", "torch": torch.__version__, "rank": rank}
    row["recipe"] = pathlib.Path("recipe.toml").read_text()
    row["layout"] = json.loads(pathlib.Path("plan.json").read_text())["layout"]
    row["ways"], row["precision"] = plan.ways, plan.precision
    if plan.teacher:
        row["teacher"] = plan.teacher["recipe"]
    if plan.documents:
        row["documents"] = ",".join(map(str, plan.documents["lengths"]))

    def stat(tag):
        torch.cuda.synchronize()
        s = torch.cuda.memory_stats()
        names = {"alloc": "allocated_bytes.all.current", "peak": "allocated_bytes.all.peak",
                 "reserved": "reserved_bytes.all.current", "reserved_peak": "reserved_bytes.all.peak"}  # fmt: skip
        row[tag] = {name: s[key] for name, key in names.items()}
        torch.cuda.reset_peak_memory_stats()

    torch.set_default_dtype(torch.float32)
    if is_traced:
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=10_000_000)
    trainer = train.Trainer(plan, device)
    stat("model")
    finish, seconds, losses = train.finish_gradients, [], []
    turn = open(os.environ["TURN"], "w") if "TURN" in os.environ else None
    for step in range(3 if is_traced else STEPS):
        def between(run):
            stat(f"fwdbwd{step}")
            finish(run)

        if step == 1 and turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
        train.finish_gradients = between
        began = time.perf_counter()
        losses.append(trainer.step(step))
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        stat(f"opt{step}")
    if is_profiled:
        train.finish_gradients = finish
        row["profile"] = profiled(lambda: trainer.step(STEPS))
    if turn:
        turn.close()
    row["libraries"] = {name: importlib.metadata.version(name) for module, name in LIBRARIES.items() if module in sys.modules}
    # JSON has no word for losses that mean nothing.
    row["losses"], row["seconds"] = [loss if math.isfinite(loss) else None for loss in losses], seconds
    if not turn:
        free, total = torch.cuda.mem_get_info()
        row["outside"] = total - free - torch.cuda.memory_reserved()
    if is_traced:
        row["alive"] = alive_at_peak(torch.cuda.memory._snapshot()["device_traces"][0], directory)
    return row


def alive_at_peak(events, directory):
    """[bytes, pieces, line] of what is alive when most is, most first."""
    def walk(upto):
        alive, total, best, at = {}, 0, 0, 0
        for i, event in enumerate(events):
            if i > upto:
                break
            if event["action"] == "alloc":
                alive[event["addr"]] = event
                total += event["size"]
            elif event["action"] == "free_completed" and event["addr"] in alive:
                total -= alive.pop(event["addr"])["size"]
            if total > best:
                best, at = total, i
        return alive, best, at

    _, _, at = walk(len(events))
    alive, best, _ = walk(at)
    groups = collections.Counter()
    pieces = collections.Counter()
    for event in alive.values():
        frames = event.get("frames", [])
        own = [f"{pathlib.Path(f['filename']).name}:{f['line']}" for f in frames if str(directory) in f["filename"] or f["filename"].startswith("./")]
        top = f"{pathlib.Path(frames[0]['filename']).name}:{frames[0]['line']}:{frames[0]['name']}" if frames else "autograd"
        key = (event["size"], top + " < " + " < ".join(own[:3]))
        groups[key] += event["size"]
        pieces[key] += 1
    last = events[at]
    frames = [f"{pathlib.Path(f['filename']).name}:{f['line']}:{f['name']}" for f in last.get("frames", [])[:12]]
    rows = [[bytes_, pieces[key], key[0], key[1]] for key, bytes_ in groups.most_common(120)]
    return {"peak": best, "pieces": sum(pieces.values()), "last": [last["size"], frames], "rows": rows}


def main():
    switches = ("--trace", "--profile")
    arguments = [a for a in sys.argv[1:] if a not in switches]
    is_traced, is_profiled = (switch in sys.argv for switch in switches)
    at_once = 1
    if "--at-once" in arguments:
        at = arguments.index("--at-once")
        at_once = int(arguments[at + 1])
        del arguments[at : at + 2]
    if arguments[0] == "--one":
        print("ROW " + json.dumps(one_rank(pathlib.Path(arguments[1]), int(arguments[2]), is_traced, is_profiled)), flush=True)
        os._exit(0)
    environment = dict(os.environ)
    if at_once > 1:
        environment.setdefault("TURN", f"{arguments[0]}.turn")

    def measure(target):
        directory, _, rank = target.partition(":")
        command = [sys.executable, __file__, "--one", str(pathlib.Path(directory).absolute()), rank or "0"]
        began = time.time()
        options = {"capture_output": True, "text": True, "timeout": 300, "env": environment}
        run = subprocess.run(command + [a for a in sys.argv if a in switches], **options)
        row = next((json.loads(line[4:]) for line in run.stdout.splitlines() if line.startswith("ROW ")), None)
        name = pathlib.Path(directory).name
        if row is None:
            row = {"kind": "error", "error": (run.stderr or run.stdout)[-3000:]}
            print(name, rank, "ERROR", (run.stderr or run.stdout)[-900:], flush=True)
        else:
            peak = max(phase["peak"] for key, phase in row.items() if key.startswith(("fwdbwd", "opt")))
            step = statistics.median(row["seconds"][2:])
            print(f"{name} {rank} peak {peak / 2**30:.3f} GiB step {step * 1e3:.1f} ms losses {row['losses']} ({time.time() - began:.0f} s)", flush=True)
        return {"name": name, **row}

    with open(arguments[0], "a", encoding="utf-8") as out, concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for row in concurrent.futures.as_completed([pool.submit(measure, target) for target in arguments[1:]]):
            out.write(json.dumps(row.result()) + "\n")
            out.flush()


main()
