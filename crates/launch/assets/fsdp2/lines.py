"""What a run prints of itself, as `shardwright receipt` reads it (format `shardwright`). No framework is imported here."""

from __future__ import annotations

from typing import NamedTuple


class Peak(NamedTuple):
    """The most bytes that one rank held so far: the rank that held most."""

    name: str
    bytes: int
    rank: int


def start(versions: dict[str, str], world: int, device: str) -> str:
    """The first line: what runs, on how many devices of which kind."""
    pairs = " ".join(f"{name} {version}" for name, version in versions.items())
    return f"starts {pairs} world {world} device {device}"


def fullest(held: list[tuple[int, ...]], names: tuple[str, ...]) -> list[Peak]:
    """Of each figure the largest of all ranks; `held` is by rank."""
    ranks = [max(range(len(held)), key=lambda rank, at=at: held[rank][at]) for at in range(len(names))]
    return [Peak(name, held[rank][at], rank) for at, (name, rank) in enumerate(zip(names, ranks))]


def step(number: int, loss: float, seconds: float, tokens: int, norm: float | None = None, peaks: list[Peak] | None = None) -> str:
    """The line of a step: pairs of a name and a figure; bytes are whole, and their rank follows them."""
    pairs = [f"step {number} loss {loss:.6f}"]
    if norm is not None:
        pairs.append(f"grad_norm {norm:.6g}")
    pairs.append(f"seconds {seconds:.6f} tokens_per_second {tokens / seconds:.6g}")
    pairs += [f"{peak.name} {peak.bytes} rank {peak.rank}" for peak in peaks or []]
    return " ".join(pairs)
