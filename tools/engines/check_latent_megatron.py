"""Prediction depths, latent and sparse attention through Megatron's own trainer on a CPU: two steps and a save each.

    check_latent_megatron.py LM ASSETS

LM is a folder with Megatron-LM's `pretrain_hybrid.py`, ASSETS crates/launch/assets. Arguments are those of `launch nam56r` with
these features, at small sizes. Sparse attention of ours is held to Megatron's own: losses of two steps, at tp 1 and 2, and its
kernels under Triton's interpreter.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Before anything imports Triton: its own functions are read by it then.
os.environ["TRITON_INTERPRET"] = "1"

from check_side_embeddings import JOB, TOOLS  # noqa: E402

LATENT = """--multi-latent-attention --q-lora-rank 16 --kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 8 --v-head-dim 8
--rope-type rope --qk-layernorm""".split()
SPARSE = "--dsa-indexer-n-heads 4 --dsa-indexer-head-dim 16 --dsa-indexer-topk 4 --dsa-indexer-loss-coeff 0.001 --bf16".split()
OURS = ["--spec", "shardwright_megatron.spec", "hybrid_stack_spec"]
CHOSEN = ["--dsa-indexer-use-sparse-loss"]
TWO = ["--tensor-model-parallel-size", "2", "--sequence-parallel"]
INDEXER = ["mtp_2 loss", "indexer loss"]
SPARSE_STACK, KEPT = "D-+-/+-/+-", [*LATENT, *SPARSE, *CHOSEN]
AGAIN = ["--recompute-granularity", "selective", "--recompute-modules", "core_attn"]
# A pattern, arguments, losses besides the model's own, and the job whose losses these are.
JOBS = {
    "mtp": ("*-*-/*-/*-", [], ["mtp_1 loss", "mtp_2 loss"], None),
    "mla": ("+-+-", LATENT, [], None),
    "mla,dsa,mtp": (SPARSE_STACK, [*LATENT, *SPARSE], INDEXER, None),
    "chosen tokens": (SPARSE_STACK, KEPT, INDEXER, None),
    "ours": (SPARSE_STACK, [*KEPT, *OURS], INDEXER, "chosen tokens"),
    "ours, computed again": (SPARSE_STACK, [*KEPT, *OURS, *AGAIN], INDEXER, "chosen tokens"),
    "chosen tokens at tp 2": (SPARSE_STACK, [*KEPT, *TWO], INDEXER, None),
    "ours at tp 2": (SPARSE_STACK, [*KEPT, *OURS, *TWO], INDEXER, "chosen tokens at tp 2"),
}

# Steps in bf16 of one model: sums have another order.
NEAR = 5e-3


def command(lm: pathlib.Path, pattern: str, more: list[str], saved: str) -> list[str]:
    depths = JOB.index("--mtp-num-layers")
    common = [*JOB[:depths], "--mock-data", "--save", saved, "--hybrid-layer-pattern", pattern, *more]
    return [sys.executable, "-W", "ignore", str(TOOLS / "latent_megatron.py"), str(lm / "pretrain_hybrid.py"), *common]


def losses(output: str, name: str) -> list[float]:
    return [float(line.split(f"{name}: ")[1].split(" ")[0]) for line in output.splitlines() if f"{name}: " in line]


def package(assets: pathlib.Path, at: str) -> None:
    """Sparse attention of ours alone, as a launch writes it."""
    folder = pathlib.Path(at) / "shardwright_megatron"
    folder.mkdir()
    for name in ("__init__", "spec", "chosen", "sparse", "sparse_kernels"):
        shutil.copy(assets / f"megatron/{name}.py", folder)
    blocks = {"mamba3": None, "m2rnn": None, "shared_expert": None, "sparse": True, "patches": [], "unfilled": []}
    (folder / "blocks.json").write_text(json.dumps(blocks))


def ran(lm: pathlib.Path, assets: pathlib.Path, number: int, pattern: str, more: list[str]) -> tuple[bool, str]:
    """Whether it ended well with a checkpoint, and what it printed."""
    port = str(21000 + (os.getpid() + number) % 20000)
    world = 2 if more[-len(TWO) :] == TWO else 1
    common = {**os.environ, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OMP_NUM_THREADS": "1"}
    common.pop("TRITON_INTERPRET")
    path = os.environ.get("PYTHONPATH", "")
    with tempfile.TemporaryDirectory() as at:
        package(assets, at)
        words, log = command(lm, pattern, more, f"{at}/saved"), pathlib.Path(at, "log")
        with log.open("w") as out:
            ranks = [{**common, "PYTHONPATH": f"{at}:{path}", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
            all_of = [subprocess.Popen(words, cwd=at, env=env, stdout=out, stderr=subprocess.STDOUT) for env in ranks]
            codes = [one.wait() for one in all_of]
        is_saved = (pathlib.Path(at) / "saved/latest_checkpointed_iteration.txt").exists()
        return not any(codes) and is_saved, log.read_text()


# Heads that fill no block and more than one holds; keys of one block and of several.
SHAPES = ((70, 2, 8, 32, 5, 32, 16, 24), (33, 3, 3, 24, 70, 24, 40, 8), (160, 1, 4, 16, 3, 16, 16, 150))


def furthest(ours: list, theirs: list) -> float:
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in zip(ours, theirs, strict=True))


def kernels(assets: pathlib.Path) -> list[float]:
    """How far kernels under the interpreter are from the sums in torch."""
    import torch

    with tempfile.TemporaryDirectory() as at:
        package(assets, at)
        sys.path.insert(0, at)
        from shardwright_megatron import sparse, sparse_kernels

    far = []
    for length, batch, index, width, heads, latent, turned, top in SHAPES:
        q, k, w = torch.randn(length, batch, index, width), torch.randn(length, batch, width), torch.randn(length, batch, index)
        score, theirs = sparse_kernels.scores(q, k, w, True), sparse.scores(q, k, w, True)
        sees = theirs.isfinite()
        best, places = theirs.topk(top, sorted=False)
        places = places.int().masked_fill(best.isinf(), -1)
        given = (q, k, w, places, torch.randn_like(best), True)
        far.append(furthest([score[sees], score.isfinite().float()], [theirs[sees], sees.float()]))
        far.append(furthest(sparse_kernels.scores_backward(*given), sparse.scores_backward(*given)))
        query, key = torch.randn(length, batch, heads, latent + turned), torch.randn(length, batch, 1, latent + turned)
        ours, theirs = (one.forward(query, key, places, 0.3, latent, True) for one in (sparse_kernels, sparse))
        far.append(furthest(ours, theirs))
        grad = torch.randn(length, batch, heads, latent)
        both = (one.backward(query, key, places, *ours[:2], grad, 0.3, latent) for one in (sparse_kernels, sparse))
        far.append(furthest(*both))
    return far


def layers(assets: pathlib.Path) -> list[float]:
    """How far our layer is from Megatron's with the same weights: what it returns, its loss and all gradients, in fp32."""
    import torch
    import torch.distributed

    import cpu_megatron
    import latent_megatron

    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(21000 + os.getpid() % 20000), "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update(ranks)
    latent_megatron.ready()
    with tempfile.TemporaryDirectory() as at, cpu_megatron.ToCpu():
        package(assets, at)
        sys.path.insert(0, at)
        torch.distributed.init_process_group("gloo")
        found = [passed(length, top, per_token) for length, top, per_token in ((48, 16, False), (20, 32, True))]
    return [furthest(ours, theirs) for ours, theirs in found]


