"""One rank of a job on one GPU: the engine's own trainer runs, torch's fake process group stands in for the other ranks.

    ./probe.sh                                  every class of ranks, one after another
    python3 shardwright_probe.py --class 0      one of them

Reads probe.json beside it, which says who to be and what was predicted. Writes probe-rank<r>.jsonl, a line a figure
(schema shardwright/hook/1), and prints what was measured beside what was predicted. No exchange is in any figure: a
collective returns at once, gathers repeat this rank's data and reductions leave what was there, so that losses mean
nothing and bytes do. Needs the engine, its torch and one GPU; exits 3 where there is none.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import math
import os
import pathlib
import platform
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
SCHEMA = "shardwright/hook/1"
WARM_UP = 3
# Times that tuning may take as long as it is said to, and seconds that a compiler may take.
TUNING, COMPILING = 3, 600
NO_GPU = 3
GIB = 2**30
# Of a launch, and not of a probe: where it keeps things, and how long it runs.
NOT_PROBED = {
    "--save", "--load", "--save-interval", "--save-retain-interval", "--tensorboard-dir", "--train-iters", "--lr-decay-iters",
    "--lr-warmup-iters", "--eval-iters", "--log-interval", "--ckpt-format", "--async-save",
}  # fmt: skip


class Refused(Exception):
    """What is asked for cannot be probed here."""


class Log:
    """Lines of one probe. Every line is on the disk before anything else happens."""

    def __init__(self, path: pathlib.Path, rank: int):
        self.rank, self.lock, self.lines = rank, threading.Lock(), []
        self.file = open(path, "w", encoding="utf-8")

    def write(self, kind: str, **figures) -> None:
        line = {"schema": SCHEMA, "kind": kind, "rank": self.rank, "at": time.time(), **figures}
        with self.lock:
            self.lines.append(line)
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


class Rank:
    """The rank being measured: which phase it is in, what its allocator says, how long its steps take."""

    def __init__(self, probe: dict, about: dict, arguments: argparse.Namespace, log: Log):
        self.probe, self.about, self.arguments, self.log = probe, about, arguments, log
        self.rank, self.world, self.phase = about["rank"], probe["world"]["probed"], "start"
        self.on_gpu = arguments.device == "cuda"
        self.steps, self.step, self.profiler, self.snapshot = arguments.steps or probe["steps"], 0, None, None
        self.wants_snapshot = arguments.memory_snapshot or probe["memory_snapshot"]
        self.began, self.words, self.has_started = 0.0, [], False
        # When it last showed that it goes on.
        self.alive = time.monotonic()

    def enter(self, phase: str) -> None:
        self.phase, self.alive = phase, time.monotonic()

    def patience(self) -> float:
        """Seconds without a sign of life that are too many. While kernels tune, which nothing reports, more are not."""
        first = self.probe.get("first_step") or {}
        tunes = first.get("seconds", 0) * TUNING + (COMPILING if first.get("compiles") else 0)
        return self.arguments.limit + (tunes if self.step == 0 else 0)

    def begin(self, words: list[str]) -> None:
        """Everything is imported: who runs with what, and the device."""
        self.words = words
        if self.on_gpu:
            self.hold_the_gpu()
        started(self)

    def hold_the_gpu(self) -> None:
        """Waits for other probes on this machine: two at once would spoil both."""
        folder = os.environ.get("SHARDWRIGHT_PROBE_LOCK", tempfile.gettempdir())
        self.held = open(os.path.join(folder, "shardwright-probe.lock"), "w", encoding="utf-8")
        fcntl.flock(self.held, fcntl.LOCK_EX)
        if self.arguments.limit:
            self.alive = time.monotonic()
            threading.Thread(target=self.watch, daemon=True).start()
        import torch

        torch.cuda.set_device(0)
        if self.wants_snapshot:
            torch.cuda.memory._record_memory_history(context="all", stacks="python", max_entries=2_000_000)

    def watch(self) -> None:
        while time.monotonic() - self.alive < self.patience():
            time.sleep(min(1.0, self.arguments.limit / 4))
        self.too_late()

    def too_late(self) -> None:
        detail = f"no sign of life for {self.patience():.0f} s"
        self.log.write("event", event="failure", phase=self.phase, detail=detail)
        self.log.write("end", status="failed", phase=self.phase)
        os._exit(1)

    def sync(self) -> None:
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    def memory(self, phase: str, step: int | None = None) -> None:
        """What the allocator says at the end of a phase. Its books are the host's, so that nothing is waited for."""
        if not self.on_gpu:
            return
        import torch

        stats = torch.cuda.memory_stats()
        figures = {
            "allocated": stats["allocated_bytes.all.current"],
            "allocated_peak": stats["allocated_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.current"],
            "reserved_peak": stats["reserved_bytes.all.peak"],
            "retries": stats["num_alloc_retries"],
        }
        # The driver is asked only where no step is being timed.
        if not phase.startswith("fwdbwd"):
            free, total = torch.cuda.mem_get_info()
            figures["device_used"] = total - free
        self.log.write("memory", phase=phase, **({} if step is None else {"step": step}), **figures)

    def reset_peaks(self) -> None:
        if self.on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()

    @property
    def is_profiled(self) -> bool:
        """The step behind the timed ones: under the profiler, and counted nowhere."""
        return self.step == self.steps

    def step_begins(self) -> None:
        self.enter(f"fwdbwd{self.step}")
        self.sync()
        self.reset_peaks()
        if self.is_profiled:
            from torch.profiler import ProfilerActivity, profile

            self.profiler = profile(activities=[ProfilerActivity.CUDA])
            self.profiler.__enter__()
        self.began = time.perf_counter()

    def passes_end(self) -> None:
        """Between the passes and the update."""
        if not self.is_profiled:
            self.memory(f"fwdbwd{self.step}", self.step + 1)
            self.reset_peaks()
        self.enter(f"opt{self.step}")

    def step_ends(self, loss: float | None = None, grad_norm: float | None = None) -> bool:
        """Whether it was the last."""
        issued = time.perf_counter() - self.began
        self.sync()
        seconds = time.perf_counter() - self.began
        if self.is_profiled:
            self.profiler.__exit__(None, None, None)
            self.kernels(seconds)
            return True
        self.memory(f"opt{self.step}", self.step + 1)
        figures = {"loss": number(loss), "grad_norm": number(grad_norm)}
        is_nan = any(value is not None and not math.isfinite(value) for value in figures.values())
        figures = {key: value for key, value in figures.items() if value is not None and math.isfinite(value)}
        self.log.write(
            "step", number=self.step + 1, seconds=seconds, host_seconds=issued, warm_up=self.step < WARM_UP, nan=is_nan, **figures
        )
        if self.wants_snapshot and self.on_gpu and self.step == min(1, self.steps - 1):
            self.keep_snapshot()
        self.step += 1
        return self.step == self.steps and (self.arguments.no_profile or not self.on_gpu)

    def keep_snapshot(self) -> None:
        """What was allocated until the second step has run, which is when peaks repeat."""
        import torch

        self.snapshot = f"snapshot-rank{self.rank}.pickle"
        torch.cuda.memory._dump_snapshot(str(self.arguments.out / self.snapshot))
        torch.cuda.memory._record_memory_history(enabled=None)

    def kernels(self, seconds: float) -> None:
        """Time on the device by kernel."""
        by_name: dict[str, list[float]] = {}
        spans = []
        for name, first, last in on_the_device(self.profiler):
            by_name.setdefault(name, []).append((last - first) / 1e9)
            spans.append((first, last))
        busy, end = 0, 0
        for first, last in sorted(spans):
            busy, end = busy + max(0, last - max(first, end)), max(end, last)
        self.log.write("profile", step=self.step + 1, seconds=seconds, busy_seconds=busy / 1e9, kernels=len(spans))
        for name, times in sorted(by_name.items(), key=lambda item: -sum(item[1])):
            self.log.write("kernel", name=name[:200], calls=len(times), seconds=sum(times))


