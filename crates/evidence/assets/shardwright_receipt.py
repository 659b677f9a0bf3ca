"""Writes down what a training run does, for `shardwright receipt record`: one JSON object a line.

Imported by a training script; needs nothing but Python 3.9, and torch where it is there:

    import shardwright_receipt
    receipt = shardwright_receipt.Receipt("logs/hook.jsonl")    # rank 0 writes; the file is appended to
    receipt.watch(model, every=100)                             # norms by layer, every hundredth step
    for batch in data:
        ...
        optimizer.step()
        receipt.step(loss=loss, grad_norm=norm, samples=len(batch))
    receipt.end()

A step's seconds are those since the last one ended, or since `Receipt` was made. Calling `step` waits for the device.
`watch` costs a reduction for every tensor on steps that it looks at, and nothing on others.

Norms are of whole logical tensors: an activation's over all ranks and microbatches of a step, a gradient's after it was
reduced. Ranks that hold the same activation are counted once if `replicas` says how many do; a parameter that is a
DTensor is whole by itself, and of any other that is one part `shard_group(name, parameter)` names the process group that
holds the rest. Call `step` on every rank: norms are summed over them.

Paths are those of `shardwright splits`: `layers.7`, `layers.7.mlp.fc1.weight`, `head.weight`. `logical` knows how
Megatron-Core, Hugging Face and programs of ours call them; `names=` takes a function of your own, from a module's or
parameter's path to ours, or to None for what is not to be looked at.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import platform
import re
import sys
import time

SCHEMA = "shardwright/hook/1"
EVENTS = (
    "start", "setup", "compile", "checkpoint-saved", "checkpoint-loaded", "evaluation", "straggler",
    "allocation-retry", "out-of-memory", "failure", "end",
)  # fmt: skip
PACKAGES = (
    "torch", "megatron-core", "transformer-engine", "flash-attn", "flash-attn-3", "deepspeed", "torchtitan", "nanotron",
    "transformers", "triton", "mamba-ssm", "torchao", "nvidia-nccl-cu12", "nvidia-cudnn-cu12",
)  # fmt: skip

try:
    import torch
except ImportError:
    torch = None


class Receipt:
    """One run as lines of a file. Only `ranks` write; every rank may call everything."""

    def __init__(self, path="shardwright.jsonl", ranks=(0,), engine=None):
        self.rank, self.world = _number("RANK"), _number("WORLD_SIZE", 1)
        self.file = None
        if self.rank in ranks:
            path = str(path).replace("{rank}", str(self.rank))
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            self.file = open(path, "a", encoding="utf-8")
        self.number, self.is_over, self.watched, self.has_looked = 0, False, None, False
        self.began = time.perf_counter()
        self.write(
            "start", world=self.world, attempt=_number("TORCHELASTIC_RESTART_COUNT"), versions=versions(),
            machine=machine(), **({"engine": engine} if engine else {}),
        )  # fmt: skip
        atexit.register(self._left)
        self.hooked, sys.excepthook = sys.excepthook, self._failed

    def write(self, kind, **figures):
        """One line; what is no number is written as a word, since JSON has none for it."""
        if self.file is None:
            return
        line = {"schema": SCHEMA, "kind": kind, "rank": self.rank, "at": time.time(), **figures}
        self.file.write(json.dumps(_plain(line), allow_nan=False) + "\n")
        self.file.flush()

    def step(self, number=None, loss=None, grad_norm=None, **figures):
        """A step of the optimizer is over. Further figures: samples, tokens_per_second, learning_rate, skipped, others,
        and seconds where they are known otherwise."""
        if torch is not None and torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.number = self.number + 1 if number is None else int(number)
        figures.setdefault("seconds", now - self.began)
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is not None:
                figures[name] = float(value.detach() if hasattr(value, "detach") else value)
        figures["nan"] = any(not math.isfinite(figures[name]) for name in ("loss", "grad_norm") if name in figures)
        if self.watched is not None and not self.has_looked:
            self.watched.finish(self, self.number)
        self.has_looked = False
        self.write("step", number=self.number, **figures)
        self.memory("step", self.number)
        self.began = time.perf_counter()

    def look(self, number=None):
        """Norms of the step that `step` will end, for loops that clear gradients before they call it."""
        if self.watched is not None:
            self.watched.finish(self, self.number + 1 if number is None else int(number))
            self.has_looked = True

    def beside(self, event, step=None, detail=""):
        """Something beside steps took the time since the last one: no step's seconds count it."""
        now = time.perf_counter()
        self.event(event, seconds=now - self.began, step=step, detail=detail)
        self.began = now

    def memory(self, phase, step=None):
        """What torch's allocator holds, and the device in all; peaks are since the last reset, which this is none of."""
        if self.file is None or torch is None or not torch.cuda.is_available():
            return
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        figures = {
            "allocated": stats["allocated_bytes.all.current"],
            "allocated_peak": stats["allocated_bytes.all.peak"],
            "reserved": stats["reserved_bytes.all.current"],
            "reserved_peak": stats["reserved_bytes.all.peak"],
            "device_used": total - free,
            "retries": stats["num_alloc_retries"],
        }
        self.write("memory", phase=phase, **({} if step is None else {"step": step}), **figures)

    def event(self, event, seconds=None, step=None, detail=""):
        """Something beside steps; one of `EVENTS`."""
        if event not in EVENTS:
            raise ValueError(f"{event!r} is none of {', '.join(EVENTS)}")
        figures = {"seconds": seconds, "step": step, "detail": detail or None}
        self.write("event", event=event, **{key: value for key, value in figures.items() if value is not None})

    def ran(self, what, value):
        """What was really dispatched: ran("attention", "flash_attn_3")."""
        self.write("ran", what=str(what), value=str(value))

    def watch(self, model, every=1, names=None, replicas=1, shard_group=None):
        """Looks at a model's activations, their gradients, and its parameters' gradients on every so many steps."""
        self.watched = Watched(self, model, every, names or logical, replicas, shard_group)

    def end(self, status="finished", detail=""):
        """The run is over; without it, how the process ended is what is written."""
        if not self.is_over:
            self.is_over = True
            self.write("end", status=status, **({"detail": detail} if detail else {}))

    def failed(self, error):
        """The run ends by this exception. One that nobody catches is written down without this."""
        if self.is_over:
            return
        text = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        is_memory = "OutOfMemory" in type(error).__name__ or "out of memory" in text
        self.event("out-of-memory" if is_memory else "failure", step=self.number + 1, detail=text)
        self.end("failed", text)

    def _left(self):
        self.end("ended" if self.number else "failed", "the process ended without saying so")

    def _failed(self, kind, value, traceback):
        self.failed(value)
        self.hooked(kind, value, traceback)


