"""Launches as `plan` prints them, started by their own ./launch.sh on a CPU: steps, falling losses, a checkpoint, a summary.

    check_started.py ENGINE SHARDWRIGHT [LM]      ENGINE: megatron (LM: the folder of Megatron-LM's scripts), torchtitan or fsdp2

Nothing is appended to what `launch` wrote. Of Megatron's options, what no CPU has is taken out of the printed --engine-args; Muon
is AdamW where its package is missing; packages are not checked (SHARDWRIGHT_PACKAGES=ignore). A `torchrun` of this file's stands first on the PATH: it hands the script and its
arguments to what stands in for a GPU (`cpu_megatron.py`, `titan_boot.py`), and starts our own program as it is. What a CPU
needs of Megatron is asked for at launch, by --engine-args.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parent
STEPS = 6
SHIM = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
at = next(i for i, word in enumerate(words) if word == "-m" or word.endswith(".py"))
script, rest = (words[at + 1], words[at + 2 :]) if words[at] == "-m" else (words[at], words[at + 1 :])
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="{{PORT}}")
stand_in = "latent_megatron.py" if "--multi-latent-attention" in rest else "cpu_megatron.py"
boot = {{"torchtitan.train": ["{TOOLS}/titan_boot.py"], "train.py": [script]}}.get(script, ["{TOOLS}/" + stand_in, script])
os.execv(sys.executable, [sys.executable, "-W", "ignore", *boot, *rest])
"""
ON_A_CPU = "--transformer-impl local --no-persist-layer-norm --no-rope-fusion --num-workers 0 --distributed-backend gloo --no-masked-softmax-fusion"
# What `plan` chooses of the engine's options and no CPU has: a loss in Triton, CUDA's graphs.
GPU_ONLY = re.compile(r"--(cross-entropy-loss-fusion|cuda-graph-\S+( [^-]\S*)+)")
SIZES = "hidden = 64\nvocab = 512\ntied = false\nsequence = 64\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 16\n"
DENSE = f'name = "dense"\npattern = "(AF)"\ndepth = 4\n{SIZES}[mlp]\nffn = 128\n'
EXPERTS = f'name = "experts"\npattern = "(AE)"\ndepth = 4\n{SIZES}[moe]\nexperts = 4\ntop_k = 2\nffn = 64\n'
HYBRID = f'name = "hybrid"\npattern = "MFAF"\ndepth = 4\n{SIZES}[mlp]\nffn = 128\n[mamba]\nkind = "mamba2"\nheads = 4\nhead_dim = 16\nstate = 16\ngroups = 1\n'
# Muon is in no package index.
OPTIMIZER = "" if importlib.util.find_spec("emerging_optimizers") else "--optimizer adamw"
# Latent attention is Transformer Engine's alone: `check_latent_megatron.py` stands in for that.
FLAGSHIP = ["", "--with mtp", "--with ngram_hash", "--with structure"]
# How each prints the loss of a step; depths of prediction have losses of their own.
LOSS = {"megatron": r"\| lm loss: +", "torchtitan": r"step: +\d+ +loss: +", "fsdp2": r"step \d+ loss +"}
JOBS = {
    "megatron": [(DENSE, ""), (EXPERTS, "")] + [("nam56r-mini", f"--mode author_dp --seq 128 {OPTIMIZER} {flags}") for flags in FLAGSHIP],
    "torchtitan": [(DENSE, ""), (EXPERTS, "")],
    "fsdp2": [(DENSE, ""), (EXPERTS, ""), (HYBRID, ""), ("nam56r-mini", "--mode author_dp --seq 64")],
}


def printed(shardwright: str, recipe: str, engine: str, flags: str) -> list[str]:
    """The words of the launch that `plan` ends in, without its folder."""
    line = [shardwright, "plan", recipe, *flags.split(), "--on", "1xH200", "--gbs", "2", "--engine", engine]
    plan = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "COLUMNS": "400"}, check=False)
    found = re.search(r"^  shardwright (launch .*) --out launch$", plan.stdout, re.M)
    if not found:
        sys.exit(f"{shlex.join(line)} prints no launch:\n{plan.stdout[-2000:]}{plan.stderr[-2000:]}")
    return shlex.split(found[1])


def launched(shardwright: str, engine: str, words: list[str], folder: pathlib.Path, lm: str, steps: int = STEPS) -> pathlib.Path:
    at = folder / "launch"
    policy = folder / "policy.toml"
    root = f'engine_root = "{lm}"\n' if engine == "megatron" else ""
    policy.write_text(
        f'[storage]\ncheckpoints = "{folder}/checkpoints"\nlogs = "{folder}/logs"\ndata = "{folder}/data"\ncaches = "{folder}/caches"\n'
        f"forbid_root_volume = false\n[run]\nsteps = {steps}\nsave_every = {steps}\nlog_every = 1\nwarmup_steps = 1\nlearning_rate = 5e-3\n[job]\n{root}"
    )
    if engine == "megatron":
        if "--engine-args" not in words:
            words += ["--engine-args", ""]
        at_words = words.index("--engine-args") + 1
        experts = "" if words[1].endswith("recipe.toml") and "[moe]" not in pathlib.Path(words[1]).read_text() else "--no-moe-permute-fusion"
        words[at_words] = f"{GPU_ONLY.sub('', words[at_words])} {ON_A_CPU} {experts}"
    ran = subprocess.run([shardwright, *words, "--policy", policy, "--out", at], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{shlex.join(words)} exits {ran.returncode}:\n{ran.stderr[-3000:]}")
    return at


def started(at: pathlib.Path, folder: pathlib.Path) -> str:
    """What ./launch.sh printed."""
    tools = folder / "bin"
    tools.mkdir()
    shim = tools / "torchrun"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shim.write_text(SHIM.replace("{PORT}", str(free.getsockname()[1])))
    shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
    # Kernels of a GPU are not here; what stands in for them is.
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SHARDWRIGHT_PACKAGES": "ignore", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(["./launch.sh"], cwd=at, env=environment, **pipes) as running:
        try:
            said, _ = running.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            said, _ = running.communicate()
    text = re.sub(r"\x1b\[[0-9;]*m", "", said)
    if running.returncode:
        sys.exit(f"{at}: ./launch.sh exits {running.returncode}\n" + "\n".join(l for l in text.splitlines() if "RNG state" not in l)[-5000:])
    return text


def main() -> None:
    engine, shardwright = sys.argv[1], sys.argv[2]
    lm = sys.argv[3] if len(sys.argv) > 3 else ""
    for recipe, flags in JOBS[engine]:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work)
            name = recipe
            if "\n" in recipe:
                name = str(folder / "recipe.toml")
                pathlib.Path(name).write_text(recipe)
            words = printed(shardwright, name, engine, flags)
            text = started(launched(shardwright, engine, words, folder, lm), folder)
            losses = [float(found) for found in re.findall(LOSS[engine] + r"([0-9.E+-]+)", text)]
            saved = [path.name for path in (folder / "checkpoints").glob("*/*") if path.name != "identity.json"]
            (summary,) = (json.loads(path.read_text()) for path in (folder / "logs").glob("*/summary-node0.json"))
            called = re.search(r'name = "(\w+)"', recipe)
            label = f"{engine}: {called[1] if called else recipe} {flags}".strip()
            is_right = len(losses) == STEPS and losses[-1] < losses[0] and saved and summary["state"] == "finished"
            print(f"{'ok' if is_right else 'WRONG'} {label}: losses {losses}, saved {', '.join(sorted(saved))}", flush=True)
            if not is_right:
                sys.exit(f"{label}: {summary}")


if __name__ == "__main__":
    main()