def on_the_device(profiler) -> list[tuple[str, int, int]]:
    """Kernels and copies of a profile: name, first and last nanosecond."""
    try:
        events = profiler.profiler.kineto_results.events()
        return [
            (event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
            for event in events
            if str(event.device_type()).endswith("CUDA")
        ]
    except AttributeError:
        # torch's own list of the same, slower to build.
        spans = [(e.name, e.time_range) for e in profiler.events() if str(e.device_type).endswith("CUDA")]
        return [(name, int(span.start * 1000), int(span.end * 1000)) for name, span in spans]


def number(value) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


# ---- engines: each becomes the rank, and calls it at the ends of phases


def megatron(rank: Rank) -> None:
    """Megatron-LM's own pretraining script, with its own --fake-process-group."""
    program, words = megatron_words(rank)
    if rank.arguments.dry:
        return say_dry(rank, [program, *words])
    import torch
    import torch.distributed as dist

    try:
        import megatron.training.arguments as spoken
        import megatron.training.training as training
    except ImportError as error:
        raise Refused(f"Megatron-LM cannot be imported: {error}; put its root on PYTHONPATH") from error
    if "--fake-process-group" not in pathlib.Path(spoken.__file__).read_text(encoding="utf-8"):
        raise Refused("this Megatron-LM has no --fake-process-group: core 0.14 is the first that has")
    if not os.path.exists(program):
        raise Refused(f"{program} is not there: SHARDWRIGHT_ENGINE=/path/of/Megatron-LM says where the engine is")
    stand_in_for_uneven_gathers(dist)
    stand_in_for_broadcasts(torch, dist)
    write_what_stages_receive(torch)
    compiled_helpers_stay()
    rank.begin(words)
    hook_megatron(rank, training)
    sys.argv = [program, *words]
    sys.path.insert(0, os.path.dirname(program))
    rank.enter("context")
    runpy.run_path(program, run_name="__main__")
    raise Refused(f"the trainer ended after {rank.step} steps")


def megatron_words(rank: Rank) -> tuple[str, list[str]]:
    """The launch's arguments, less what keeps things, with what a probe needs."""
    entry = rank.probe["entry"][0]
    root = os.environ.get("SHARDWRIGHT_ENGINE")
    # An entry of ours lies here, and looks for the engine's scripts in the same places.
    places = [root] if root else [os.path.dirname(entry), *sys.path] if os.path.isabs(entry) else sys.path
    programs = [str(HERE / entry), *(os.path.join(place, os.path.basename(entry)) for place in places if place)]
    program = next((path for path in programs if os.path.isfile(path)), programs[-1])
    words = []
    for argument in json.loads((HERE / "arguments.json").read_text(encoding="utf-8")):
        flag, values = argument["flag"], argument["values"]
        # Megatron-FSDP insists on its own format, whether or not anything is saved.
        if flag in NOT_PROBED and values != ["fsdp_dtensor"]:
            continue
        words += [flag, *values]
    if "--eval-interval" not in words:  # an emission of an older release
        words += ["--eval-interval", "100000"]
    count = str(rank.steps + 8)
    words += ["--fake-process-group", "--train-iters", count, "--lr-decay-iters", count, "--lr-warmup-iters", "1"]
    return program, [*words, "--eval-iters", "0", "--log-interval", "1", "--num-workers", "0"]


class Done:
    """A collective that has ended."""

    def wait(self, *_, **__):
        return True


def stand_in_for_uneven_gathers(dist) -> None:
    """Muon gathers shards of unlike sizes, and the fake group copies its input into every output."""
    real = dist.all_gather

    def gather(outputs, tensor, group=None, async_op=False):
        if any(output.shape != tensor.shape for output in outputs):
            return Done() if async_op else None
        return real(outputs, tensor, group=group, async_op=async_op)

    dist.all_gather = gather


def stand_in_for_broadcasts(torch, dist) -> None:
    """What rank 0 says of the data sets, and what a tensor group's first rank says of a microbatch.

    Only those two send to ranks that read no data: parameters are broadcast over data parallelism, and stay.
    """
    real = dist.broadcast

    def broadcast(tensor, src=None, group=None, async_op=False, **options):
        done = real(tensor, src, group=group, async_op=async_op, **options)
        state = importlib.import_module("megatron.core.parallel_state")
        if group is None and src == 0 and tensor.dtype == torch.long and tensor.numel() == 3:
            tensor[0] = 1  # train; nothing is validated or tested
        elif src not in (None, dist.get_rank()) and group is state.get_tensor_model_parallel_group(check_initialized=False):
            if tensor.is_floating_point():
                tensor.fill_(1.0)
            elif tensor.ndim > 1 and tensor.dtype == torch.long:
                tensor.copy_((torch.arange(tensor.numel(), device=tensor.device) % 1000).view_as(tensor))
        return done

    dist.broadcast = broadcast


def write_what_stages_receive(torch) -> None:
    """Nobody sends to a stage: what it receives gets numbers of the size activations and gradients have, in place."""
    try:
        communicator = importlib.import_module("megatron.core.pipeline_parallel.p2p_communication").P2PCommunicator
        real = communicator._communicate
    except (ImportError, AttributeError):
        return

    def communicate(self, **options):
        received = real(self, **options)
        for tensor, size in zip(received[:2], (1.0, 1e-4)):
            if torch.is_tensor(tensor) and tensor.is_floating_point():
                with torch.no_grad():
                    tensor.normal_(0.0, size)
        return received

    communicator._communicate = communicate


def compiled_helpers_stay() -> None:
    """The data set's C++ helpers are compiled only where they are not there yet."""
    try:
        importlib.import_module("megatron.core.datasets.helpers_cpp")
        importlib.import_module("megatron.core.datasets.utils").compile_helpers = lambda *_, **__: None
    except ImportError:
        pass


def hook_megatron(rank: Rank, training) -> None:
    """Reads the allocator between what setup and a step consist of."""
    setup, step, make = training.setup_model_and_optimizer, training.train_step, training.get_megatron_optimizer

    core = importlib.import_module("megatron.core.distributed")
    for owner in [training.DDP, getattr(training, "megatron_FSDP", None), getattr(core, "TorchFullyShardedDataParallel", None)]:
        if owner is not None:
            hook_constructor(owner, rank)

    def optimizer(*arguments, **options):
        rank.memory("ddp")
        rank.enter("optimizer")
        return make(*arguments, **options)

    def set_up(*arguments, **options):
        rank.memory("context")
        rank.enter("model")
        made = setup(*arguments, **options)
        rank.memory("optimizer")
        rank.log.write("ran", what="parameters", value=str(sum(p.numel() for m in made[0] for p in m.parameters())))
        hook_update(rank, made[1])
        return made

    def train_step(*arguments, **options):
        rank.step_begins()
        out = step(*arguments, **options)
        losses = out[0] if isinstance(out[0], dict) else {}
        loss = next(iter(losses.values()), None)
        loss = loss[0] if isinstance(loss, (list, tuple)) or getattr(loss, "ndim", 0) else loss
        if rank.step_ends(loss, out[5] if len(out) > 5 else None):
            attention_that_ran(rank)
            finished(rank)
        return out

    training.setup_model_and_optimizer, training.train_step = set_up, train_step
    training.get_megatron_optimizer = optimizer


def hook_constructor(owner, rank: Rank) -> None:
    """The first wrapper is where the model is built and buffers begin."""
    real = owner.__init__

    def construct(self, *arguments, **options):
        if rank.phase == "model":
            rank.memory("model")
            rank.enter("ddp")
        real(self, *arguments, **options)

    owner.__init__ = construct


def hook_update(rank: Rank, optimizer) -> None:
    real = optimizer.step

    def step(*arguments, **options):
        rank.passes_end()
        return real(*arguments, **options)

    optimizer.step = step


def attention_that_ran(rank: Rank) -> None:
    """Which of Transformer Engine's attentions was dispatched."""
    place = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"
    chosen = getattr(sys.modules.get(place), "_attention_backends", None)
    if chosen and chosen.get("attention_params") is not None:
        kinds = ("flash", "fused", "unfused")
        ran = [kind for kind in kinds if chosen.get(f"use_{kind}_attention")]
        rank.log.write("ran", what="attention", value=ran[0] if ran else "none")


def fsdp2(rank: Rank) -> None:
    """The emitted train.py."""
    if rank.arguments.dry:
        return say_dry(rank, ["train.py", "--plan", "sharding.json"])
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(HERE))
    import moe
    import parallelize
    import plan as plans
    import train

    rank.begin(["--plan", "sharding.json"])
    rank.enter("context")
    fake_group(rank, dist)
    parallelize.initial = overlapping(parallelize.initial, torch)
    balance_routing(moe.Router, torch)
    plan = plans.load(str(HERE / "sharding.json"))
    device = torch.device(rank.arguments.device, 0) if rank.on_gpu else torch.device("cpu")
    torch.set_default_dtype(train.DTYPES[plan.precision["main"]])
    rank.memory("context")
    rank.enter("model")

    def before(make):
        def made(*arguments, **options):
            rank.memory("model")
            rank.enter("optimizer")
            return make(*arguments, **options)

        return made

    train.build_optimizers, train.add_lora = before(train.build_optimizers), before(train.add_lora)
    trainer = train.Trainer(plan, device)
    rank.memory("optimizer")
    parameters = sum(p.numel() for chunk in trainer.run.chunks.values() for p in chunk.parameters())
    rank.log.write("ran", what="parameters", value=str(parameters))
    finish = train.finish_gradients

    def between(run):
        rank.passes_end()
        finish(run)

    train.finish_gradients = between
    while True:
        rank.step_begins()
        loss = trainer.step(rank.step)
        if rank.step_ends(loss):
            break
    finished(rank)