class Watched:
    """Norms of one model, gathered through a step and written at its end."""

    def __init__(self, receipt, model, every, names, replicas, shard_group):
        self.every, self.names, self.replicas, self.shard_group = max(1, every), names, replicas, shard_group
        self.sums, self.model, self.receipt = {}, model, receipt
        self.is_looking = self._is_next(receipt.number + 1)
        attention = set()
        for name, module in model.named_modules():
            path = names(_numbered(name, module))
            if path is not None and BLOCK.fullmatch(path):
                module.register_forward_hook(self._hook(path))
            backend = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if isinstance(backend, str):
                attention.add(backend)
        if attention:
            receipt.ran("attention", "+".join(sorted(attention)))

    def _is_next(self, number):
        return number == 1 or number % self.every == 0

    def _hook(self, path):
        def forward(module, _inputs, output):
            if not self.is_looking or not module.training:
                return
            tensor = output[0] if isinstance(output, (tuple, list)) else output
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                return
            # A block that backward computes again has been counted.
            if torch._C._current_graph_task_id() == -1:
                self._add(path, "activation", tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(lambda grad: self._add(path, "activation-gradient", grad.detach()))

        return forward

    def _add(self, path, kind, tensor):
        found = _sums(tensor)
        before = self.sums.get((path, kind))
        self.sums[(path, kind)] = found if before is None else before + found

    def finish(self, receipt, number):
        """Sums over ranks, norms written by whoever writes, and whether the next step is looked at."""
        if self.is_looking:
            self._write(receipt, number)
        self.sums = {}
        self.is_looking = self._is_next(number + 1)

    def _write(self, receipt, number):
        grads = {}
        for name, parameter in self.model.named_parameters():
            grad = getattr(parameter, "main_grad", None)
            grad = parameter.grad if grad is None else grad
            path = self.names(_owner_numbered(self.model, name))
            if grad is not None and path is not None:
                group = self.shard_group(name, parameter) if self.shard_group else None
                found = _whole(grad.detach(), group)
                before = grads.get(path)
                grads[path] = found if before is None else before + found
        replicas = max(1, self.replicas)
        ranks = receipt.world / replicas
        spread, reduced = _over_ranks(self.sums, grads)
        for (path, kind), (total, nonfinite) in spread.items():
            # Every rank's loss is a mean over its own samples; the step's is the mean over ranks.
            total = total / ranks**2 if kind == "activation-gradient" else total
            self._line(receipt, number, path, kind, total / replicas, round(nonfinite / replicas))
        for path, (total, nonfinite) in reduced.items():
            self._line(receipt, number, path, "gradient", total, int(nonfinite))

    @staticmethod
    def _line(receipt, number, path, kind, total, nonfinite):
        norm = math.sqrt(total) if math.isfinite(total) else None
        receipt.write("tensor", step=number, path=path, tensor=kind, norm=norm, nonfinite=nonfinite)


# ---- names

BLOCK = re.compile(r"layers\.\d+|embedding|head|final")

# What a module is called in other programs, piece by piece, behind `layers.N.`; the first that matches counts.
PIECES = (
    (r"(self_attention\.linear_qkv\.layer_norm|self_attention\.linear_q_down_proj\.layer_norm)\.", "attention.norm."),
    (r"mlp\.linear_fc1\.layer_norm\.", "mlp.norm."),
    (r"mixer\.in_proj\.layer_norm\.", "mamba.norm."),
    (r"(self_attention|self_attn|attn)\.(linear_qkv|qkv_proj|qkv|query_key_value)\.", "attention.qkv."),
    (r"(self_attention|self_attn|attn)\.(linear_proj|o_proj|out|dense|wo)\.", "attention.out."),
    (r"attention\.(wo|out_proj)\.", "attention.out."),
    (r"(self_attention|self_attn)\.(q_proj|k_proj|v_proj)\.", "attention.qkv."),
    (r"attention\.(qkv_linear\.)?(wqkv|wq|wk|wv)\.", "attention.qkv."),
    (r"(input_layernorm|attention_norm)\.", "attention.norm."),
    (r"mlp\.router\.|mlp\.gate\.|moe\.router\.(gate\.)?", "moe.router."),
    (r"mlp\.experts\.(linear_fc1|local_experts\.\d+\.linear_fc1|\d+\.(gate_proj|up_proj))\.", "moe.experts.fc1."),
    (r"mlp\.experts\.(linear_fc2|local_experts\.\d+\.linear_fc2|\d+\.down_proj)\.", "moe.experts.fc2."),
    (r"mlp\.shared_experts?\.(linear_fc1|gate_proj|up_proj)\.", "moe.shared.fc1."),
    (r"mlp\.shared_experts?\.(linear_fc2|down_proj)\.", "moe.shared.fc2."),
    (r"(mlp\.(linear_fc1|gate_proj|up_proj)|feed_forward\.(w1|w3))\.", "mlp.fc1."),
    (r"(mlp\.(linear_fc2|down_proj)|feed_forward\.w2)\.", "mlp.fc2."),
    (r"(pre_mlp_layernorm|post_attention_layernorm|ffn_norm)\.", "mlp.norm."),
    (r"mixer\.", "mamba."),
)


def logical(path):
    """A module's or parameter's path as `shardwright splits` calls it, from Megatron-Core's, Hugging Face's,
    torchtitan's or ours; None where it is none of these. Matrices that others keep in pieces become one: their squares
    add up."""
    path = re.sub(r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.|$)", "", path)
    path = re.sub(r"^\.|^(model|decoder|language_model|backbone|transformer)\.", "", path)
    path = re.sub(r"^(model|decoder)\.", "", path)
    for words, ours in (
        (r"(embedding\.word_embeddings|embed_tokens|tok_embeddings|embeddings|wte|embedding\.tokens)", "embedding.tokens"),
        (r"(output_layer|lm_head|output|head)", "head"),
        (r"(final_layernorm|final_norm|norm|norm_f|ln_f|final\.norm)", "final.norm"),
    ):
        found = re.fullmatch(words + r"(\.weight)?", path)
        if found:
            return ours + ".weight" if path.endswith(".weight") else ours.split(".")[0]
    found = re.match(r"(layers|h|blocks)\.(\d+)(\.|$)", path)
    if not found:
        return None
    layer, rest = f"layers.{int(found.group(2))}", path[found.end() :]
    if not rest:
        return layer
    if not re.search(r"\.(weight|bias)\d*$|\.(D|A_log|dt_bias|B_bias|C_bias|state_weight)$|layer_norm_weight$", rest):
        return None
    rest = re.sub(r"layer_norm_weight$", "layer_norm.weight", re.sub(r"(weight|bias)\d+$", r"\1", rest))
    for words, ours in PIECES:
        renamed, count = re.subn("^(" + words + ")", ours, rest)
        if count:
            return f"{layer}.{renamed}"
    return f"{layer}.{rest}"


def _numbered(name, module):
    """Layers of a pipeline stage of Megatron's count from zero on every stage; the module knows its place, from one."""
    number = getattr(module, "layer_number", None)
    found = re.fullmatch(r"(.*layers\.)\d+", name)
    return f"{found.group(1)}{number - 1}" if found and isinstance(number, int) else name


def _owner_numbered(model, name):
    found = re.match(r"(.*?layers\.\d+)(\..*)", name)
    if not found:
        return name
    try:
        return _numbered(found.group(1), model.get_submodule(found.group(1))) + found.group(2)
    except AttributeError:
        return name


# ---- sums


def _sums(tensor):
    """The sum of squares of what is finite, and how many elements are not, in double precision."""
    tensor = tensor.double()
    is_finite = torch.isfinite(tensor)
    squares = torch.where(is_finite, tensor, torch.zeros_like(tensor)).square().sum()
    return torch.stack((squares, (~is_finite).sum().double()))


def _whole(tensor, group):
    """The same of a parameter's gradient that ranks hold parts of."""
    local = getattr(tensor, "to_local", None)
    if local is not None:
        sums = _sums(local())
        # A DTensor is cut along some axes of its mesh and copied along others.
        for axis, placement in enumerate(tensor.placements):
            if placement.is_shard():
                torch.distributed.all_reduce(sums, group=tensor.device_mesh.get_group(axis))
        return sums
    sums = _sums(tensor)
    if group is not None:
        torch.distributed.all_reduce(sums, group=group)
    return sums


def _over_ranks(spread, reduced):
    """Every rank's sums of what ranks hold parts of, added, and what each rank has whole, once. Ranks of a pipeline hold
    different layers: who lacks one adds nothing."""
    mine = [{key: tuple(sums.tolist()) for key, sums in all.items()} for all in (spread, reduced)]
    is_one = not torch.distributed.is_available() or not torch.distributed.is_initialized()
    if is_one or torch.distributed.get_world_size() == 1:
        return mine
    all_ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(all_ranks, mine)
    total, once = {}, {}
    for parts, whole in all_ranks:
        for key, (squares, nonfinite) in parts.items():
            before = total.get(key, (0.0, 0.0))
            total[key] = (before[0] + squares, before[1] + nonfinite)
        for key, sums in whole.items():
            once.setdefault(key, sums)
    return total, once


# ---- who runs


def versions():
    """Versions of what is installed among `PACKAGES`, and Python's."""
    from importlib import metadata

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    if torch is not None:
        found.setdefault("torch", str(torch.__version__))
        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
    return found


def machine():
    found = {"host": platform.node(), "system": f"{platform.system()} {platform.release()}"}
    if torch is not None and torch.cuda.is_available():
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        found.update(device=about.name, device_bytes=str(about.total_memory), count=str(torch.cuda.device_count()))
    return found


def _number(name, otherwise=0):
    try:
        return int(os.environ.get(name, otherwise))
    except ValueError:
        return otherwise


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
