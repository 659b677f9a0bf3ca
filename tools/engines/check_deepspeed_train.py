"""check_deepspeed_train.py SHARDWRIGHT FOLDER: what `launch --engine deepspeed` writes, started by its ./launch.sh alone.

A dense, an expert and a hybrid recipe, ZeRO 1 to 3 and state on the host, one CPU rank in bf16: twelve steps whose
losses are finite and fall, checkpoints, and a run that was stopped in the middle and started again goes on to the same
losses. Then the same directories in fp32, one emitted number changed for it, against the FSDP2 program's losses.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

RECIPES = pathlib.Path(__file__).parents[2] / "data" / "engines" / "parity"
STEPS, PATIENCE, TOLERANCE = 12, 600, 1e-5
JOBS = [
    ("tiny-dense", ["--zero", "1"]),
    ("tiny-dense", ["--zero", "3", "--offload-optimizer", "1", "--offload-params", "--recompute", "full"]),
    ("tiny-moe", ["--zero", "2"]),
    ("tiny-mamba2", ["--zero", "3", "--recompute", "full"]),
    ("tiny-mamba3", ["--zero", "1", "--recompute", "full"]),
]
POLICY = """[storage]
checkpoints = "{0}/checkpoints"
data = "{0}/data"
logs = "{0}/logs"
caches = "{0}/caches"
temporary = "{0}/tmp"
hf_home = "{0}/hf"
forbid_root_volume = false

[run]
steps = 12
learning_rate = 1e-2
least_learning_rate = 1e-3
warmup_steps = 2
save_every = 6
log_every = 1

[job]
host = "127.0.0.1"
port = {1}
restarts = 0
"""
LINE = re.compile(
    r"step (\d+) loss (\d+\.\d{6}) grad_norm \S+ seconds \d+\.\d{6} tokens_per_second \S+( max_allocated \d+ rank \d+)?"
)


def environment(folder: pathlib.Path) -> dict[str, str]:
    """This interpreter's own programs first, and no GPU; what DeepSpeed compiles for a CPU lies beside the launches."""
    here = os.path.dirname(sys.executable)
    kept = {**os.environ, "PATH": f"{here}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**kept, "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}


