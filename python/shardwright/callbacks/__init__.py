"""What writes a run down while it runs, for `shardwright receipt record`: all of it through one hook
(`shardwright.hook`), which says what its figures are.

| where | what |
|---|---|
| a loop of your own | `with callbacks.Loop("logs/hook.jsonl", model) as receipt:` and `receipt.step(loss=loss)` |
| Hugging Face Trainer | `callbacks=[huggingface.ReceiptCallback("logs/hook.jsonl")]` |
| Lightning | `Trainer(callbacks=[lightning.ReceiptCallback("logs/hook.jsonl")])` |
| torchtitan | `torchtitan.attach(trainer, "logs/hook.jsonl")` before `trainer.train()` |
"""

from ._loop import Loop

__all__ = ["Loop"]
