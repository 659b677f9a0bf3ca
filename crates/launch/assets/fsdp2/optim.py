"""Optimizer groups by tensor, as the plan says: AdamW on every element, Muon on whole matrices.

Also the sums that gradients still need once FSDP2 has reduced them over replicas: parameters that tp
ranks hold whole but differentiate in part, and rows of packed projections that neighbours share.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import collectives as c
from parallelize import Parallel, own_rows
from plan import Plan, PlanError, Row
from shampoo import Shampoo
from soap import Soap
from stepped import Int8, Stepped


def finish_gradients(run: Parallel) -> None:
    """Adds up over tp what tp ranks differentiated in part. Sums commute with FSDP2's own."""
    degree = run.plan.degrees["tp"]
    if degree == 1:
        return
    group = run.meshes.group("tp")
    for row, parameter in run.parameters():
        # Whole experts under SP are sharded over tp ranks too: FSDP2 has summed those already.
        if parameter.grad is None or (row.expert and run.plan.degrees["etp"] == 1):
            continue
        local = parameter.grad.to_local()
        cut = row.cut_over("tp", "etp")
        if row.tp_gradient == "sum":
            dist.all_reduce(local, group=group)
        elif cut is not None:
            for first, end, copies in cut.shared_rows(degree):
                sum_shared(local, rows_here(parameter, first, end), copies, degree, group)


def rows_here(parameter: nn.Parameter, first: int, end: int) -> slice:
    """Where a range of a part's rows lies in this rank's shard of it."""
    mesh, rows = parameter.device_mesh, parameter.shape[0]
    step = -(-rows // mesh.size())
    start = min(mesh.get_local_rank() * step, rows)
    stop = min(start + step, rows)
    return slice(max(first, start) - start, max(min(end, stop) - start, max(first, start) - start))


def sum_shared(grad: torch.Tensor, rows: slice, copies: int, degree: int, group: dist.ProcessGroup) -> None:
    """Sums rows over the neighbours that hold the same unit; each unit has a place of its own in the buffer."""
    buffer = grad.new_zeros(degree // copies, *grad[rows].shape)
    buffer[group.rank() // copies] = grad[rows]
    dist.all_reduce(buffer, group=group)
    grad[rows] = buffer[group.rank() // copies]


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised. A matrix is made whole for it on every rank that holds a part, by the plan's
    table; an expert bank is a stack of matrices. State stays sharded. Clear rather than fast."""

    def __init__(self, run: Parallel, rows: list[tuple[Row, nn.Parameter]], options: dict):
        defaults = {"lr": options["lr"], "momentum": options["momentum"], "weight_decay": options["weight_decay"]}
        super().__init__([parameter for _, parameter in rows], defaults)
        self.quantised = Int8() if run.plan.ways["momentum"] == "int8" else None
        self.is_portable = self.quantised is not None
        if self.is_portable:
            self.saved, self.expect, self.take = self.quantised.saved, self.of_mine, self.quantised.take
        self.run, self.steps, self.rows = run, options["newton_schulz_steps"], {id(p): row for row, p in rows}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.momentum(parameter, group["momentum"])
                direction = parameter.grad + group["momentum"] * momentum
                update = self.orthogonalised(self.rows[id(parameter)], parameter, direction)
                local = parameter.to_local()
                local.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.to(local), alpha=-group["lr"])

    def momentum(self, parameter: nn.Parameter, decay: float) -> torch.Tensor:
        if self.quantised is not None:
            return self.quantised.follow(parameter, decay)
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter.grad)
        return state["momentum"].mul_(decay).add_(parameter.grad)

    def of_mine(self, parameter: nn.Parameter, names: set[str]) -> None:
        """A checkpoint is about to be read: other optimizers' parameters are in it too."""
        if id(parameter) in self.rows:
            self.quantised.expect(parameter, names)

    def orthogonalised(self, row: Row, parameter: nn.Parameter, direction) -> torch.Tensor:
        part = direction.full_tensor()
        cut = row.cut_over("tp", "etp")
        if cut is None:
            return own_rows(newton_schulz(part, self.steps), parameter)
        group, degree = self.run.meshes.group(cut.axis), self.run.plan.degrees[cut.axis]
        parts = c.gather_along(part.unsqueeze(0), 0, group)
        shape = list(part.shape)
        shape[cut.dim] = row.shape[cut.dim]
        whole = part.new_empty(shape)
        for at in range(degree):
            whole.index_copy_(cut.dim, cut.index(degree, at).to(whole.device), parts[at])
        index = cut.index(degree, group.rank()).to(whole.device)
        return own_rows(newton_schulz(whole, self.steps).index_select(cut.dim, index), parameter)


def newton_schulz(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """The quintic iteration of Muon (Jordan et al. 2024) with its coefficients, over the last two dims."""
    a, b, d = 3.4445, -4.7750, 2.0315
    # In bf16 where that is fast, as its authors run it.
    x = matrix.bfloat16() if matrix.is_cuda else matrix if matrix.dtype == torch.float64 else matrix.float()
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + d * square @ square) @ x
    x = x.mT if is_tall else x
    return x * max(1.0, x.shape[-2] / x.shape[-1]) ** 0.5


def build_optimizers(run: Parallel) -> list[torch.optim.Optimizer]:
    """One optimizer a kind. AdamW has a group for each mesh, since its kernels take one mesh at a time."""
    rows = [(row, p) for row, p in run.parameters() if p.requires_grad]
    known = {"adamw", "muon"}
    if unknown := sorted({row.optimizer for row, _ in rows} - known):
        raise PlanError(f"optimizers not in this lane: {', '.join(unknown)}")
    optimizers: list[torch.optim.Optimizer] = []
    muon = [(row, p) for row, p in rows if row.optimizer == "muon"]
    if muon:
        optimizers.append(Muon(run, muon, run.plan.optimizers["muon"]))
    groups: dict[bool, list[nn.Parameter]] = {}
    for row, parameter in rows:
        if row.optimizer == "adamw":
            groups.setdefault(row.expert, []).append(parameter)
    if groups:
        optimizers.append(of_elements(run.plan, [{"params": group} for group in groups.values()]))
    run.applied.append("optimizer")
    return optimizers


def of_elements(plan: Plan, groups: list) -> torch.optim.Optimizer | Stepped:
    """What steps every element by itself, as the plan's ways say; its rates are AdamW's."""
    options = plan.optimizers["adamw"]
    word = plan.ways["optimizer"]
    if word == "adamw":
        return adamw(groups, options)
    return {"soap": Soap, "shampoo": Shampoo}.get(word, Stepped)(word, groups, options)


def adamw(groups: list, options: dict) -> torch.optim.AdamW:
    """Fused on a GPU: one kernel a few hundred tensors, and no temporaries."""
    is_fused = groups[0]["params"][0].is_cuda
    chosen = {key: options[key] for key in ("lr", "eps", "weight_decay")}
    return torch.optim.AdamW(groups, betas=tuple(options["betas"]), fused=is_fused, **chosen)
