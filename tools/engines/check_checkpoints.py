"""Checkpoints between torch, safetensors and `shardwright checkpoint`, bit by bit.

usage: check_checkpoints.py SHARDWRIGHT FOLDER     SHARDWRIGHT: the built binary; FOLDER: an empty one

Four gloo ranks save DTensors with torch.distributed.checkpoint; we write them again for other numbers of
ranks and in the other formats; torch and safetensors load what we wrote, onto meshes of other shapes, and
every element must be the same bits. A checkpoint of our own (`rehearse --save`) goes the same ways.
"""

import json
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors import safe_open
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]


def whole():
    """Every dtype, shapes that no degree divides; bits drawn, so that NaNs and -0 are among them."""
    torch.manual_seed(7)
    out = {}
    for i, dtype in enumerate(DTYPES):
        for shape in [(13,), (10, 6), (4, 3, 5)]:
            size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
            bits = torch.randint(0, 256, (size,), dtype=torch.uint8)
            out[f"layers.{i}.{len(shape)}"] = bits.view(dtype).reshape(shape)
    return out


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def placements(name, tensor):
    return [Shard(0), Shard(tensor.dim() - 1) if tensor.dim() > 1 else Replicate()]


def join(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")


def save(rank, world, folder):
    join(rank, world, 29783)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = {name: distribute_tensor(t, mesh, placements(name, t)) for name, t in whole().items()}
    os.chdir(folder)
    dcp.save({"model": model, "run": {"step": 3, "data_position": 24}}, checkpoint_id="torch")
    dist.destroy_process_group()


def load(rank, world, folder, names):
    """Loads onto another mesh, and compares each rank's part with its cut of the whole."""
    join(rank, world, 29784)
    mesh = init_device_mesh("cpu", (world,))
    expected = whole()
    for name in names:
        empty = {k: distribute_tensor(torch.zeros_like(t), mesh, [Shard(t.dim() - 1)]) for k, t in expected.items()}
        state = {"model": empty, "run": {"step": 0, "data_position": 0}}
        dcp.load(state, checkpoint_id=os.path.join(folder, name))
        assert state["run"] == {"step": 3, "data_position": 24}, state["run"]
        for key, tensor in expected.items():
            part = distribute_tensor(tensor, mesh, [Shard(tensor.dim() - 1)])
            found = state["model"][key]
            assert isinstance(found, DTensor)
            assert bits(found.to_local()) == bits(part.to_local()), f"{name}: {key} on rank {rank}"
    dist.destroy_process_group()


def load_shards(rank, world, folder):
    """Our shards through torch's own reader of Hugging Face's format."""
    join(rank, world, 29785)
    mesh = init_device_mesh("cpu", (world,))
    expected = {f"model.{k}": t for k, t in whole().items()}
    state = {k: distribute_tensor(torch.zeros_like(t), mesh, [Shard(0)]) for k, t in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(os.path.join(folder, "shards")))
    for key, tensor in expected.items():
        part = distribute_tensor(tensor, mesh, [Shard(0)])
        assert bits(state[key].to_local()) == bits(part.to_local()), f"shards: {key} on rank {rank}"
    dist.destroy_process_group()


def ours(binary, folder, *words):
    ran = subprocess.run([binary, *words, "--json"], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, f"{words}: {ran.stderr}"
    return json.loads(ran.stdout)


def reshard(binary, folder, source, out, *words):
    ours(binary, folder, "checkpoint", "reshard", source, "--out", out, *words)
    assert ours(binary, folder, "checkpoint", "verify", out)["whole"]


def check_single(folder, name, expected):
    with safe_open(os.path.join(folder, name, "model.safetensors"), framework="pt") as f:
        assert set(f.keys()) == set(expected), set(f.keys()) ^ set(expected)
        for key, tensor in expected.items():
            found = f.get_tensor(key)
            assert found.dtype == tensor.dtype and bits(found) == bits(tensor), f"{name}: {key}"


def own(binary, folder):
    """Our own checkpoint into DCP: what torch loads is what our safetensors hold, and the way back is the same."""
    small = "--dims hidden=16,vocab=32,depth=4 --steps 2 --dtype f32 --gbs 4".split()
    ours(binary, folder, "rehearse", "nam56r", "--tp", "2", *small, "--save", "runs")
    reshard(binary, folder, "runs/step-2", "own-dcp", "--format", "dcp", "--tp", "2", "--pp", "2")
    reshard(binary, folder, "runs/step-2", "own-st", "--format", "safetensors")
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(os.path.join(folder, "own-dcp"), os.path.join(folder, "own.pt"))
    state = torch.load(os.path.join(folder, "own.pt"), weights_only=True)
    flat = {f"model.{path}": t for path, t in state["model"].items()}
    for path, states in state["optimizer"].items():
        flat |= {f"optimizer.{path}.{name}": t for name, t in states.items()}
    assert state["run"]["step"] == 2 and len(flat) > 40
    check_single(folder, "own-st", flat)
    reshard(binary, folder, "own-dcp", "own-back", "--format", "shardwright")
    reshard(binary, folder, "own-back", "own-again", "--format", "safetensors")
    check_single(folder, "own-again", flat)
    return len(flat)


def main():
    binary, folder = (os.path.abspath(word) for word in sys.argv[1:3])
    os.makedirs(folder, exist_ok=True)
    mp.spawn(save, (4, folder), nprocs=4)
    assert ours(binary, folder, "checkpoint", "verify", "torch")["whole"]
    names = []
    for world in [1, 2, 3, 8]:
        names.append(f"world-{world}")
        reshard(binary, folder, "torch", names[-1], "--world", str(world))
    reshard(binary, folder, "torch", "shards", "--world", "3", "--format", "safetensors")
    reshard(binary, folder, "shards", "single", "--world", "1")
    reshard(binary, folder, "single", "again", "--world", "5", "--format", "dcp")
    mp.spawn(load, (2, folder, ["torch", *names, "again"]), nprocs=2)
    mp.spawn(load_shards, (3, folder), nprocs=3)
    check_single(folder, "single", {f"model.{k}": t for k, t in whole().items()})
    # A judge that cannot say no is none.
    path = os.path.join(folder, "world-1", "__0_0.distcp")
    data = bytearray(open(path, "rb").read())
    at = data.find(bits(whole()["layers.0.2"])[:16])
    data[at] ^= 1
    open(path, "wb").write(data)
    spoilt = subprocess.run([binary, "checkpoint", "verify", "world-1"], cwd=folder, capture_output=True, text=True)
    assert at > 0 and spoilt.returncode == 1 and "checkpoint/damaged" in spoilt.stderr, spoilt.stderr
    tensors = own(binary, folder)
    print(f"checkpoints: {len(whole())} tensors of {len(DTYPES)} dtypes through {len(names) + 3} checkpoints, "
          f"{tensors} of our own through torch and back, bit by bit; a flipped bit was found")


if __name__ == "__main__":
    main()
