"""Our side embeddings for Megatron against the runtime's numbers; on CPU, in fp32.

    check_side_embeddings.py ASSETS NUMBERS [LM]

ASSETS is crates/launch/assets, NUMBERS data/engines/side_embeddings.json, which a test of the runtime keeps, LM a folder with
Megatron-LM's `pretrain_hybrid.py`. Held: the module equals the runtime's block, packed documents do not reach over their
borders, a model at tp 2 (two processes, gloo, sequence parallelism) equals tp 1 after its checkpoint was loaded there, and
structure ids lie where their tokens do. With LM: the trainer takes two steps with our entry, on made-up and on real data, with a
prediction depth, and saves.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import numpy
import torch
import torch._dynamo  # before cuda's functions are replaced: it keeps a table of them
from torch import Tensor

TOOLS = pathlib.Path(__file__).parent
FORWARD, GRADIENT = 1e-5, 1e-4
HIDDEN, TIME, BATCH = 8, 8, 2
failed = 0


def tell(name: str, is_right: bool, detail: str = "") -> None:
    global failed
    failed += not is_right
    print(f"{'ok' if is_right else 'WRONG'} {name}{f': {detail}' if detail else ''}")


def furthest(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the reference's largest value."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)).item()


def package(assets: pathlib.Path, at: pathlib.Path, numbers: dict[str, Any], lm: str, streams: dict[str, list[str]]) -> None:
    """The package as a launch writes it."""
    folder = at / "shardwright_megatron"
    folder.mkdir(parents=True, exist_ok=True)
    for source in (assets / "megatron").glob("*.py"):
        shutil.copy(source, folder)
    sides = [{**side, "from_data": bool(streams) and side["name"] == "structure"} for side in numbers["sides"]]
    (folder / "sides.json").write_text(json.dumps({"engine_root": lm, "sides": sides, "streams": streams}))


def built(side: Any, weights: dict[str, list[float]]) -> torch.nn.Module:
    """A module with the runtime's weights."""
    from shardwright_megatron.side_embeddings import SideEmbedding

    module = SideEmbedding(side, HIDDEN, torch.float32, "cpu")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.tensor(weights[f"side.{side.name}.{name}"]).view(parameter.shape))
    return module


def equals_the_runtime(numbers: dict[str, Any]) -> None:
    from shardwright_megatron.side_embeddings import rows_of, settings

    tokens = torch.tensor(numbers["tokens"])[:, :TIME]
    positions = torch.arange(TIME).expand_as(tokens)
    modules = [built(side, numbers["weights"]) for side in settings().sides]
    rows = rows_of(settings().sides, tokens, positions, None)
    out = sum(module(found.transpose(0, 1)) for module, found in zip(modules, rows))
    wanted, dout = (torch.tensor(numbers[key]).view(TIME, BATCH, HIDDEN) for key in ("out", "dout"))
    far = furthest(out, wanted)
    tell("forward equals the runtime's", far < FORWARD, f"{far:.1e}")
    out.backward(dout)
    for module in modules:
        for name, parameter in module.named_parameters():
            path = f"side.{module.side.name}.{name}"
            far = furthest(parameter.grad.flatten(), torch.tensor(numbers["gradients"][path]))
            tell(f"gradient of {path}", far < GRADIENT, f"{far:.1e}")


def stays_in_documents() -> None:
    """Two documents in one row find what each finds alone."""
    from shardwright_megatron.side_embeddings import rows_of, settings

    draw = torch.Generator().manual_seed(5)
    tokens, positions = torch.randint(200, (1, 9), generator=draw), torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    packed = rows_of(settings().sides, tokens, positions, None)
    parts = [rows_of(settings().sides, tokens[:, cut], positions[:, cut], None) for cut in (slice(4), slice(4, 9))]
    joined = [torch.cat(both, dim=1) for both in zip(*parts)]
    tell("packed documents do not reach over", all(map(torch.equal, packed, joined)))


def model(tp: int) -> Any:
    """A small hybrid with side embeddings, in Megatron's gradient buffers."""
    import megatron.core.models.hybrid.hybrid_layer_specs as specs
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer import TransformerConfig
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from shardwright_megatron.side_model import SideModelBuilder, SideModelConfig

    config = TransformerConfig(
        num_layers=2, hidden_size=HIDDEN, num_attention_heads=4, ffn_hidden_size=12, normalization="RMSNorm",
        add_bias_linear=False, gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=tp, sequence_parallel=tp > 1, bias_dropout_fusion=False, masked_softmax_fusion=False,
        use_cpu_initialization=True, persist_layer_norm=False,
    )  # fmt: skip
    torch.manual_seed(7)
    model_parallel_cuda_manual_seed(7)
    said = SideModelConfig(
        transformer=config, hybrid_layer_pattern="*-", vocab_size=212, seq_length=TIME, position_embedding_type="rope",
        hybrid_stack_spec=specs.hybrid_stack_spec,
    )  # fmt: skip
    built = said.get_builder_cls()(said)
    assert isinstance(built, SideModelBuilder)
    from megatron.core.process_groups_config import ProcessGroupCollection

    inner = built.build_model(ProcessGroupCollection.use_mpu_process_groups(), pre_process=True, post_process=True)
    return DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), inner)


