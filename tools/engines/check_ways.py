"""check_ways.py FOLDER: every way to train of the emitted FSDP2 program, with the libraries themselves, on CPU.

FOLDER holds plans as emit_parity writes them. A plan of one rank and one of several are run with the same way: losses
of four steps must agree (blocks of 8-bit state are of a shard, and products of a quantised base in bf16, so to half a
percent), and a run that goes on from a checkpoint must repeat the next loss bit by bit. What is quantised must stay
close to what is not; a paged optimizer falls back to one that is not, and cut-cross-entropy to its compiled loss. Documents
must be seen apart: a row of two is what two rows are, gradients and all. A teacher's weights come from a checkpoint, and
the distance to a teacher that is the model itself is nothing. Liger's loss needs a GPU and is not tried. Exits 1 when
anything differs or does not run.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "crates/launch/assets/fsdp2"))
import torch
import bitsandbytes  # noqa: F401 - both take long to load: once here rather than in every fork
import peft  # noqa: F401
import parity
import shampoo

# Roots are taken, and directions turned by them, within the steps below.
shampoo.EVERY = 2

PLAIN = {"optimizer": "adamw", "base": None, "adapters": "ours", "loss": "eager", "average": None, "momentum": "fp32"}
STEPS, TOLERANCE, NEAR = 4, 5e-3, 3e-2


def steps_and_restart(trainer):
    """Losses of four steps and of the fifth, and of the fifth once more behind a checkpoint."""
    import torch.distributed as dist

    if trainer.plan.ways["optimizer"].startswith("ao-"):
        # What is compiled computes the same, and four ranks that compile at once take minutes.
        torch.compiler.set_stance("force_eager")
    losses = [trainer.step(step) for step in range(STEPS)]
    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where)
    path = trainer.save(where[0], STEPS)
    losses.append(trainer.step(STEPS))
    again = type(trainer)(trainer.plan, trainer.device)
    again.load(path)
    return {"losses": losses, "again": again.step(STEPS)}


def with_way(raw: dict, way: dict) -> dict:
    """A plan in fp32, with steps large enough to drift apart."""
    precision = {"params": "fp32", "reduce": "fp32", "main": "fp32"}
    besides = {key: way[key] for key in ("documents", "teacher") if key in way}
    ways = {**PLAIN, **{key: value for key, value in way.items() if key not in besides}}
    return {**parity.quiet(raw), "precision": precision, "ways": ways, **besides}


def teacher_of(raw: dict, weights: str | None = None) -> dict:
    """A plan's own model as a teacher, with other first weights where none are given: paths are what they are drawn by."""
    return {"recipe": "tiny", "model": {**raw["model"], "init_std": 0.5}, "tensors": raw["tensors"], "weights": weights}


def documents_are_apart() -> list[str]:
    """One row of two documents against two rows, through attention and back."""
    from documents import Borders
    from model import AttentionCore

    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 16, heads, 8, requires_grad=True) for heads in (8, 4, 4))
    core, borders = AttentionCore(None), Borders()
    borders.take([[0, 6]], 16, q.device)
    core.borders = borders
    packed = core(q, k, v)
    packed.square().sum().backward()
    found = [packed, q.grad, k.grad, v.grad]
    core.borders = None
    q.grad = k.grad = v.grad = None
    apart = torch.cat([core(q[:, cut], k[:, cut], v[:, cut]) for cut in (slice(0, 6), slice(6, 16))], 1)
    apart.square().sum().backward()
    return [f"{name} differs" for name, a, b in zip(("output", "dq", "dk", "dv"), found, (apart, q.grad, k.grad, v.grad)) if not torch.allclose(a, b, atol=1e-5)]


def nothing_to_learn(trainer):
    """Saves the model, takes it for its own teacher, and says how far it is from itself."""
    import torch.distributed as dist

    where = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where)
    path = trainer.save(where[0], 1)
    again = parity.plans.parse({**trainer.plan.raw, "teacher": teacher_of(trainer.plan.raw, path)})
    return {"losses": [type(trainer)(again, trainer.device).step(0)]}


def by_muon(raw: dict) -> dict:
    is_matrix = lambda row: len(row["shape"]) == 2 and row["path"].startswith("layers.")
    rows = [{**row, "optimizer": "muon" if is_matrix(row) else row["optimizer"]} for row in raw["tensors"]]
    return {**raw, "tensors": rows}


