"""Holds every plan below a folder to the same run on one rank: parity.py FOLDER

FOLDER/RECIPE/NAME/sharding.json, where `one` is the run on one rank. Ranks are forked processes on CPU with
gloo. Losses of ten steps must agree to 1e-5 relative, and balancing biases exactly; what a plan freezes must
not move, and what it trains must. Compile is tried by a backend that compiles nothing. Plans that are spoilt on
purpose must differ. Exits 1 when a plan differs or does not run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import traceback
from typing import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch._dynamo  # optimizers and DTensor load it on first use: once here rather than in every fork
import torch.distributed as dist
import torch.distributed.pipelining

import plan as plans
from parallelize import WRAPPER
from train import Trainer

STEPS, TOLERANCE, DEADLINE = 10, 1e-5, 180


def ten_steps(trainer: Trainer) -> dict:
    """Losses, and balancing biases at the end; what is frozen must stand still, and what is trained must not."""
    first = held(trainer)
    losses = [trainer.step(step) for step in range(STEPS)]
    rows = trainer.plan.rows
    wrong = [path for path, value in held(trainer).items() if value.equal(first[path]) == rows[path].trained]
    if wrong:
        raise AssertionError(f"frozen and moved, or trained and still: {', '.join(wrong)}")
    return {"losses": losses, "biases": biases_of(trainer)}


def one_rank(rank: int, raw: dict, store: str, results: multiprocessing.Queue, work: Callable[[Trainer], dict]) -> None:
    try:
        torch.set_num_threads(1)
        plan = plans.parse(raw)
        file = dist.FileStore(store, plan.world)
        dist.init_process_group("gloo", store=file, rank=rank, world_size=plan.world)
        done = work(Trainer(plan, torch.device("cpu")))
        if rank == 0:
            results.put(done)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        results.put({"error": f"rank {rank}: {traceback.format_exc(limit=-6)}"})
        results.close()
        results.join_thread()
        os._exit(1)


def held(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of this rank's part of every parameter that it holds some of."""
    shards = [(row.path, parameter.to_local()) for row, parameter in trainer.run.parameters()]
    chunks = trainer.run.chunks.values()
    named = [item for chunk in chunks for item in chunk.named_parameters() if ".lora_" in item[0]]
    factors = [(name.replace(WRAPPER, ""), parameter.detach()) for name, parameter in named]
    return {path: value.clone() for path, value in shards + factors if value.numel()}


def biases_of(trainer: Trainer) -> dict[str, list[float]]:
    """Balancing biases that this rank holds, by path."""
    chunks = trainer.run.chunks.values()
    named = [item for chunk in chunks for item in chunk.named_buffers() if item[0].endswith(".expert_bias")]
    return {name.replace(WRAPPER, ""): bias.tolist() for name, bias in named}


def run(raw: dict, work: Callable[[Trainer], dict] = ten_steps) -> dict:
    """What rank 0 makes of a plan, the losses of ten steps, or its error; nobody waits longer than the deadline."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = range(raw["degrees"]["world"])
        workers = [context.Process(target=one_rank, args=(r, raw, f"{folder}/store", results, work)) for r in ranks]
        for worker in workers:
            worker.start()
        try:
            outcome = results.get(timeout=DEADLINE)
        except Exception:
            outcome = {"error": f"no result within {DEADLINE} s"}
        for worker in workers:
            worker.join(0.1 if "error" in outcome else 5)
            if worker.is_alive():
                worker.kill()
    return outcome


def quiet(raw: dict) -> dict:
    """The plan without a compiler, which is not what parity is about, with steps large enough to drift apart, a rate
    that rises and falls within them, and a limit that gradients reach."""
    optimizers = {name: {**options, "lr": 3e-3} for name, options in raw["optimizers"].items()}
    rates = {**raw["run"], "steps": STEPS, "warmup_steps": 3, "clip": 0.5}
    return {**raw, "optimizers": optimizers, "run": rates, "compile": {"blocks": [], "backend": "eager"}}


def variants(name: str, raw: dict) -> list[tuple[str, dict]]:
    """The plan, and for some plans the same with traced blocks, or with groups gathered ahead."""
    cases = [(name, quiet(raw))]
    if name == "fsdp4":
        cases.append((f"{name}+traced", {**quiet(raw), "compile": {"blocks": ["attention", "mlp"], "backend": "eager"}}))
    if name == "fsdp8":
        cases.append((f"{name}+prefetch", {**quiet(raw), "prefetch": {"forward": 2, "backward": 2}}))
    return cases


def judge(name: str, outcome: dict, baseline: dict) -> bool:
    if "error" in outcome:
        print(f"FAILED {name}: {outcome['error']}")
        return False
    losses = outcome["losses"]
    worst = furthest(outcome, baseline)
    same_biases = all(bias == baseline["biases"][path] for path, bias in outcome["biases"].items())
    is_same = worst <= TOLERANCE and same_biases
    print(f"{'ok' if is_same else 'DIFFERS'} {name}: {losses[0]:.6f} → {losses[-1]:.6f}, worst difference {worst:.1e}", flush=True)
    return is_same


def furthest(outcome: dict, baseline: dict) -> float:
    """The worst relative difference of two runs' losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(outcome["losses"], baseline["losses"], strict=True))


