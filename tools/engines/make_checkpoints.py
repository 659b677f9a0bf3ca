"""Writes the fixtures of data/checkpoints with torch and safetensors: small checkpoints of known numbers.

usage: make_checkpoints.py FOLDER      (any torch 2.15; safetensors 0.8)

Element i of a tensor that starts at n is n + i, in its own dtype, so that whoever reads them needs no
second copy: tests compute what must come out.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def numbers(start, shape, dtype):
    count = torch.Size(shape).numel()
    return torch.arange(start, start + count, dtype=torch.float64).reshape(shape).to(dtype)


def state(mesh):
    """Two dims cut over two axes, an uneven cut, a replicated tensor, a scalar, nothing, plain values."""
    place = lambda tensor, *how: distribute_tensor(tensor, mesh, list(how))
    return {
        "model": {
            "both": place(numbers(1, (6, 5), torch.float32), Shard(0), Shard(1)),
            "uneven": place(numbers(2, (7,), torch.bfloat16), Shard(0), Replicate()),
            "deep": place(numbers(3, (3, 4, 2), torch.float16), Shard(2), Shard(1)),
            "whole": numbers(4, (4,), torch.int64),
            "scalar": torch.tensor(5.5, dtype=torch.float64),
            "empty": torch.zeros(0, 3),
            "byte": numbers(0, (5,), torch.uint8),
            "truth": torch.tensor([True, False, True]),
            "eight": numbers(0, (4,), torch.float32).to(torch.float8_e4m3fn),
        },
        "run": {"step": 10, "data_position": 4000, "note": "as it is", "list": [1, 2.5, None]},
    }


def rank(index, world, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29781", RANK=str(index), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    # Torch keeps the path it was given: relative, so that it says nothing of this machine.
    os.chdir(folder)
    dcp.save(state(mesh), checkpoint_id="dcp")
    hf = {"both": distribute_tensor(numbers(1, (6, 5), torch.float32), mesh, [Shard(0), Shard(1)])}
    hf["uneven"] = distribute_tensor(numbers(2, (7,), torch.bfloat16), mesh, [Shard(0), Replicate()])
    writer = dcp.HuggingFaceStorageWriter(path="shards", save_distributed=True)
    dcp.save(hf, storage_writer=writer)
    dist.destroy_process_group()


def main():
    folder = sys.argv[1]
    mp.spawn(rank, (4, folder), nprocs=4)
    index = os.path.join(folder, "index")
    os.makedirs(index)
    parts = [{"a": numbers(1, (3, 2), torch.float32)}, {"b": numbers(2, (4,), torch.bfloat16)}]
    names = [f"model-{i + 1:05}-of-00002.safetensors" for i in range(2)]
    for part, name in zip(parts, names):
        save_file(part, os.path.join(index, name), metadata={"format": "pt"})
    weights = {key: name for part, name in zip(parts, names) for key in part}
    with open(os.path.join(index, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": 32}, "weight_map": weights}, out, indent=2)


if __name__ == "__main__":
    main()
