"""Our blocks for Megatron against the FSDP2 program's, which `parity.py` holds to the runtime; on CPU, in fp32.

    check_megatron_blocks.py ASSETS [LM]

ASSETS is crates/launch/assets, LM a folder with Megatron-LM's `pretrain_hybrid.py`. Modules are built as Megatron builds
them, with local linears. Held: M2RNN and the shared expert at tp 1 equal the reference with the same weights, tp 2 (two
processes, gloo) equals tp 1, with sequence parallelism too, and what tp 2 saves tp 1 loads. With LM: the trainer takes
two steps of a small hybrid with all of our blocks, and saves.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch

TOOLS = pathlib.Path(__file__).parent
ASSETS = pathlib.Path(sys.argv[1]).absolute()
SIZES = {"heads": 4, "qk_heads": 1, "key_dim": 8, "value_dim": 4, "conv": 4, "conv_bias": True, "gradient_clip": 0.05, "norm_eps": 1e-5}
EXPERT = {"ffn": 12, "activation": "swiglu"}
HIDDEN, TIME, BATCH = 16, 20, 2
FORWARD, GRADIENT = 1e-5, 1e-4


def package(at: pathlib.Path, blocks: dict):
    """The package as a launch writes it."""
    folder = at / "shardwright_megatron"
    folder.mkdir(parents=True)
    for source in [*(ASSETS / "megatron").glob("*.py"), ASSETS / "fsdp2/recurrence.py", ASSETS / "fsdp2/walk.py"]:
        shutil.copy(source, folder)
    nothing = {"mamba3": None, "m2rnn": None, "shared_expert": None, "sparse": False, "ngram_hash": None, "structure": None}
    (folder / "blocks.json").write_text(json.dumps({**nothing, "patches": [], "unfilled": [], **blocks}))


def furthest(ours, theirs):
    """The largest difference, in units of the reference's largest value."""
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in zip(ours, theirs, strict=True))


def config(**more):
    from megatron.core.transformer import TransformerConfig

    common = dict(num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, add_bias_linear=False, num_moe_experts=2)
    common |= dict(moe_shared_expert_intermediate_size=EXPERT["ffn"], gradient_accumulation_fusion=False)
    return TransformerConfig(**common, **more)


def begin(tp: int, rank: int):
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    dist.init_process_group("gloo", rank=rank, world_size=tp)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def built(kind: str, settings, sizes: dict):
    """A block as the stack builds it, without its layer."""
    from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec as spec
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups()
    if kind == "m2rnn":
        from shardwright_megatron.m2rnn import M2rnnMixer

        inside = spec.submodules.mamba_layer.submodules.mixer.submodules
        return M2rnnMixer(settings, inside, HIDDEN, layer_number=1, pg_collection=groups, sizes=sizes)
    from shardwright_megatron.shared_expert import SharedExpert

    inside = spec.submodules.moe_layer.submodules.mlp.keywords["submodules"].shared_experts.keywords["submodules"]
    return SharedExpert(settings, inside, False, groups, sizes=EXPERT)


def reference(kind: str, sizes: dict):
    """The FSDP2 program's block without its norm, and its weights under our names."""
    sys.path.insert(0, str(ASSETS / "fsdp2"))
    import model
    import moe
    from basics import rows_of

    m = {"hidden": HIDDEN, "norm_eps": 1e-5, "norm": "rmsnorm", "multipliers": {"mlp": (1.0, 1.0)}, "recurrent": sizes}
    if kind == "m2rnn":
        block = model.Recurrent(m)
        names = {"in_proj.weight": "in_proj.weight", "out_proj.weight": "out_proj.weight", "conv_weight": "conv.weight"}
        names |= {"conv_bias": "conv.bias", "gate_norm_weight": "gate_norm.weight"}
        names |= {name: name for name in ("A_log", "dt_bias", "state_weight", "D")}
    else:
        block = model.Mlp({**m, "mlp": EXPERT})
        names = {"linear_fc1.weight": "fc1.weight", "linear_fc2.weight": "fc2.weight"}
    del moe, rows_of
    block.norm = torch.nn.Identity()
    generator = torch.Generator().manual_seed(2)
    for parameter in block.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return block, names


def part(kind: str, name: str, whole: torch.Tensor, sizes: dict, tp: int, rank: int) -> torch.Tensor:
    """A rank's part of a whole weight, in our shape: every packed segment is split by itself."""
    q, inner = sizes["qk_heads"] * sizes["key_dim"], sizes["heads"] * sizes["value_dim"]
    segments = {
        "in_proj.weight": [q, q, inner, sizes["heads"], inner],
        "conv_weight": [q, q, inner],
        "conv_bias": [q, q, inner],
        "linear_fc1.weight": [EXPERT["ffn"]] * 2,
    }
    if name in ("out_proj.weight", "linear_fc2.weight"):
        return whole.chunk(tp, 1)[rank]
    whole = whole.flatten() if name == "D" else whole
    return torch.cat([segment.chunk(tp)[rank] for segment in whole.split(segments.get(name, whole.shape[0]))])


