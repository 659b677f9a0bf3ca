"""Runs `shardwright_receipt.py` under torch on CPU: one rank over a whole batch, two ranks over half of it each
(gloo, DistributedDataParallel), two ranks with sharded parameters (FSDP2), and the same with blocks computed again in
backward. Norms by logical path have to be the same. Names of Megatron-Core, Hugging Face and torchtitan are mapped.

usage: check_hook.py            runs itself under torchrun for two ranks
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "crates/evidence/assets"))

NAMES = {
    "module.module.decoder.layers.3.self_attention.linear_qkv.weight": "layers.3.attention.qkv.weight",
    "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight": "layers.3.attention.norm.weight",
    "decoder.layers.3.mlp.linear_fc1.layer_norm_weight": "layers.3.mlp.norm.weight",
    "decoder.layers.3.mlp.experts.linear_fc1.weight12": "layers.3.moe.experts.fc1.weight",
    "decoder.layers.0.mixer.in_proj.weight": "layers.0.mamba.in_proj.weight",
    "embedding.word_embeddings.weight": "embedding.tokens.weight",
    "output_layer.weight": "head.weight",
    "model.layers.7.self_attn.k_proj.weight": "layers.7.attention.qkv.weight",
    "model.layers.7.mlp.experts.5.up_proj.weight": "layers.7.moe.experts.fc1.weight",
    "model.embed_tokens.weight": "embedding.tokens.weight",
    "model.norm.weight": "final.norm.weight",
    "lm_head.weight": "head.weight",
    "layers.2.feed_forward.w3.weight": "layers.2.mlp.fc1.weight",
    "layers.2.attention.qkv_linear.wqkv.weight": "layers.2.attention.qkv.weight",
    "layers.2._checkpoint_wrapped_module.attention.wo.weight": "layers.2.attention.out.weight",
    "model.layers.7": "layers.7",
    "layers.11.mamba.dt_bias": "layers.11.mamba.dt_bias",
    "model.layers.7.self_attn": None,
    "vision.patch.weight": None,
}


def child(how: str, path: str) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import shardwright_receipt

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.fc2(torch.relu(self.fc1(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if how == "again" else layer(x)
            return x

    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Model().double()
    receipt = shardwright_receipt.Receipt(path, engine="check")
    receipt.watch(model)
    run = model
    if how == "ddp":
        run = nn.parallel.DistributedDataParallel(model)
    if how == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = int(os.environ.get("RANK", "0"))
    for _ in range(3):
        batch = torch.randn(8, 8, dtype=torch.double)
        mine = batch.chunk(world)[rank]
        loss = run(mine).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        run(mine)
        model.train()
        receipt.step(loss=loss, samples=len(batch))
    receipt.ran("attention", "none")
    receipt.end()
    if world > 1:
        dist.destroy_process_group()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def norms(path: Path) -> dict:
    found = [line for line in lines(path) if line["kind"] == "tensor"]
    return {(line["step"], line["tensor"], line["path"]): line["norm"] for line in found}


def main() -> int:
    import shardwright_receipt

    bad = [(name, shardwright_receipt.logical(name), ours) for name, ours in NAMES.items()]
    bad = [entry for entry in bad if entry[1] != entry[2]]
    for name, got, wanted in bad:
        print(f"{name} is {got}, and should be {wanted}")
    with tempfile.TemporaryDirectory() as folder:
        for how, ranks in (("one", 1), ("again", 1), ("ddp", 2), ("fsdp2", 2)):
            path = Path(folder) / f"{how}.jsonl"
            words = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
            subprocess.run([*words, __file__, "--child", how, str(path)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        one = norms(Path(folder) / "one.jsonl")
        kinds = {(kind, path) for _, kind, path in one}
        wanted = {(kind, f"layers.{n}") for kind in ("activation", "activation-gradient") for n in range(3)}
        wanted |= {("gradient", f"layers.{n}.{fc}.{of}") for n in range(3) for fc in ("fc1", "fc2") for of in ("weight", "bias")}
        if kinds != wanted:
            bad.append(("kinds", kinds ^ wanted, ""))
        for how in ("again", "ddp", "fsdp2"):
            other = norms(Path(folder) / f"{how}.jsonl")
            apart = max((abs(other.get(key, 0.0) - norm) / norm for key, norm in one.items()), default=1.0)
            print(f"{how}: {len(other)} norms, at most {apart:.1e} apart from one rank's")
            if other.keys() != one.keys() or apart > 1e-12:
                bad.append((how, other.keys() ^ one.keys(), apart))
        kept = [line["kind"] for line in lines(Path(folder) / "ddp.jsonl")]
        if kept[0] != "start" or kept[-1] != "end" or kept.count("step") != 3:
            bad.append(("lines", kept, ""))
    for entry in bad:
        print("WRONG", *entry)
    return 1 if bad else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
