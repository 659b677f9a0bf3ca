import torch
from common import BATCH, PATH, RATE, fail_at, model, tokens
from shardwright.callbacks import Loop

learner = model()
optimizer = torch.optim.SGD(learner.parameters(), RATE)
with Loop(PATH, learner, every=2) as receipt:
    for number, batch in enumerate(tokens().split(BATCH), 1):
        fail_at(number)
        optimizer.zero_grad()
        loss = learner(input_ids=batch, labels=batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learner.parameters(), 1e9)
        optimizer.step()
        receipt.step(loss=loss, grad_norm=norm, samples=len(batch))
