"""The hybrid of a recipe in plain PyTorch, in the best formulation plain PyTorch has: attention by
`scaled_dot_product_attention`, experts as products over sorted rows, Mamba-2 in chunks (Dao and Gu,
"Transformers are SSMs", listing 1), the recurrence as three operations a token.

`hybrid.py RECIPE.toml PATTERN THREADS eager|compile` trains one step for each line read and answers
milliseconds and loss.
"""

import math
import sys
import time
import tomllib

import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-5


def rms(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, EPSILON)


def linear(out, into):
    layer = nn.Linear(into, out, bias=False)
    nn.init.normal_(layer.weight, 0.0, into**-0.5)
    return layer


class Attention(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        kind, hidden = recipe["attention"], recipe["hidden"]
        self.heads, self.kv, self.dim = kind["heads"], kind["kv_heads"], kind["head_dim"]
        self.qkv = linear((self.heads + 2 * self.kv) * self.dim, hidden)
        self.out = linear(hidden, self.heads * self.dim)
        half = self.dim // 2
        rates = recipe["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(recipe["sequence"], dtype=torch.float64)[:, None] * rates
        self.register_buffer("cos", angles.cos().float())
        self.register_buffer("sin", angles.sin().float())

    def turn(self, x):
        low, high = x.chunk(2, -1)
        return torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), -1)

    def forward(self, x):
        batch, time_, _ = x.shape
        widths = [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim]
        q, k, v = (p.view(batch, time_, -1, self.dim).transpose(1, 2) for p in self.qkv(x).split(widths, -1))
        q, k = self.turn(q), self.turn(k)
        k, v = (p.repeat_interleave(self.heads // self.kv, 1) for p in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time_, -1)), 0.0


class Experts(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        kind, hidden = recipe["moe"], recipe["hidden"]
        self.experts, self.top_k, width = kind["experts"], kind["top_k"], kind["ffn"]
        self.aux = kind["router"]["aux_loss"]
        self.router = linear(self.experts, hidden)
        self.fc1 = nn.Parameter(torch.randn(self.experts, width, hidden) * hidden**-0.5)
        self.fc2 = nn.Parameter(torch.randn(self.experts, hidden, width) * width**-0.5)
        self.shared1 = linear(2 * kind["shared"]["ffn"], hidden)
        self.shared2 = linear(hidden, kind["shared"]["ffn"])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = torch.sigmoid(self.router(flat))
        chosen, experts = scores.topk(self.top_k, -1)
        weights = chosen / chosen.sum(-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=self.experts)
        tokens = order // self.top_k
        outs = []
        for expert, rows in enumerate(flat[tokens].split(counts.tolist())):
            outs.append(F.relu(rows @ self.fc1[expert].T).square() @ self.fc2[expert].T)
        routed = torch.cat(outs) * weights.flatten()[order, None]
        y = torch.zeros_like(flat).index_add(0, tokens, routed)
        gate, up = self.shared1(flat).chunk(2, -1)
        y = y + self.shared2(F.silu(gate) * up)
        shares = (scores / scores.sum(-1, keepdim=True)).mean(0)
        balance = self.aux * self.experts / self.top_k * (shares * counts / flat.shape[0]).sum()
        return y.view_as(x), balance


class Mamba(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        kind, hidden = recipe["mamba"], recipe["hidden"]
        self.heads, self.dim, self.state = kind["heads"], kind["head_dim"], kind["state"]
        self.groups, self.chunk = kind["groups"], kind["chunk"]
        self.inner, grouped = self.heads * self.dim, self.groups * self.state
        self.widths = [self.inner, self.inner + 2 * grouped, self.heads]
        self.into = linear(sum(self.widths), hidden)
        self.out = linear(hidden, self.inner)
        self.conv = nn.Conv1d(self.widths[1], self.widths[1], 4, groups=self.widths[1], padding=3)
        steps = torch.exp(torch.empty(self.heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.a_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.skip = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.Parameter(torch.ones(self.inner))

    def forward(self, u):
        batch, time_, _ = u.shape
        z, xbc, dt = self.into(u).split(self.widths, -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :time_].transpose(1, 2))
        grouped = self.groups * self.state
        x, b, c = xbc.split([self.inner, grouped, grouped], -1)
        x = x.view(batch, time_, self.heads, self.dim)
        dt = F.softplus(dt + self.dt_bias)
        y = self.scan(x * dt[..., None], dt * -self.a_log.exp(), b, c) + x * self.skip[:, None]
        gated = (y.reshape(batch, time_, self.inner) * F.silu(z)).view(batch, time_, self.groups, -1)
        normed = F.rms_norm(gated, (gated.shape[-1],), None, EPSILON).reshape(batch, time_, -1) * self.norm
        return self.out(normed), 0.0

    def scan(self, x, decay, b, c):
        """Chunks: within one by a masked product of C and B, between them by the states."""
        batch, time_ = x.shape[:2]
        chunks, each, per = time_ // self.chunk, self.chunk, self.heads // self.groups
        x = x.view(batch, chunks, each, self.groups, per, self.dim).permute(0, 1, 3, 4, 2, 5)
        decay = decay.view(batch, chunks, each, self.groups, per).permute(0, 1, 3, 4, 2)
        b, c = (p.view(batch, chunks, each, self.groups, self.state).transpose(2, 3) for p in (b, c))
        sums = decay.cumsum(-1)
        seen = torch.ones(each, each, dtype=torch.bool).tril()
        kept = (sums[..., :, None] - sums[..., None, :]).masked_fill(~seen, -torch.inf).exp()
        y = ((c @ b.transpose(-1, -2))[:, :, :, None] * kept) @ x
        left = (sums[..., -1:] - sums).exp()
        made = (x * left[..., None]).transpose(-1, -2) @ b[:, :, :, None]
        state, states = torch.zeros_like(made[:, 0]), []
        whole = sums[..., -1].exp()
        for i in range(chunks):
            states.append(state)
            state = state * whole[:, i, ..., None, None] + made[:, i]
        before = torch.stack(states, 1)
        y = y + (c[:, :, :, None] * sums.exp()[..., None]) @ before.transpose(-1, -2)
        return y.permute(0, 1, 4, 2, 3, 5).reshape(batch, time_, self.heads, self.dim)


class Recurrent(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        kind, hidden = recipe["recurrent"], recipe["hidden"]
        self.heads, self.key, self.value = kind["heads"], kind["key_dim"], kind["value_dim"]
        inner = self.heads * self.value
        self.widths = [2 * self.key + inner, self.heads, inner]
        self.into = linear(sum(self.widths), hidden)
        self.out = linear(hidden, inner)
        self.conv = nn.Conv1d(self.widths[0], self.widths[0], 4, groups=self.widths[0], padding=3)
        self.a_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.full((self.heads,), -4.0))
        self.square = nn.Parameter(torch.randn(self.heads, self.value, self.value) * self.value**-0.5)
        self.skip = nn.Parameter(torch.ones(self.heads, self.value))
        self.norm = nn.Parameter(torch.ones(inner))

    def forward(self, u):
        batch, time_, _ = u.shape
        qkv, f, g = self.into(u).split(self.widths, -1)
        qkv = F.silu(self.conv(qkv.transpose(1, 2))[..., :time_].transpose(1, 2))
        q, k, v = qkv.split([self.key, self.key, self.heads * self.value], -1)
        v = v.view(batch, time_, self.heads, self.value)
        forget = (-self.a_log.exp() * F.softplus(f + self.dt_bias)).exp()
        outer = (k[:, :, None, :, None] * v[:, :, :, None, :]).view(batch, time_, self.heads, self.key, -1)
        # One batch of small matrices for every token: sequences and heads together.
        outer = outer.transpose(0, 1).reshape(time_, batch * self.heads, self.key, self.value).unbind()
        keep = forget.transpose(0, 1).reshape(time_, batch * self.heads, 1, 1).unbind()
        square = self.square.repeat(batch, 1, 1)
        state, states = torch.zeros_like(outer[0]), []
        for t in range(time_):
            state = torch.lerp(torch.baddbmm(outer[t], state, square).tanh(), state, keep[t])
            states.append(state)
        states = torch.stack(states).view(time_, batch, self.heads, self.key, self.value)
        y = torch.einsum("bsk,sbhkv->bshv", q, states) + v * self.skip
        gated = y.reshape(batch, time_, -1) * F.silu(g)
        return self.out(rms(gated, self.norm)), 0.0


BLOCKS = {"A": Attention, "E": Experts, "M": Mamba, "R": Recurrent}


class Hybrid(nn.Module):
    def __init__(self, recipe, pattern):
        super().__init__()
        hidden = recipe["hidden"]
        self.table = nn.Embedding(recipe["vocab"], hidden)
        self.blocks = nn.ModuleList(BLOCKS[letter](recipe) for letter in pattern)
        self.norms = nn.ParameterList(torch.ones(hidden) for _ in range(len(pattern) + 1))
        self.head = linear(recipe["vocab"], hidden)

    def forward(self, tokens, targets):
        x, balance = self.table(tokens), 0.0
        for norm, block in zip(self.norms, self.blocks):
            y, more = block(rms(x, norm))
            x, balance = x + y, balance + more
        logits = self.head(rms(x, self.norms[-1]))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss, balance


def synthetic(recipe, generator):
    """Each token follows from the one before by one of two rules."""
    token, sequence = int(torch.randint(recipe["vocab"], (1,), generator=generator)), []
    for bit in torch.randint(2, (recipe["sequence"] + 1,), generator=generator).tolist():
        sequence.append(token)
        token = (token * 5 + 3 + bit) % recipe["vocab"]
    sequence = torch.tensor([sequence])
    return sequence[:, :-1], sequence[:, 1:]


def main(path, pattern, threads, mode):
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    with open(path, "rb") as file:
        recipe = tomllib.load(file)
    model = Hybrid(recipe, pattern)
    run = torch.compile(model) if mode == "compile" else model
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    generator = torch.Generator().manual_seed(1)
    for _ in sys.stdin:
        tokens, targets = synthetic(recipe, generator)
        begun = time.perf_counter()
        loss, balance = run(tokens, targets)
        (loss + balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        print(f"{(time.perf_counter() - begun) * 1e3:.3f} {value:.4f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