def torchtitan(rank: Rank) -> None:
    """torchtitan's own Trainer over the emitted configuration, its communication in fake_backend mode, tokens drawn."""
    words = rank.probe["entry"][2:]
    if rank.arguments.dry:
        return say_dry(rank, ["torchtitan.train", *words])
    import torch

    sys.path.insert(0, str(HERE))
    os.environ["NGPU"] = str(rank.world)
    from torchtitan.config import ConfigManager

    rank.begin(words)
    rank.enter("context")

    sys.argv = ["torchtitan.train", *words]
    config = ConfigManager().parse_args()
    config.comm.mode = "fake_backend"
    config.checkpoint.enable = False
    config.training.steps = rank.steps + 8
    config.dump_folder = str(rank.arguments.out / f"titan-rank{rank.rank}")
    vocabulary = config.model_spec.model.vocab_size
    config.tokenizer, config.dataloader = Nothing(), Drawn(vocabulary, torch)
    config.optimizer = Watched(config.optimizer, rank)
    rank.enter("model")
    trainer = config.build()
    rank.memory("optimizer")
    rank.log.write("ran", what="parameters", value=str(sum(p.numel() for m in trainer.model_parts for p in m.parameters())))
    # A loss that nobody reduced may be no number, which torchtitan takes for a failure.
    trainer.metrics_processor.should_log = lambda _: False
    import torchtitan.trainer as trainers

    clip = trainers.dist_utils.clip_grad_norm_

    def between(*arguments, **options):
        rank.passes_end()
        return clip(*arguments, **options)

    trainers.dist_utils.clip_grad_norm_ = between
    data = trainer.batch_generator(trainer.dataloader)
    while True:
        trainer.step += 1
        rank.step_begins()
        trainer.train_step(data)
        if rank.step_ends():
            break
    finished(rank)


