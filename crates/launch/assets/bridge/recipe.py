# What follows is the same for every plan: it sets the values above on Megatron-Bridge's base
# configuration and adds nothing of its own.
import importlib

import torch
import torch.nn.functional as F
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.recipes.utils.optimizer_utils import (
    distributed_fused_adam_with_cosine_annealing,
    distributed_muon_with_cosine_annealing,
)
from megatron.core.activations import squared_relu

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "squared_relu": squared_relu}


def provider():
    if FORM == "hybrid":
        from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider as Provider
    elif FORM == "mla":
        from megatron.bridge.models.mla_provider import MLAModelProvider as Provider
    else:
        from megatron.bridge.models.gpt_provider import GPTModelProvider as Provider
    values = dict(MODEL)
    values["activation_func"] = ACTIVATIONS[values["activation_func"]]
    values["pipeline_dtype"] = torch.bfloat16
    if "window_size" in values:
        values["window_size"] = tuple(values["window_size"])
    if CUSTOM_SPEC is not None:
        values["hybrid_stack_spec"] = importlib.import_module(CUSTOM_SPEC).hybrid_stack_spec
    return Provider(**values)


def recipe():
    cfg = _pretrain_common()
    cfg.model = provider()
    is_muon = OPTIMIZER_NAME == "muon"
    make = distributed_muon_with_cosine_annealing if is_muon else distributed_fused_adam_with_cosine_annealing
    betas = {key: OPTIMIZER[key] for key in ("adam_beta1", "adam_beta2")}
    cfg.optimizer, cfg.scheduler = make(**{key: value for key, value in OPTIMIZER.items() if key not in betas})
    for key, value in betas.items():
        setattr(cfg.optimizer, key, value)
    # The scheduler's own decay would win over the optimizer's.
    cfg.scheduler.start_weight_decay = cfg.scheduler.end_weight_decay = OPTIMIZER["weight_decay"]
    for section, values in SECTIONS.items():
        for key, value in values.items():
            if not hasattr(getattr(cfg, section), key):
                raise AttributeError(f"Megatron-Bridge has no {section}.{key}")
            setattr(getattr(cfg, section), key, value)
    return cfg


if __name__ == "__main__":
    from megatron.bridge.training.gpt_step import forward_step
    from megatron.bridge.training.pretrain import pretrain

    pretrain(recipe(), forward_step)
