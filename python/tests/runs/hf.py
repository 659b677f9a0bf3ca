import torch
from common import BATCH, PATH, RATE, STEPS, fail_at, model, tokens
from shardwright.callbacks.huggingface import ReceiptCallback
from transformers import Trainer, TrainerCallback, TrainingArguments


class Failing(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        fail_at(state.global_step + 1)


class Ordered(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


learner = model()
rows = [{"input_ids": row, "labels": row} for row in tokens()]
arguments = TrainingArguments(
    output_dir="out", max_steps=STEPS, per_device_train_batch_size=BATCH // 2, gradient_accumulation_steps=2,
    logging_steps=1, save_steps=3, eval_strategy="steps", eval_steps=3, report_to=[], use_cpu=True,
    max_grad_norm=1e9, disable_tqdm=True,
)  # fmt: skip
optimizer = torch.optim.SGD(learner.parameters(), RATE)
constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
Ordered(
    learner, arguments, train_dataset=rows, eval_dataset=rows[:4], optimizers=(optimizer, constant),
    callbacks=[ReceiptCallback(PATH, every=2), Failing()],
).train()  # fmt: skip
