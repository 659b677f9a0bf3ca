"""check_mamba3.py SOURCES [--write]: Mamba-3 of the FSDP2 program and of the Megatron package against the published module.

SOURCES is mamba_ssm 2.3.2.post1's source distribution, unpacked. Its kernels run in fp32 under Triton's interpreter
(`mamba3_published.py`), so Python wants -O. Then the Megatron mixer at tp 2 against tp 1, with a checkpoint saved
at one degree and loaded at the other. `data/engines/parity/mamba3_published.json` holds the published module's loss and
gradients in a small model, which the runtime is held to; it is checked here, or written.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import pickle
import sys
import tempfile

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASSETS, FIXTURE = ROOT / "crates/launch/assets", ROOT / "data/engines/parity/mamba3_published.json"
FORWARD, BACKWARD = 1e-5, 1e-4
HIDDEN, BATCH, LENGTH = 32, 2, 40
SIZES = {"heads": 4, "head_dim": 16, "state": 16, "groups": 2, "angles": 4, "chunk": 16, "norm_eps": 1e-5}
SEGMENT_NAMES, SEGMENTS = ["z", "x", "B", "C", "dt", "A", "trap"], [64, 64, 32, 32, 4, 4, 4]


def drawn(path: str, shape: tuple[int, ...], number: int) -> torch.Tensor:
    """Made-up weights that integers decide, in every language alike: within 1/2 of 1 for norms and D, of 0 for others."""
    count = 1
    for width in shape:
        count *= width
    at = torch.arange(count, dtype=torch.int64)
    values = ((at * 40503 + (number + 1) * 30011) % 65521).double() / 65521 - 0.5
    return (values + (1.0 if "norm" in path or path.endswith(".D") else 0.0)).reshape(shape).float()


def weights() -> dict[str, torch.Tensor]:
    """Of one block, by our names."""
    inner, heads, state = SIZES["heads"] * SIZES["head_dim"], SIZES["heads"], SIZES["state"]
    shapes = {
        "in_proj.weight": (sum(SEGMENTS), HIDDEN),
        "angle_proj.weight": (SIZES["angles"], HIDDEN),
        "dt_bias": (heads,),
        "B_bias": (heads, 1, state),
        "C_bias": (heads, 1, state),
        "B_norm.weight": (state,),
        "C_norm.weight": (state,),
        "D": (heads,),
        "out_proj.weight": (HIDDEN, inner),
    }
    named = {path: drawn(path, shape, number) for number, (path, shape) in enumerate(shapes.items())}
    # Rates so far below zero that some decays are at the floor, and steps of the usual size.
    named["in_proj.weight"].split(SEGMENTS)[SEGMENT_NAMES.index("A")].mul_(3)
    named["dt_bias"] -= 3
    return named


class Published(nn.Module):
    """The published module under our names: its input projection is our two."""

    def __init__(self, sources: str):
        super().__init__()
        import mamba3_published

        expand = SIZES["heads"] * SIZES["head_dim"] // HIDDEN
        sizes = {"d_state": SIZES["state"], "headdim": SIZES["head_dim"], "ngroups": SIZES["groups"], "chunk_size": SIZES["chunk"]}
        self.module = mamba3_published.module(sources)(HIDDEN, expand=expand, **sizes)
        self.names = list(weights())

    def forward(self, x: torch.Tensor, named: dict[str, torch.Tensor]) -> torch.Tensor:
        named = dict(named)
        named["in_proj.weight"] = torch.cat([named["in_proj.weight"], named.pop("angle_proj.weight")])
        return torch.func.functional_call(self.module, named, (x,))


def outcome(act, x: torch.Tensor, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Output and gradients of a fixed weighing of it."""
    x = x.clone().requires_grad_()
    named = {path: value.clone().requires_grad_() for path, value in named.items()}
    y = act(x, named)
    (y * weighing(y.shape)).sum().backward()
    return {"output": y.detach(), "input": x.grad, **{path: value.grad for path, value in named.items()}}


def weighing(shape: tuple[int, ...]) -> torch.Tensor:
    return drawn("weighing", tuple(shape), 101)


