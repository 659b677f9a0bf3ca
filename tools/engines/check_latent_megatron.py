"""Prediction depths, latent and sparse attention through Megatron's own trainer on a CPU: two steps and a save each.

    check_latent_megatron.py LM

LM is a folder with Megatron-LM's `pretrain_hybrid.py`. Arguments are those of `launch nam56r` with these features, at small sizes.
"""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys
import tempfile

from check_side_embeddings import JOB, TOOLS

LATENT = """--multi-latent-attention --q-lora-rank 16 --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 --v-head-dim 8
--rope-type rope --qk-layernorm""".split()
SPARSE = "--dsa-indexer-n-heads 4 --dsa-indexer-head-dim 16 --dsa-indexer-topk 4 --dsa-indexer-loss-coeff 0.001 --bf16".split()
JOBS = {
    "mtp": ("*-*-/*-/*-", [], ["mtp_1 loss", "mtp_2 loss"]),
    "mla": ("+-+-", LATENT, []),
    "mla,dsa,mtp": ("D-+-/+-/+-", [*LATENT, *SPARSE], ["mtp_2 loss", "indexer loss"]),
}


def command(lm: pathlib.Path, pattern: str, more: list[str], saved: str) -> list[str]:
    depths = JOB.index("--mtp-num-layers")
    common = [*JOB[:depths], "--mock-data", "--save", saved, "--hybrid-layer-pattern", pattern, *more]
    return [sys.executable, "-W", "ignore", str(TOOLS / "latent_megatron.py"), str(lm / "pretrain_hybrid.py"), *common]


def losses(output: str, name: str) -> list[float]:
    return [float(line.split(f"{name}: ")[1].split(" ")[0]) for line in output.splitlines() if f"{name}: " in line]


def main() -> None:
    lm, failed = pathlib.Path(sys.argv[1]).absolute(), 0
    for number, (name, (pattern, more, also)) in enumerate(JOBS.items()):
        port = str(21000 + (os.getpid() + number) % 20000)
        ranks = {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        with tempfile.TemporaryDirectory() as at:
            words = command(lm, pattern, more, f"{at}/saved")
            ran = subprocess.run(words, cwd=at, env={**os.environ, **ranks, "MASTER_PORT": port}, capture_output=True, text=True)
            found = [losses(ran.stdout, kind) for kind in ["lm loss", *also]]
            is_right = ran.returncode == 0 and all(len(one) == 2 and all(map(math.isfinite, one)) for one in found)
            is_right &= (pathlib.Path(at) / "saved/latest_checkpointed_iteration.txt").exists()
        failed += not is_right
        print(f"{'ok' if is_right else 'WRONG'} {name}: {found if is_right else (ran.stdout + ran.stderr)[-2000:]}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