def equal(kind: str, sizes: dict, tp: int, rank: int, sequence_parallel: bool):
    """Forward and gradients of this rank's part against the whole reference: the two distances."""
    block, names = reference(kind, sizes)
    ours = built(kind, config(tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel), sizes)
    weights, theirs = dict(ours.named_parameters()), dict(block.named_parameters())
    for name, parameter in weights.items():
        parameter.data.copy_(part(kind, name, theirs[names[name]].data, sizes, tp, rank))
    generator = torch.Generator().manual_seed(3)
    x, grad = (torch.randn(TIME, BATCH, HIDDEN, generator=generator) for _ in range(2))
    cut = (lambda t: t.chunk(tp)[rank]) if sequence_parallel else (lambda t: t)
    inside, whole = cut(x).clone().requires_grad_(), x.transpose(0, 1).clone().requires_grad_()
    out = ours(inside)
    out = out[0] if isinstance(out, tuple) else out
    out.backward(cut(grad))
    wanted = block(whole)
    wanted.backward(grad.transpose(0, 1))
    forward = furthest([out], [cut(wanted.transpose(0, 1))])
    made = [parameter.grad for parameter in weights.values()] + [inside.grad]
    parts = [part(kind, name, theirs[names[name]].grad, sizes, tp, rank) for name in weights]
    return forward, furthest(made, parts + [cut(whole.grad.transpose(0, 1))])


SHAPES = {
    "m2rnn, one query head": ("m2rnn", SIZES),
    "m2rnn, two query heads": ("m2rnn", {**SIZES, "qk_heads": 2}),
    "m2rnn without a bias": ("m2rnn", {**SIZES, "conv_bias": False}),
    "shared expert": ("shared_expert", SIZES),
}


def compared(tp: int, rank: int):
    off = {}
    for name, (kind, sizes) in SHAPES.items():
        for parallel in (False, True)[:tp]:
            forward, gradient = equal(kind, sizes, tp, rank, parallel)
            off[f"{name}, tp {tp}{' and sequence' if parallel else ''}"] = (forward, gradient)
            if not (forward < FORWARD and gradient < GRADIENT):
                sys.exit(f"off: {name} at tp {tp}: forward {forward:.1e}, gradients {gradient:.1e}")
    return off


def values(kind: str, sizes: dict, tp: int, rank: int):
    """A block whose weights are known."""
    block, names = reference(kind, sizes)
    ours, theirs = built(kind, config(tensor_model_parallel_size=tp), sizes), dict(block.named_parameters())
    wanted = {name: part(kind, name, theirs[names[name]].data, sizes, tp, rank) for name, _ in ours.named_parameters()}
    return ours, wanted


def saved(folder: str, tp: int, rank: int):
    from megatron.core import dist_checkpointing

    for at, (kind, sizes) in enumerate(SHAPES.values()):
        ours, wanted = values(kind, sizes, tp, rank)
        for name, parameter in ours.named_parameters():
            parameter.data.copy_(wanted[name])
        target = pathlib.Path(folder, str(at))
        if rank == 0:
            target.mkdir()
        torch.distributed.barrier()
        dist_checkpointing.save(ours.sharded_state_dict("block.", ()), str(target))


def loaded(folder: str, tp: int, rank: int):
    from megatron.core import dist_checkpointing

    for at, (kind, sizes) in enumerate(SHAPES.values()):
        ours, wanted = values(kind, sizes, tp, rank)
        found = dist_checkpointing.load(ours.sharded_state_dict("block.", ()), str(pathlib.Path(folder, str(at))))
        for name, parameter in ours.named_parameters():
            if not torch.equal(found[f"block.{name}"], wanted[name]):
                sys.exit(f"off: {name} of block {at}, saved at another tp and loaded at tp {tp}")


def child(work: str, folder: str, tp: int, rank: int):
    """One process of a group: compares, then saves (two processes) or loads (one)."""
    sys.path[:0] = [str(TOOLS), work]
    import cpu_megatron

    cpu_megatron.ready()
    with cpu_megatron.ToCpu():
        begin(tp, rank)
        off = compared(tp, rank)
        (saved if tp == 2 else loaded)(folder, tp, rank)
    if rank == 0:
        for name, (forward, gradient) in off.items():
            print(f"{name}: forward {forward:.1e}, gradients {gradient:.1e}")
        print("saved at tp 2" if tp == 2 else "loaded at tp 1")