def given() -> torch.Tensor:
    """Normed input, [batch, sequence, hidden]."""
    return F.rms_norm(drawn("input", (BATCH, LENGTH, HIDDEN), 100), (HIDDEN,))


def fsdp2(x: torch.Tensor, named: dict[str, torch.Tensor]) -> torch.Tensor:
    sys.path.insert(0, str(ASSETS / "fsdp2"))
    import model

    multipliers = {"ssm_in": 1.0, "ssm_out": 1.0}
    block = model.Mamba3({"hidden": HIDDEN, "norm_eps": SIZES["norm_eps"], "norm": "rmsnorm", "multipliers": multipliers, "mamba": SIZES})
    block.norm = nn.Identity()
    return torch.func.functional_call(block, named, (x,))


def scanned(scan, number: int) -> dict[str, torch.Tensor]:
    """Output and gradients of the Megatron package's scan over made-up inputs."""
    from shardwright_megatron import mamba3_scan

    heads, width, state, groups = (SIZES[key] for key in ("heads", "head_dim", "state", "groups"))
    shapes = {name: (BATCH, LENGTH, groups, state) for name in "cb"} | {name: (BATCH, LENGTH, heads, width) for name in "xz"}
    shapes |= {name: (BATCH, heads, LENGTH) for name in ("decay", "dt", "trap")}
    shapes |= {"c_bias": (heads, state), "b_bias": (heads, state), "d": (heads,), "angles": (BATCH, LENGTH, SIZES["angles"])}
    inputs = {name: drawn(name, shape, number + at) for at, (name, shape) in enumerate(shapes.items())}
    inputs["dt"], inputs["decay"] = inputs["dt"] + 0.6, inputs["decay"] - 0.6
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    y = scan(mamba3_scan.Inputs(**inputs), SIZES["chunk"])
    (y * weighing(y.shape)).sum().backward()
    return {"output": y.detach(), **{name: value.grad for name, value in inputs.items()}}


def check_kernels(checks: Checks) -> None:
    """The package's call of the kernels, which the interpreter runs in fp32 on a CPU, against its program in torch."""
    with tempfile.TemporaryDirectory() as folder:
        package(folder)
        from shardwright_megatron import mamba3_scan

        wanted = scanned(mamba3_scan.scan, 200)
        mamba3_scan.refused = lambda *_: None
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        checks.same("the kernels as the package calls them, as its chunked program", scanned(mamba3_scan.scan, 200), wanted)
        check_configurations(checks, mamba3_scan)


def check_configurations(checks: Checks, mamba3_scan) -> None:
    """Which configurations are tuned over on Hopper and elsewhere: none of them pipelined."""
    from mamba_ssm.ops.triton.mamba3 import angle_dt, mamba3_siso_bwd, mamba3_siso_fwd

    kernels = {name: k for file in (angle_dt, mamba3_siso_bwd, mamba3_siso_fwd) for name, k in vars(file).items() if hasattr(k, "configs")}
    whole = {name: kernel.whole for name, kernel in kernels.items()}
    for capability, at_most in (((9, 0), 4), ((10, 0), 99)):
        torch.cuda.get_device_capability = lambda *_, found=capability: found
        for name, kernel in kernels.items():
            kernel.configs = whole[name]
        mamba3_scan.narrow()
        left = {name: kernel.configs for name, kernel in kernels.items()}
        is_right = all(0 < len(some) <= at_most and all(one.num_stages == 1 for one in some) for some in left.values())
        measured = {name for name, some in left.items() if len(some) == 1} >= set(mamba3_scan.FASTEST)
        checks.tell(f"configurations on {capability}", is_right and (measured or at_most > 4) and len(left) > 5, str({n: len(c) for n, c in left.items()}))