def passed(length: int, top: int, per_token: bool) -> tuple[list, list]:
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import MLATransformerConfig
    from megatron.core.transformer.enums import AttnMaskType
    from shardwright_megatron import sparse

    if not parallel_state.is_initialized():
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(1)
    sizes = dict(num_layers=1, hidden_size=32, num_attention_heads=6, q_lora_rank=16, kv_lora_rank=16, qk_head_dim=16)
    sizes |= dict(qk_pos_emb_head_dim=16, v_head_dim=8, dsa_indexer_n_heads=3, dsa_indexer_head_dim=32, dsa_indexer_topk=top)
    sizes |= dict(add_bias_linear=False, dsa_indexer_loss_coeff=0.5, dsa_indexer_use_sparse_loss=True, calculate_per_token_loss=per_token)
    config = MLATransformerConfig(**sizes, rope_type="rope", experimental_attention_variant="dsa", dsa_indexer_rotate_activation=False)
    core = hybrid_stack_spec.submodules.dsa_layer.submodules.self_attention.submodules.core_attention
    groups = ProcessGroupCollection.use_mpu_process_groups()
    layer = core.module(config, core.submodules, 1, AttnMaskType.causal, "self", pg_collection=groups)
    batch, columns = 2, 32
    given = [torch.randn(length, batch, *one) for one in ((6, columns), (1, columns), (32,), (16,))]
    up, grad = torch.randn(6, 8, 16), torch.randn(length, batch, 48)
    results = []
    for kind in (type(layer), sparse.SparseAttention):
        layer.__class__ = kind
        query, key, x, latent, weight = [t.clone().requires_grad_() for t in (*given, up)]
        out = layer(query, key, None, None, x, latent, attn_mask_type=AttnMaskType.causal, up_v_weight=weight)
        wanted = [query, key, weight, *layer.indexer.parameters()]
        results.append([out, *torch.autograd.grad(out, wanted, grad)])
    theirs, ours = results
    return ours, theirs


def main() -> None:
    lm, assets, failed, all_found = *(pathlib.Path(path).absolute() for path in sys.argv[1:3]), 0, {}
    for number, (name, (pattern, more, also, same)) in enumerate(JOBS.items()):
        ended, said = ran(lm, assets, number, pattern, more)
        found = all_found[name] = [losses(said, kind) for kind in ["lm loss", *also]]
        is_right = ended and all(len(one) == 2 and all(map(math.isfinite, one)) for one in found)
        if is_right and same:
            pairs = ((a, b) for ours, theirs in zip(found, all_found[same], strict=True) for a, b in zip(ours, theirs, strict=True))
            is_right = all(abs(a - b) <= NEAR * abs(b) for a, b in pairs)
        failed += not is_right
        print(f"{'ok' if is_right else 'WRONG'} {name}: {found} {'' if ended else said[-2000:]}", flush=True)
    for name, far in (("kernels of sparse attention", kernels(assets)), ("our layer of sparse attention", layers(assets))):
        is_wrong = not all(one <= 1e-5 for one in far)
        failed += is_wrong
        print(f"{'WRONG' if is_wrong else 'ok'} {name}: {max(far):.1e} off", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
