"""Gradient clipping over the whole model, however it is split: each element counts once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from parallelize import Parallel
from pieces import held, local_of, named


class Clip:
    """Holds the norm of all gradients to a limit; zero is none. Needs a few scalars beside the gradients."""

    def __init__(self, run: Parallel, limit: float):
        self.device, self.limit = run.device, limit
        parameters = [(path, p) for path, p in named(run).items() if isinstance(p, nn.Parameter) and p.requires_grad]
        self.held = [(parameter, held(run, path, parameter).pieces) for path, parameter in parameters]

    @torch.no_grad()
    def __call__(self, scale: float = 1.0) -> torch.Tensor | None:
        """Takes the scale of the loss off the gradients, and scales them down where their norm is above the limit;
        gives the norm, which is no number where a gradient overflowed."""
        if self.limit == 0 and scale == 1.0:
            return None
        total, gradients = torch.zeros((), dtype=torch.float64, device=self.device), []
        for parameter, pieces in self.held:
            if parameter.grad is None:
                continue
            gradients.append(local_of(parameter.grad))
            for piece in pieces:
                if piece.is_first:
                    total += torch.linalg.vector_norm(piece.of(gradients[-1])).double().square()
        dist.all_reduce(total)
        norm = total.sqrt() / scale
        factor = (self.limit / (norm + 1e-6)).clamp(max=1.0) / scale if self.limit else 1 / scale
        for local in gradients:
            local.mul_(factor.to(local.dtype) if torch.is_tensor(factor) else factor)
        return norm
