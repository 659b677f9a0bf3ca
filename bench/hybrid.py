"""The hybrid of a recipe in plain PyTorch, in the best formulation plain PyTorch has: attention by
`scaled_dot_product_attention`, experts as products over sorted rows, Mamba-2 in chunks (Dao and Gu,
"Transformers are SSMs", listing 1), the recurrence as three operations a token. Gradients are
autograd's throughout. Parameters have the runtime's names, and its initial values, from a folder that
`steps write` made.

`hybrid.py check RECIPE.toml PATTERN FOLDER THREADS` takes a line of tokens and compares loss and the
gradient of every tensor with the runtime's, in f64. `hybrid.py eager|compile …` trains a step in f32
for each line and answers milliseconds, CPU milliseconds of all threads, loss and length of the gradient.
"""

import json
import math
import pathlib
import sys
import time
import tomllib

import torch
import torch.nn.functional as F

EPSILON = 1e-5
# How far a routing bias moves in a step, as in the runtime: DeepSeek-V3's report, section 4.2.
BIAS_STEP = 1e-3
# Tokens of the recurrence that are compiled into one function.
UNROLLED = 16


def rms(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, EPSILON)


class Block:
    """A block: its parameters by name, and its output with what it adds to the loss. `parts` are
    the functions that `compile` replaces."""

    parts = ()

    def __init__(self, weights, path):
        self.weights, self.path = weights, path

    def __getitem__(self, name):
        return self.weights[f"{self.path}.{name}"]

    def compile(self):
        for name in self.parts:
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))

    def after_step(self):
        """What is done once a step without a gradient."""


