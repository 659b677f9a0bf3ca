"""torchtitan's metrics."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from torchtitan.components.metrics import BaseLogger, LoggerContainer

from ..hook import Receipt


class ReceiptLogger(BaseLogger):
    """A logger beside TensorBoard's: what torchtitan logs becomes steps. Between logs (`metrics.log_freq`) seconds are
    the mean of the steps since the last."""

    def __init__(self, path: str | os.PathLike[str] = "logs/hook.jsonl", step: int = 0) -> None:
        self.receipt = Receipt(path, engine="torchtitan")
        self.receipt.number = step

    def log(self, metrics: dict[str, Any], step: int) -> None:
        if "loss_metrics/global_avg_loss" not in metrics:
            self.receipt.beside("evaluation", step=step)
            return
        steps = max(1, step - self.receipt.number)
        figures = {
            "device_tokens_per_second": metrics.get("throughput(tps)"),
            "tflops": metrics.get("tflops"),
            "learning_rate": next((value for name, value in metrics.items() if name.split("/")[-1] == "lr"), None),
        }
        self.receipt.step(
            step,
            loss=metrics["loss_metrics/global_avg_loss"],
            grad_norm=metrics.get("grad_norm"),
            seconds=(time.perf_counter() - self.receipt.began) / steps,
            **{name: value for name, value in figures.items() if value is not None},
        )

    def close(self) -> None:
        # Also called on the way out of an exception.
        error = sys.exc_info()[1]
        if error is not None:
            self.receipt.failed(error)
        else:
            self.receipt.end()


def attach(trainer: Any, path: str | os.PathLike[str] = "logs/hook.jsonl", every: int = 0, **watched: Any) -> Receipt:
    """Makes a trainer write itself down; before `trainer.train()`. With `every`, norms by layer every so many steps,
    which needs `metrics.log_freq` 1."""
    processor = trainer.metrics_processor
    logger = ReceiptLogger(path, step=trainer.step)
    if every:
        if processor.config.log_freq != 1:
            raise ValueError("norms by layer are gathered at every step: they need metrics.log_freq 1")
        if len(trainer.model_parts) != 1:
            raise ValueError("norms by layer are of one model: a rank with several chunks of a pipeline has more")
        logger.receipt.watch(trainer.model_parts[0], every=every, **watched)
    # Ranks that torchtitan does not log on have a logger that does nothing.
    both = LoggerContainer()
    both.add_logger(processor.logger)
    both.add_logger(logger)
    processor.logger = both
    return logger.receipt