def group(work: str, folder: str, tp: int):
    """Runs a group's processes, each of its own so that the CPU's stand-ins are theirs alone."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29610 + tp), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, str(ASSETS), "--child", work, folder, str(tp)]
    running = [subprocess.Popen([*command, str(rank)], env=common) for rank in range(tp)]
    if any([process.wait() for process in running]):
        sys.exit(f"a process of tp {tp} failed")


# A small hybrid with experts, one prediction depth, and M2RNN behind two of three `M` and in the depth.
PATTERN, LAYERS = "*E-M*M/M-", {"layers": [3, 5], "mtp_layers": [0]}
TRAINER = """--spec shardwright_megatron.spec hybrid_stack_spec --hidden-size 16 --normalization RMSNorm --ffn-hidden-size 32
--squared-relu --num-attention-heads 4 --position-embedding-type rope --max-position-embeddings 32 --disable-bias-linear
--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 8 --moe-shared-expert-intermediate-size 12 --mamba-num-heads 4
--mamba-head-dim 8 --mamba-state-dim 8 --mamba-num-groups 2 --vocab-size 128 --make-vocab-size-divisible-by 64
--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 2 --seq-length 32 --tokenizer-type NullTokenizer
--mock-data --split 100,0,0 --lr 0.001 --eval-iters 0 --eval-interval 1000 --save-interval 2 --ckpt-format torch_dist
--log-interval 1 --no-create-attention-mask-in-dataloader --transformer-impl local --no-gradient-accumulation-fusion
--no-persist-layer-norm --no-rope-fusion --no-masked-softmax-fusion --num-workers 0 --distributed-backend gloo""".split()


def trained(work: str, lm: str):
    """Megatron's own trainer: two steps and a save; the same weights on two ranks by tp, and by stages, all recomputed.
    The optimizer's state is left: without Apex its loading asserts (`distrib_optimizer.py`)."""
    blocks = {"m2rnn": {**LAYERS, **SIZES}, "shared_expert": EXPERT}
    package(pathlib.Path(work, "trained"), blocks)
    save, again = f"{work}/kept", ["--load", f"{work}/kept", "--no-load-optim", "--no-load-rng", "--train-iters", "4"]
    first = started(work, lm, 1, ["--use-distributed-optimizer", "--hybrid-layer-pattern", PATTERN, "--train-iters", "2", "--save", save])
    split = ["--tensor-model-parallel-size", "2", "--sequence-parallel", "--hybrid-layer-pattern", PATTERN]
    on_ranks = started(work, lm, 2, [*split, *again])
    full = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    staged = ["--pipeline-model-parallel-size", "2", "--hybrid-layer-pattern", "*E|-M|*|M/M-", *full]
    on_stages = started(work, lm, 2, [*staged, *again])
    # Adam's moments are not loaded and the data go on, so that a loss is near and no more.
    if any(abs(loss[0] - first[1]) > 0.1 for loss in (on_ranks, on_stages)):
        sys.exit(f"what was saved is not what was loaded: {first}, then {on_ranks} and {on_stages}")


def started(work: str, lm: str, world: int, arguments: list[str]) -> list[float]:
    """Losses of two steps."""
    common = {**os.environ, "PYTHONPATH": f"{work}/trained", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_PORT": "29620", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    command = [sys.executable, "-W", "ignore", str(TOOLS / "cpu_megatron.py"), f"{lm}/pretrain_hybrid.py", *TRAINER]
    log = pathlib.Path(work, "log")
    with log.open("w") as out:
        ranks = [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
        running = [subprocess.Popen([*command, *arguments], env=e, stdout=out, stderr=subprocess.STDOUT) for e in ranks]
        codes = [process.wait() for process in running]
    lines = log.read_text().splitlines()
    steps = [line.split("lm loss:")[1].split()[0] for line in lines if "lm loss:" in line]
    if any(codes) or len(steps) != 2 or "nan" in " ".join(steps).lower():
        print("\n".join(line for line in lines if "RNG state" not in line)[-4000:])
        sys.exit(f"the trainer did not take two steps: exits {codes}, losses {steps}")
    print(f"trained on {world}: {' '.join(arguments[:5])} …: losses {steps}", flush=True)
    return [float(step) for step in steps]


def main():
    if "--child" in sys.argv:
        work, folder, tp, rank = sys.argv[sys.argv.index("--child") + 1 :]
        return child(work, folder, int(tp), int(rank))
    with tempfile.TemporaryDirectory() as work:
        package(pathlib.Path(work), {})
        folder = pathlib.Path(work, "saved")
        folder.mkdir()
        group(work, str(folder), 2)
        group(work, str(folder), 1)
        if len(sys.argv) > 2:
            trained(work, sys.argv[2])


if __name__ == "__main__":
    main()
