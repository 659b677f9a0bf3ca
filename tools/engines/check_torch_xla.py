"""check_torch_xla.py FOLDER LOSSES: the torch_xla half of the XLA program, on CPU torch with torch_xla stood in for,
against the losses that check_jax.py wrote. torch_xla itself is not on PyPI for CPUs: what it makes of the
annotations is not judged here; that every parameter and state gets one, and what is computed, is."""

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import types

import torch

TOLERANCE = 1e-5


def stand_in(devices: int) -> list:
    """Modules by the names the program imports; gives the list of annotations."""
    marked = []
    names = ["", ".core", ".core.xla_model", ".distributed", ".distributed.spmd", ".runtime"]
    modules = {f"torch_xla{name}": types.ModuleType(f"torch_xla{name}") for name in names}
    for name, module in modules.items():
        owner, _, leaf = name.rpartition(".")
        if owner:
            setattr(modules[owner], leaf, module)
    root, spmd, runtime = modules["torch_xla"], modules["torch_xla.distributed.spmd"], modules["torch_xla.runtime"]
    root.device = lambda: torch.device("cpu")
    root.compile = lambda function: function
    spmd.Mesh = lambda devices, shape, names: (tuple(shape), tuple(names))
    spmd.mark_sharding = lambda tensor, mesh, spec: marked.append((tuple(tensor.shape), spec))
    runtime.use_spmd = lambda: None
    runtime.global_runtime_device_count = lambda: devices
    runtime.process_index, runtime.process_count = lambda: 0, lambda: 1
    sys.modules.update(modules)
    return marked


def main():
    folder, expected = pathlib.Path(sys.argv[1]), json.loads(pathlib.Path(sys.argv[2]).read_text())
    cases = sorted(folder.glob("*/data-expert-model/table.json"))
    sys.path[:0] = [str(cases[0].parent), os.path.dirname(os.path.abspath(__file__))]
    from check_jax import quick, worst

    wrong, marked = 0, stand_in(8)
    import table as tables
    import train

    def tell(name, is_right, detail=""):
        nonlocal wrong
        wrong += not is_right
        print(f"{'ok' if is_right else 'WRONG'} {name}: {detail}", flush=True)

    for path in cases:
        raw = quick(json.loads(path.read_text()))
        table = tables.parse(raw)
        marked.clear()
        trainer = train.Trainer(table, train.start(table, "torch_xla", True))
        moments = sum(2 if kind == "adamw" else 1 for kind in raw["optimizer_of"].values())
        asked = len(raw["parameters"]) + moments
        tell(f"{raw['recipe']} annotated", len(marked) == asked, f"{len(marked)} of {asked} parameters and moments")
        losses = [trainer.step(step) for step in range(2)]
        with tempfile.TemporaryDirectory() as tmp, contextlib.chdir(tmp):
            at = trainer.save(tmp, 2)
            rest = [trainer.step(step) for step in range(2, 5)]
            end = trainer.run.tensors()
            end = {key: get().copy() for key, (_, _, get) in end.items()}
            again = trainer.load(at)
            repeated = [trainer.step(step) for step in range(again, 5)]
        apart = worst(losses + rest, expected[raw["recipe"]])
        tell(f"{raw['recipe']} against JAX", apart <= TOLERANCE, f"worst difference {apart:.1e}")
        same = all((get() == end[key]).all() for key, (_, _, get) in trainer.run.tensors().items())
        tell(f"{raw['recipe']} from its checkpoint", repeated == rest and same, "bit by bit")
    print(f"torch_xla, stood in for: {wrong} wrong")
    sys.exit(1 if wrong or not cases else 0)


if __name__ == "__main__":
    main()
