#!/usr/bin/env python
# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""NGPU=N RANK=r check_titan.py --module M --config C [--section.key v ...]
parse (tyro, rc 2) -> ParallelDims + mesh on fake PG -> meta-build and shard rank r, all on CPU; BUILD=no stops before the build"""
import os, sys, warnings; warnings.filterwarnings("ignore")
import torch, torch._utils
torch._utils._get_available_device_type = lambda: "cpu"      # before any torchtitan import
os.environ.setdefault("LOCAL_RANK", "0")
world, rank = int(os.environ["NGPU"]), int(os.environ.get("RANK", "0"))
from torchtitan.config import ConfigManager
cfg = ConfigManager().parse_args()                            # SystemExit(2) / ValueError
from torchtitan.distributed import ParallelDims, utils as du
try:
    du.init_fake_mode(world, rank=rank)
    pd = ParallelDims.from_config(cfg.parallelism, world)     # AssertionError on bad product
    pd.build_mesh()
    div = (pd.tp if cfg.parallelism.enable_sequence_parallel else 1) * (2*pd.cp if pd.cp > 1 else 1)
    if cfg.training.seq_len % div: raise ValueError(f"seq_len % {div}")
    du.set_spmd_backend(cfg.parallelism.spmd_backend)
    ms = cfg.model_spec; mc = ms.model
    mc.update_from_config(config=cfg); cfg._validate_cuda_graphs()
    if os.environ.get("BUILD") == "no": print("OK", ms.name, ms.flavor, "dp_shard", pd.dp_shard, "not built"); sys.exit(0)
    with torch.device("meta"):
        m = mc.build()
    tot = sum(p.numel() for p in m.parameters())
    kw = dict(parallel_dims=pd, training=cfg.training, parallelism=cfg.parallelism, compile_config=cfg.compile,
              ac_config=cfg.activation_checkpoint, dump_folder="titan_dump")
    if pd.pp_enabled:
        _, parts, first, last = ms.pipelining_fn(m, device=torch.device("cpu"), model_config=mc,
             parallelize_fn=ms.parallelize_fn, loss_fn=cfg.loss.build(compile_config=cfg.compile), **kw)
    else:
        parts = [ms.parallelize_fn(m, **kw)]
    loc = 0
    for p_ in parts:
        for p in p_.parameters():
            loc += (p.to_local() if hasattr(p, "to_local") else p).numel()
except (AssertionError, ValueError, RuntimeError, NotImplementedError) as e:
    import traceback
    if os.environ.get("TB"): traceback.print_exc()
    print("ILLEGAL:", type(e).__name__, str(e)[:300]); sys.exit(1)
print("OK", ms.name, ms.flavor, "total", tot, "rank", rank, "local", loc, "parts", len(parts), "dp_shard", pd.dp_shard)
