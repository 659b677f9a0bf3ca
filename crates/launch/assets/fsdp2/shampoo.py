"""Shampoo over whole matrices, by pytorch_optimizer's ScalableShampoo: statistics of rows and of columns in blocks of 512,
their inverse fourth roots every hundredth step, and the length of RMSProp's step (grafting), which also steps vectors and
matrices with a side beyond 8192. Until the first roots are there it is RMSProp with momentum. A checkpoint holds all
blocks of a parameter as one row of numbers."""

from __future__ import annotations

import torch
from torch import nn

from stepped import Stepped

# Steps between two roots, and the first that is turned by them. The library's own are 1000 and 25: runs that are shorter
# would have no roots, and the steps between a direction that none has turned.
EVERY = 100
BLOCK = 512
BLOCKS = {"statistics": "statistics", "roots": "pre_conditioners"}
GRAFT = {"graft_momentum": "momentum", "graft_statistics": "statistics"}


def make(groups: list, options: dict) -> torch.optim.Optimizer:
    """Rates, decay and momenta mean what AdamW's do."""
    from pytorch_optimizer import ScalableShampoo
    from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting

    return ScalableShampoo(
        groups,
        lr=options["lr"],
        betas=tuple(options["betas"]),
        weight_decay=options["weight_decay"],
        decoupled_weight_decay=True,
        moving_average_for_momentum=True,
        start_preconditioning_step=EVERY,
        preconditioning_compute_steps=EVERY,
        block_size=BLOCK,
        # A matrix is one of two sides, and a vector none.
        skip_preconditioning_rank_lt=2,
        shape_interpretation=False,
        graft_type=LayerWiseGrafting.RMSPROP,
        diagonal_eps=options["eps"],
    )


class Shampoo(Stepped):
    """One rank's matrices."""

    def step(self) -> None:
        before = torch.get_float32_matmul_precision()
        # Roots do not converge in tf32.
        takes_roots = (self.inner.param_groups[0].get("step", 0) + 1) % EVERY == 0
        torch.set_float32_matmul_precision("highest" if takes_roots else "high")
        try:
            super().step()
        finally:
            torch.set_float32_matmul_precision(before)

    def saved(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        if parameter in self.incoming:
            return self.incoming[parameter]
        state = self.inner.state.get(self.leaves.get(parameter), {})
        if not state:
            return {}
        found = {"momentum": state["momentum"]} | {name: getattr(state["graft"], of) for name, of in GRAFT.items()}
        for name, of in BLOCKS.items():
            blocks = getattr(state["pre_conditioner"], of)
            if len(blocks):
                found[name] = torch.cat([block.reshape(-1) for block in blocks])
        found = {name: value.detach().cpu() for name, value in found.items()}
        return found | {"step": torch.tensor(float(self.inner.param_groups[0]["step"]))}

    @staticmethod
    def shape(leaf: nn.Parameter, name: str) -> tuple[int, ...]:
        if name in BLOCKS:
            rows, columns = (sides(length) for length in leaf.shape)
            return (sum(row * row + column * column for row in rows for column in columns),)
        return () if name == "step" else tuple(leaf.shape)

    def take(self) -> None:
        for parameter, values in self.incoming.items():
            leaf = self.leaves[parameter]
            # The library makes state of a parameter that has a gradient, and looks at its shape alone.
            leaf.grad = leaf.detach()
        for group in self.inner.param_groups:
            self.inner.init_group(group)
        for parameter, values in self.incoming.items():
            leaf = self.leaves[parameter]
            leaf.grad, state = None, self.inner.state[leaf]
            state["momentum"].copy_(values["momentum"])
            for name, of in GRAFT.items():
                getattr(state["graft"], of).copy_(values[name])
            for name, of in BLOCKS.items():
                at = 0
                for block in getattr(state["pre_conditioner"], of):
                    block.copy_(values[name][at : at + block.numel()].view_as(block))
                    at += block.numel()
            for group in self.inner.param_groups:
                group["step"] = int(values["step"])
        self.incoming = {}


def sides(length: int) -> list[int]:
    """Lengths that a side is cut into."""
    return [min(BLOCK, length - at) for at in range(0, length, BLOCK)]
