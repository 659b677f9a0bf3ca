"""Lightning's Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..hook import Receipt

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        # The package's older name.
        from pytorch_lightning import Callback


class ReceiptCallback(Callback):
    """Writes every step of the optimizer down: the loss of its batches, the norm of its gradients before they are
    clipped (a pass over them; `grad_norm=False` leaves it out), and norms by layer every so many steps."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "logs/hook.jsonl",
        every: int = 100,
        grad_norm: bool = True,
        **watched: Any,
    ) -> None:
        self._path, self._every, self._wants_norm, self._watched = path, every, grad_norm, watched
        self._receipt: Receipt | None = None
        self._loss: Any = None
        self._norm: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._receipt = Receipt(self._path, engine="lightning")
        self._receipt.number = trainer.global_step
        if self._every:
            self._receipt.watch(pl_module, every=self._every, **self._watched)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if not self._wants_norm:
            return
        import torch

        norms = [p.grad.detach().norm() for p in pl_module.parameters() if p.grad is not None]
        self._norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._receipt is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            # Lightning has divided it by the batches that are accumulated.
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        if trainer.global_step > self._receipt.number:
            self._receipt.step(trainer.global_step, loss=self._loss, grad_norm=self._norm)
            self._loss = self._norm = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._receipt is not None and not trainer.sanity_checking:
            self._receipt.beside("evaluation", step=trainer.global_step)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._receipt is not None and not self._receipt.is_over:
            self._receipt.event("checkpoint-saved", step=trainer.global_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._receipt is not None:
            self._receipt.failed(exception)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._receipt is not None:
            self._receipt.end()
