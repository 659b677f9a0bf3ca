#!/usr/bin/env python3
"""Every model type that the installed transformers trains causally, with the exact number of parameters.

Walks MODEL_FOR_CAUSAL_LM_MAPPING, builds each class on the meta device and writes one JSON row a model:

    python tools/measure_counts.py > data/truth/hf_types.jsonl

A row has `model_type`, `params` (all parameters, a tied table once), `frozen` (of those, the ones no gradient
reaches: balancing biases that the class keeps as parameters) and one of
  config   the whole config.json text but for what every class writes alike; the depth is eight where it can be
  change   keys to lay over the `config` row of the same type: other sizes, and every switch the other way
  bare     nothing but `model_type`: the class defaults
A type that cannot be built says `not_built`, and why. Needs torch and transformers, no weights and no device.

Types of flash-linear-attention (OTHERS) are written when they are named: `measure_counts.py rwkv7`, with `pip install
flash-linear-attention`, which is needed for them alone.
"""

import contextlib
import json
import os
import signal
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402

# What every config writes, and no model is made of.
ALIKE = """transformers_version architectures output_hidden_states return_dict dtype chunk_size_feed_forward
is_encoder_decoder id2label label2id problem_type use_cache pad_token_id bos_token_id eos_token_id sep_token_id
_name_or_path output_attentions cross_attention_hidden_size decoder_start_token_id tokenizer_class torch_dtype
unk_token_id add_cross_attention is_decoder output_router_logits pretraining_tp""".split()

# Types that flash-linear-attention registers with transformers.
OTHERS = ["rwkv7"]

# Keys without which the class cannot be built, or shows but one kind of layer.
NEEDED = {
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 2, "n_group": 1, "topk_group": 1},
    "lfm2": {"num_hidden_layers": 8, "layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "lfm2_moe": {"num_hidden_layers": 8, "layer_types": ["conv", "conv", "full_attention", "conv"] * 2},
    "reformer": {"is_decoder": True},
}

# What else a class can be told that changes its parameters.
MORE = {
    "rwkv7": [
        {"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 65536, "decay_low_rank_dim": None,
         "a_low_rank_dim": None, "v_low_rank_dim": None, "gate_low_rank_dim": None},
        {"head_dim": 128, "decay_low_rank_dim": 96, "a_low_rank_dim": 80, "v_low_rank_dim": 48, "gate_low_rank_dim": 160},
        {"hidden_ratio": 3},
    ],
    "glm_moe_dsa": [{"index_topk_freq": 3}, {"index_topk_pattern": "FFSFSSSF"}],
}

DEPTHS = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"]

# Sizes that no two of are the same, by the names that classes give them.
SMALL = {
    "hidden_size": 512, "n_embd": 512, "d_model": 512,
    "intermediate_size": 1376, "n_inner": 1376, "ffn_dim": 1376, "ffn_hidden_size": 1376,
    "num_attention_heads": 8, "n_head": 8, "num_heads": 8, "attention_heads": 8, "n_heads": 8,
    "num_key_value_heads": 4, "num_kv_heads": 4, "head_dim": 96, "vocab_size": 5003,
    "moe_intermediate_size": 224, "shared_expert_intermediate_size": 352, "shared_intermediate_size": 352,
    "num_experts": 12, "num_local_experts": 12, "n_routed_experts": 12, "moe_num_experts": 12,
    "num_shared_experts": 3, "n_shared_experts": 3, "moe_num_shared_experts": 3,
    "first_k_dense_replace": 2, "num_dense_layers": 2, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 160, "kv_lora_rank": 192, "qk_nope_head_dim": 48, "qk_rope_head_dim": 32, "v_head_dim": 80,
    "max_position_embeddings": 1536, "n_positions": 1536, "rotary_dim": 32,
    "tie_word_embeddings": None, "embedding_dim": 512,
}


class TooLong(Exception):
    pass


def stop(*_):
    raise TooLong("building took more than a minute")


def build(model_type, words):
    """The config and its parameters: all, and those that no gradient reaches."""
    signal.alarm(60)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            config = CONFIG_MAPPING[model_type](**words)
            kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
            kind = kind[0] if isinstance(kind, tuple) else kind
            with torch.device("meta"):
                model = kind(config)
        all_of_them = list(model.parameters())
        return config, kind, sum(p.numel() for p in all_of_them), sum(p.numel() for p in all_of_them if not p.requires_grad)
    finally:
        signal.alarm(0)


def text_of(config):
    said = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in said.items() if key not in ALIKE and value is not None}


def write(row):
    print(json.dumps(row, separators=(", ", ": ")), flush=True)


def changed(base, config):
    """Keys of `config` that `base` says otherwise; null takes a key away."""
    now = text_of(config)
    change = {key: value for key, value in now.items() if base.get(key) != value}
    return change | {key: None for key in base if key not in now}


def rows(model_type):
    words = NEEDED.get(model_type, {})
    kind = CONFIG_MAPPING[model_type]
    try:
        config, model, params, frozen = build(model_type, words)
    except Exception as error:
        first = str(error).strip().splitlines() or [""]
        write({"model_type": model_type, "not_built": f"{type(error).__name__}: {first[0][:160]}"})
        return
    with contextlib.suppress(Exception):
        _, _, params_bare, frozen_bare = build(model_type, {})
        write({"model_type": model_type, "bare": True, "class": model.__name__, "params": params_bare, "frozen": frozen_bare})
    names = set(text_of(config)) | set(vars(config))
    depth = {name: 8 for name in DEPTHS if name in names and name not in kind.attribute_map}
    if model_type != "gpt_neo":
        with contextlib.suppress(Exception):
            config, model, params, frozen = build(model_type, words | depth)
            words = words | depth
    base = text_of(config)
    write({"model_type": model_type, "class": model.__name__, "config": base, "params": params, "frozen": frozen})
    small = {name: value for name, value in SMALL.items() if name in names and name not in kind.attribute_map}
    small = {name: value for name, value in small.items() if value is not None and base.get(name, 1) is not None}
    tries = [small, {k: v for k, v in small.items() if k != "head_dim"}]
    flips = [{key: not value} for key, value in sorted(base.items()) if isinstance(value, bool)]
    done = set()
    for change in tries[:1] + flips + tries[1:] + MORE.get(model_type, []):
        try:
            config, _, params, frozen = build(model_type, words | change)
        except Exception as error:
            print(f"{model_type} {change}: {type(error).__name__}", file=sys.stderr)
            continue
        said = changed(base, config)
        said.pop("model_type", None)
        key = json.dumps(said, sort_keys=True)
        if said and key not in done:
            done.add(key)
            write({"model_type": model_type, "change": said, "params": params, "frozen": frozen})


def main():
    signal.signal(signal.SIGALRM, stop)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)
    asked = sys.argv[1:]
    others = [model_type for model_type in OTHERS if model_type in asked]
    if others:
        import fla  # noqa: F401

        print(f"flash-linear-attention {fla.__version__}", file=sys.stderr)
    for model_type in [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *others]:
        if not asked or model_type in asked:
            rows(model_type)


if __name__ == "__main__":
    main()
