"""torchtitan's own Trainer over its debug model on a CPU, tokens drawn. What stands in for a device is what its memory
monitor asks one for; the rest is torchtitan's."""

import os
import sys
from types import SimpleNamespace

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 30)
torch.cpu.current_device = lambda: 0
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda *_: None
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", NGPU="1")

from shardwright.callbacks.torchtitan import attach  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.common.decoder import Decoder  # noqa: E402

PATH, FAILS, STEPS = sys.argv[1], "fail" in sys.argv[2:], 6


class Nothing:
    def build(self, **_):
        return None


class Drawn:
    def build(self, *, seq_len, local_batch_size, **_):
        self.shape = (local_batch_size, seq_len)
        return self

    def __iter__(self):
        draw = torch.Generator().manual_seed(1)
        number = 0
        while True:
            number += 1
            if FAILS and number == 3:
                raise RuntimeError("made to fail")
            tokens = torch.randint(0, 8, (self.shape[0], self.shape[1] + 1), generator=draw)
            positions = torch.arange(self.shape[1]).expand(self.shape).contiguous()
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        pass


sys.argv = ["train", "--module", "llama3", "--config", "llama3_debugmodel"]
config = ConfigManager().parse_args()
# Flex attention has no backward on a CPU; torchtitan's other attention masks nothing but the future.
llama3.get_attention_config = lambda *_: ScaledDotProductAttention.Config()
Decoder.get_attention_masks = lambda *_, **__: None
config.model_spec = llama3.model_registry("debugmodel")
config.checkpoint.enable = False
config.training.steps, config.training.seq_len, config.training.local_batch_size = STEPS, 32, 2
config.metrics.log_freq = 1
config.dump_folder = "titan"
config.tokenizer, config.dataloader = Nothing(), Drawn()
trainer = config.build()
attach(trainer, PATH, every=2)
try:
    trainer.train()
finally:
    # As `torchtitan.train` ends, whether it failed or not.
    trainer.close()
