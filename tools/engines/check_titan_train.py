"""check_titan_train.py SHARDWRIGHT FOLDER: what `launch --engine torchtitan` writes, without a policy's data or tokenizer.

Its own launch.sh goes as far as the first thing that needs a GPU; the same module under torchtitan's trainer on a CPU
(titan_boot.py) reads the tokenizer and the text that were written, trains twelve steps and saves.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import check_deepspeed_train as other

RECIPE = """name = "tiny-titan"
source = "made up for this check; no published model"
pattern = "(AF)(AF)"
hidden = 128
vocab = 512
tied = false
sequence = 128
rope_theta = 10000.0

[attention]
heads = 8
kv_heads = 4
head_dim = 16

[mlp]
ffn = 64
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"step:\s+(\d+)\s+loss:\s+([\d.]+)")


def main() -> None:
    binary, folder = os.path.abspath(sys.argv[1]), pathlib.Path(os.path.abspath(sys.argv[2]))
    folder.mkdir(parents=True)
    (folder / "tiny-titan.toml").write_text(RECIPE)
    (folder / "policy.toml").write_text(other.POLICY.format(folder, 29690))
    words = ["--engine", "torchtitan", "--on", "1xH200", "--zero", "2", "--gbs", "4", "--mbs", "4"]
    line = [binary, "launch", str(folder / "tiny-titan.toml"), *words, "--policy", str(folder / "policy.toml")]
    subprocess.run([*line, "--out", str(folder / "launch")], check=True, stdout=subprocess.DEVNULL)
    here = {**other.environment(folder), "PYTHONPATH": str(folder / "launch"), "HF_HOME": str(folder / "hf")}
    options = {"cwd": folder / "launch", "env": here, "capture_output": True, "text": True, "timeout": other.PATIENCE}
    wrong = 0

    def tell(name: str, is_right: bool, detail: str) -> None:
        nonlocal wrong
        wrong += not is_right
        print(f"ok {name}" if is_right else f"WRONG {name}: {detail}", flush=True)

    printed = subprocess.run(["./launch.sh"], **options)
    said = printed.stdout + printed.stderr
    tell("launch.sh comes to the device", printed.returncode == 0 or "NVIDIA driver" in said, said[-400:])

    boot = str(pathlib.Path(__file__).parent / "titan_boot.py")
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    run = subprocess.run([*torchrun, boot, "--module", "titan_config", "--config", "train"], **options)
    said = COLOUR.sub("", run.stdout + run.stderr)
    losses = {int(step): float(loss) for step, loss in STEP.findall(said)}
    is_sound = run.returncode == 0 and sorted(losses) == list(range(1, 13)) and losses[12] < losses[1] - 1
    tell(f"twelve steps, {losses.get(1)} → {losses.get(12)}", is_sound, said[-800:])
    saved = sorted(path.name for path in folder.glob("checkpoints/**/step-*"))
    tell("checkpoints", saved == ["step-12", "step-6"], str(saved))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
