"""Checkpoints of whole tensors as safetensors files with an index, as Hugging Face shards them
(https://huggingface.co/docs/safetensors): whoever reads that format reads these.

Keys are `model.PATH`, `optimizer.PATH.STATE`, `run.step` and `run.data_position`. One tensor is on the host at a
time. Reading is memory-mapped and gives any block of a tensor.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable

import numpy as np

import folder as folders
from folder import CheckpointError

INDEX = "model.safetensors.index.json"
# A file is closed when the next tensor would take it beyond this.
FILE_BYTES = 4 << 30
NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32"}
# A tensor to be saved: its shape, the name of its dtype, and how to get it whole.
Tensor = tuple[tuple[int, ...], str, Callable[[], np.ndarray]]


def save(where: str, tensors: dict[str, Tensor], record: dict[str, Any], keep: int | None, is_writer: bool) -> None:
    """Writes a step. Every process calls it, since getting a tensor whole may take all of them; one writes."""
    files = shared_out(tensors)
    partial = folders.begin(where, record["step"]) if is_writer else ""
    names = [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
    for file, keys in zip(names, files):
        write_file(os.path.join(partial, file) if is_writer else None, {key: tensors[key] for key in keys})
    if not is_writer:
        return
    weights = {key: file for file, keys in zip(names, files) for key in keys}
    index = {"metadata": {"total_size": sum(map(size_of, tensors.values()))}, "weight_map": weights}
    with open(os.path.join(partial, INDEX), "w", encoding="utf-8") as out:
        json.dump(index, out, indent=1)
    folders.finish(where, record["step"], record, keep)


def size_of(tensor: Tensor) -> int:
    shape, dtype, _ = tensor
    return int(np.prod(shape, dtype=np.int64)) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)


def shared_out(tensors: dict[str, Tensor]) -> list[list[str]]:
    files, room = [[]], FILE_BYTES
    for key, tensor in tensors.items():
        if size_of(tensor) > room and files[-1]:
            files.append([])
            room = FILE_BYTES
        files[-1].append(key)
        room -= size_of(tensor)
    return files


def write_file(path: str | None, tensors: dict[str, Tensor]) -> None:
    header, at = {}, 0
    for key, tensor in tensors.items():
        header[key] = {"dtype": NAMES[tensor[1]], "shape": list(tensor[0]), "data_offsets": [at, at + size_of(tensor)]}
        at += size_of(tensor)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    out = open(path, "wb") if path else None
    if out:
        out.write(len(head).to_bytes(8, "little") + head)
    for key, tensor in tensors.items():
        value = np.ascontiguousarray(tensor[2]())
        if value.nbytes != size_of(tensor):
            raise CheckpointError(f"`{key}` is {value.nbytes} bytes and was said to be {size_of(tensor)}")
        if out:
            out.write(value.tobytes())
    if out:
        out.flush()
        os.fsync(out.fileno())
        out.close()


class Reader:
    """The tensors of a checkpoint, memory-mapped."""

    def __init__(self, path: str):
        self.path, self.tensors = path, {}
        try:
            with open(os.path.join(path, INDEX), encoding="utf-8") as file:
                weights = json.load(file)["weight_map"]
            for name in sorted(set(weights.values())):
                self.tensors |= self.open(os.path.join(path, os.path.basename(name)))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise CheckpointError(f"`{path}` cannot be read: {problem!r}") from problem
        if wrong := sorted(self.tensors.keys() ^ weights.keys()):
            raise CheckpointError(f"`{path}`: {INDEX} and its files disagree on `{wrong[0]}`")

    def open(self, file: str) -> dict[str, np.ndarray]:
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > os.path.getsize(file):
                raise ValueError(f"{file} is cut short")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if os.path.getsize(file) != 8 + length + end:
            raise ValueError(f"{file} is {os.path.getsize(file)} bytes, and its header speaks of {8 + length + end}")
        numpy_name = {short: name for name, short in NAMES.items()}
        found = {}
        for key, entry in header.items():
            name = numpy_name[entry["dtype"]]
            # numpy has no bfloat16: its bits, which the caller views as what they are.
            dtype = np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            if stop - start != int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
                raise ValueError(f"`{key}` has {stop - start} bytes for {shape}")
            found[key] = np.memmap(file, dtype, "r", 8 + length + start, shape)
        return found

    def check(self, wanted: dict[str, Tensor]) -> None:
        """The checkpoint must hold exactly these."""
        missing, more_than = wanted.keys() - self.tensors.keys(), self.tensors.keys() - wanted.keys()
        for keys, what in ((missing, "has no"), (more_than, "has, and this run has not,")):
            if keys:
                few = ", ".join(f"`{key}`" for key in sorted(keys)[:4])
                more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
                raise CheckpointError(f"`{self.path}` {what} {few}{more}")
        for key, (shape, dtype, _) in wanted.items():
            there = self.tensors[key]
            if there.shape != tuple(shape) or str(there.dtype) != dtype:
                said = f"{there.dtype} of {there.shape}, and this run's {dtype} of {tuple(shape)}"
                raise CheckpointError(f"`{self.path}`: `{key}` is {said}")

    def block(self, key: str, index: tuple = ()) -> np.ndarray:
        return np.array(self.tensors[key][index])


def numbers(step: int, data_position: int) -> dict[str, Tensor]:
    values = {"run.step": step, "run.data_position": data_position}
    return {key: ((), "int64", lambda value=value: np.array(value, np.int64)) for key, value in values.items()}
