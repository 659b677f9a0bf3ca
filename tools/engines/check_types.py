"""Every model type whose engine's own model `launch` writes arguments for, started on a CPU: two steps at small sizes.

    check_types.py ENGINE SHARDWRIGHT RECORD [LM] [TYPE...]    ENGINE: megatron (LM: Megatron-LM's scripts), torchtitan or fsdp2

It starts each type whose column in docs/models.md says *yes* or *runs*, at small sizes from `data/truth/hf_types.jsonl`. RECORD
(`data/truth/hf_started.jsonl`) gets one row a type, which replaces the engine's old one: losses, or what stopped it, such as a
package that no CPU has. A type that had started before and does not now is a failure.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

from check_started import LOSS, launched, started

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = {"megatron": 4, "fsdp2": 5, "torchtitan": 7}
STEPS = 2
SIZES = ("hidden_size", "n_embd", "d_model", "dim")


def types(engine: str) -> list[str]:
    rows = (line.split("|") for line in (ROOT / "docs/models.md").read_text().splitlines() if line.startswith("| `"))
    return [row[1].strip(" `") for row in rows if len(row) == 12 and row[COLUMNS[engine]].strip() in ("yes", "runs")]


# Where a class has no other sizes on record.
SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "num_heads": 16}
SMALL |= {"intermediate_size": 1376, "vocab_size": 5003, "max_position_embeddings": 1536}


def configs() -> dict[str, list[dict]]:
    """Small configs by type."""
    whole, small = {}, {}
    for line in (ROOT / "data/truth/hf_types.jsonl").read_text().splitlines():
        row = json.loads(line)
        name = row["model_type"]
        if "config" in row:
            whole[name], small[name] = row["config"], []
        elif any(key in row.get("change", {}) for key in SIZES):
            small[name].append({**whole[name], **row["change"]})
    for name, config in whole.items():
        small[name].append({**config, **{key: value for key, value in SMALL.items() if key in config}})
    return small


def imported(shardwright: str, folder: pathlib.Path, configs: list[dict]) -> str:
    """The recipe of the first that makes one."""
    recipe = folder / "recipe.toml"
    for config in configs:
        (folder / "config.json").write_text(json.dumps(config))
        made = subprocess.run([shardwright, "import", folder / "config.json", "-o", recipe], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return str(recipe)
    raise SystemExit(made.stderr)


def ran(engine: str, shardwright: str, lm: str, configs: list[dict]) -> list[float]:
    """Losses of its steps; what stops it is raised."""
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        recipe = imported(shardwright, folder, configs)
        words = f"launch {recipe} --on 1xH200 --engine {engine} --tp 1 --mbs 2 --microbatches 1 --seq 64 --optimizer adamw --allow-seams".split()
        text = started(launched(shardwright, engine, words, folder, lm, STEPS), folder)
        losses = [float(found) for found in re.findall(LOSS[engine] + r"([0-9.E+-]+)", text)]
        if len(losses) != STEPS or not all(map(math.isfinite, losses)):
            raise SystemExit(f"losses {losses}")
        return losses


def main() -> None:
    engine, shardwright, record = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    lm, named = (sys.argv[4], sys.argv[5:]) if engine == "megatron" else ("", sys.argv[4:])
    rows = {(row["model_type"], row["engine"]): row for row in map(json.loads, record.read_text().splitlines())} if record.exists() else {}
    small, failed = configs(), []
    for name in named or types(engine):
        try:
            row = {"losses": ran(engine, shardwright, lm, small[name])}
        except SystemExit as stopped:
            lines = [line for line in str(stopped).splitlines() if re.search(r"(Error|error|Exception|losses|exits \d)", line)]
            row = {"stopped": re.sub(r"\s+", " ", (lines or [repr(stopped)])[-1])[:300]}
            if "losses" in rows.get((name, engine), {}):
                failed.append(name)
        print(f"{'WRONG' if name in failed else 'ok'} {engine}: {name} {row}", flush=True)
        rows[name, engine] = {"model_type": name, "engine": engine, **row}
        record.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))
    sys.exit(len(failed) > 0)


if __name__ == "__main__":
    main()