def emit(binary: str, folder: pathlib.Path, number: int, name: str, words: list[str]) -> pathlib.Path:
    """A launch directory of a tiny recipe in bf16."""
    root = folder / str(number)
    root.mkdir()
    text = (RECIPES / f"{name}.toml").read_text()
    before, head, _ = text.partition("[precision]")
    (root / f"{name}.toml").write_text(before if head else text)
    (root / "policy.toml").write_text(POLICY.format(root, 29600 + number))
    chosen = ["--engine", "deepspeed", "--on", "1xH200", "--gbs", "8", "--mbs", "4", *words]
    line = [binary, "launch", str(root / f"{name}.toml"), *chosen, "--policy", str(root / "policy.toml")]
    done = subprocess.run([*line, "--out", str(root / "launch")], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return root


def run(root: pathlib.Path, folder: pathlib.Path, stop_behind: int | None = None) -> tuple[int, dict[int, float], str]:
    """./launch.sh as printed: its status, the losses by step, and all it said."""
    line = ["./launch.sh"]
    process = subprocess.Popen(
        line, cwd=root / "launch", env=environment(folder), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, losses, until = [], {}, time.monotonic() + PATIENCE
    for text in process.stdout:
        said.append(text)
        found = LINE.search(text.rstrip())
        if found:
            losses[int(found[1])] = float(found[2])
            if int(found[1]) == stop_behind:
                process.terminate()
        if time.monotonic() > until:
            process.kill()
    return process.wait(), losses, "".join(said)


def spoken(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if "Error" in line), said[-400:])


def check(binary: str, folder: pathlib.Path, number: int, name: str, words: list[str]) -> list[tuple[str, str | None]]:
    """What was checked, each with what is wrong about it."""
    label, root = f"{name} {' '.join(words)}", emit(binary, folder, number, name, words)
    status, whole, said = run(root, folder)
    if status or sorted(whole) != list(range(1, STEPS + 1)):
        return [(label, f"exit {status}, steps {sorted(whole)}: {spoken(said)}")]
    first, last = sum(whole[s] for s in (1, 2, 3)) / 3, sum(whole[s] for s in (10, 11, 12)) / 3
    is_sound = all(math.isfinite(loss) for loss in whole.values()) and last < first
    verdicts = [(f"{label}: twelve steps, {first:.3f} → {last:.3f}", None if is_sound else str(whole))]
    (checkpoints,) = {path.parent for path in root.glob("checkpoints/**/step-00000012")}
    shutil.rmtree(checkpoints / "step-00000012")
    status, rest, said = run(root, folder)
    expected = {step: whole[step] for step in range(7, STEPS + 1)}
    is_same = status == 0 and rest == expected
    problem = None if is_same else f"exit {status}: {rest} for {expected}; {spoken(said)}"
    return [*verdicts, (f"{label}: goes on from step 6 to the same losses", problem)]


def check_end(binary: str, folder: pathlib.Path, number: int) -> tuple[str, str | None]:
    """SIGTERM ends a run behind its step with a checkpoint."""
    root = emit(binary, folder, number, "tiny-dense", ["--zero", "2"])
    status, losses, said = run(root, folder, stop_behind=2)
    saved = [path.name for path in root.glob("checkpoints/**/step-*")]
    is_right = status != 0 and saved and max(losses) < STEPS and saved == [f"step-{max(losses):08d}"]
    return "SIGTERM saves and ends", None if is_right else f"exit {status}, {losses}, {saved}: {spoken(said)}"


def check_fsdp2(folder: pathlib.Path, number: int, zero: int) -> tuple[str, str | None]:
    """In fp32, the FSDP2 program's losses: the plan and the configuration are told of the other format."""
    root = folder / str(number)
    plan, config = (json.loads((root / "launch" / name).read_text()) for name in ("sharding.json", "ds_config.json"))
    plan["precision"]["params"], config["bf16"] = "fp32", {"enabled": False}
    here = root / "fp32"
    shutil.copytree(root / "launch", here)
    (here / "sharding.json").write_text(json.dumps(plan))
    (here / "ds_config.json").write_text(json.dumps(config))
    shutil.copytree(RECIPES.parents[2] / "crates" / "launch" / "assets" / "fsdp2", here / "fsdp2")
    starter = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    both = []
    for program, more in (("fsdp2/train.py", []), ("train.py", ["--deepspeed_config", str(here / "ds_config.json")])):
        out = here / "losses.json"
        words = ["--plan", str(here / "sharding.json"), "--load", "none", "--checkpoints", str(here / f"steps-{len(both)}")]
        line = [*starter, str(here / program), *words, "--losses", str(out), "--device", "cpu", *more]
        done = subprocess.run(line, env=environment(folder), capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            return f"fp32, ZeRO {zero}", f"{program}: {spoken(done.stderr)}"
        both.append(json.loads(out.read_text()))
    worst = max(abs(a - b) / abs(a) for a, b in zip(*both, strict=True))
    said = f"fp32, ZeRO {zero}: FSDP2's losses, worst difference {worst:.1e}"
    return said, None if worst <= TOLERANCE else f"above {TOLERANCE:g}"


def main() -> None:
    binary, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True)
    wrong = count = 0

    def tell(name: str, problem: str | None) -> None:
        nonlocal wrong, count
        count, wrong = count + 1, wrong + (problem is not None)
        print(f"ok {name}" if problem is None else f"WRONG {name}: {problem}", flush=True)

    for number, (name, words) in enumerate(JOBS):
        for verdict in check(binary, folder, number, name, words):
            tell(*verdict)
    tell(*check_end(binary, folder, len(JOBS)))
    for number, zero in ((0, 1), (2, 2), (3, 3)):
        tell(*check_fsdp2(folder, number, zero))
    print(f"deepspeed train: {count - wrong} of {count} hold")
    sys.exit(1 if wrong or not count else 0)


if __name__ == "__main__":
    main()
