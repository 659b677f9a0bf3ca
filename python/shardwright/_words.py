"""Keywords of a case, by the part of a question they are of: the command line's flags with `_` for `-`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

RECIPE = ("with_", "without")
LAYOUT = (
    "world", "tp", "sp", "cp", "pp", "vpp", "ep", "etp", "dp", "zero", "mbs", "gbs", "microbatches", "seq", "schedule",
    "recompute", "mode", "boundaries", "balance", "engine", "vocab_multiple",
)  # fmt: skip
STATE = (
    "precision", "optimizer", "gradients", "ce_fusion", "fp8_param_gather", "offload_optimizer", "offload_params",
    "offload_nvme", "offload_activations", "documents", "engine_args",
)  # fmt: skip
BOUNDS = ("headroom", "work_limit")


class Flags(TypedDict, total=False):
    """What a case may say; what is left out is derived, and the answer says so."""

    with_: Sequence[str]
    """Features to switch on: mla, dsa, mtp, mhc, mod, engram, ngram_hash, structure, adapters."""
    without: Sequence[str]
    world: int
    tp: int
    sp: bool
    cp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    dp: int
    zero: int | str
    mbs: int
    gbs: int
    microbatches: int
    seq: int | str
    schedule: str
    recompute: str
    mode: str
    boundaries: Sequence[int]
    balance: str
    engine: str
    vocab_multiple: int
    precision: str
    optimizer: str
    gradients: str
    ce_fusion: bool
    fp8_param_gather: bool
    offload_optimizer: float
    offload_params: bool
    offload_nvme: str
    offload_activations: float
    documents: int | str
    """Lengths of documents in a sequence, as 512 or "512,512,8k"."""
    engine_args: str | Sequence[str]
    headroom: float | str
    """Memory to leave free on every rank: GiB, or "10%"."""
    work_limit: str
    """How much of this machine a question may take: "16GiB,10min", or "none"."""


class SearchFlags(Flags, total=False):
    """What a search may be told besides."""

    top: int
    explain: str
    stats: bool
    max_tp_in_node: bool


class FitFlags(TypedDict, total=False):
    """What a fit may be told besides the case."""

    overload: Sequence[float]
    levers: str
    """"no" for an answer sooner."""
    checklist: bool
    routing: bool
    trace: str
    memory_snapshot: str
    svg: str
    png: str


class LaunchFlags(TypedDict, total=False):
    """What a launch may be told besides the case."""

    lane: str
    frontend: str
    scheduler: str
    allow_seams: bool
    override_memory: bool
    policy: str
    attempt: str


class RehearseFlags(TypedDict, total=False):
    """What a rehearsal may be told besides the case."""

    steps: int
    dtype: str
    dims: str
    text: str
    seed: int
    save: str
    load: str
    stats: str
    receipts: str
    inject: str
    deadline: float
