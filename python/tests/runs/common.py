"""One model, one set of tokens and one optimizer for every library."""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PATH = sys.argv[1]
FAILS = "fail" in sys.argv[2:]
STEPS, BATCH, RATE = 6, 8, 0.05


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=False))


def tokens() -> torch.Tensor:
    """A batch for every step, all of the same few tokens, which are soon known."""
    drawn = torch.randint(0, 8, (STEPS * BATCH, 16), generator=torch.Generator().manual_seed(1))
    return drawn


def fail_at(step: int) -> None:
    if FAILS and step == 3:
        raise RuntimeError("made to fail")
