# What follows is the same for every plan: it builds torchtitan 0.3.0's configuration from the
# tables above and adds nothing of its own.
import importlib
from functools import partial

import torch.nn as nn
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    default_adamw,
    register_moe_load_balancing_hook,
)
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

STD = MODEL["init_std"] if MODEL else 0.02
DRAW = partial(nn.init.trunc_normal_, std=STD)
LINEAR = {"weight": DRAW, "bias": nn.init.zeros_}
EXPERTS = {"w1_EFD": DRAW, "w2_EDF": DRAW, "w3_EFD": DRAW}

CHECKPOINTED = {"FullAC": FullAC, "SelectiveAC": SelectiveAC}


def norm(width):
    return RMSNorm.Config(normalized_shape=width, eps=MODEL["norm_eps"], param_init={"weight": nn.init.ones_})


def feed_forward(width):
    return make_ffn_config(dim=MODEL["hidden"], hidden_dim=width, w1_param_init=LINEAR, w2w3_param_init=LINEAR)


def experts():
    moe = MODEL["moe"]
    return make_moe_config(
        num_experts=moe["experts"],
        router=make_router_config(
            dim=MODEL["hidden"],
            num_experts=moe["experts"],
            gate_param_init=LINEAR,
            top_k=moe["top_k"],
            score_func=moe["score"],
            route_norm=moe["route_norm"],
            route_scale=moe["route_scale"],
            num_expert_groups=moe["groups"],
            num_limited_groups=moe["limited_groups"],
        ),
        routed_experts=make_routed_experts_config(
            dim=MODEL["hidden"],
            hidden_dim=moe["ffn"],
            num_experts=moe["experts"],
            top_k=moe["top_k"],
            param_init=EXPERTS,
            comm_backend=moe["comm_backend"],
            non_blocking_capacity_factor=None,
        ),
        shared_experts=feed_forward(moe["shared_ffn"]) if moe["shared_ffn"] else None,
        load_balance_coeff=moe["expert_bias_rate"],
    )


def rope(width):
    return ComplexRoPE.Config(
        dim=width, max_seq_len=TRAINING["seq_len"], theta=MODEL["theta"], **MODEL["rope_scaling"]
    )


def grouped_attention():
    return make_gqa_config(
        dim=MODEL["hidden"],
        n_heads=MODEL["heads"],
        n_kv_heads=MODEL["kv_heads"],
        head_dim=MODEL["head_dim"],
        wqkv_param_init=LINEAR,
        wo_param_init=LINEAR,
        inner_attention=get_attention_config("flex"),
        fuse_qkv=True,
        rope=rope(MODEL["head_dim"]),
        qk_norm=norm(MODEL["head_dim"]) if MODEL["qk_norm"] else None,
    )


def latent_attention(layer):
    from torchtitan.models.deepseek_v3 import make_mla_attention_config

    config = make_mla_attention_config(
        layer_id=layer,
        dim=MODEL["hidden"],
        n_heads=MODEL["heads"],
        attn_backend="flex",
        linear_init=LINEAR,
        norm_init={"weight": nn.init.ones_},
        depth_init=lambda _: LINEAR,
        rope=rope(MODEL["latent"]["qk_rope_head_dim"]),
        **MODEL["latent"],
    )
    config.q_norm.eps = config.kv_norm.eps = MODEL["norm_eps"]
    return config


def parts():
    """The engine's model of this form: model, block and how it is parallelized."""
    if MODEL["form"] == "deepseek_v3":
        from torchtitan.models.deepseek_v3 import DeepSeekV3Model, parallelize_deepseekv3
        from torchtitan.models.deepseek_v3.model import DeepSeekV3TransformerBlock

        return DeepSeekV3Model, DeepSeekV3TransformerBlock, parallelize_deepseekv3
    if MODEL["form"] == "qwen3":
        from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
        from torchtitan.models.qwen3.model import Qwen3TransformerBlock

        return Qwen3Model, Qwen3TransformerBlock, parallelize_qwen3
    from torchtitan.models.llama3 import Llama3Model, parallelize_llama
    from torchtitan.models.llama3.model import Llama3TransformerBlock

    return Llama3Model, Llama3TransformerBlock, parallelize_llama


def built_in_model():
    model, block, parallelize = parts()
    hidden, vocab = MODEL["hidden"], MODEL["vocab"]
    layers = [
        block.Config(
            attention_norm=norm(hidden),
            ffn_norm=norm(hidden),
            attention=latent_attention(i) if MODEL["latent"] else grouped_attention(),
            **({"feed_forward": feed_forward(MODEL["ffn"])} if i < MODEL["dense_first"] else {"moe": experts()}),
        )
        for i in range(MODEL["depth"])
    ]
    extra = {}
    if MODEL["mtp_depth"]:
        from torchtitan.models.deepseek_v3 import _build_mtp_layers

        extra["mtp_layers"] = _build_mtp_layers(layers[-1], dim=hidden, num_mtp_layers=MODEL["mtp_depth"])
    config = model.Config(
        dim=hidden,
        vocab_size=vocab,
        enable_weight_tying=MODEL["tied"],
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab, embedding_dim=hidden, param_init={"weight": partial(nn.init.normal_, std=STD)}
        ),
        norm=norm(hidden),
        lm_head=Linear.Config(in_features=hidden, out_features=vocab, param_init=LINEAR),
        layers=layers,
        **extra,
    )
    return ModelSpec(
        name=MODEL["form"],
        flavor="shardwright",
        model=config,
        parallelize_fn=parallelize,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=register_moe_load_balancing_hook if MODEL["moe"] else None,
        state_dict_adapter=None,
    )


def model_spec():
    """The model: built in, or what the policy names where the engine has no block for it."""
    if not SEAMS:
        return built_in_model()
    if MODEL_SEAM is None:
        names = ", ".join(name for name, _ in SEAMS)
        raise NotImplementedError(f"torchtitan has no block for: {names}; name `model` in the policy's [seams]")
    module, _, function = MODEL_SEAM.partition(":")
    return getattr(importlib.import_module(module), function)()


def train():
    spec = model_spec()
    if MODEL and MODEL["mtp_depth"]:
        from torchtitan.models.deepseek_v3 import MTPLoss

        loss = MTPLoss.Config(global_vocab_size=VOCAB)
    else:
        loss = CrossEntropyLoss.Config(global_vocab_size=VOCAB)
    return Trainer.Config(
        model_spec=spec,
        loss=loss,
        hf_assets_path=ASSETS,
        dump_folder=DUMP,
        dataloader=HuggingFaceTextDataLoader.Config(**DATA),
        optimizer=default_adamw(**OPTIMIZER),
        lr_scheduler=LRSchedulersContainer.Config(**LR_SCHEDULER),
        training=TrainingConfig(**TRAINING),
        parallelism=ParallelismConfig(**PARALLELISM),
        compile=CompileConfig(**COMPILE),
        checkpoint=CheckpointManager.Config(**CHECKPOINT),
        metrics=MetricsProcessor.Config(**METRICS),
        activation_checkpoint=CHECKPOINTED[RECOMPUTE].Config() if RECOMPUTE else None,
    )
