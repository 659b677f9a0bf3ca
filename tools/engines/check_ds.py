# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""WORLD_SIZE=dp_world check_ds.py cfg.json  -> rc 0/1.  Stub mpu supplies the data-parallel size; strict top-level key check added."""
import sys, json, os, warnings; warnings.filterwarnings("ignore"); os.environ.setdefault("DS_ACCELERATOR","cpu")
import logging; logging.disable(logging.CRITICAL)
import types, deepspeed, deepspeed.comm as dist
dist.get_rank = lambda *a, **k: 0
import deepspeed.runtime.config as C, deepspeed.runtime.constants as K
W = int(os.environ.get("WORLD_SIZE", "8"))
mpu = types.SimpleNamespace(get_data_parallel_world_size=lambda: W)
raw = json.load(open(sys.argv[1]))
class Spy(dict):                                   # records every top-level key the engine's own parser reads
    seen = set()
    def __contains__(s, k): Spy.seen.add(k); return dict.__contains__(s, k)
    def get(s, k, d=None): Spy.seen.add(k); return dict.get(s, k, d)
    def __getitem__(s, k): Spy.seen.add(k); return dict.__getitem__(s, k)
    def __copy__(s): return s
try:
    c = C.DeepSpeedConfig(Spy(raw), mpu=mpu)
except Exception as e:
    print("ILLEGAL", type(e).__name__, str(e).replace("\n"," | ")[:260]); sys.exit(1)
if os.environ.get("LIST"): print(sorted(Spy.seen))
extra_ok = {"zero_allow_untested_optimizer", "train_batch_size", "sequence_parallel_size", "vocabulary_size"}
unk = set(raw) - Spy.seen - extra_ok
if unk: print("ILLEGAL top-level keys never read:", sorted(unk)); sys.exit(1)
print("OK", deepspeed.__version__, "dp", c.world_size, "tbs", c.train_batch_size, "mbs", c.train_micro_batch_size_per_gpu, "gas", c.gradient_accumulation_steps, "zero", int(c.zero_optimization_stage), "tp", c.tensor_parallel_config.autotp_size, "ep", getattr(c.expert_parallel_config,"autoep_size",None))
