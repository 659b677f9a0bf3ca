"""Checkpoints by torch.distributed.checkpoint, in the coordinates of whole tensors: any layout loads what any other
wrote, and so does whoever reads that format.

Keys are `model.PATH` for parameters and persistent buffers, `optimizer.PATH.STATE`, `average.PATH`, `run.step` and
`run.data_position`. Every rank writes the blocks that no rank before it holds, and reads the blocks it holds. A block
goes through the host on its own, after the step: what a step needs at most on a device does not grow.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

import folder as folders
from collectives import on_hosts
from folder import CheckpointError
from parallelize import Parallel
from pieces import Held, Piece, held, named
from stepped import Average

Tensors = dict[str, Held]


def save(where: str, run: Parallel, optimizers: list, record: dict[str, Any], keep: int | None, average: Average | None) -> str:
    """Writes a step; every rank calls it. Gives the directory."""
    step = record["step"]
    if dist.get_rank() == 0:
        folders.begin(where, step)
    dist.barrier(on_hosts())
    partial = folders.partial(where, step)
    if not os.path.isdir(partial):
        raise CheckpointError(f"`{where}` is not a folder that all ranks share: one of them does not see `{partial}`")
    tensors = model_of(run) | state_of(run, optimizers) | average_of(run, average)
    tensors |= numbers(record["step"], record["data_position"])
    with torch.no_grad():
        dcp.save({}, storage_writer=dcp.FileSystemWriter(partial), planner=Writer(tensors), process_group=on_hosts())
    if dist.get_rank() == 0:
        folders.finish(where, step, record, keep)
    dist.barrier(on_hosts())
    return os.path.join(where, folders.name(step))


def load(path: str, run: Parallel, optimizers: list, average: Average | None) -> dict[str, int]:
    """Reads a checkpoint into the model and its optimizers; every rank calls it. Gives step and data position."""
    reader = dcp.FileSystemReader(path)
    try:
        saved = reader.read_metadata().state_dict_metadata
    except Exception as problem:
        raise CheckpointError(f"`{path}`: its metadata cannot be read: {problem}") from problem
    make_state(run, optimizers, set(saved))
    run_state = numbers(0, 0)
    tensors = model_of(run) | state_of(run, optimizers) | average_of(run, average) | run_state
    check_keys(path, set(saved), set(tensors))
    for key, here in tensors.items():
        there = saved[key]
        if tuple(there.size) != here.shape or there.properties.dtype != here.tensor.dtype:
            said = f"{there.properties.dtype} of {tuple(there.size)}"
            raise CheckpointError(f"`{path}`: `{key}` is {said}, and this run's {here.tensor.dtype} of {here.shape}")
    with torch.no_grad():
        dcp.load({}, storage_reader=reader, planner=Reader(path, tensors), process_group=on_hosts())
    for optimizer in optimizers:
        if is_portable(optimizer):
            optimizer.take()
    return {key.removeprefix("run."): int(value.tensor) for key, value in run_state.items()}


def check_keys(path: str, saved: set[str], wanted: set[str]) -> None:
    """All ranks together must want exactly what was saved."""
    everyone: list[set[str]] = [set()] * dist.get_world_size()
    dist.all_gather_object(everyone, wanted, group=on_hosts())
    union = set().union(*everyone)
    for keys, what in ((union - saved, "has no"), (saved - union, "has, and this run has not,")):
        if keys:
            few = ", ".join(f"`{key}`" for key in sorted(keys)[:4])
            more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
            raise CheckpointError(f"`{path}` {what} {few}{more}")


def model_of(run: Parallel) -> Tensors:
    return {f"model.{path}": held(run, path, tensor) for path, tensor in named(run).items()}


def state_of(run: Parallel, optimizers: list[torch.optim.Optimizer]) -> Tensors:
    """What optimizers keep: tensors cut like their parameter, and scalars that every holder has alike."""
    found: Tensors = {}
    for path, parameter in named(run).items():
        for optimizer in optimizers if isinstance(parameter, nn.Parameter) else ():
            is_plain = is_portable(optimizer)
            state = optimizer.saved(parameter) if is_plain else optimizer.state.get(parameter, {})
            for name, value in state.items():
                like = held(run, path, parameter)
                if is_plain and value.dim():
                    found[f"optimizer.{path}.{name}"] = shard_of(run, path, like, value)
                    continue
                if not torch.is_tensor(value):
                    raise CheckpointError(f"`{name}` of `{path}` is a {type(value).__name__}, and only tensors are saved")
                if value.dim() == 0 and like.shape:
                    # Copies are told apart by torch, which writes one of them.
                    found[f"optimizer.{path}.{name}"] = Held((), value, (SCALAR,))
                else:
                    found[f"optimizer.{path}.{name}"] = held(run, path, value)
    return found


def is_portable(optimizer) -> bool:
    """Whether it says itself what is saved of its state, which is none that shards are cut out of."""
    return getattr(optimizer, "is_portable", False)


def shard_of(run: Parallel, path: str, like: Held, value: torch.Tensor) -> Held:
    """A plain tensor that is cut as its parameter is, or that one rank alone has."""
    if value.shape == like.local.shape:
        return Held(like.shape, value, like.pieces)
    if run.plan.world > 1:
        raise CheckpointError(f"state of `{path}` has shape {tuple(value.shape)}, which is not cut as the parameter is")
    shape = tuple(value.shape)
    return Held(shape, value, (Piece((0,) * len(shape), (0,) * len(shape), shape, True),))


def average_of(run: Parallel, average: Average | None) -> Tensors:
    """The average of every trained weight; before the first step, the weight itself."""
    if average is None:
        return {}
    trained = {path: p for path, p in named(run).items() if isinstance(p, nn.Parameter) and p.requires_grad}
    average.begin(list(trained.values()))
    found = {}
    for path, parameter in trained.items():
        like = held(run, path, parameter)
        found[f"average.{path}"] = Held(like.shape, average.of[parameter], like.pieces)
    return found


SCALAR = Piece((), (), (), True)


def numbers(step: int, data_position: int) -> Tensors:
    values = {"run.step": step, "run.data_position": data_position}
    return {key: Held((), torch.tensor(value, dtype=torch.int64), (SCALAR,)) for key, value in values.items()}


def make_state(run: Parallel, optimizers: list[torch.optim.Optimizer], saved: set[str]) -> None:
    """Optimizers make their state at the first step; a run that loads needs it before."""
    own, plain = ([o for o in optimizers if is_portable(o) == wanted] for wanted in (False, True))
    owner = {parameter: optimizer for optimizer in own for g in optimizer.param_groups for parameter in g["params"]}
    states: dict[str, set[str]] = {}
    for key in saved:
        if key.startswith("optimizer."):
            path, _, name = key.removeprefix("optimizer.").rpartition(".")
            states.setdefault(path, set()).add(name)
    for path, parameter in named(run).items():
        for optimizer in plain:
            optimizer.expect(parameter, states.get(path, set()))
        if parameter not in owner:
            continue
        for name in states.get(path, ()):
            owner[parameter].state[parameter][name] = scalar_like(parameter) if name == "step" else torch.zeros_like(parameter)


def scalar_like(parameter: torch.Tensor) -> torch.Tensor:
    """A step count as AdamW makes it: on the device where it is fused, on the host otherwise."""
    if parameter.is_cuda:
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros((), dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32)


class Writer(dcp.DefaultSavePlanner):
    """Plans the blocks of this rank as shards of whole tensors."""

    def __init__(self, tensors: Tensors):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.tensors = tensors
        self.blocks: dict[tuple[str, torch.Size], torch.Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        items = []
        for key, value in self.tensors.items():
            properties = TensorProperties(dtype=value.tensor.dtype)
            for piece in value.pieces:
                if piece.is_first:
                    offsets = torch.Size(piece.offsets)
                    self.blocks[key, offsets] = piece.of(value.local)
                    data = TensorWriteData(ChunkStorageMetadata(offsets, torch.Size(piece.sizes)), properties, torch.Size(value.shape))
                    items.append(WriteItem(MetadataIndex(key, offsets), WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self.blocks[write_item.index.fqn, write_item.index.offset].detach().cpu().contiguous()


class Reader(LoadPlanner):
    """Plans the reads that fill this rank's blocks from however the tensors were cut when they were written."""

    def __init__(self, path: str, tensors: Tensors):
        self.path, self.tensors = path, tensors
        self.blocks: dict[tuple[str, torch.Size], torch.Tensor] = {}

    def set_up_planner(self, state_dict, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        items = []
        for key, value in self.tensors.items():
            chunks = [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in value.pieces]
            self.blocks.update({(key, chunk.offsets): p.of(value.local) for chunk, p in zip(chunks, value.pieces)})
            reads = create_read_items_for_chunk_list(key, self.metadata.state_dict_metadata[key], chunks)
            if sum(r.lengths.numel() for r in reads) != sum(chunk.sizes.numel() for chunk in chunks):
                raise CheckpointError(f"`{self.path}` does not hold all of `{key}`, or holds some of it twice")
            items += reads
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item, value) -> None:
        raise CheckpointError(f"`{self.path}`: `{read_item.dest_index.fqn}` is no tensor")

    def resolve_tensor(self, read_item) -> torch.Tensor:
        block = self.blocks[read_item.dest_index.fqn, read_item.dest_index.offset]
        for dim, (start, count) in enumerate(zip(read_item.dest_offsets, read_item.lengths)):
            block = block.narrow(dim, start, count)
        return block

    def commit_tensor(self, read_item, tensor: torch.Tensor) -> None:
        pass
