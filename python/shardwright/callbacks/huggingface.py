"""Hugging Face's Trainer."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..hook import Receipt


class ReceiptCallback(TrainerCallback):
    """Writes every step down, with the loss and the norm of gradients that the trainer logs (`logging_steps=1` for
    every step's: over more, what it logs is a mean, and is written as `mean_loss`). Norms by layer every so many steps;
    the trainer has clipped gradients by then."""

    def __init__(self, path: str | os.PathLike[str] = "logs/hook.jsonl", every: int = 100, **watched: Any) -> None:
        self._path, self._every, self._watched = path, every, watched
        self._receipt: Receipt | None = None
        self._logged = 0
        self._tokens = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        self._receipt = Receipt(self._path, engine="transformers")
        self._receipt.number = self._logged = state.global_step
        self._tokens = float(state.num_input_tokens_seen or 0)
        if model is not None and self._every:
            self._receipt.watch(model, every=self._every, **self._watched)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._receipt is not None:
            self._receipt.look(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # What is logged comes right after this, and says more.
        if self._receipt is not None and not control.should_log:
            self._receipt.step(state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        if self._receipt is None or "loss" not in logs or self._receipt.number >= state.global_step:
            return
        over, self._logged = state.global_step - self._logged, state.global_step
        loss = {"loss": logs["loss"]} if over == 1 else {"others": {"mean_loss": logs["loss"], "over_steps": over}}
        figures = {"learning_rate": logs.get("learning_rate"), "grad_norm": logs.get("grad_norm"), **loss}
        self._receipt.step(state.global_step, **{key: value for key, value in figures.items() if value is not None})

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._receipt is not None:
            self._receipt.beside("evaluation", step=state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._receipt is not None:
            self._receipt.beside("checkpoint-saved", step=state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._receipt is not None:
            self._receipt.end()
