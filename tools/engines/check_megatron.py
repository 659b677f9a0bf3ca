#!/usr/bin/env python
# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""Validate a Megatron-LM argv on CPU. usage: WORLD_SIZE=N check_megatron.py <flags...>
exit 0 ok / 2 argparse (unknown flag, bad choice) / 1 assertion or ValueError from the engine"""
import os, sys, types, warnings, contextlib, io
warnings.filterwarnings("ignore")
ARCH = int(os.environ.get("ARCH_MAJOR", "9"))            # 9=Hopper 10=Blackwell
TEVER = os.environ.get("TE_VERSION", "2.14.0")
import torch
# the ONLY three things on the parse/validate path that want a GPU / TE:
torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=ARCH, minor=0)
torch.cuda.get_device_capability = lambda *a, **k: (ARCH, 0)
import megatron.core.utils as u
from packaging.version import Version
from megatron.training.arguments import parse_args, validate_args, core_transformer_config_from_args
from megatron.training.training import get_megatron_ddp_config, get_megatron_optimizer_config
u._te_version = Version(TEVER)   # after import, so optional TE imports stay off
import megatron.core.models.common.embeddings.rope_utils as ru
if ru.fused_apply_rotary_pos_emb is None: ru.fused_apply_rotary_pos_emb = lambda *a, **k: None
import megatron.core.transformer.moe.moe_utils as mu
for n in ("fused_permute","fused_permute_with_probs","fused_sort_chunks_by_index","fused_sort_chunks_by_index_with_probs","fused_unpermute"):
    if getattr(mu, n, None) is None: setattr(mu, n, lambda *a, **k: None)
args = parse_args()                                       # SystemExit(2) on unknown / bad choice
try:
    with contextlib.redirect_stdout(io.StringIO()):
        args = validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
        if args.hybrid_layer_pattern:
            from megatron.core.models.hybrid.hybrid_layer_allocation import parse_hybrid_pattern
            parse_hybrid_pattern(args.hybrid_layer_pattern)
        cfg = core_transformer_config_from_args(args)
        # What training.py makes of the arguments next: both assert in __post_init__. The import wants no kernels.
        adam = types.ModuleType("transformer_engine.pytorch.optimizers")
        adam.FusedAdam = type("FusedAdam", (), {"__init__": lambda self, master_weight_dtype=None, exp_avg_dtype=None,
                                                exp_avg_sq_dtype=None, use_decoupled_grad=None: None})
        sys.modules[adam.__name__] = adam
        get_megatron_optimizer_config(args)
        get_megatron_ddp_config(args)
        # parallel_state rule (initialize_model_parallel) re-stated without needing a process group
        etp, ep, pp = args.expert_tensor_parallel_size, args.expert_model_parallel_size, args.pipeline_model_parallel_size
        assert args.world_size % (etp*ep*pp) == 0, f"world {args.world_size} % (etp*ep*pp={etp*ep*pp}) != 0"
        assert args.global_batch_size % (args.micro_batch_size*args.data_parallel_size) == 0, "gbs % (mbs*dp)"
except (AssertionError, ValueError, RuntimeError, NotImplementedError) as e:
    print("ILLEGAL:", type(e).__name__, str(e)[:300]); sys.exit(1)
print("OK", type(cfg).__name__, "dp", args.data_parallel_size, "vpp", args.virtual_pipeline_model_parallel_size,
      "layers", args.num_layers, "mtp", args.mtp_num_layers, "sp", args.sequence_parallel, "hybrid", cfg.is_hybrid_model)
