# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""WORLD_SIZE=N check_bridge.py <recipe_fn> [key.path=value ...]"""
import os, sys, types; W=int(os.environ.get("WORLD_SIZE","8"))
import bridge_boot, torch
torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=9, minor=0, name="H100")
torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
torch.cuda.device_count = lambda: 8
import megatron.core.utils as u; from packaging.version import Version; u._te_version = Version("2.14.0")
import megatron.core.models.common.embeddings.rope_utils as ru; ru.fused_apply_rotary_pos_emb = lambda *a, **k: None
import megatron.core.transformer.moe.moe_utils as mu
for n in ("fused_permute","fused_permute_with_probs","fused_sort_chunks_by_index","fused_sort_chunks_by_index_with_probs","fused_unpermute"): setattr(mu, n, lambda *a, **k: None)
import importlib
mod, fn = sys.argv[1].rsplit(".",1)
try:
    cfg = getattr(importlib.import_module(mod), fn)()
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
    if sys.argv[2:]: cfg = process_config_with_overrides(cfg, cli_overrides=sys.argv[2:])
    from megatron.bridge.training.config import runtime_config_update
    runtime_config_update(cfg); cfg.validate()
except Exception as e:
    if os.environ.get("TB"): import traceback; traceback.print_exc()
    print("ILLEGAL", type(e).__name__, str(e)[:300]); sys.exit(1)
m=cfg.model
print("OK", type(m).__name__, "pattern", getattr(m,"hybrid_layer_pattern",None), "tp", m.tensor_model_parallel_size, "pp", m.pipeline_model_parallel_size, "ep", m.expert_model_parallel_size, "dp", cfg.data_parallel_size)