def main() -> None:
    folder, failed = pathlib.Path(sys.argv[1]), 0
    read = lambda name, layout: json.loads((folder / name / layout / "sharding.json").read_text())
    dense, lora = "tiny-ways", "tiny-ways-lora"
    cases = [
        ("adamw8bit", dense, {"optimizer": "adamw8bit"}), ("lion", dense, {"optimizer": "lion"}),
        ("lion8bit", dense, {"optimizer": "lion8bit"}), ("sgd", dense, {"optimizer": "sgd"}),
        ("adafactor", dense, {"optimizer": "adafactor"}), ("average", dense, {"average": 0.99}),
        ("int8 momentum", dense, {"momentum": "int8"}), ("nf4", lora, {"base": "nf4"}),
        ("nf4-double", lora, {"base": "nf4-double"}), ("peft", lora, {"adapters": "peft"}),
        ("paged-adamw", dense, {"optimizer": "paged-adamw"}),
        ("paged-adamw8bit", dense, {"optimizer": "paged-adamw8bit"}), ("soap", dense, {"optimizer": "soap"}),
        ("shampoo", dense, {"optimizer": "shampoo"}),
        ("ao-adamw8bit", dense, {"optimizer": "ao-adamw8bit"}), ("ao-adamw4bit", dense, {"optimizer": "ao-adamw4bit"}),
        ("ao-adamwfp8", dense, {"optimizer": "ao-adamwfp8"}),
        ("cce", dense, {"loss": "cce"}), ("documents", dense, {"documents": {"lengths": [5, 3], "end": None}}),
        ("teacher", dense, {"teacher": teacher_of(read(dense, "one"))}),
        ("qlora", lora, {"base": "nf4-double", "adapters": "peft", "optimizer": "adamw8bit"}),
    ]  # fmt: skip
    near = {"nf4": {}, "nf4-double": {}, "peft": {}, "qlora": {}, "adamw8bit": {}, "int8 momentum": {}, "cce": {},
            "paged-adamw": {}, "paged-adamw8bit": {}, "ao-adamw8bit": {}, "ao-adamw4bit": {}, "ao-adamwfp8": {}}  # fmt: skip
    for name, recipe, way in cases:
        prepare = by_muon if "momentum" in way else lambda raw: raw
        one = parity.run(prepare(with_way(read(recipe, "one"), way)), steps_and_restart)
        # Adafactor's rows and columns, and preconditioners of SOAP and Shampoo, are of whole matrices: refused over shards.
        many = None if name in ("adafactor", "soap", "shampoo") else parity.run(prepare(with_way(read(recipe, LAYOUT), way)), steps_and_restart)
        said = [outcome["error"] for outcome in (one, many) if outcome and "error" in outcome]
        if not said:
            said += [f"{o['again']!r} behind a checkpoint, {o['losses'][-1]!r} without" for o in (one, many) if o and o["again"] != o["losses"][-1]]
            apart = max(abs(b / a - 1) for a, b in zip(one["losses"], (many or one)["losses"]))
            said += [f"one rank and several are {apart:.1e} apart"] if apart > TOLERANCE else []
        if not said and name in near:
            plain = parity.run(prepare(with_way(read(recipe, "one"), near[name])), steps_and_restart)
            far = max(abs(b / a - 1) for a, b in zip(plain["losses"], one["losses"]))
            said += [f"{far:.1e} from what is not quantised"] if far > NEAR else []
        failed += bool(said)
        print(f"{'WRONG' if said else 'ok'} {name}: {'; '.join(said) or ' '.join(f'{x:.4f}' for x in one['losses'])}", flush=True)
    said = documents_are_apart()
    for layout in ("one", LAYOUT):
        itself = parity.run(with_way(read(dense, layout), {}), nothing_to_learn)
        said += [itself["error"]] if "error" in itself else [f"{layout}: {loss} from itself" for loss in itself["losses"] if abs(loss) > 1e-6]
    failed += bool(said)
    print(f"{'WRONG' if said else 'ok'} documents apart, a model its own teacher{': ' if said else ''}{'; '.join(said)}", flush=True)
    sys.exit(failed > 0)


LAYOUT = "fsdp4"
if __name__ == "__main__":
    main()
