"""The line that a program prints for a step: what `shardwright receipt` reads."""

from __future__ import annotations

import torch


def step_line(step: int, loss: float, norm: float, seconds: float, tokens: int, device: torch.device) -> str:
    """One step in one line; memory is the highest of this rank's device so far, in bytes, and zero without one."""
    said = f"step {step} loss {loss:.6f} norm {norm:.2f} seconds {seconds:.3f} tokens/s {tokens / max(seconds, 1e-9):.0f}"
    on_gpu = device.type == "cuda"
    allocated = torch.cuda.max_memory_allocated(device) if on_gpu else 0
    reserved = torch.cuda.max_memory_reserved(device) if on_gpu else 0
    return f"{said} allocated {allocated} reserved {reserved}"
