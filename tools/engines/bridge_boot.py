# What the Megatron-Bridge check imports first: Megatron-Core decides that Transformer Engine is absent, then stubs
# stand where Bridge imports it.
import sys, types, warnings, os; warnings.filterwarnings("ignore")
import logging; logging.disable(logging.WARNING)
import torch
import megatron.training.arguments, megatron.core.models.gpt.gpt_layer_specs, megatron.core.models.hybrid.hybrid_layer_specs  # mcore decides HAVE_TE=False first
from importlib.machinery import ModuleSpec, SourceFileLoader
from unittest.mock import MagicMock
class _M(types.ModuleType):
    def __getattr__(s, n):
        if n.startswith("__"): raise AttributeError(n)
        c = type(n, (torch.nn.Module,), {}); setattr(s, n, c); return c
def stub(*names):
    for n in names:
        m = _M(n); m.__path__ = []; m.__spec__ = ModuleSpec(n, None, is_package=True); m.__version__ = "2.14.0"; sys.modules[n] = m
        if "." in n: setattr(sys.modules[n.rsplit(".",1)[0]], n.rsplit(".",1)[1], m)
stub("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common", "transformer_engine.common.recipe", "transformer_engine.pytorch.optimizers", "transformer_engine.pytorch.tensor", "transformer_engine.pytorch.fp8", "transformer_engine.pytorch.module", "transformer_engine.pytorch.module.base", "transformer_engine.pytorch.distributed", "transformer_engine.pytorch.float8_tensor", "transformer_engine.pytorch.attention", "transformer_engine.pytorch.ops")
for n in os.environ.get("STUB","").split(","):
    if n: stub(n)
