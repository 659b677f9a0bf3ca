"""Time of whole training steps of small stacks on one GPU: rows that no curve was made from.

    python3 tools/measure_steps.py OUT.jsonl

Layers of real widths, a few of them, in plain torch: forward, loss, backward and AdamW timed apart by CUDA events, median
of ten steps after five. A case is written as the rows of data/truth/megatron_h200.jsonl are; `compile` says whether
layers went through torch.compile. Mamba-2 needs mamba_ssm's Triton scan and is left out where it cannot be imported.
"""

import json
import statistics
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = torch.device("cuda")


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight)


def linear(into, out):
    return nn.Linear(into, out, bias=False)


def rotate(x, angles):
    cos, sin = angles
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.kv = m["heads"], m.get("kv_heads", m["heads"])
        self.dim = m.get("head_dim", m["hidden"] // m["heads"])
        self.qkv = linear(m["hidden"], (self.heads + 2 * self.kv) * self.dim)
        self.out = linear(self.heads * self.dim, m["hidden"])
        self.norm = Norm(m["hidden"])

    def forward(self, x, angles):
        batch, length, _ = x.shape
        packed = self.qkv(self.norm(x)).view(batch, length, -1, self.dim).transpose(1, 2)
        q, k, v = packed.split((self.heads, self.kv, self.kv), 1)
        y = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True, enable_gqa=self.kv != self.heads)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.gated = m.get("act", "swiglu") == "swiglu"
        self.up = linear(m["hidden"], m["ffn"] * (2 if self.gated else 1))
        self.down = linear(m["ffn"], m["hidden"])
        self.norm = Norm(m["hidden"])

    def forward(self, x, angles):
        y = self.up(self.norm(x))
        if self.gated:
            a, b = y.chunk(2, -1)
            y = F.silu(a) * b
        else:
            y = F.relu(y).square()
        return x + self.down(y)