class Nothing:
    """A part of a configuration that a probe has no use for."""

    def build(self, **_):
        return None


class Drawn:
    """A data loader of random tokens, as torchtitan's text loader hands them over."""

    def __init__(self, vocabulary: int, torch):
        self.vocabulary, self.torch, self.shape = vocabulary, torch, (1, 1)

    def build(self, *, seq_len, local_batch_size, **_):
        self.shape = (local_batch_size, seq_len)
        return self

    def __iter__(self):
        draw = self.torch.Generator().manual_seed(1)
        while True:
            tokens = self.torch.randint(0, self.vocabulary, (self.shape[0], self.shape[1] + 1), generator=draw)
            positions = self.torch.arange(self.shape[1]).expand(self.shape).contiguous()
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        pass


class Watched:
    """A configuration whose building ends a phase."""

    def __init__(self, config, rank: Rank):
        self.__dict__.update(config=config, rank=rank)

    def __getattr__(self, name):
        return getattr(self.config, name)

    def build(self, **options):
        self.rank.memory("model")
        self.rank.enter("optimizer")
        return self.config.build(**options)


ENGINES = {"megatron": megatron, "fsdp2": fsdp2, "torchtitan": torchtitan}


def fake_group(rank: Rank, dist) -> None:
    """torch's fake backend; an exchange of equal sizes answers with what was sent, so that counts are counts."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank.rank, world_size=rank.world, store=FakeStore())
    real = dist.all_to_all_single

    def answer(output, tensor, *arguments, **options):
        work = real(output, tensor, *arguments, **options)
        if output.shape == tensor.shape:
            output.copy_(tensor)
        return work

    dist.all_to_all_single = answer


def overlapping(initial, torch):
    """First values without drawing billions of them on the host: small tensors as they are, a large one a view of one
    drawn line, every row shifted by one against the row before."""
    line = torch.randn(1 << 21, generator=torch.Generator().manual_seed(1), dtype=torch.float32)

    def first(row, deviation=None):
        if math.prod(row.shape) <= 1 << 20 or sum(row.shape) > line.numel():
            return initial(row, deviation)
        scaled = line[: sum(row.shape)] * (deviation or min(0.08, row.shape[-1] ** -0.5))
        return scaled.as_strided(row.shape, (1,) * len(row.shape))

    return first


def balance_routing(router, torch) -> None:
    """Every expert gets the same number of tokens, which is what is priced. Written over the choice in place, so that
    nothing else is allocated."""
    real = router.forward

    def forward(self, x):
        chosen, share = real(self, x)
        flat = chosen.data.view(-1)
        torch.arange(flat.numel(), out=flat)
        flat.remainder_(self.weight.shape[0])
        return chosen, share

    router.forward = forward


# ---- the host and the device by themselves


def benchmarks(rank: Rank) -> None:
    """What this host takes to start an operation, and what this device reaches; a few tenths of a second each."""
    import torch

    def bench(name, run, calls=1, rounds=7, **more):
        try:
            run()
            times, done = [], []
            for _ in range(rounds):
                rank.sync()
                began = time.perf_counter()
                run()
                times.append((time.perf_counter() - began) / calls)
                rank.sync()
                done.append((time.perf_counter() - began) / calls)
            issue, whole = sorted(times)[rounds // 2], sorted(done)[rounds // 2]
            rank.log.write("bench", name=name, calls=calls, issue_seconds=issue, seconds=whole, **more)
        except Exception as error:
            rank.log.write("bench", name=name, absent=f"{type(error).__name__}: {str(error)[:160]}")

    def loop():
        total = 0
        for i in range(200_000):
            total += i & 7

    bench("python loop", loop, 200_000)
    if not rank.on_gpu:
        return
    device, half = torch.device("cuda", 0), torch.bfloat16
    with torch.no_grad():
        small = torch.zeros(64, 64, device=device, dtype=half)
        bench("add in place", lambda: [small.add_(1) for _ in range(500)], 500)
        bench("empty", lambda: [torch.empty(64, 64, device=device) for _ in range(500)], 500)
        bench("event and wait", lambda e=torch.cuda.Event(): [(e.record(), e.wait()) for _ in range(200)], 200)
    weight = torch.zeros(64, 64, device=device, dtype=half, requires_grad=True)
    bench("linear, forward", lambda: [torch.nn.functional.linear(small, weight) for _ in range(200)], 200)
    try:
        import transformer_engine.pytorch as te

        layer = te.Linear(256, 256, bias=False, params_dtype=half, device="cuda")
        rows = torch.zeros(64, 256, device=device, dtype=half, requires_grad=True)
        bench("te linear, forward", lambda: [layer(rows) for _ in range(100)], 100)
        bench("te linear, forward and backward", lambda: [layer(rows).sum().backward() for _ in range(50)], 50)
    except Exception as error:
        rank.log.write("bench", name="te linear, forward", absent=f"{type(error).__name__}: {str(error)[:160]}")
    with torch.no_grad():
        try:
            size = 256 << 20
            one, two = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
            bench("device copy", lambda: two.copy_(one), bytes=2 * size)
            host = torch.empty(size >> 2, dtype=torch.uint8, pin_memory=True)
            bench("copy to host", lambda: host.copy_(one[: size >> 2], non_blocking=True), bytes=size >> 2)
            del one, two
            for m, n, k in ((8192, 4096, 4096), (4096, 14336, 4096)):
                a, b = torch.randn(m, k, device=device, dtype=half), torch.randn(n, k, device=device, dtype=half)
                bench(f"gemm bf16 {m}x{n}x{k}", lambda: torch.nn.functional.linear(a, b), flops=2 * m * n * k)
                del a, b
        except torch.OutOfMemoryError as error:
            rank.log.write("bench", name="device copy", absent=f"no room beside the model: {str(error)[:100]}")


# ---- a run


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version()}
    names = ("torch", "megatron-core", "transformer-engine", "transformer_engine_torch", "torchtitan", "mamba-ssm",
             "causal-conv1d", "flash-attn", "triton", "flash-linear-attention")  # fmt: skip
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            module = sys.modules.get(name.replace("-", "_").replace("megatron_core", "megatron.core"))
            if getattr(module, "__version__", None):
                found[name] = str(module.__version__)
    return found


def machine(rank: Rank) -> dict[str, str]:
    facts = {"host_cpus": str(os.cpu_count()), "cpu": platform.processor() or platform.machine()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            facts["cpu"] = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    if rank.on_gpu:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm", "--format=csv,noheader", "-i", "0"]
        try:
            said = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip().split(", ")
            facts.update(zip(("device", "driver", "device_memory", "power_limit", "clock_limit"), said))
        except (OSError, subprocess.SubprocessError):
            pass
        import torch

        about = torch.cuda.get_device_properties(0)
        facts.setdefault("device", about.name)
        facts["device_bytes"] = str(about.total_memory)
    return facts


def say_dry(rank: Rank, words: list[str]) -> None:
    environment = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment.update(rank.probe["environment"])
    asked = rank.probe["world"]["asked"]
    rank.log.write(
        "start", engine=rank.probe["engine"], world=rank.world, asked_world=asked, arguments=words, environment=environment
    )
    rank.log.write("end", status="dry", phase="start")
    print(" ".join([*(f"{k}={v}" for k, v in environment.items()), *words]))
    sys.exit(0)


def finished(rank: Rank) -> None:
    """Behind the last step: benchmarks, the answer, and out, past engines that would wait for others."""
    rank.enter("benchmarks")
    if not rank.arguments.no_bench:
        benchmarks(rank)
    rank.log.write("end", status="finished", phase="benchmarks", **({"snapshot": rank.snapshot} if rank.snapshot else {}))
    print(beside(rank), flush=True)
    sys.stdout.flush()
    os._exit(0)


def started(rank: Rank) -> None:
    """Who ran: written when everything that has a version is imported."""
    rank.has_started = True
    changes = [change["what"] for change in rank.probe["changes"]]
    rank.log.write(
        "start", engine=rank.probe["engine"], world=rank.world, asked_world=rank.probe["world"]["asked"],
        stage=rank.about["stage"], launch_id=rank.probe["launch_id"], versions=versions(), machine=machine(rank),
        arguments=rank.words, environment=rank.probe["environment"], changes=changes,
    )  # fmt: skip


def beside(rank: Rank) -> str:
    """Measured beside predicted."""
    predicted, out = rank.about["predicted"], [f"\nrank {rank.rank} of {rank.world}, stage {rank.about['stage']}"]

    def row(name, measured, said, unit):
        off = f"{(measured - said) / said * 100:+8.2f}%" if said else " " * 9
        known = f"{said:12.3f}" if said is not None else f"{'not said':>12}"
        out.append(f"  {name:<24}{measured:12.3f}{known}  {unit:<4}{off}")

    out.append(f"  {'':<24}{'measured':>12}{'predicted':>12}")
    phases = {phase["phase"]: phase for phase in predicted["phases"]}
    for line in rank.log.lines:
        if line["kind"] == "memory" and line["phase"] in phases:
            said = phases[line["phase"]]
            row(line["phase"], line["allocated"] / GIB, said["allocated"] / GIB, "GiB")
            row("  at most", line["allocated_peak"] / GIB, said["allocated_peak"] / GIB, "GiB")
    memory = [line for line in rank.log.lines if line["kind"] == "memory"]
    if memory and predicted["phases"]:
        row("reserved, at most", max(m["reserved_peak"] for m in memory) / GIB, predicted["reserved_peak"] / GIB, "GiB")
    timed = sorted(line["seconds"] for line in rank.log.lines if line["kind"] == "step" and not line["warm_up"])
    if timed:
        said = to_ms(predicted["step_seconds"]) if rank.on_gpu else None
        row("step, median", timed[len(timed) // 2] * 1e3, said, "ms")
    for line in rank.log.lines:
        if line["kind"] == "profile":
            row("kernels of a step", line["busy_seconds"] * 1e3, to_ms(predicted["kernel_seconds"]), "ms")
    return "\n".join(out)


def to_ms(seconds):
    return None if seconds is None else seconds * 1e3


def one(probe: dict, index: int, arguments: argparse.Namespace) -> int:
    about = probe["classes"][index]
    log = Log(arguments.out / f"probe-rank{about['rank']}.jsonl", about["rank"])
    rank = Rank(probe, about, arguments, log)
    os.environ.update(
        RANK=str(rank.rank), WORLD_SIZE=str(rank.world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="localhost", MASTER_PORT=os.environ.get("MASTER_PORT", "29511"), **probe["environment"],
    )  # fmt: skip
    try:
        ENGINES[probe["engine"]](rank)
    except SystemExit as ended:
        if arguments.dry:
            return 0
        detail = f"the engine left with {ended.code}"
    except Refused as refused:
        detail = str(refused)
    except BaseException as error:  # noqa: BLE001 - whatever an engine throws is what happened
        traceback.print_exc()
        detail = f"{type(error).__name__}: {error}"
        if type(error).__name__ == "OutOfMemoryError":
            rank.memory(rank.phase)
            log.write("event", event="out-of-memory", phase=rank.phase, detail=one_line(detail))
            return failed(rank, detail)
    else:
        detail = "the engine ended before its steps"
    log.write("event", event="failure", phase=rank.phase, detail=one_line(detail))
    return failed(rank, detail)


def one_line(text: str) -> str:
    return " ".join(text.split())[:2000]


def failed(rank: Rank, detail: str) -> int:
    if not rank.has_started:
        asked = rank.probe["world"]["asked"]
        rank.log.write("start", engine=rank.probe["engine"], world=rank.world, asked_world=asked, versions=versions())
    rank.log.write("end", status="failed", phase=rank.phase)
    print(f"rank {rank.rank} failed in phase {rank.phase}: {detail}", file=sys.stderr, flush=True)
    return 1


def gpu_there() -> str | None:
    """Why nothing can be probed here."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported ({error})"
    return None if torch.cuda.is_available() else "torch sees no GPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--class", dest="index", type=int, help="which class of probe.json (default: all, one after another)")
    parser.add_argument("--steps", type=int, help="timed steps, the first three of them warm-up (default: probe.json's)")
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="folder for what is written (default: this one)")
    parser.add_argument("--memory-snapshot", action="store_true", help="keep torch's snapshot of the first two steps")
    parser.add_argument("--no-profile", action="store_true", help="no step under the profiler")
    parser.add_argument("--no-bench", action="store_true", help="no benchmarks of host and device")
    parser.add_argument("--limit", type=float, help="give up after so many seconds without a sign of life; the first step has longer where kernels tune")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: steps without figures of memory (fsdp2)")
    parser.add_argument("--dry", action="store_true", help="say who would run with what, and run nothing")
    arguments = parser.parse_args()
    probe = json.loads((HERE / "probe.json").read_text(encoding="utf-8"))
    count = len(probe["classes"])
    if arguments.index is not None and not 0 <= arguments.index < count:
        parser.error(f"--class is one of 0 to {count - 1}")
    if arguments.steps is not None and arguments.steps < 1:
        parser.error("--steps is 1 or more")
    if arguments.device == "cpu" and probe["engine"] != "fsdp2":
        parser.error(f"{probe['engine']} needs a GPU")
    lacks = gpu_there() if arguments.device == "cuda" and not arguments.dry else None
    if lacks:
        print(f"no GPU to become rank {probe['classes'][0]['rank']} on: {lacks}", file=sys.stderr)
        print(f"take this directory to a machine with one {probe['device']} and {probe['needs']}, and run there:", file=sys.stderr)
        print(f"  cd {HERE.name} && ./probe.sh", file=sys.stderr)
        return NO_GPU
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    if arguments.index is not None:
        return one(probe, arguments.index, arguments)
    codes = []
    for index in range(count):
        words = [sys.executable, str(HERE / "shardwright_probe.py"), *sys.argv[1:], "--class", str(index)]
        codes.append(subprocess.run(words, check=False).returncode)
    return max(codes, key=abs)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code % 256)
