"""SOAP over whole matrices, by pytorch_optimizer: AdamW in the eigenbases of Shampoo's preconditioners. The library keeps
preconditioners (`GG`) and bases (`Q`) as lists, one a side, and none for a side beyond `max_precondition_dim`; a
checkpoint holds each by its number. Products are in tf32, which bases are made anew from every tenth step."""

from __future__ import annotations

import torch
from torch import nn

from stepped import Stepped

LISTS = ("GG", "Q")


class Soap(Stepped):
    """One rank's matrices; a first step makes preconditioners and moves nothing."""

    def step(self) -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
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
        found = {name: state[name].detach().cpu() for name in ("exp_avg", "exp_avg_sq")}
        for name in LISTS:
            sides = {f"{name}{at}": side for at, side in enumerate(state[name]) if len(side)}
            found |= {key: side.detach().cpu().contiguous() for key, side in sides.items()}
        return found | {"step": torch.tensor(float(self.inner.param_groups[0]["step"]))}

    @staticmethod
    def shape(leaf: nn.Parameter, name: str) -> tuple[int, ...]:
        if name.startswith(LISTS):
            return (leaf.shape[int(name[-1])],) * 2
        return () if name == "step" else tuple(leaf.shape)

    def take(self) -> None:
        for parameter, values in self.incoming.items():
            leaf = self.leaves[parameter]
            here = {name: value.to(leaf.device) for name, value in values.items()}
            state, sides = self.inner.state[leaf], max(leaf.dim(), 1)
            for name in LISTS:
                state[name] = [here.get(f"{name}{at}", []) for at in range(sides)]
            state |= {name: here[name] for name in ("exp_avg", "exp_avg_sq")}
            for group in self.inner.param_groups:
                group["step"] = int(values["step"])
                if any(one is leaf for one in group["params"]):
                    beta = group["shampoo_beta"] if group["shampoo_beta"] is not None else group["betas"][1]
                    state |= {"precondition_frequency": group["precondition_frequency"], "shampoo_beta": beta}
        self.incoming = {}
