"""Megatron-LM's hybrid pretraining, with a model that has side embeddings.

Batches, steps and losses are those of its `pretrain_hybrid.py`, which is imported from the engine's root.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType

STARTED = time.time()
HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from shardwright_megatron.side_embeddings import settings  # noqa: E402

sys.path.insert(0, settings().engine_root or os.environ.get("SHARDWRIGHT_ENGINE") or str(HERE.parent))

import pretrain_hybrid as theirs  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.training import inprocess_restart, pretrain, set_startup_timestamps  # noqa: E402
from megatron.training.argument_utils import hybrid_config_from_args, pretrain_cfg_container_from_args  # noqa: E402
from megatron.training.arguments import parse_and_validate_args  # noqa: E402

from shardwright_megatron import side_data  # noqa: E402
from shardwright_megatron.side_model import SideModelConfig  # noqa: E402


def with_rows(script: ModuleType) -> None:
    """Puts rows into the batches of a script whose `get_batch` takes these functions from its module."""
    script.get_batch_on_this_tp_rank = side_data.on_tp_rank(script.get_batch_on_this_tp_rank)
    script.get_batch_on_this_cp_rank = side_data.on_cp_rank(script.get_batch_on_this_cp_rank)
    if settings().streams:
        script.GPTDataset = side_data.StructureDataset


def main() -> None:
    """Trains."""
    set_startup_timestamps(program_start=STARTED, main_entry=time.time())
    with_rows(theirs)
    theirs.train_valid_test_datasets_provider.is_distributed = True
    train, store = inprocess_restart.maybe_wrap_for_inprocess_restart(pretrain)
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
    # Its forward step reads the name that its own main program sets.
    theirs.args = args
    config = pretrain_cfg_container_from_args(args, hybrid_config_from_args(args, model_config_cls=SideModelConfig))
    provider, step = theirs.train_valid_test_datasets_provider, theirs.forward_step
    train(config, provider, ModelType.encoder_or_decoder, step, store=store)


if __name__ == "__main__":
    main()
