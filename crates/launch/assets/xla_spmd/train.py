"""Runs a table: train.py --table table.json --steps N --framework {torch_xla,jax}

torch_xla drives TPUs and annotates the torch reference (`model.py`); jax runs anywhere, on CPU devices too.
Data is synthetic and drawn from the step alone. `--unsharded` runs the same steps on one device.
"""

from __future__ import annotations

import argparse
import json

import table as tables


def batch(table: tables.Table, step: int):
    """[global batch, sequence + 1] tokens: lines of constant stride."""
    import numpy

    size, model = table.raw["batch"], table.raw["model"]
    draw = numpy.random.default_rng(step)
    start = draw.integers(model["vocab"], size=(size["global_batch"], 1))
    stride = 1 + draw.integers(7, size=(size["global_batch"], 1))
    return ((start + stride * numpy.arange(size["sequence"] + 1)) % model["vocab"]).astype("int32")


def run_jax(table: tables.Table, steps: int, is_sharded: bool) -> list[float]:
    """Losses of plain gradient descent; parameters stay where the table puts them."""
    import jax
    import model_jax

    if table.raw["model"]["unsupported"]:
        raise tables.TableError(f"the reference model has no {', '.join(table.raw['model']['unsupported'])}")
    model, rate = table.raw["model"], table.raw["learning_rate"]
    params = {path: model_jax.initial(path, table.raw["shapes"][path], model["init_std"]) for path in table.parameters}
    biases = model_jax.zero_biases(model)

    def step(params, tokens, biases):
        descended = jax.value_and_grad(lambda p: model_jax.loss(model, p, tokens, biases), has_aux=True)
        (_, (value, counts)), grads = descended(params)
        moved = model_jax.moved_biases(model, biases, counts)
        return value, jax.tree.map(lambda p, g: p - rate * g, params, grads), moved

    if is_sharded:
        mesh = tables.jax_mesh(table)
        shardings = tables.for_jax(table, mesh)
        data = jax.sharding.NamedSharding(mesh, tables.jax_spec(table.raw["data"]))
        params = {path: jax.device_put(value, shardings[path]) for path, value in params.items()}
        step = jax.jit(step, in_shardings=(shardings, data, None), out_shardings=(None, shardings, None), donate_argnums=0)
    else:
        data, step = jax.devices()[0], jax.jit(step, donate_argnums=0)
    losses = []
    for index in range(steps):
        value, params, biases = step(params, jax.device_put(batch(table, index), data), biases)
        losses.append(float(value))
    return losses


def run_torch_xla(table: tables.Table, steps: int) -> list[float]:
    """The same on torch_xla: annotations before the first step, one compiled step after."""
    import torch
    import torch.nn.functional as F
    import torch_xla
    import torch_xla.distributed.spmd as spmd
    from model import Hybrid
    from moe import move_expert_biases

    model = Hybrid(table.raw["model"], list(range(len(table.raw["model"]["layers"]))), True, True)
    from model_jax import initial

    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(initial(path, table.raw["shapes"][path], table.raw["model"]["init_std"])))
    device = torch_xla.device()
    model = model.to(device)
    mesh = tables.mark_torch_xla(table, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=table.raw["learning_rate"])
    losses = []
    for index in range(steps):
        tokens = torch.from_numpy(batch(table, index)).long().to(device)
        spmd.mark_sharding(tokens, mesh, tuple(tuple(e) if isinstance(e, list) else e for e in table.raw["data"]))
        with torch_xla.step():
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            # One program over the mesh: counts are of all devices already.
            move_expert_biases(model.modules(), lambda counts: counts)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--table", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--framework", choices=["torch_xla", "jax"], default="torch_xla")
    parser.add_argument("--unsharded", action="store_true", help="one device, jax only")
    arguments = parser.parse_args()
    table = tables.load(arguments.table)
    if arguments.framework == "torch_xla":
        losses = run_torch_xla(table, arguments.steps)
    else:
        losses = run_jax(table, arguments.steps, not arguments.unsharded)
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
