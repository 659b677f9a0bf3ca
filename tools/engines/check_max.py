# One emitted configuration into the engine's own parser, on a CPU; exits non-zero when it is refused.
# Terse on purpose: what is patched here is only what would ask for a GPU. Run in batches by batch.py.
import sys, os
from maxtext.configs import pyconfig
c = pyconfig.initialize_pydantic(['', 'src/maxtext/configs/base.yml'] + sys.argv[1:])
from maxtext.configs.types import RematPolicy
assert c.remat_policy is None or c.remat_policy in {p.value for p in RematPolicy} | {"minimal_with_context"}, f"remat_policy {c.remat_policy}"
from maxtext.utils import max_utils
import jax
n = int(os.environ["NDEV"]); ns = int(os.environ.get("NSLICES", "1"))
d = max_utils.fill_unspecified_mesh_axes(list(c.dcn_parallelism), ns, "DCN") if ns > 1 else None
i = max_utils.fill_unspecified_mesh_axes(list(c.ici_parallelism), n // ns, "ICI")
print('OK', c.model_name, c.decoder_block, 'layers', c.num_decoder_layers, 'mesh', dict((a, k) for a, k in zip(c.mesh_axes, i) if k != 1), 'gbs', c.global_batch_size_to_train_on, 'repeats', c.num_pipeline_repeats, 'mb', c.num_pipeline_microbatches)
