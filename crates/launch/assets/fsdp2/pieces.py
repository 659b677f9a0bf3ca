"""Which elements of a whole tensor lie on this rank, as blocks in the whole tensor's coordinates.

A packed cut leaves a rank one run of rows a segment, and `fully_shard` a range of those; a run is never joined with
the next, so that neighbours who share a unit cut it out alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch.distributed.tensor import DTensor

from parallelize import WRAPPER, Parallel
from plan import Cut, PlanError


@dataclass(frozen=True)
class Run:
    """Neighbouring indices of one dim: where they begin in the whole and here, and how many they are."""

    whole: int
    here: int
    count: int
    is_first: bool


@dataclass(frozen=True)
class Piece:
    """A block of a tensor. `is_first`: no rank before this one holds the same elements."""

    offsets: tuple[int, ...]
    here: tuple[int, ...]
    sizes: tuple[int, ...]
    is_first: bool

    def of(self, local: torch.Tensor) -> torch.Tensor:
        """The block as a view of what this rank holds."""
        for dim, (start, count) in enumerate(zip(self.here, self.sizes)):
            local = local.narrow(dim, start, count)
        return local


@dataclass(frozen=True)
class Held:
    """A tensor of the model, or of an optimizer, that this rank holds pieces of."""

    shape: tuple[int, ...]
    tensor: torch.Tensor
    pieces: tuple[Piece, ...]

    @property
    def local(self) -> torch.Tensor:
        return local_of(self.tensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def named(run: Parallel) -> dict[str, torch.Tensor]:
    """Every parameter and persistent buffer of this rank's chunks by its path in the plan."""
    found: dict[str, torch.Tensor] = {}
    for root in run.chunks.values():
        found.update((name.replace(WRAPPER, ""), p) for name, p in root.named_parameters())
        for prefix, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    found[".".join(filter(None, (prefix, name))).replace(WRAPPER, "")] = buffer
    return found


def held(run: Parallel, path: str, tensor: torch.Tensor) -> Held:
    """The pieces of one tensor of the model."""
    # A buffer has no row: it is whole everywhere.
    row = run.plan.rows.get(path)
    cuts = [cut for cut in row.cuts if run.plan.degrees[cut.axis] > 1] if row else []
    axes = {"edp", "ep", "etp"} if row and row.expert else {"dp", "tp"}
    # An axis that neither cuts the tensor nor shards it has copies along it, of which the first counts.
    copies = axes - {cut.axis for cut in cuts}
    window = None
    if isinstance(tensor, DTensor):
        copies -= set(tensor.device_mesh.mesh_dim_names)
        window = shard(path, tensor)
    shape = row.shape if row else tuple(tensor.shape)
    by_dim = [[Run(0, 0, count, True)] for count in shape]
    for cut in cuts:
        by_dim[cut.dim] = runs(cut, run.plan.degrees[cut.axis], run.meshes.at(cut.axis))
    if window and shape:
        by_dim[0] = within(by_dim[0], *window)
    is_first = all(run.meshes.at(axis) == 0 for axis in copies)
    pieces = tuple(piece(block, is_first) for block in product(*by_dim) if all(r.count for r in block))
    expected = [sum(r.count for r in dim) for dim in by_dim]
    if list(local_of(tensor).shape) != expected:
        raise PlanError(f"`{path}`: this rank holds {list(local_of(tensor).shape)} and the plan gives it {expected}")
    return Held(shape, tensor, pieces)


def piece(block: tuple[Run, ...], is_first: bool) -> Piece:
    offsets, here, sizes = (tuple(getattr(r, key) for r in block) for key in ("whole", "here", "count"))
    return Piece(offsets, here, sizes, is_first and all(r.is_first for r in block))


def runs(cut: Cut, degree: int, at: int) -> list[Run]:
    """What position `at` of `degree` holds of a dim, a run a segment."""
    found, whole, here = [], 0, 0
    for segment in cut.segments:
        copies = degree // segment.count if segment.shared else 1
        count = segment.size if segment.shared else segment.count // degree * segment.size
        first = at // copies * segment.size if segment.shared else at * count
        found.append(Run(whole + first, here, count, at % copies == 0))
        whole, here = whole + segment.count * segment.size, here + count
    return found


def shard(path: str, tensor: DTensor) -> tuple[int, int]:
    """The rows of a part that `fully_shard` leaves here: it chunks dim 0, the last ranks may hold none."""
    mesh = tensor.device_mesh
    if mesh.ndim != 1 or not tensor.placements[0].is_shard(0):
        raise PlanError(f"`{path}` is held as {tensor.placements} over {mesh.mesh_dim_names}, not as rows over one axis")
    step = -(-tensor.shape[0] // mesh.size())
    start = min(mesh.get_local_rank() * step, tensor.shape[0])
    return start, min(start + step, tensor.shape[0])


def within(dim: list[Run], start: int, stop: int) -> list[Run]:
    """The runs between two places here, counted from the first of them."""
    found = []
    for r in dim:
        first, end = max(r.here, start), min(r.here + r.count, stop)
        found.append(Run(r.whole + max(first - r.here, 0), max(first - start, 0), max(end - first, 0), r.is_first))
    return found
