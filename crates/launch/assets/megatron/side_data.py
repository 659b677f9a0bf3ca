"""Rows of side embeddings on their way from the data to the model.

Structure ids lie beside the tokens: one `.bin` and `.idx` for each component, with the same documents
and lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy
import torch
from megatron.core import mpu
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.training import get_args
from torch import Tensor

from .side_embeddings import rows_of, settings
from .side_model import CHANNEL

Batch = dict[str, Any]
IDS = "structure_ids"


class StructureDataset(GPTDataset):
    """Tokens with the structure ids that lie beside them."""

    def __init__(self, dataset: IndexedDataset, *args: Any, **kwargs: Any) -> None:
        super().__init__(dataset, *args, **kwargs)
        self.streams = [_beside(dataset, prefix) for prefix in settings().streams[dataset.path_prefix]]

    def __getitem__(self, idx: int | None) -> dict[str, Tensor]:
        sample = super().__getitem__(idx)
        ids = [self._ids(stream, idx or 0) for stream in self.streams]
        sample[IDS] = torch.stack(ids, dim=-1)[: len(sample["tokens"])]
        return sample

    def _ids(self, stream: IndexedDataset, idx: int) -> Tensor:
        """The ids where the tokens of a sample lie."""
        twin = copy.copy(self)
        twin.dataset = stream
        ids, *_ = GPTDataset._query_document_sample_shuffle_indices(twin, idx)
        return torch.from_numpy(ids.astype(numpy.int64))


def _beside(tokens: IndexedDataset, prefix: str) -> IndexedDataset:
    stream = IndexedDataset(prefix, mmap=True)
    same = numpy.array_equal(stream.sequence_lengths, tokens.sequence_lengths)
    if not same or not numpy.array_equal(stream.document_indices, tokens.document_indices):
        raise ValueError(f"{prefix} has other documents or lengths than {tokens.path_prefix}")
    return stream


def on_tp_rank(theirs: Callable[..., Batch]) -> Callable[..., Batch]:
    """`theirs`, and structure ids to the first stage's ranks as well."""

    def get(batch: Batch, **kwargs: Any) -> Batch:
        ids = batch.get(IDS)
        out = theirs(batch, **kwargs)
        if kwargs["is_pipeline_first_stage"] and settings().channels:
            out[IDS] = _broadcast(ids, kwargs)
        return out

    return get


def _broadcast(ids: Tensor | None, said: dict[str, Any]) -> Tensor:
    device = torch.cuda.current_device()
    if said["tp_rank"] == 0:
        assert ids is not None, "the data set carries no structure ids"
        ids = ids.to(device, non_blocking=True).contiguous()
    else:
        shape = (said["micro_batch_size"], said["seq_length"], settings().channels)
        ids = torch.empty(shape, dtype=torch.int64, device=device)
    torch.distributed.broadcast(ids, said["broadcast_src_rank"], group=said["broadcast_group"])
    return ids


def on_cp_rank(theirs: Callable[..., Batch]) -> Callable[..., Batch]:
    """`theirs`, with rows found in whole sequences before these are cut, and put where the model takes them."""

    def get(batch: Batch, **kwargs: Any) -> Batch:
        ids = batch.pop(IDS, None)
        is_first = mpu.is_pipeline_first_stage() and batch["tokens"] is not None
        names = [f"side_{side.name}" for side in settings().sides] if is_first else []
        batch.update(zip(names, _whole(batch, ids) if is_first else []))
        batch = theirs(batch, **kwargs)
        if is_first:
            CHANNEL.put([batch.pop(name) for name in names])
        return batch

    return get


def _whole(batch: Batch, ids: Tensor | None) -> list[Tensor]:
    """Rows of whole sequences, in the shape of the batch: packed documents make one row of it."""
    tokens, positions = (batch[key].view(-1, get_args().seq_length) for key in ("tokens", "position_ids"))
    rows = rows_of(settings().sides, tokens, positions, ids)
    return [found.view(*batch["tokens"].shape, -1) for found in rows]
