import torch
from common import BATCH, PATH, RATE, STEPS, fail_at, model, tokens
from lightning.pytorch import LightningModule, Trainer
from shardwright.callbacks.lightning import ReceiptCallback


class Learner(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model()

    def training_step(self, batch, index):
        fail_at(self.global_step + 1)
        return self.model(input_ids=batch, labels=batch).loss

    def validation_step(self, batch, index):
        self.log("loss", self.model(input_ids=batch, labels=batch).loss)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


Trainer(
    accelerator="cpu", devices=1, max_steps=STEPS, accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
    enable_model_summary=False, val_check_interval=6, check_val_every_n_epoch=None,
    callbacks=[ReceiptCallback(PATH, every=2)],
).fit(
    Learner(),
    torch.utils.data.DataLoader(tokens(), batch_size=BATCH // 2),
    torch.utils.data.DataLoader(tokens()[:4], batch_size=4),
)  # fmt: skip