class Experts(nn.Module):
    """Dropless experts under balanced routing, products grouped."""

    def __init__(self, m):
        super().__init__()
        self.count, self.top, self.ffn = m["experts"], m["topk"], m["expert_ffn"]
        self.gated = m.get("act", "swiglu") == "swiglu"
        self.router = linear(m["hidden"], self.count)
        self.up = nn.Parameter(torch.randn(self.count, m["hidden"], self.ffn * (2 if self.gated else 1)) * 0.02)
        self.down = nn.Parameter(torch.randn(self.count, self.ffn, m["hidden"]) * 0.02)
        self.shared = None
        if m.get("shared_expert"):
            self.shared = Mlp({**m, "ffn": m["shared_expert"]})
            self.shared.norm = nn.Identity()
        self.norm = Norm(m["hidden"])

    def forward(self, x, angles):
        batch, length, width = x.shape
        h = self.norm(x).view(-1, width)
        scores = torch.softmax(self.router(h).float(), -1)
        tokens = h.shape[0]
        # Balanced by force: token t takes experts t, t+1, … as the rows of Megatron were run.
        chosen = (torch.arange(tokens, device=x.device)[:, None] + torch.arange(self.top, device=x.device)) % self.count
        weights = scores.gather(1, chosen).to(h.dtype)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=self.count).cumsum(0).to(torch.int32)
        y = torch._grouped_mm(h[order // self.top], self.up, offs=ends)
        if self.gated:
            a, b = y.chunk(2, -1)
            y = F.silu(a) * b
        else:
            y = F.relu(y).square()
        y = torch._grouped_mm(y, self.down, offs=ends) * weights.flatten()[order][:, None]
        out = torch.zeros_like(h).index_add_(0, order // self.top, y)
        if self.shared is not None:
            out = out + (self.shared(h, angles) - h)
        return x + out.view(batch, length, width)


class Mamba(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.heads, self.dim, self.state, self.groups = m["mamba_heads"], m["mamba_head_dim"], m["mamba_state"], m["mamba_groups"]
        inner = self.heads * self.dim
        self.inner, self.mixed = inner, inner + 2 * self.groups * self.state
        self.into = linear(m["hidden"], inner + self.mixed + self.heads)
        self.conv = nn.Parameter(torch.randn(self.mixed, 4) * 0.1)
        self.rate = nn.Parameter(torch.zeros(self.heads))
        self.bias = nn.Parameter(torch.zeros(self.heads))
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.gate_norm = Norm(inner)
        self.out = linear(inner, m["hidden"])
        self.norm = Norm(m["hidden"])

    def forward(self, x, angles):
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as scan

        z, mixed, dt = self.into(self.norm(x)).split((self.inner, self.mixed, self.heads), -1)
        mixed = convolve(mixed, self.conv)
        batch, length, _ = x.shape
        u, b, c = mixed.split((self.inner, self.groups * self.state, self.groups * self.state), -1)
        y = scan(u.view(batch, length, self.heads, -1), dt, -torch.exp(self.rate.float()), b.reshape(batch, length, self.groups, -1),
                 c.reshape(batch, length, self.groups, -1), 128, D=self.skip.float(), dt_bias=self.bias.float(), dt_softplus=True)
        y = gate(y.reshape(batch, length, -1), z, self.gate_norm.weight)
        return x + self.out(y)


@torch.compile
def convolve(x, w):
    """A causal convolution of width four, one pass over memory."""
    padded = F.pad(x, (0, 0, 3, 0))
    length = x.shape[1]
    return F.silu(sum(padded[:, i : i + length] * w[:, i] for i in range(4)))


@torch.compile
def gate(y, z, weight):
    return F.rms_norm(y * F.silu(z), (y.shape[-1],), weight)


BLOCKS = {"*": Attention, "-": Mlp, "E": Experts, "M": Mamba}


class Stack(nn.Module):
    def __init__(self, m):
        super().__init__()
        pattern = m.get("pattern") or ("*E" if m.get("experts") else "*-") * m["layers"]
        self.embedding = nn.Embedding(m["vocab"], m["hidden"])
        self.blocks = nn.ModuleList(BLOCKS[symbol](m) for symbol in pattern)
        self.norm = Norm(m["hidden"])
        self.head = linear(m["hidden"], m["vocab"])

    def forward(self, tokens, angles):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


def measure(case):
    torch.manual_seed(0)
    m = case["model"]
    with torch.device(DEVICE):
        stack = Stack(m).to(torch.bfloat16)
    if case["compile"]:
        for i, block in enumerate(stack.blocks):
            if not isinstance(block, Mamba):
                stack.blocks[i] = torch.compile(block)
    dim = m.get("head_dim", m["hidden"] // m["heads"])
    turns = torch.outer(torch.arange(case["seq"], device=DEVICE).float(), 500000.0 ** -(torch.arange(0, dim, 2, device=DEVICE) / dim))
    angles = tuple(f(torch.cat((turns, turns), -1)).to(torch.bfloat16) for f in (torch.cos, torch.sin))
    optimizer = torch.optim.AdamW(stack.parameters(), fused=True)
    tokens = torch.randint(m["vocab"], (case["mbs"], case["seq"]), device=DEVICE)
    parts = []
    for step in range(15):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if case["attention"] == "cudnn" else SDPBackend.FLASH_ATTENTION):
            logits = stack(tokens, angles)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
            del logits
            marks[1].record()
            loss.backward()
            marks[2].record()
        optimizer.step()
        optimizer.zero_grad()
        marks[3].record()
        torch.cuda.synchronize()
        if step >= 5:
            parts.append([marks[i].elapsed_time(marks[i + 1]) / 1e3 for i in range(3)])
    middle = [statistics.median(column) for column in zip(*parts)]
    params = sum(p.numel() for p in stack.parameters())
    return {"case": case, "params": params, "forward_seconds": middle[0], "backward_seconds": middle[1], "optimizer_seconds": middle[2],
            "step_seconds": sum(middle), "torch": torch.__version__, "device": torch.cuda.get_device_name()}


def cases():
    big = dict(hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, layers=4)
    small = dict(hidden=2048, ffn=8192, heads=16, kv_heads=16, vocab=32000, layers=8)
    wide = dict(hidden=8192, ffn=28672, heads=64, kv_heads=8, vocab=32000, layers=3)
    experts = dict(hidden=2048, heads=16, kv_heads=4, head_dim=128, vocab=65536, layers=6, experts=16, topk=4, expert_ffn=1024, ffn=4096)
    nam = dict(hidden=3584, ffn=18944, heads=56, kv_heads=8, vocab=65536, experts=16, topk=4, expert_ffn=896, shared_expert=1024, act="relu2",
               mamba_heads=56, mamba_head_dim=64, mamba_state=64, mamba_groups=8)
    hybrid = dict(hidden=4096, ffn=21504, heads=32, kv_heads=8, vocab=131072, act="relu2", mamba_heads=128, mamba_head_dim=64, mamba_state=128, mamba_groups=8)
    plain = dict(world=1, rank=0, seq=4096, mbs=1, compile=True, attention="cudnn")
    out = []
    for name, model, changes in [
        ("dense-big", big, [{}, dict(mbs=2), dict(seq=8192), dict(compile=False), dict(attention="flash"), dict(seq=2048, mbs=4)]),
        ("dense-small", small, [{}, dict(mbs=4), dict(compile=False), dict(seq=16384)]),
        ("dense-wide", wide, [{}, dict(mbs=2)]),
        ("experts", experts, [{}, dict(mbs=4), dict(compile=False)]),
        ("nam", {**nam, "pattern": "*EME*EMEM"}, [{}, dict(mbs=4), dict(seq=8192, mbs=2), dict(compile=False, mbs=4)]),
        ("mamba", {**nam, "pattern": "MMMMMM"}, [{}, dict(mbs=4)]),
        ("hybrid", {**hybrid, "pattern": "M-M-M*-M-"}, [{}, dict(seq=8192), dict(mbs=4)]),
    ]:
        for change in changes:
            label = "-".join(f"{k}{v}" for k, v in change.items())
            out.append({"name": f"{name}-{label or 'plain'}", **plain, **change, "model": model})
    return out


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        for case in cases():
            try:
                row = measure(case)
            except Exception as error:
                row = {"case": case, "error": f"{type(error).__name__}: {str(error)[:300]}"}
            torch.cuda.empty_cache()
            torch._dynamo.reset()
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(case["name"], row.get("error") or f"{row['step_seconds'] * 1e3:.1f} ms, optimizer {row['optimizer_seconds'] * 1e3:.1f}", flush=True)