def step(chunk: Any, numbers: dict[str, Any]) -> dict[str, Tensor]:
    """Loss and gradients of side embeddings on the runtime's tokens."""
    from megatron.core.distributed.finalize_model_grads import finalize_model_grads
    from shardwright_megatron.side_embeddings import rows_of, settings
    from shardwright_megatron.side_model import CHANNEL

    sequences = torch.tensor(numbers["tokens"])
    tokens, labels = sequences[:, :TIME].contiguous(), sequences[:, 1 : TIME + 1].contiguous()
    positions = torch.arange(TIME).expand_as(tokens).contiguous()
    CHANNEL.put(rows_of(settings().sides, tokens, positions, None))
    chunk.zero_grad_buffer()
    mask = torch.ones(1, 1, TIME, TIME, dtype=torch.bool).triu(1)
    loss = chunk(tokens, positions, mask, labels=labels).mean()
    loss.backward()
    finalize_model_grads([chunk])
    side = chunk.module.embedding.side
    return {"loss": loss.detach(), **{name: value.main_grad.clone() for name, value in side.named_parameters()}}


def rank(tp: int, folder: pathlib.Path, numbers: dict[str, Any]) -> None:
    """One process: tp 2 saves, tp 1 loads; both keep what a step gave."""
    import cpu_megatron

    cpu_megatron.ready()
    from megatron.core import dist_checkpointing, parallel_state

    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    with cpu_megatron.ToCpu():
        chunk = model(tp)
        state = chunk.module.sharded_state_dict(metadata={"dp_cp_group": parallel_state.get_data_parallel_group()})
        if tp > 1:
            (folder / "saved").mkdir(exist_ok=True)
            dist_checkpointing.save(state, str(folder / "saved"))
        else:
            chunk.module.load_state_dict(dist_checkpointing.load(state, str(folder / "saved")))
        marks = {parameter.is_embedding_or_output_parameter for parameter in chunk.module.embedding.side.parameters()}
        found = {**step(chunk, numbers), "adam": torch.tensor(marks == {True})}
    if torch.distributed.get_rank() == 0:
        torch.save(found, folder / f"tp{tp}.pt")
    torch.distributed.destroy_process_group()


def spawn(words: list[str], world: int, at: pathlib.Path) -> str:
    """Runs a program as so many ranks; its output, of the last rank."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    common |= {"PYTHONPATH": f"{at}:{TOOLS}", "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    port = 20000 + os.getpid() % 20000
    spawn.count = getattr(spawn, "count", 0) + 1
    ranks = []
    for number in range(world):
        here = {**common, "MASTER_PORT": str(port + spawn.count), "RANK": str(number), "LOCAL_RANK": str(number)}
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen([sys.executable, "-W", "ignore", *words], cwd=at, env=here, **pipe))
    out = [one.communicate()[0] for one in ranks]
    if any(one.returncode for one in ranks):
        raise RuntimeError("\n".join([" ".join(words), *(text[-3000:] for text in out)]))
    return out[-1]


def splits_alike(at: pathlib.Path, said: list[str]) -> None:
    for tp in (2, 1):
        spawn([__file__, *said, "--rank", str(tp), str(at)], tp, at)
    two, one = (torch.load(at / f"tp{tp}.pt") for tp in (2, 1))
    for name in one:
        far = furthest(two[name].float(), one[name].float())
        tell(f"tp 2 saved and tp 1 loaded: {name}", far < (FORWARD if name == "loss" else GRADIENT), f"{far:.1e}")
    tell("Adam takes the tables", bool(one["adam"]))


def documents(at: pathlib.Path) -> tuple[str, list[str]]:
    """Tokens in Megatron's form, and two streams of ids that are functions of them."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    draw = numpy.random.default_rng(0)
    texts = [draw.integers(1, 100, size=size) for size in (3, 17, 40, 5, 64, 101)]
    paths = []
    for name, made in (("text", lambda t: t), ("kind", lambda t: t % 9), ("level", lambda t: t % 16)):
        builder = IndexedDatasetBuilder(f"{at / name}.bin", dtype=numpy.int32)
        for text in texts:
            builder.add_document(torch.tensor(made(text)), [len(text)])
        builder.finalize(f"{at / name}.idx")
        paths.append(str(at / name))
    return paths[0], paths[1:]