class Checks:
    def __init__(self):
        self.count = self.wrong = 0

    def tell(self, name: str, is_right: bool, detail: str = "") -> None:
        self.count, self.wrong = self.count + 1, self.wrong + (not is_right)
        print(f"{'ok' if is_right else 'WRONG'} {name}{f': {detail}' if detail else ''}", flush=True)

    def same(self, name: str, got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
        assert_same_keys = got.keys() ^ wanted.keys()
        far = {path: float((got[path] - value).abs().max() / value.abs().max()) for path, value in wanted.items() if path in got}
        worst = max((path for path in far if path != "output"), key=far.get)
        is_right = not assert_same_keys and far["output"] <= FORWARD and far[worst] <= BACKWARD
        self.tell(name, is_right, f"output {far['output']:.1e}, gradients {far[worst]:.1e} ({worst})")


# The Megatron mixer, in processes of its own.


def megatron(rank: int, world: int, jobs: list[dict], folder: str) -> None:
    """Leaves what rank 0 found in a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    # Megatron asks for a GPU's name, and waits for it before it saves.
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    package(folder)
    import megatron.core.parallel_state as state
    import torch.distributed as dist

    store = dist.FileStore(f"{folder}/store-{world}", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    state.initialize_model_parallel(world)
    found = [Rank(world, settings).run(folder) for settings in jobs]
    if rank == 0:
        torch.save(found, f"{folder}/found-{world}.pt")
    dist.barrier()
    dist.destroy_process_group()


def package(folder: str) -> None:
    """Makes the emitted package importable under its name."""
    link = pathlib.Path(folder) / "shardwright_megatron"
    if not link.exists():
        try:
            link.symlink_to(ASSETS / "megatron")
        except FileExistsError:
            pass
    sys.path.insert(0, folder)


class Rank:
    """One rank with a mixer of the weights above."""

    def __init__(self, world: int, settings: dict):
        from megatron.core.process_groups_config import ProcessGroupCollection
        from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
        from megatron.core.transformer import TransformerConfig
        from shardwright_megatron import mamba3

        self.settings, self.sp = settings, settings.get("sp", False)
        shape = {"num_layers": 1, "hidden_size": HIDDEN, "num_attention_heads": 4, "normalization": "RMSNorm"}
        self.config = TransformerConfig(
            use_cpu_initialization=True, tensor_model_parallel_size=world, sequence_parallel=self.sp, **shape
        )
        self.groups = ProcessGroupCollection.use_mpu_process_groups()
        self.mixer = mamba3.Mamba3Mixer(
            self.config,
            mamba3.Mamba3Submodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
            d_model=HIDDEN,
            layer_number=1,
            pg_collection=self.groups,
            sizes=SIZES,
        )
        self.tp, self.rank = world, self.groups.tp.rank()

    def run(self, folder: str) -> dict:
        if self.settings.get("loads"):
            self.load(folder)
        else:
            self.copy(weights())
        if self.settings.get("saves"):
            self.save(folder)
        is_decaying = {name: not getattr(p, "_no_weight_decay", False) for name, p in self.mixer.named_parameters()}
        return {**self.outcome(), "is_decaying": is_decaying, "pickled": self.pickled(), "refused": self.refused()}

    def refused(self) -> list[str]:
        """What the mixer says of layouts that it does not run."""
        from types import SimpleNamespace

        from shardwright_megatron import mamba3

        said = []
        for cp, fp8, tp in [(2, None, 1), (1, None, 3), (1, "hybrid", 1)]:
            try:
                mamba3.check(SimpleNamespace(context_parallel_size=cp, fp8=fp8), SIZES, tp)
            except ValueError as refusal:
                said.append(str(refusal))
        return said

    def pickled(self) -> list[str]:
        """The sizes of a layer's spec that went through a pickle."""
        from shardwright_megatron import mamba3

        spec = pickle.loads(pickle.dumps(mamba3.layer_spec(SIZES, use_te=False)))
        return sorted(spec.submodules.mixer.params["sizes"])

    def part(self, path: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole tensor, cut by the rules of the plan."""
        if path == "in_proj.weight":
            return torch.cat([part.chunk(self.tp)[self.rank] for part in whole.split(SEGMENTS)])
        if path == "out_proj.weight":
            return whole.chunk(self.tp, 1)[self.rank]
        return whole.chunk(self.tp)[self.rank] if path in ("dt_bias", "B_bias", "C_bias", "D") else whole

    def copy(self, wholes: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for path, parameter in self.mixer.named_parameters():
                parameter.copy_(self.part(path, wholes[path]))

    def outcome(self) -> dict:
        """Output and gradients, whole: what Megatron sums over ranks after backward is summed here."""
        import torch.distributed as dist
        from torch.utils.checkpoint import checkpoint

        x, wanted = given().transpose(0, 1).contiguous(), weighing((BATCH, LENGTH, HIDDEN)).transpose(0, 1)
        if self.sp:
            x, wanted = (t.chunk(self.tp)[self.rank].contiguous() for t in (x, wanted))
        x.requires_grad_()
        y = checkpoint(lambda x: self.mixer(x)[0], x, use_reentrant=True) if self.settings.get("again") else self.mixer(x)[0]
        (y * wanted).sum().backward()
        found = {"output": self.whole_tokens(y.detach()), "input": self.whole_tokens(x.grad)}
        for path, parameter in self.mixer.named_parameters():
            if self.sp and getattr(parameter, "sequence_parallel", False):
                dist.all_reduce(parameter.grad)
            found[path] = self.whole(path, parameter.grad)
        return found

    def whole_tokens(self, t: torch.Tensor) -> torch.Tensor:
        return (torch.cat(self.all(t)) if self.sp else t).transpose(0, 1).contiguous()

    def all(self, t: torch.Tensor) -> list[torch.Tensor]:
        import torch.distributed as dist

        parts = [torch.empty_like(t) for _ in range(self.tp)]
        dist.all_gather(parts, t.contiguous())
        return parts

    def whole(self, path: str, grad: torch.Tensor) -> torch.Tensor:
        parts = self.all(grad)
        if path == "in_proj.weight":
            cut = [part.split([width // self.tp for width in SEGMENTS]) for part in parts]
            return torch.cat([torch.cat(same) for same in zip(*cut, strict=True)])
        if path == "out_proj.weight":
            return torch.cat(parts, 1)
        if path in ("dt_bias", "B_bias", "C_bias", "D"):
            return torch.cat(parts)
        for part in parts:
            if not torch.allclose(part, parts[0], rtol=1e-5, atol=1e-6):
                raise AssertionError(f"ranks hold {path} whole, and their gradients of it differ")
        return parts[0]

    def sharded(self) -> dict:
        return self.mixer.sharded_state_dict("mixer.", (), {"dp_cp_group": self.groups.dp_cp})

    def save(self, folder: str) -> None:
        from megatron.core import dist_checkpointing

        where = pathlib.Path(folder) / "checkpoint"
        where.mkdir(exist_ok=True)
        torch.distributed.barrier()
        dist_checkpointing.save(self.sharded(), str(where))

    def load(self, folder: str) -> None:
        from megatron.core import dist_checkpointing

        with torch.no_grad():
            for parameter in self.mixer.parameters():
                parameter.fill_(float("nan"))
        found = dist_checkpointing.load(self.sharded(), str(pathlib.Path(folder) / "checkpoint"))
        self.mixer.load_state_dict({name.removeprefix("mixer."): value for name, value in found.items()})


def ranks(world: int, folder: str, jobs: list[dict]) -> list[dict]:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=megatron, args=(rank, world, jobs, folder)) for rank in range(world)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        if worker.is_alive():
            worker.kill()
            worker.join()
    if any(worker.exitcode != 0 for worker in workers):
        raise RuntimeError(f"of {world} ranks, exit codes {[worker.exitcode for worker in workers]}")
    return torch.load(f"{folder}/found-{world}.pt")


def tensors(found: dict) -> dict[str, torch.Tensor]:
    return {path: value for path, value in found.items() if isinstance(value, torch.Tensor)}


def check_megatron(checks: Checks, wanted: dict[str, torch.Tensor]) -> None:
    names = {"sp": {"sp": True, "saves": True}, "no sp": {}, "sp, recomputed": {"sp": True, "again": True}}
    with tempfile.TemporaryDirectory() as folder:
        split = ranks(2, folder, list(names.values()))
        one, loaded = ranks(1, folder, [{}, {"loads": True}])
    checks.same("Megatron mixer, tp 1, as published", tensors(one), wanted)
    plain = [name for name, decays in one["is_decaying"].items() if not decays]
    checks.tell("without weight decay", sorted(plain) == ["D", "dt_bias"], ", ".join(plain))
    checks.tell("its spec pickles", one["pickled"] == sorted(SIZES), ", ".join(one["pickled"]))
    words = ["context_parallel_size is 2", "not a multiple of tensor_model_parallel_size 3", "fp8 wants multiples of 16"]
    is_refused = len(one["refused"]) == 3 and all(word in said for word, said in zip(words, one["refused"]))
    checks.tell("refuses what it does not run", is_refused, "; ".join(one["refused"]))
    for name, two in zip(names, split, strict=True):
        checks.same(f"Megatron mixer, tp 2, {name}, as tp 1", tensors(two), tensors(one))
    checks.same("saved at tp 2, loaded at tp 1", tensors(loaded), tensors(one))


# A small model around the published module, which the runtime is held to.

VOCAB, TOKENS = 11, 24
RECIPE = f"""name = "mamba3-published"
pattern = "M"
source = "made up; its numbers are the published module's"
hidden = {HIDDEN}
vocab = {VOCAB}
sequence = {TOKENS}
tied = false
norm_eps = 1e-5

[mamba]
kind = "mamba3"
heads = {SIZES["heads"]}
head_dim = {SIZES["head_dim"]}
state = {SIZES["state"]}
groups = {SIZES["groups"]}
angles = {SIZES["angles"]}
chunk = {SIZES["chunk"]}
"""


def small_model(published: Published) -> dict:
    """Loss and gradients: of each its length, and its product with made-up numbers."""
    shapes = {"embedding.tokens.weight": (VOCAB, HIDDEN), "final.norm.weight": (HIDDEN,), "head.weight": (VOCAB, HIDDEN)}
    shapes |= {"layers.0.mamba.norm.weight": (HIDDEN,)}
    shapes |= {f"layers.0.mamba.{path}": tuple(value.shape) for path, value in weights().items()}
    named = {path: drawn(path, shapes[path], number).requires_grad_() for number, path in enumerate(sorted(shapes))}
    rows = [[(7 * at * at + 3 * at + 5 * row) % VOCAB for at in range(TOKENS + 1)] for row in range(BATCH)]
    tokens = torch.tensor(rows)
    x = F.embedding(tokens[:, :-1], named["embedding.tokens.weight"])
    block = {path: named[f"layers.0.mamba.{path}"] for path in weights()}
    x = x + published(F.rms_norm(x, (HIDDEN,), named["layers.0.mamba.norm.weight"], 1e-5), block)
    logits = F.linear(F.rms_norm(x, (HIDDEN,), named["final.norm.weight"], 1e-5), named["head.weight"])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    said = {}
    for path, value in sorted(named.items()):
        grad = value.grad.double()
        along = (grad * drawn("weighing", tuple(grad.shape), 102).double()).sum()
        said[path] = [float(f"{number:.7g}") for number in (grad.norm().item(), along.item())]
    return {"source": "mamba_ssm 2.3.2.post1, by tools/engines/check_mamba3.py", "recipe": RECIPE, "tokens": rows, "loss": float(f"{loss.item():.7g}"), "gradients": said}


def check_fixture(checks: Checks, published: Published, is_written: bool) -> None:
    said = small_model(published)
    if is_written:
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in said.items())
        FIXTURE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    held = json.loads(FIXTURE.read_text(encoding="utf-8"))
    far = [abs(said["loss"] / held["loss"] - 1)]
    far += [abs(a - b) / held["gradients"][path][0] for path, both in said["gradients"].items() for a, b in zip(both, held["gradients"][path])]
    same = all(said[key] == held[key] for key in ("recipe", "tokens")) and said["gradients"].keys() == held["gradients"].keys()
    checks.tell("the runtime's fixture is the published module's", same and max(far) <= BACKWARD, f"worst difference {max(far):.1e}")


def main() -> None:
    checks = Checks()
    if __debug__:
        sys.exit("the published kernels assert that tensors are on a GPU: run python -O")
    published = Published(sys.argv[1])
    wanted = outcome(published, given(), weights())
    checks.same("FSDP2 block as published", outcome(fsdp2, given(), weights()), wanted)
    check_fixture(checks, published, "--write" in sys.argv)
    check_kernels(checks)
    check_megatron(checks, wanted)
    print(f"Mamba-3: {checks.count - checks.wrong} of {checks.count} as they should be")
    sys.exit(1 if checks.wrong else 0)


if __name__ == "__main__":
    main()