class Attention(Block):
    parts = ("forward",)

    def __init__(self, weights, path, recipe):
        super().__init__(weights, path)
        kind = recipe["attention"]
        self.heads, self.kv, self.dim = kind["heads"], kind["kv_heads"], kind["head_dim"]
        half = self.dim // 2
        rates = recipe["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(recipe["sequence"], dtype=torch.float64)[:, None] * rates
        dtype = self["qkv.weight"].dtype
        # Angles are rounded before their sine is taken, as the runtime's are.
        angles = angles.to(dtype).double()
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(self, x):
        low, high = x.chunk(2, -1)
        return torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), -1)

    def forward(self, x):
        batch, length, _ = x.shape
        widths = [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim]
        packed = F.linear(x, self["qkv.weight"]).split(widths, -1)
        q, k, v = (p.view(batch, length, -1, self.dim).transpose(1, 2) for p in packed)
        q, k = self.turn(q), self.turn(k)
        k, v = (p.repeat_interleave(self.heads // self.kv, 1) for p in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(y.transpose(1, 2).reshape(batch, length, -1), self["out.weight"]), 0.0


class Experts(Block):
    parts = ("route", "one", "shared")

    def __init__(self, weights, path, recipe):
        super().__init__(weights, path)
        kind = recipe["moe"]
        self.experts, self.top_k = kind["experts"], kind["top_k"]
        self.aux = kind["router"]["aux_loss"]
        self.bias = torch.zeros(self.experts, dtype=self["router.weight"].dtype)

    def after_step(self):
        self.bias += BIAS_STEP * torch.sign(self.counts.to(torch.float64).mean() - self.counts)

    def route(self, flat):
        scores = torch.sigmoid(F.linear(flat, self["router.weight"]))
        experts = (scores + self.bias).topk(self.top_k, -1).indices
        chosen = scores.gather(-1, experts)
        weights = chosen / chosen.sum(-1, keepdim=True)
        order = experts.flatten().argsort(stable=True)
        counts = experts.flatten().bincount(minlength=self.experts)
        shares = (scores / scores.sum(-1, keepdim=True)).mean(0)
        balance = self.aux * self.experts / self.top_k * (shares * counts / flat.shape[0]).sum()
        return weights.flatten()[order, None], order // self.top_k, counts, balance

    def one(self, rows, fc1, fc2):
        return F.relu(rows @ fc1.T).square() @ fc2.T

    def shared(self, flat):
        gate, up = F.linear(flat, self["shared.fc1.weight"]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self["shared.fc2.weight"])

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, tokens, counts, balance = self.route(flat)
        self.counts = counts
        banks = zip(self["experts.fc1.weight"].unbind(), self["experts.fc2.weight"].unbind())
        rows = flat[tokens].split(counts.tolist())
        outs = [self.one(rows, fc1, fc2) for rows, (fc1, fc2) in zip(rows, banks)]
        y = torch.zeros_like(flat).index_add(0, tokens, torch.cat(outs) * weights)
        return (y + self.shared(flat)).view_as(x), balance

    def compile(self):
        self.route, self.shared = (torch.compile(f, dynamic=False) for f in (self.route, self.shared))
        # Every expert gets another number of rows in every step.
        self.one = torch.compile(self.one, dynamic=True)


def convolved(x, weight, bias):
    """A causal convolution of each channel over time, and SiLU."""
    taps = weight.shape[-1]
    y = F.conv1d(x.transpose(1, 2), weight, bias, padding=taps - 1, groups=weight.shape[0])
    return F.silu(y[..., : x.shape[1]].transpose(1, 2))


class Mamba(Block):
    parts = ("forward",)

    def __init__(self, weights, path, recipe):
        super().__init__(weights, path)
        kind = recipe["mamba"]
        self.heads, self.dim, self.state = kind["heads"], kind["head_dim"], kind["state"]
        self.groups, self.chunk = kind["groups"], kind["chunk"]
        self.inner, grouped = self.heads * self.dim, self.groups * self.state
        self.widths = [self.inner, self.inner + 2 * grouped, self.heads]
        self.unseen = torch.ones(self.chunk, self.chunk, dtype=torch.bool).triu(1)

    def forward(self, u):
        batch, length, _ = u.shape
        z, xbc, dt = F.linear(u, self["in_proj.weight"]).split(self.widths, -1)
        xbc = convolved(xbc, self["conv.weight"], self["conv.bias"])
        grouped = self.groups * self.state
        x, b, c = xbc.split([self.inner, grouped, grouped], -1)
        x = x.view(batch, length, self.heads, self.dim)
        dt = F.softplus(dt + self["dt_bias"])
        y = self.scan(x * dt[..., None], dt * -self["A_log"].exp(), b, c) + x * self["D"][:, None]
        gated = (y.reshape(batch, length, self.inner) * F.silu(z)).view(batch, length, self.groups, -1)
        normed = F.rms_norm(gated, (gated.shape[-1],), None, EPSILON).reshape(batch, length, -1)
        return F.linear(normed * self["gate_norm.weight"], self["out_proj.weight"]), 0.0

    def scan(self, x, decay, b, c):
        """Chunks: within one by a masked product of C and B, between them by the states."""
        batch, length = x.shape[:2]
        chunks, each, per = length // self.chunk, self.chunk, self.heads // self.groups
        x = x.view(batch, chunks, each, self.groups, per, self.dim).permute(0, 1, 3, 4, 2, 5)
        decay = decay.view(batch, chunks, each, self.groups, per).permute(0, 1, 3, 4, 2)
        b, c = (p.view(batch, chunks, each, self.groups, self.state).transpose(2, 3) for p in (b, c))
        sums = decay.cumsum(-1)
        kept = (sums[..., :, None] - sums[..., None, :]).masked_fill(self.unseen, -torch.inf).exp()
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
        return y.permute(0, 1, 4, 2, 3, 5).reshape(batch, length, self.heads, self.dim)


class Recurrent(Block):
    parts = ("before", "tokens", "behind")

    def __init__(self, weights, path, recipe):
        super().__init__(weights, path)
        kind = recipe["recurrent"]
        self.heads, self.key, self.value = kind["heads"], kind["key_dim"], kind["value_dim"]
        inner = self.heads * self.value
        self.widths = [2 * self.key + inner, self.heads, inner]

    def before(self, u):
        batch, length, _ = u.shape
        qkv, f, g = F.linear(u, self["in_proj.weight"]).split(self.widths, -1)
        qkv = convolved(qkv, self["conv.weight"], self["conv.bias"])
        q, k, v = qkv.split([self.key, self.key, self.heads * self.value], -1)
        v = v.view(batch, length, self.heads, self.value)
        forget = (-self["A_log"].exp() * F.softplus(f + self["dt_bias"])).exp()
        outer = k[:, :, None, :, None] * v[:, :, :, None, :]
        # One batch of small matrices for every token: sequences and heads together.
        outer = outer.transpose(0, 1).reshape(length, batch * self.heads, self.key, self.value)
        keep = forget.transpose(0, 1).reshape(length, batch * self.heads, 1, 1)
        return q, v, g, outer, keep, self["state_weight"].repeat(batch, 1, 1)

    def tokens(self, state, outer, keep, square):
        states = []
        for outer, keep in zip(outer.unbind(), keep.unbind()):
            state = torch.lerp(torch.baddbmm(outer, state, square).tanh(), state, keep)
            states.append(state)
        return torch.stack(states)

    def behind(self, q, v, g, states):
        batch, length = q.shape[:2]
        states = states.view(length, batch, self.heads, self.key, self.value)
        y = torch.einsum("bsk,sbhkv->bshv", q, states) + v * self["D"]
        gated = y.reshape(batch, length, -1) * F.silu(g)
        return F.linear(rms(gated, self["gate_norm.weight"]), self["out_proj.weight"])

    def forward(self, u):
        q, v, g, outer, keep, square = self.before(u)
        state, states = torch.zeros_like(outer[0]), []
        for outer, keep in zip(outer.split(UNROLLED), keep.split(UNROLLED)):
            states.append(self.tokens(state, outer, keep, square))
            state = states[-1][-1]
        return self.behind(q, v, g, torch.cat(states)), 0.0


BLOCKS = {"A": ("attention", Attention), "E": ("moe", Experts), "M": ("mamba", Mamba), "R": ("recurrent", Recurrent)}


class Hybrid:
    def __init__(self, recipe, pattern, weights):
        self.weights, self.blocks = weights, []
        for layer, letter in enumerate(pattern):
            name, block = BLOCKS[letter]
            self.blocks.append(block(weights, f"layers.{layer}.{name}", recipe))

    def edge(self, x, targets):
        logits = F.linear(rms(x, self.weights["final.norm.weight"]), self.weights["head.weight"])
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def compile(self):
        self.edge = torch.compile(self.edge, dynamic=False)
        for block in self.blocks:
            block.compile()

    def loss(self, tokens, targets):
        x, balance = F.embedding(tokens, self.weights["embedding.tokens.weight"]), 0.0
        for block in self.blocks:
            y, more = block.forward(rms(x, block["norm.weight"]))
            x, balance = x + y, balance + more
        return self.edge(x, targets), balance


def numbers(path, tensors):
    """Tensors of a file that holds them one behind the other."""
    everything = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float64)
    parts = everything.split([math.prod(shape) for _, shape in tensors])
    return {name: part.view(shape) for (name, shape), part in zip(tensors, parts)}


def batch(line):
    sequence = torch.tensor([[int(word) for word in line.split()]])
    return sequence[:, :-1], sequence[:, 1:]


def check(model, folder, index):
    """Prints the largest difference of loss, and of each tensor's gradient, over its length."""
    loss, balance = model.loss(*batch(sys.stdin.readline()))
    (loss + balance).backward()
    theirs = {"loss": loss.item(), "balance": float(torch.as_tensor(balance).detach())}
    worst = {name: abs(value / index[name] - 1) for name, value in theirs.items() if index[name] != 0}
    for name, ours in numbers(folder / "gradients", index["tensors"]).items():
        worst[name] = ((model.weights[name].grad - ours).norm() / ours.norm()).item()
    print(json.dumps(worst), flush=True)


def groups(weights):
    """Norms, biases and scalars of heads are not decayed."""
    scalars = ("norm.weight", "bias", "A_log", ".D", "state_weight")
    decayed = [p for name, p in weights.items() if not name.endswith(scalars)]
    rest = [p for name, p in weights.items() if name.endswith(scalars)]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def train(model):
    parameters = list(model.weights.values())
    optimizer = torch.optim.AdamW(groups(model.weights), lr=3e-4, betas=(0.9, 0.95), fused=True)
    for line in sys.stdin:
        tokens, targets = batch(line)
        begun, before = time.perf_counter(), time.process_time()
        loss, balance = model.loss(tokens, targets)
        (loss + balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for block in model.blocks:
            block.after_step()
        wall, busy = (time.perf_counter() - begun) * 1e3, (time.process_time() - before) * 1e3
        print(f"{wall:.3f} {busy:.3f} {loss.item():.9f} {norm.item():.9f}", flush=True)


def main(mode, path, pattern, folder, threads):
    torch.set_num_threads(int(threads))
    with open(path, "rb") as file:
        recipe = tomllib.load(file)
    folder = pathlib.Path(folder)
    index = json.loads((folder / "index.json").read_text())
    dtype = torch.float64 if mode == "check" else torch.float32
    weights = numbers(folder / "weights", index["tensors"])
    weights = {name: weight.to(dtype).clone().requires_grad_() for name, weight in weights.items()}
    model = Hybrid(recipe, pattern, weights)
    if mode == "check":
        return check(model, folder, index)
    if mode == "compile":
        model.compile()
    train(model)


if __name__ == "__main__":
    main(*sys.argv[1:])
