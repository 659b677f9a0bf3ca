"""Holds every plan below a folder to the same run on one rank: parity.py FOLDER

FOLDER/RECIPE/NAME/sharding.json, where `one` is the run on one rank. Ranks are forked processes on CPU with
gloo. Losses of ten steps must agree to 1e-5 relative. Adapters are tried on a few plans by adding `lora`,
compile by a backend that compiles nothing. A plan that is spoilt on purpose must differ. Exits 1 when a plan
differs or does not run.
"""

from __future__ import annotations

import copy
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
from train import Trainer

STEPS, TOLERANCE, DEADLINE = 10, 1e-5, 180
LORA = {"rank": 4, "alpha": 8.0, "targets": ["attention.qkv", "attention.out", "mamba.out_proj"]}


def ten_steps(trainer: Trainer) -> dict:
    return {"losses": [trainer.step(step) for step in range(STEPS)], "applied": trainer.run.applied}


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
    """The plan, and for some plans the same with adapters or with traced blocks."""
    cases = [(name, quiet(raw))]
    if name in ("one", "fsdp4", "fsdp4-tp2-sp"):
        cases.append((f"{name}+lora", {**quiet(raw), "lora": copy.deepcopy(LORA)}))
    if name == "fsdp4":
        cases.append((f"{name}+traced", {**quiet(raw), "compile": {"blocks": ["attention", "mlp"], "backend": "eager"}}))
    return cases


def judge(name: str, outcome: dict, baseline: list[float]) -> bool:
    if "error" in outcome:
        print(f"FAILED {name}: {outcome['error']}")
        return False
    losses = outcome["losses"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(losses, baseline, strict=True))
    is_same = worst <= TOLERANCE
    print(f"{'ok' if is_same else 'DIFFERS'} {name}: {losses[0]:.6f} → {losses[-1]:.6f}, worst difference {worst:.1e}", flush=True)
    return is_same


def check_recipe(folder: pathlib.Path, only: str) -> list[bool]:
    plans_by_name = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/sharding.json"))}
    baselines = {name: run(raw) for name, raw in variants("one", plans_by_name.pop("one"))}
    verdicts = []
    for name, outcome in baselines.items():
        if "error" in outcome:
            print(f"FAILED {folder.name} {name}: {outcome['error']}")
            return [False]
        trained = outcome["losses"][-1] != outcome["losses"][0]
        print(f"{'ok' if trained else 'STANDS STILL'} {folder.name} {name}: {outcome['losses'][0]:.6f} → {outcome['losses'][-1]:.6f}")
        verdicts.append(trained)
    for plan_name, raw in plans_by_name.items():
        for name, variant in variants(plan_name, raw):
            if only in name:
                baseline = baselines["one+lora" if name.endswith("+lora") else "one"]["losses"]
                verdicts.append(judge(f"{folder.name} {name}", run(variant), baseline))
    return verdicts


def check_spoilt(folder: pathlib.Path) -> bool:
    """Whether a plan that leaves partial gradients unsummed is told apart."""
    one, tp = (quiet(json.loads((folder / name / "sharding.json").read_text())) for name in ("one", "fsdp2-tp2-sp"))
    for row in tp["tensors"]:
        row["tp_gradient"] = "whole" if row["tp_gradient"] == "sum" else row["tp_gradient"]
    right, wrong = run(one)["losses"], run(tp)["losses"]
    worst = max(abs(a - b) / abs(b) for a, b in zip(wrong, right, strict=True))
    print(f"{'ok' if worst > TOLERANCE else 'ACCEPTED'} {folder.name} spoilt on purpose: worst difference {worst:.1e}", flush=True)
    return worst > TOLERANCE


def main() -> None:
    began = time.monotonic()
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    folders = [f for f in sorted(pathlib.Path(sys.argv[1]).iterdir()) if f.is_dir()]
    verdicts = [verdict for folder in folders for verdict in check_recipe(folder, only)]
    verdicts.append(check_spoilt(folders[0]))
    print(f"fsdp2 parity: {sum(verdicts)} of {len(verdicts)} runs as they should be (agreement to {TOLERANCE:g}), {time.monotonic() - began:.0f} s")
    sys.exit(0 if verdicts and all(verdicts) else 1)


if __name__ == "__main__":
    main()
