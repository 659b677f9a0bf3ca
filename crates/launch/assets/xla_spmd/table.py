"""table.json: for every parameter path, the mesh axes that shard each of its dims.

One compiled program runs over the mesh; XLA places the collectives, so there is nothing to schedule
here. `for_jax` gives NamedShardings, `mark_torch_xla` annotates a torch model in place. Neither
framework is imported until its function is called.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SCHEMA = "shardwright.xla-spmd/1"
MESHES = [["data"], ["data", "model"], ["data", "expert"], ["data", "expert", "model"]]
Spec = list[Any]  # one entry a dim: an axis, a list of axes, or None


class TableError(ValueError):
    """The table cannot be followed as written."""


@dataclass(frozen=True)
class Table:
    """A table that passed its checks."""

    raw: dict[str, Any]
    axes: dict[str, int]
    parameters: dict[str, Spec]

    @property
    def devices(self) -> int:
        count = 1
        for degree in self.axes.values():
            count *= degree
        return count


def axes_of(entry: Any) -> list[str]:
    """The axes of one dim."""
    return [] if entry is None else [entry] if isinstance(entry, str) else list(entry)


def load(path: str) -> Table:
    """Reads and checks a table."""
    with open(path, encoding="utf-8") as file:
        return parse(json.load(file))


def parse(raw: dict[str, Any]) -> Table:
    """Checks a table already read: known mesh, known axes, each at most once a tensor, dims that divide."""
    if raw.get("schema") != SCHEMA:
        raise TableError(f"schema is {raw.get('schema')!r}, this module reads {SCHEMA!r}")
    names = raw["mesh"]["axes"]
    if names not in MESHES:
        raise TableError(f"mesh axes {names} are none of {MESHES}")
    axes = dict(zip(names, raw["mesh"]["shape"], strict=True))
    for path, spec in raw["parameters"].items():
        check_spec(path, spec, raw["shapes"][path], axes)
        if raw["optimizer_of"].get(path) not in raw["optimizers"]:
            raise TableError(f"`{path}` is stepped by {raw['optimizer_of'].get(path)!r}, none of {sorted(raw['optimizers'])}")
    return Table(raw, axes, raw["parameters"])


def check_spec(path: str, spec: Spec, shape: list[int], axes: dict[str, int]) -> None:
    if len(spec) != len(shape):
        raise TableError(f"`{path}` has {len(shape)} dims and a spec of {len(spec)}")
    used = [axis for entry in spec for axis in axes_of(entry)]
    if unknown := sorted(set(used) - set(axes)):
        raise TableError(f"`{path}` is sharded over {unknown}, the mesh has {list(axes)}")
    if len(set(used)) != len(used):
        raise TableError(f"`{path}` uses an axis twice: {spec}")
    for size, entry in zip(shape, spec):
        parts = 1
        for axis in axes_of(entry):
            parts *= axes[axis]
        if size % parts:
            raise TableError(f"`{path}`: {size} elements do not divide over {entry}")


def jax_mesh(table: Table) -> Any:
    """A mesh over as many devices as the table needs."""
    import jax
    import numpy

    devices = jax.devices()
    if len(devices) < table.devices:
        raise TableError(f"the mesh needs {table.devices} devices and there are {len(devices)}")
    grid = numpy.array(devices[: table.devices]).reshape(tuple(table.axes.values()))
    return jax.sharding.Mesh(grid, tuple(table.axes))


def jax_spec(spec: Spec) -> Any:
    """A spec as JAX takes it."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in spec))


def for_jax(table: Table, mesh: Any) -> dict[str, Any]:
    """A NamedSharding for every parameter."""
    from jax.sharding import NamedSharding

    return {path: NamedSharding(mesh, jax_spec(spec)) for path, spec in table.parameters.items()}


def mark_torch_xla(table: Table, model: Any) -> Any:
    """Annotates a torch model on an XLA device; returns the mesh. Refuses a parameter without a row."""
    import numpy
    import torch_xla.distributed.spmd as spmd
    import torch_xla.runtime as runtime

    runtime.use_spmd()
    count = runtime.global_runtime_device_count()
    if count != table.devices:
        raise TableError(f"the mesh needs {table.devices} devices and there are {count}")
    mesh = spmd.Mesh(numpy.arange(count), tuple(table.axes.values()), tuple(table.axes))
    for path, parameter in model.named_parameters():
        if path not in table.parameters:
            raise TableError(f"the table has no row for parameter `{path}`")
        spmd.mark_sharding(parameter, mesh, torch_xla_spec(table.parameters[path]))
    return mesh


def torch_xla_spec(spec: Spec) -> tuple:
    """A spec as torch_xla takes it."""
    return tuple(tuple(entry) if isinstance(entry, list) else entry for entry in spec)
