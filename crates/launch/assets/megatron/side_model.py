"""Megatron's hybrid model with side embeddings on its first stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.training.models import hybrid
from megatron.training.models.hybrid import HybridModelBuilder, HybridModelConfig
from torch import Tensor

from .side_embeddings import SideEmbeddings, settings


class Channel:
    """Rows of the microbatch that is about to run, from the batch to the model.

    Megatron's forward step has no argument for them. It reads a batch and runs the model at once, so one
    place is enough under any schedule.
    """

    def __init__(self) -> None:
        self._rows: list[Tensor] | None = None

    def put(self, rows: list[Tensor]) -> None:
        """Rows [batch, sequence, lookups] of this rank's part of each sequence."""
        self._rows = rows

    def take(self) -> list[Tensor]:
        """Gives them away; they serve one forward pass."""
        if self._rows is None:
            raise RuntimeError("a forward pass without the rows of side embeddings")
        rows, self._rows = self._rows, None
        return rows


CHANNEL = Channel()


class SideHybridModel(HybridModel):
    """Adds side embeddings to the embedded tokens; prediction depths embed tokens alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.pre_process:
            # Beside the token table: gradients arrive together, and so do their buckets.
            self.embedding.side = SideEmbeddings(self.config, settings().sides)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        decoder_input: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        if decoder_input is None and self.pre_process:
            embedded = self.embedding(input_ids=input_ids, position_ids=position_ids)
            decoder_input = self.embedding.side(embedded, [self._own(rows) for rows in CHANNEL.take()])
        return super().forward(input_ids, position_ids, attention_mask, decoder_input, **kwargs)

    def _own(self, rows: Tensor) -> Tensor:
        """Sequence first, and this rank's part of it where layers have it cut."""
        rows = rows.transpose(0, 1)
        if self.config.sequence_parallel:
            group = self.pg_collection.tp
            rows = rows.chunk(group.size())[group.rank()]
        return rows.contiguous()


@dataclass(kw_only=True)
class SideModelConfig(HybridModelConfig):
    """The same settings, another builder."""

    builder: ClassVar[str] = f"{__package__}.side_model.SideModelBuilder"


class SideModelBuilder(HybridModelBuilder):
    """Builds what Megatron's builder does, of our class."""

    def build_model(self, *args: Any, **kwargs: Any) -> HybridModel:
        # The builder takes the class from its module.
        theirs, hybrid.HybridModel = hybrid.HybridModel, SideHybridModel
        try:
            return super().build_model(*args, **kwargs)
        finally:
            hybrid.HybridModel = theirs