def check_recipe(folder: pathlib.Path, only: str) -> list[bool]:
    plans_by_name = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/sharding.json"))}
    baseline = run(quiet(plans_by_name.pop("one")))
    if "error" in baseline:
        print(f"FAILED {folder.name} one: {baseline['error']}")
        return [False]
    first, last = baseline["losses"][0], baseline["losses"][-1]
    verdicts = [last != first]
    print(f"{'ok' if verdicts[0] else 'STANDS STILL'} {folder.name} one: {first:.6f} → {last:.6f}")
    for plan_name, raw in plans_by_name.items():
        for name, variant in variants(plan_name, raw):
            if only in name:
                verdicts.append(judge(f"{folder.name} {name}", run(variant), baseline))
    return verdicts


def partial_gradients_stay(raw: dict) -> None:
    for row in raw["tensors"]:
        row["tp_gradient"] = "whole" if row["tp_gradient"] == "sum" else row["tp_gradient"]


def counts_stay_local(raw: dict) -> None:
    raw["modules"] = [entry for entry in raw["modules"] if "counts" not in entry["borders"]]


def without_balancing_loss(raw: dict) -> None:
    raw["model"]["moe"]["router"]["aux_loss"] = None


def without_z_loss(raw: dict) -> None:
    raw["model"]["moe"]["router"]["z_loss"] = None


def factors_stay_local(raw: dict) -> None:
    for row in raw["tensors"]:
        if ".lora_" in row["path"]:
            row["tp_gradient"] = "whole" if row["tp_gradient"] == "sum" else row["tp_gradient"]


# What is spoilt, of which recipe and plan.
SPOILT = [
    (partial_gradients_stay, "tiny-mamba2", "fsdp2-tp2-sp"),
    (counts_stay_local, "tiny-moe", "fsdp2-tp4-sp"),
    (without_balancing_loss, "tiny-moe", "fsdp4"),
    (without_z_loss, "tiny-moe", "fsdp4"),
    (factors_stay_local, "tiny-lora", "fsdp2-tp2-sp"),
]


def check_spoilt(root: pathlib.Path) -> list[bool]:
    """Whether plans that are spoilt are told apart from the run on one rank."""
    verdicts = []
    for spoil, recipe, plan in SPOILT:
        one, raw = (quiet(json.loads((root / recipe / name / "sharding.json").read_text())) for name in ("one", plan))
        spoil(raw)
        worst = furthest(run(raw), run(one))
        verdicts.append(worst > TOLERANCE)
        print(f"{'ok' if verdicts[-1] else 'ACCEPTED'} {recipe} {plan} spoilt, {spoil.__name__}: worst difference {worst:.1e}", flush=True)
    return verdicts


def main() -> None:
    began = time.monotonic()
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    folders = [f for f in sorted(pathlib.Path(sys.argv[1]).iterdir()) if f.is_dir()]
    verdicts = [verdict for folder in folders for verdict in check_recipe(folder, only)]
    verdicts += check_spoilt(pathlib.Path(sys.argv[1]))
    print(f"fsdp2 parity: {sum(verdicts)} of {len(verdicts)} runs as they should be (agreement to {TOLERANCE:g}), {time.monotonic() - began:.0f} s")
    sys.exit(0 if verdicts and all(verdicts) else 1)


if __name__ == "__main__":
    main()
