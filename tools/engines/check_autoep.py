# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
import os; os.environ["DS_ACCELERATOR"]="cpu"; import logging; logging.disable(50)
from deepspeed.module_inject.auto_ep_config import parse_autoep_config as P, validate_autoep_config as V, PRESET_MODELS
print("presets", sorted(PRESET_MODELS))
def t(n,c,**k):
    try: V(P(c), **{**dict(world_size=16,pp_size=1,tp_size=1,sp_size=1,zero_stage=2),**k}); print(n,"OK")
    except Exception as e: print(n, type(e).__name__, str(e)[:150])
t("ep4",dict(enabled=True,autoep_size=4)); t("ep3",dict(enabled=True,autoep_size=3)); t("ep4 tp2",dict(enabled=True,autoep_size=4),tp_size=2); t("ep4 tp2 sp2",dict(enabled=True,autoep_size=4),tp_size=2,sp_size=2); t("etp2",dict(enabled=True,autoep_size=4,expert_tensor_parallel_size=2)); t("tp2 offload",dict(enabled=True,autoep_size=4),tp_size=2,zero_offload_optimizer=True); t("zero3",dict(enabled=True,autoep_size=4),zero_stage=3)