def ids_lie_beside_tokens(at: pathlib.Path, text: str) -> None:
    from types import SimpleNamespace

    import cpu_megatron

    cpu_megatron.ready()
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split
    from shardwright_megatron import side_data
    from shardwright_megatron.side_embeddings import given_rows, settings

    tokenizer = SimpleNamespace(eod=0, pad=-1, vocab_size=128, unique_identifiers={})
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=TIME, split="100,0,0", path_to_cache=str(at / "cache"), tokenizer=tokenizer,
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
        blend=([text], None), mid_level_dataset_surplus=0.005,
    )  # fmt: skip
    tokens = IndexedDataset(text)
    data = side_data.StructureDataset(tokens, text, numpy.arange(6), 40, Split.train, config)
    samples = [data[index] for index in range(len(data))]
    right = all(torch.equal(s["structure_ids"], torch.stack([s["tokens"] % 9, s["tokens"] % 16], -1)) for s in samples)
    tell("ids lie beside their tokens", right and len(samples) > 20, f"{len(samples)} samples")
    side = next(side for side in settings().sides if side.name == "structure")
    tell("too large an id is the largest", given_rows(side, torch.tensor([[[99, 99]]])).tolist() == [[[8, 24]]])
    try:
        side_data._beside(IndexedDataset(settings().streams[text][0]), str(at / "short"))
        tell("a stream of other lengths is refused", False)
    except ValueError as refusal:
        tell("a stream of other lengths is refused", "other documents or lengths" in str(refusal))


def shorter(at: pathlib.Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{at / 'short'}.bin", dtype=numpy.int32)
    builder.add_document(torch.tensor([1, 2]), [2])
    builder.finalize(f"{at / 'short'}.idx")


JOB = """--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec --hybrid-layer-pattern *-*-/*-
--hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --normalization RMSNorm --squared-relu --disable-bias-linear
--seq-length 16 --max-position-embeddings 16 --position-embedding-type rope --vocab-size 128 --tokenizer-type NullTokenizer
--make-vocab-size-divisible-by 2 --untie-embeddings-and-output-weights --micro-batch-size 2 --global-batch-size 4 --train-iters 2
--eval-iters 0 --eval-interval 1000 --lr 1e-3 --lr-decay-iters 2 --lr-warmup-iters 0 --split 100,0,0 --log-interval 1
--use-distributed-optimizer --transformer-impl local --no-rope-fusion --no-gradient-accumulation-fusion --no-persist-layer-norm
--no-masked-softmax-fusion --num-workers 0 --distributed-backend gloo --ckpt-format torch_dist --save-interval 2
--no-create-attention-mask-in-dataloader --no-bias-swiglu-fusion --mtp-num-layers 1""".split()


def trains(at: pathlib.Path, name: str, world: int, more: list[str]) -> None:
    saved = at / f"saved-{name}"
    entry = str(at / "shardwright_megatron/pretrain.py")
    out = spawn([str(TOOLS / "latent_megatron.py"), entry, *JOB, *more, "--save", str(saved)], world, at)
    losses = [float(line.split("lm loss: ")[1].split(" ")[0]) for line in out.splitlines() if "lm loss: " in line]
    is_saved = (saved / "latest_checkpointed_iteration.txt").read_text() == "2"
    tell(f"Megatron's trainer, {name}", len(losses) == 2 and numpy.isfinite(losses).all() and is_saved, f"losses {losses}")


def main() -> None:
    sys.path[:0] = [str(TOOLS)]
    assets, numbers = pathlib.Path(sys.argv[1]).absolute(), json.loads(pathlib.Path(sys.argv[2]).read_text())
    if "--rank" in sys.argv:
        return rank(int(sys.argv[-2]), pathlib.Path(sys.argv[-1]), numbers)
    if "--data" in sys.argv:
        ids_lie_beside_tokens(pathlib.Path.cwd(), sys.argv[-1])
        sys.exit(failed > 0)
    lm = str(pathlib.Path(sys.argv[3]).absolute()) if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as made:
        hashed, given = pathlib.Path(made) / "hashed", pathlib.Path(made) / "given"
        package(assets, hashed, numbers, lm, {})
        sys.path.insert(0, str(hashed))
        equals_the_runtime(numbers)
        stays_in_documents()
        said = [str(assets), str(pathlib.Path(sys.argv[2]).absolute())]
        splits_alike(hashed, said)
        given.mkdir()
        text, streams = documents(given)
        shorter(given)
        package(assets, given, numbers, lm, {text: streams})
        out = spawn([__file__, *said, "--data", text], 1, given)
        print("\n".join(line for line in out.splitlines() if line.startswith(("ok ", "WRONG "))))
        if lm:
            trains(hashed, "made-up data, tp 2", 2, ["--mock-data", "--tensor-model-parallel-size", "2", "--sequence-parallel"])
            real = ["--data-path", text, "--data-cache-path", str(given / "cache")]
            trains(given, "structure from data, pp 2", 2, [*real, "--pipeline-model-parallel-size", "2", "--hybrid-layer-pattern", "*-|*-/*-"])
        else:
            print("skipped: the trainer itself, without a folder of Megatron-LM's scripts")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
