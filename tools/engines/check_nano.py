# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
"""check_nano.py cfg.yaml : parse with nanotron (git main on PYTHONPATH, or PyPI 0.4) on CPU"""
import sys, types, warnings, os; warnings.filterwarnings("ignore")
from unittest.mock import MagicMock
class Fin:                                   # stub GPU-only imports
    P=("flash_attn","ring_flash_attn","grouped_gemm","functorch","lighteval","s5cmd","boto3","fsspec_s3","datatrove")
import importlib.machinery
for n in ("flash_attn","flash_attn.flash_attn_interface","flash_attn.layers","flash_attn.layers.rotary","flash_attn.ops","flash_attn.ops.triton","flash_attn.ops.triton.layer_norm","flash_attn.bert_padding","flash_attn.modules","flash_attn.modules.mha","grouped_gemm","grouped_gemm.ops"):
    m=MagicMock(name=n); m.__path__=[]; m.__spec__=importlib.machinery.ModuleSpec(n,None); m.__version__="2.7.0"; sys.modules[n]=m
if os.environ.get("PYPI"):
    import nano_import; nano_import.load()
from nanotron.config import get_config_from_file
try:
    c = get_config_from_file(sys.argv[1])
except Exception as e:
    print("ILLEGAL", type(e).__module__+"."+type(e).__name__, str(e)[:300]); sys.exit(1)
p=c.parallelism; W=p.dp*p.tp*p.pp*getattr(p,"context_parallel_size",1)*p.expert_parallel_size
print("OK", type(c.model.model_config).__name__, p, "world", W)
