"""torchtitan's own trainer on a CPU: titan_boot.py WORDS OF torchtitan.train. What it asks of a GPU is answered, and
FlexAttention, which compiles nothing for a CPU's backward, runs as written."""

import collections
import os
import runpy
import sys
import types

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
import torch._utils
import torch.nn.attention.flex_attention as flex

# Before torchtitan is imported, which asks once.
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 34)
torch.cpu.current_device = lambda: 0
torch.cpu.memory_stats = lambda *_: collections.defaultdict(int)
for name in ("reset_peak_memory_stats", "empty_cache"):
    setattr(torch.cpu, name, lambda *_, **__: None)
torch.compile = lambda made=None, **_: made if made is not None else (lambda inner: inner)
flex._validate_device = lambda *_: None

from torchtitan.models.common.attention import FlexAttention

FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
sys.argv[0] = "torchtitan.train"
runpy.run_module("torchtitan.train", run_name="__main__")
